"""Bounded queues per pipeline, and which of them an inference lane takes from next."""
