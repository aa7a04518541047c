"""A pushed model: received, run while it arrives, tried, and exchanged for the one that serves."""
