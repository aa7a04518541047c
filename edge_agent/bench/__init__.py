"""Measures this device, always beside what a plain script gets in the same run.

Stays in the package: the public interface promises `edge-agent bench` without a checkout.
"""
