"""The models that serve: loading, exchange, and the memory of their engines."""
