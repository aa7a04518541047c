"""The serving models: loading, exchange, and what is known about their engines."""
