"""Growing, jittered pauses between attempts."""

from __future__ import annotations


class Backoff:
    """Pauses that double up to a limit, with jitter so that many devices do not retry at once."""

    def __init__(self, first: float = 0.5, most: float = 60.0) -> None:
        """Start with the shortest pause.

        Args:
            first: the shortest pause, seconds.
            most: the longest pause, seconds.
        """
        self._first = first
        self._most = most
        self._next = first

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        import random

        pause = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._next = min(self._next * 2, self._most)
        return pause

    def reset(self) -> None:
        """Start with the shortest pause again."""
        self._next = self._first
