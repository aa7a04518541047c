"""A model that runs while it is still arriving: its stages are built as their weights come.

All of it happens in the child process of a trial. A model that does not fit in here (another
format, another order, a graph that cannot be cut) is no error: it waits until it is whole.
"""
