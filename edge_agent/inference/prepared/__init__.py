"""Prepared forms: the needs of a model's start, worked out once on the device and kept.

The artifact of a model is a folder: the network's graph as the engine has optimized it, cut into
stages where it does not fit in memory, and its weights in one file, in the order in which they are
needed. `artifact` and `load` lie on the way to the first result and import next to nothing;
`compile` is work of a child process in the background.
"""
