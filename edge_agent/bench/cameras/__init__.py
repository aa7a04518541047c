"""`edge-agent bench cameras`."""
