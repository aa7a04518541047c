"""A model that runs while it arrives: its stages are built as their weights come.

All of it happens in the child process of a trial. A model that does not fit (another format,
another order, a graph that cannot be cut) is no error: it is run when it is complete.

Stays, though trying a model when it is complete would be some hundred lines less: docs/push.md
promises the first result of a large model before its last byte.
"""
