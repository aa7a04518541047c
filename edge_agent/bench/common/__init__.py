"""Code shared by the benchmarks."""
