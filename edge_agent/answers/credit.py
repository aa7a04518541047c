"""A limit of so many a second, of which some may come at once."""

from __future__ import annotations

from collections.abc import Callable
from math import inf


class Credit:
    """Counts what is taken. One thread at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._saved, self._counted = inf, clock()
        """How many may be taken at once, and the time of that count."""

    def take(self, rate: float, most: float) -> float:
        """Take one, if there is one.

        Args:
            rate: how many more there are each second.
            most: how many are saved up, at least 1.

        Returns:
            The seconds until there will be one; 0: it was taken.
        """
        now = self._clock()
        saved = min(self._saved + (now - self._counted) * rate, most)
        self._counted = now
        self._saved = saved - 1.0 if saved >= 1.0 else saved
        return 0.0 if saved >= 1.0 else (1.0 - saved) / rate
