"""A model that runs while it arrives, in its trial's child: stages are built as weights come.

If a model is not suitable (another format, another order, a graph that cannot be cut), it is run
when it is complete. docs/push.md promises the first result before its last byte.
"""
