"""What the agent takes, with the children that hold its models, and what room is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from .resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import psutil

    from .pressure import MemoryUse

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


def free_mb(root: Path = ROOT) -> int:
    """Return the memory free in machine and cgroup without pressure on others, MiB."""
    scarcest = _scarcest(root)
    return int(max(64.0, scarcest.room / 2**20 * 0.8)) if scarcest else 64


def bound(root: Path = ROOT) -> str:
    """Return what bounds the free memory: "of 300 MiB of the machine's memory"."""
    scarcest = _scarcest(root)
    return f"of {scarcest.limit // 2**20} MiB of {scarcest.whose}" if scarcest else ""


def _scarcest(root: Path) -> MemoryUse | None:
    from .pressure import memory_uses

    return min(memory_uses(root), key=lambda use: use.room, default=None)
