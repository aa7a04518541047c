"""How many captures a second a pipeline takes at most."""

from __future__ import annotations


class Rate:
    """Most captures a second."""

    def __init__(self, most: float | None) -> None:
        self.most = most
        """None: as many as come."""
        self._slot: int | None = None
        self._due = 0.0

    def restart(self) -> None:
        """Allow the next capture at once."""
        self._slot = None
        self._due = 0.0

    def due(self, at: float) -> bool:
        """Whether a capture of a live source is allowed that came at a time, seconds.

        Where that counts from the source's first, all that share it take the same ones.
        """
        if self.most is None:
            return True
        # In the middle of a slot, the first one: a camera of this very rate loses none that is
        # a bit early or late.
        slot = int(at * self.most + 0.5)
        if slot == self._slot:
            return False
        self._slot = slot
        return True

    def pause(self, now: float) -> float:
        """Return the time that a lossless source waits for its next capture, seconds."""
        return 0.0 if self.most is None else self._due - now

    def take(self, now: float) -> None:
        """Record that it gives a capture now."""
        if self.most is not None:
            self._due = max(self._due, now) + 1.0 / self.most
