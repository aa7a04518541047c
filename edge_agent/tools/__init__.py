"""Offline tools for models: quantization with its measurements and report."""
