"""Unloads models that have been idle for long, and returns freed memory to the system.

What the memory budget had no room for is loaded once another model has been unloaded.

Only models of second stages are unloaded, after the profile's `unload_idle_s`. Those of first
stages always serve; without them there is no result. While memory is short, idle models are
unloaded early. When something large was removed, its memory is returned to the system: otherwise
the C library keeps it for ended threads (0.6 of 0.8 GB after eight 4K clips had been removed, and
more each time).
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ..core.logs import Latch
from ..device.allocator import return_freed_memory, trim_memory
from ..device.pressure import memory_problems
from ..inference.model import Model
from .active import ActiveModels, Serving

log = logging.getLogger(__name__)

STEP_SECONDS = 1.0
EVERY = 5.0
"""Seconds between checks of free memory."""
SHORT_IDLE = 5.0
"""Seconds without work after which a model is unloaded while memory is short."""
GONE_SECONDS = 5.0
"""Time after which the threads of a removed source or model have ended."""
TRIM_EVERY = 60.0
"""Least seconds between returns of freed memory to the system."""


class MemoryRelease:
    """Checks every second for models to unload and memory to return."""

    def __init__(
        self,
        active: ActiveModels,
        idle_s: float,
        *,
        present: Callable[[], AbstractSet[object]] = frozenset,
        short: Callable[[], list[str]] = memory_problems,
        forget: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without checking anything.

        Args:
            active: the models to unload.
            idle_s: idle seconds after which a lazy model is always unloaded; 0: none is lazy.
            present: returns keys of everything that uses memory, as long as it exists.
            short: returns warnings of low memory; empty if there is enough.
            forget: releases memory kept only for reuse.
            clock: returns monotonic seconds.
        """
        self._active = active
        self._idle_s = idle_s
        self._present = present
        self._short = short
        self._forget = forget
        self._clock = clock
        self._there: AbstractSet[object] = frozenset()
        self._gone_at: float | None = None
        """When an entry was last found missing; None if that has been handled."""
        self._checked = self._trimmed = float("-inf")
        self._shortage = Latch()

    def step(self) -> float:
        """Release unneeded memory; return the seconds until the next call."""
        now = self._clock()
        if self._idle_s:
            self._unload_idle(self._idle_s)
        self._active.use_room()
        self._trim_after_gone(now)
        if now - self._checked < EVERY:
            return STEP_SECONDS
        self._checked = now
        why = self._short()
        if self._shortage.begins(bool(why)):
            log.warning("short of %s", why[0])
        if not why:
            return STEP_SECONDS
        if self._idle_s:
            self._unload_idle(min(self._idle_s, SHORT_IDLE))
        if now - self._trimmed >= TRIM_EVERY:
            self._trimmed = now
            self._forget()
            gc.collect()
            return_freed_memory()
        return STEP_SECONDS

    def _unload_idle(self, seconds: float) -> None:
        """Unload lazy models without a frame for *seconds*."""
        before = time.monotonic() - seconds

        def idle(serving: Serving, model: Model) -> bool:
            return serving.lazy and not model.users and model.stats.used_at < before

        unloaded = self._active.unload(idle)
        for model in unloaded:
            log.info("model %s: unloaded, it was idle", model.id)
            self._active.retire(model)
        if unloaded:
            self._active.on_change()

    def _trim_after_gone(self, now: float) -> None:
        there = self._present()
        if self._there - there:
            self._gone_at = now
        self._there = there
        if self._gone_at is not None and now - self._gone_at >= GONE_SECONDS:
            self._gone_at = None
            self._forget()
            trim_memory()
