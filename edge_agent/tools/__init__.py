"""Offline tools for models: quantisation with its measurements and report."""
