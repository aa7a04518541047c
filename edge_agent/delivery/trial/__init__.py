"""The trial of a candidate in a process of its own, also while it is still arriving."""
