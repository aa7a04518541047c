"""Limits the captures per second of a pipeline."""

from __future__ import annotations


class Rate:
    """The highest number of captures per second."""

    def __init__(self, most: float | None) -> None:
        self.most = most
        """None: no limit."""
        self._slot: int | None = None
        self._due = 0.0

    def restart(self) -> None:
        """Allow the next capture at once."""
        self._slot = None
        self._due = 0.0

    def due(self, at: float) -> bool:
        """Whether a capture that a live source delivered at time *at*, seconds, is allowed.

        If times count from the source's first capture, all pipelines that share it take the same.
        """
        if self.most is None:
            return True
        # The first one is in the middle of a slot: a camera with exactly this rate loses none that
        # is slightly early or late.
        slot = int(at * self.most + 0.5)
        if slot == self._slot:
            return False
        self._slot = slot
        return True

    def pause(self, now: float) -> float:
        """Return the time that a lossless source waits for its next capture, seconds."""
        return 0.0 if self.most is None else self._due - now

    def take(self, now: float) -> None:
        """Record that it delivers a capture now."""
        if self.most is not None:
            self._due = max(self._due, now) + 1.0 / self.most
