"""Prepared forms: the work of loading a model, done once on the device and stored.

The artifact of a model is a folder: the network's graph as optimized by the engine, cut into stages
if it does not fit in memory, and its weights in one file, in the order in which they are needed.
`artifact` and `load` are on the path to the first result and import almost nothing; `compile` runs
in a child process in the background.
"""
