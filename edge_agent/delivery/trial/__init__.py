"""The trial of a candidate in a separate process, even while it is still arriving."""
