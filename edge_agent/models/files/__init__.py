"""Network files, read without an engine: checks, metadata, and where the weights are."""
