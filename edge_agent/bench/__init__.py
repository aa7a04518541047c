"""Measures this device, always compared with a plain script in the same run.

Part of the package: the public interface promises `edge-agent bench` without a checkout.
"""
