"""A model that runs while it arrives, in the child of its trial: stages are built as weights come.

One that does not fit (another format, another order, a graph that cannot be cut) is no error: it is
run when it is complete. docs/push.md promises the first result before its last byte.
"""
