"""Measures this device, always beside a plain script in the same run.

Stays in the package: the public interface promises `edge-agent bench` without a checkout.
"""
