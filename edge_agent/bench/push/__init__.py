"""`edge-agent bench push`."""
