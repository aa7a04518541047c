"""Two threads that do submitted work; started when there is some."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from ..core.threads import ThreadGroup, run_behind

COUNT = 2
"""Number of pictures decoded, or answers encoded, at a time."""


class Workers:
    """Threads with a common name. Any thread may give them work."""

    def __init__(self, name: str, threads: ThreadGroup, behind: Callable[[], bool]) -> None:
        """Prepare; threads will be started in *threads*, the group that ends with the agent.

        *behind*: whether they then run behind the agent's other threads.
        """
        self._name = name
        self._threads = threads
        self._behind = behind
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False

    def do(self, work: Callable[[], None]) -> None:
        """Submit work, which is done soon; it must not raise."""
        self._queue.put(work)
        if not self._started:
            self._started = True
            for number in range(COUNT):
                self._threads.spawn(f"{self._name}-{number}", self._run, patient=True)

    def _run(self) -> None:
        if self._behind():
            run_behind()
        while (work := self._queue.get()) is not None:
            work()
            del work  # and with it its picture

    def close(self) -> None:
        """End the threads once waiting work is done."""
        for _ in range(COUNT):
            self._queue.put(None)
