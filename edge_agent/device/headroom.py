"""What the agent takes, with the children that hold its models, and what room is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

FACTOR = 3.0
"""Estimated memory of a model that is not loaded, as a multiple of the size of its files."""
FLOOR = 128 * 2**20
_children: set[int] = set()


@contextmanager
def counted_as_own(child: int) -> Iterator[None]:
    """Count a child's memory and processor time as the agent's, until the child is reaped."""
    _children.add(child)
    try:
        yield
    finally:
        _children.discard(child)


def own_mb() -> float:
    """Return the resident memory of this process and the counted children, MiB."""
    import psutil

    own = psutil.Process().memory_info().rss
    return (own + _of_children(lambda child: child.memory_info().rss)) / 2**20


def children_cpu_seconds() -> float:
    """Return the processor time that the counted children have used so far, seconds."""
    return _of_children(lambda child: sum(child.cpu_times()[:2]))


def _of_children(read: Callable[[psutil.Process], float]) -> float:
    if not _children:
        return 0.0
    import psutil

    total = 0.0
    for child in list(_children):
        with suppress(psutil.NoSuchProcess):
            total += read(psutil.Process(child))
    return total


def has_room(size: int) -> bool:
    """Whether a model with files of *size* bytes can be loaded in addition to the serving ones."""
    return free_mb() * 2**20 >= FACTOR * size + FLOOR


def free_mb() -> int:
    """Return the memory free in machine and cgroup without pressure on others, MiB."""
    import psutil

    from .hardware import read_facts

    machine = psutil.virtual_memory().available / 2**20
    limit = read_facts().memory_mb
    return int(max(64.0, min(machine, limit - own_mb() if limit else machine) * 0.8))
