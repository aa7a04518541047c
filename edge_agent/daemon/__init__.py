"""`edge-agent run`: the composition root, its services, and the fast start."""
