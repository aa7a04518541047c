"""One module per command: its arguments, and its work."""
