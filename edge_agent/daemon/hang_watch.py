"""Detects calls into an engine that do not return, logs them once, and ends them by a restart.

Nothing within a process can end such a call. The service manager ends the process when its watchdog
is no longer notified; without one, the process ends itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..core.flight_recorder import Recorder, short_name

log = logging.getLogger(__name__)

HANG_SECONDS = 120.0
"""How long an inference may take if no service manager watches."""
SURE_SECONDS = 5.0
"""How long the process must have been running: if it was frozen itself, there is no hang."""


class HangWatch:
    """Checks about once a second for calls that hang."""

    def __init__(self, recorder: Recorder, limit: float, end: Callable[[str], None] | None) -> None:
        """Watch the calls of a recorder.

        Args:
            recorder: has the calls in progress.
            limit: seconds that an inference may take.
            end: ends the agent, given the reason; None: the service manager does.
        """
        self._recorder = recorder
        self._limit = limit
        self._end = end
        self._since: float | None = None
        self._hanging = False

    def check(self, now: float) -> bool:
        """Return whether a call hangs."""
        call = self._recorder.stuck(self._limit)
        if call is None:
            if self._hanging:
                self._recorder.mark_hung(None)
            self._since, self._hanging = None, False
            return False
        self._since = now if self._since is None else self._since
        if now - self._since >= SURE_SECONDS and not self._hanging:
            self._hanging = True
            self._recorder.mark_hung(call)
            words = f"model {short_name(call.target)}: hangs inside the engine ({call.kind})"
            log.error("%s: only a restart helps", words)
            if self._end is not None:
                self._end(words)
        return self._hanging
