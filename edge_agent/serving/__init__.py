"""The models that serve: loading, exchange, and what is remembered of their engines."""
