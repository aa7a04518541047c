"""When an engine that fails is left, and when it is tried again: the decision alone.

Knows neither models nor engines; the clock is given. One breaker stands for one model on one
engine. It is closed while that engine may serve, open while it may not, and half-open when it has
been taken back and has yet to prove itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

FAILURES = 5
"""Frames in a row that an engine may fail on. One that fails now and then is counted, and kept."""
FIRST_PAUSE = 60.0
"""Seconds until an engine is tried again; each time it fails anew, twice as long."""
MOST_PAUSE = 6 * 3600.0
STABLE = 300.0
"""Seconds for which an engine that has been taken back must work to be as good as new."""

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Keeps a failing engine away, for longer each time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin closed.

        Args:
            clock: monotonic seconds.

        """
        self._clock = clock
        self._state: State = "closed"
        self._since = clock()
        self._pause = 0.0
        self.why = ""
        """What went wrong, the last time that it did."""

    @property
    def state(self) -> State:
        """Say how it stands now."""
        if self._state == "half-open" and self._clock() - self._since >= STABLE:
            self._state, self._pause = "closed", 0.0
        return self._state

    def trip(self, why: str) -> None:
        """Note that the engine has failed, as often as it may, or to load."""
        # Asked first: what has worked for long enough begins with the shortest pause again.
        known = self.state != "closed"
        self._pause = min(MOST_PAUSE, 2 * self._pause if known and self._pause else FIRST_PAUSE)
        self._state, self._since, self.why = "open", self._clock(), why

    @property
    def wait(self) -> float:
        """Give the seconds until the engine is to be tried again; 0 where it need not wait."""
        if self.state != "open":
            return 0.0
        return max(0.0, self._since + self._pause - self._clock())

    @property
    def due(self) -> bool:
        """Whether the engine is to be tried again now."""
        return self.state == "open" and self.wait == 0.0

    def close(self) -> None:
        """Note that the engine serves again, for now."""
        self._state, self._since = "half-open", self._clock()
