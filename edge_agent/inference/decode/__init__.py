"""Decoders from a network's raw outputs to results, one file per family."""
