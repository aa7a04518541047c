"""Memory for pictures, reused while it is still in the processor's cache.

The caller may keep a picture or any part of it: its memory is free when the last array on it is
gone, and is then reused first. The allocator would do the same for one thread; with many threads,
each would have its own pictures and reuse them long after they had left the cache (with 16 clips,
decoding and resizing took a tenth longer).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..core.types import Array

KEPT_BYTES = 16 * 2**20
"""Most free memory kept for pictures of one size; the rest is returned to the system."""
KEPT = 4
"""Free pictures kept whatever their size: the system must clear new memory first."""


class _Lease:
    """Keeps memory alive for the array that uses it."""

    __slots__ = ("__array_interface__", "_idle", "_memory")

    def __init__(self, memory: Array, idle: deque[Array]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._idle = idle

    def __del__(self) -> None:
        # A deque's ends are thread-safe: this may run in any thread at any time.
        kept = len(self._idle)
        if kept < KEPT or (kept + 1) * self._memory.nbytes <= KEPT_BYTES:
            self._idle.append(self._memory)


class FramePool:
    """Lends memory for pictures."""

    def __init__(self) -> None:
        self._idle: dict[tuple[int, ...], deque[Array]] = {}

    def lend(self, shape: tuple[int, ...]) -> Array:
        """Return an uninitialized uint8 array of this shape; its memory is reused when freed."""
        idle = self._idle.setdefault(shape, deque())
        try:
            memory = idle.pop()
        except IndexError:
            memory = np.empty(shape, np.uint8)
        return np.asarray(_Lease(memory, idle))

    def forget(self) -> None:
        """Free all memory not in use."""
        for idle in list(self._idle.values()):
            idle.clear()


FRAME_POOL = FramePool()
"""The pool of this process."""
