"""Credibility of this machine's wall clock.

A box without a battery starts in 1970, or where it was when it was switched off, and jumps when the
network has told it the time. Nothing here measures durations by it: those go by the monotonic
clock. Messages carry its time, and are marked where that cannot be trusted.

The rule: a time is credible from the day on which this version was made, and from the end of the
last run on this state folder; before that only if the system reports that it has set the clock
(systemd-timesyncd's mark, or the kernel's). Light: it is imported before the first result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .. import BUILD_DATE
from ..core.flight_recorder import FILE

SYNCHRONIZED = "/run/systemd/timesync/synchronized"
"""systemd-timesyncd makes this file when it has set the clock (systemd-timesyncd.service(8))."""
_EVERY = 1.0
"""Seconds between two checks of whether the clock has been set."""
_UNSYNCHRONIZED = 0x40
"""STA_UNSYNC of adjtimex(2)."""


class WallClock:
    """Decides whether a time is credible; asks the system only about one that is too early."""

    def __init__(
        self,
        state: str,
        *,
        now: Callable[[], int] = time.time_ns,
        is_set: Callable[[], bool] | None = None,
    ) -> None:
        self._now = now
        self._is_set = is_set or system_has_set_clock
        try:
            known = os.stat(os.path.join(state, FILE)).st_mtime_ns  # noqa: PTH116, PTH118
        except OSError:
            known = 0
        self._floor = max(int(BUILD_DATE.timestamp()) * 10**9, known)
        self._looked = float("-inf")

    def credible(self, time_ns: int | None = None) -> bool:
        """Whether a time that this clock has shown can be right.

        Args:
            time_ns: nanoseconds since 1970; None: the present time.
        """
        read = self._now() if time_ns is None else time_ns
        if read >= self._floor:
            return True
        if time.monotonic() - self._looked >= _EVERY:
            self._looked = time.monotonic()
            # It is the mark of the last run that was in the future then. Judged by what the clock
            # shows now: what was read before it was set stays as wrong as it was.
            if self._is_set():
                self._floor = min(self._floor, self._now())
        return read >= self._floor


def system_has_set_clock() -> bool:
    """Whether the system reports that it has set the clock; False where it may not be asked."""
    return os.path.exists(SYNCHRONIZED) or _kernel_is_synchronized()  # noqa: PTH110 - as above


def _kernel_is_synchronized() -> bool:
    """Read the kernel's own mark, as adjtimex(2) has it; ntpd, chronyd and others set it."""
    import ctypes

    # struct timex: `modes` is the first field, 0 to ask; `status` lies behind five longs.
    buffer = (ctypes.c_long * 64)()
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return False
    if answer < 0:
        return False  # the service may not ask
    status = ctypes.c_int.from_buffer(buffer, 5 * ctypes.sizeof(ctypes.c_long)).value
    return not status & _UNSYNCHRONIZED
