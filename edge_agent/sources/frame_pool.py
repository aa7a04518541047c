"""Memory for pictures, used again while it is still in the processor's cache.

The caller may keep a picture, and any part of it: its memory is free again when the last
array that needs it is gone, and then the first to be used. The allocator would do the same for one
thread; of many, each would have pictures of its own, and come back to them when they have long left
the cache (of 16 clips, decoding and resizing took a tenth more).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..core.types import Array

KEPT_BYTES = 16 * 2**20
"""Free memory that is kept for pictures of one size; the rest goes back to the system …"""
KEPT = 4
"""… but for so many, however large they are: new memory has to be cleared first."""


class _Lease:
    """Keeps lent memory alive for the array on it."""

    __slots__ = ("__array_interface__", "_idle", "_memory")

    def __init__(self, memory: Array, idle: deque[Array]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._idle = idle

    def __del__(self) -> None:
        # A deque's ends are thread-safe: this may run in any thread, at any moment.
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
        """Free all memory that is not lent at the moment."""
        for idle in list(self._idle.values()):
            idle.clear()


FRAME_POOL = FramePool()
"""The process's own."""
