"""Code that the benchmarks share."""
