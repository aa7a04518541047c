"""From exec to the first result: work that begins before most of the program is loaded.

Modules here must only import what they need at once: all are on the path to the first result, and
a warm start mostly waits for Python itself.
"""
