"""Network files, read without an engine: checks, metadata, where the weights lie."""
