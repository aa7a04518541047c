"""Bounded queues, one per pipeline, and the choice of the one that a lane serves next."""
