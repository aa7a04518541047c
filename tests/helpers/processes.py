"""The child processes of this process, and of an agent."""

from __future__ import annotations

import psutil


def children_of(pid: int | None, module: str) -> list[psutil.Process]:
    """List the processes under one that run a module; without a *pid*, under this process."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if module in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
