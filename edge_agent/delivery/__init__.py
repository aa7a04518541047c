"""A pushed model: received, run while it arrives, tried, and put in place of the serving one."""
