"""Lets go of memory: of models that have had nothing to do for long, and of more when it is short.

What may come and go is what the profile says (`unload_idle_s`): models of second stages. Those of
first stages serve all the time; without them there is no result. And when something large has gone,
what it has freed is given back to the system: the C library keeps it else, for threads that are not
there any more (0.6 of 0.8 GB stayed after eight clips of 4K had gone, and more each time).
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ...core.logs import Latch
from ...device.allocator import return_freed_memory, trim_memory
from ...device.pressure import memory_problems
from ..serving.active import ActiveModels

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks at how much is left."""
SHORT_IDLE = 5.0
"""Seconds without work after which a model goes while memory is short."""
GONE_SECONDS = 5.0
"""After so long what has gone has ended its threads."""
TRIM_EVERY = 60.0
"""Seconds between two times that freed memory is given back to the system."""


class MemoryRelease:
    """Looks now and then."""

    def __init__(
        self,
        active: ActiveModels,
        idle_s: float,
        *,
        present: Callable[[], AbstractSet[object]] = frozenset,
        short: Callable[[], list[str]] = memory_problems,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            active: whose models come and go.
            idle_s: after so many seconds a lazy model goes in any case; 0: none is lazy.
            present: names what takes memory as long as it is there.
            short: says in words that memory runs short; empty: it does not.
            forget: lets go of what is only kept to be used again.

        """
        self._active = active
        self._idle_s = idle_s
        self._present = present
        self._short = short
        self._forget = forget
        self._there: AbstractSet[object] = frozenset()
        self._gone_at: float | None = None
        """When something was last missing that had been there; None: it has been dealt with."""
        self._looked = self._trimmed = float("-inf")
        self._shortage = Latch()

    def look(self, now: float) -> None:
        """Let go of what is not needed.

        Args:
            now: monotonic seconds.

        """
        if self._idle_s:
            self._active.unload_idle(self._idle_s)
        self._look_for_gone(now)
        if now - self._looked < EVERY:
            return
        self._looked = now
        why = self._short()
        if self._shortage.begins(bool(why)):
            log.warning("short of %s", why[0])
        if not why:
            return
        if self._idle_s:
            self._active.unload_idle(min(self._idle_s, SHORT_IDLE))
        if now - self._trimmed >= TRIM_EVERY:
            self._trimmed = now
            self._forget()
            gc.collect()
            return_freed_memory()

    def _look_for_gone(self, now: float) -> None:
        there = self._present()
        if self._there - there:
            self._gone_at = now
        self._there = there
        if self._gone_at is not None and now - self._gone_at >= GONE_SECONDS:
            self._gone_at = None
            self._forget()
            trim_memory()
