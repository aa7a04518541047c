"""Whether there is room in memory for one more model."""

from __future__ import annotations

FACTOR = 3.0
"""What a model may take in memory, by the size of its files, until it has been seen."""
FLOOR = 128 * 2**20


def has_room(size: int) -> bool:
    """Whether a model whose files have *size* bytes can be loaded beside all that is there."""
    return free_mb() * 2**20 >= FACTOR * size + FLOOR


def free_mb() -> int:
    """Say what could be taken without others suffering: of the machine, or of our cgroup."""
    import psutil

    from .hardware import read_facts

    machine = psutil.virtual_memory().available / 2**20
    limit = read_facts().memory_mb
    own = psutil.Process().memory_info().rss / 2**20
    return int(max(64.0, min(machine, limit - own if limit else machine) * 0.8))
