"""Credibility of this machine's wall clock.

A box without a battery starts in 1970 or at the time when it was switched off, and jumps when it
gets the time from the network. Durations are measured with the monotonic clock instead. Messages
contain the wall clock's time, and are marked if it cannot be trusted.

The rule: a time is credible if it is after the release of this version and after the end of the
last run on this state folder; otherwise only if the system reports that it has set the clock
(systemd-timesyncd's mark, or the kernel's). After a boot it may go on from when the machine was
switched off: then what it shows as not expired waits for some minutes. Imports little: the first
result waits for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .. import BUILD_DATE
from ..core.flight_recorder import FILE, last_run_before_boot

SYNCHRONIZED = "/run/systemd/timesync/synchronized"
"""Created by systemd-timesyncd when it has set the clock (systemd-timesyncd.service(8))."""
BOOT_SECONDS = 600.0
"""Time after boot within which the clock is usually set: until then it may go on from the time
when the machine was switched off. The monotonic clock begins at boot."""
SAVED_SECONDS = 7200
"""That time is saved then, and every hour (fake-hwclock)."""
MINUTE_NS = 60 * 10**9
"""A clock that is less behind the last run was set a little meanwhile."""
_EVERY = 1.0
"""Seconds between checks whether the clock has been set."""
_UNSYNCHRONIZED = 0x40
"""STA_UNSYNC of adjtimex(2)."""


class WallClock:
    """Decides whether a time is credible; queries the system only if the time is too early."""

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
        booted, ended = self._now() / 1e9 - time.monotonic(), last_run_before_boot(state)
        self._goes_on = ended is not None and abs(booted - ended) < SAVED_SECONDS
        """Whether the clock seems to go on from when the machine was switched off."""
        self._looked = float("-inf")
        # Also of a run after another since the machine has booted, whose mark is as wrong.
        latest = max(self._floor, int((ended or 0) * 1e9))
        self._behind = self._now() < latest - MINUTE_NS

    def credible(self, time_ns: int | None = None) -> bool:
        """Whether a time shown by this clock may be right.

        Args:
            time_ns: nanoseconds since 1970; None: the present time.
        """
        read = self._now() if time_ns is None else time_ns
        if read >= self._floor:
            return True
        if time.monotonic() - self._looked >= _EVERY:
            self._looked = time.monotonic()
            # Then the mark of the last run was in the future. Decided by the present time: a time
            # read before the clock was set is still wrong.
            if self._is_set():
                self._floor = min(self._floor, self._now())
        return read >= self._floor

    def is_behind(self) -> bool:
        """Whether it was behind the last run at the start of this one, and was not set since.

        Or may be: the machine has just booted.
        """
        self._behind = self._behind and not self._is_set()
        return self._behind or may_be_behind(self._is_set)

    def may_be_behind(self) -> bool:
        """Whether it may go on from when the machine was switched off: what expires may have."""
        self._goes_on = self._goes_on and may_be_behind(self._is_set)
        return self._goes_on


def may_be_behind(is_set: Callable[[], bool] | None = None) -> bool:
    """Whether the machine has just booted and not set its clock yet, as far as the system says."""
    return time.monotonic() < BOOT_SECONDS and not (is_set or system_has_set_clock)()


def system_has_set_clock() -> bool:
    """Whether the system reports that it has set the clock; False if the query is not allowed."""
    return os.path.exists(SYNCHRONIZED) or _kernel_is_synchronized()  # noqa: PTH110 - as above


def _kernel_is_synchronized() -> bool:
    """Read the kernel's own mark through adjtimex(2); ntpd, chronyd and others set it."""
    import ctypes

    # struct timex: `modes` is the first field, 0 for a query; `status` is after five longs.
    buffer = (ctypes.c_long * 64)()
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return False
    if answer < 0:
        return False  # the service is not allowed to query it
    status = ctypes.c_int.from_buffer(buffer, 5 * ctypes.sizeof(ctypes.c_long)).value
    return not status & _UNSYNCHRONIZED
