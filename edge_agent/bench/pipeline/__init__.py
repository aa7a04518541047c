"""`edge-agent bench pipeline`."""
