"""Bounded queues, one per pipeline, and which of them an inference lane takes from next."""
