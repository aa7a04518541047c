"""Delivery: a model's way from the broker to the pipelines, and back.

receive  packages as they arrive, in the thread that takes requests
rollout  from a complete package to the version that serves, in the deployer's thread
trial    the trial in a child process: the agent's side, the child, the early trial
early    a model that runs in that child while it arrives

docs/architecture.md lists the steps of a push, each with its module.
"""
