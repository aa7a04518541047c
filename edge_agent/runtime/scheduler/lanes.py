"""Which lanes work on frames, at most so many at a time."""

from __future__ import annotations

from collections.abc import Callable

from .queue import ResultsInOrder

DISK_PATIENCE = 10
"""The disk may take so many times as long as an engine, as other pipelines go on meanwhile."""


class Lanes:
    """The lanes of a board. For use with its lock held, where nothing else is said."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.running: dict[int, float] = {}
        """By thread, since when it has worked on its frames; any thread may read it."""
        self.waiting: dict[int, float] = {}
        """By thread, since when it has waited for the disk, while another runs; likewise."""
        self.delivers: dict[int, ResultsInOrder] = {}
        """By thread, the pipeline whose results it delivers."""
        self.spare = 0
        """Number of lanes that wait for work, or until fewer others run."""
        self.add: Callable[[], object] = lambda: None
        """Starts another lane, where one waits for the disk and none is spare; without the lock."""

    @property
    def free(self) -> bool:
        """Whether a further lane may run."""
        return len(self.running) < self.most

    @property
    def idle(self) -> bool:
        """Whether a lane waits for work."""
        return self.spare > 0 and self.free

    def are_alive(self, now: float, limit: float) -> bool:
        """Whether no lane has been inside an engine for *limit* seconds; any thread may call it.

        Nor has one waited for the disk, until which its event is not raised, for much longer.
        """
        runs = all(now - since < limit for since in list(self.running.values()))
        longer = DISK_PATIENCE * limit
        return runs and all(now - since < longer for since in list(self.waiting.values()))
