"""Checks whether memory has space for one more model."""

from __future__ import annotations

FACTOR = 3.0
"""Estimated memory of a model that is not loaded, as a multiple of the size of its files."""
FLOOR = 128 * 2**20


def has_room(size: int) -> bool:
    """Whether a model with files of *size* bytes can be loaded in addition to the serving ones."""
    return free_mb() * 2**20 >= FACTOR * size + FLOOR


def free_mb() -> int:
    """Return the memory free in machine and cgroup without pressure on others, MiB."""
    import psutil

    from .hardware import read_facts

    machine = psutil.virtual_memory().available / 2**20
    limit = read_facts().memory_mb
    own = psutil.Process().memory_info().rss / 2**20
    return int(max(64.0, min(machine, limit - own if limit else machine) * 0.8))
