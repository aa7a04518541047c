"""Measures this device, always beside what a plain script gets in the same run."""
