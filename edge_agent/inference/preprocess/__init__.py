"""Samples to model-ready tensors, as the manifest's `[input]` says."""
