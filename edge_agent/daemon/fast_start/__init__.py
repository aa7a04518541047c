"""From exec to the first result: work that begins before most of the program is loaded.

Nothing in here may import more than it needs at once: every module lies on the way to the first
result, and Python's own work is what a warm start waits for.
"""
