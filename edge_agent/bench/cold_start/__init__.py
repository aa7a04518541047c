"""`edge-agent bench cold-start`."""
