"""From a complete package to the serving version, and back."""
