"""Prepared forms: what a model's start needs, worked out once on the device and kept.

A form is a folder: the network's graph as the engine has optimised it, cut into stages; its weights
in one file, in the order in which they are needed; and what was measured of each way to load it.
`form` and `begin` lie on the way to the first result and import next to nothing; all else is work
of a child process in the background.
"""
