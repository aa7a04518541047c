"""Home Assistant."""
