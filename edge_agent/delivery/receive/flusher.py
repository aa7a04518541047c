"""Makes blocks durable in a thread of its own, and acknowledges them then.

While the disk is busy with some, the next ones arrive: they are made durable together. So a slow
disk makes larger groups, not a slower transfer.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

from ...core.errors import ModelError
from ...models.store.incoming import Incoming
from ...mqtt.connection import ReceivedMessage

GATHER_SECONDS = 0.0015
"""How long a quick disk waits for more blocks: a write for each few of them costs more processor
time than receiving them (measured)."""
ENOUGH = 8

Work = tuple[Incoming, ReceivedMessage | None] | threading.Event


class Flusher:
    """One thread; started with the first block."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Work] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed: dict[Incoming, str] = {}

    def put(self, incoming: Incoming, message: ReceivedMessage | None) -> None:
        """Make what *incoming* was given so far durable, then acknowledge *message*."""
        if self._thread is None:
            # Should it die, the excepthook ends the agent, as for every thread.
            self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
            self._thread.start()
        self._queue.put((incoming, message))

    def wait(self) -> None:
        """Wait until all that was put is durable: before anything is closed or installed."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            while self._thread.is_alive() and not done.wait(0.5):
                pass

    def failed(self, incoming: Incoming) -> str | None:
        """Return, once, the error of the disk for a transfer, or None if there was none."""
        return self._failed.pop(incoming, None)

    def _run(self) -> None:
        while True:
            group = [self._queue.get()]
            if self._queue.qsize() < ENOUGH and not isinstance(group[0], threading.Event):
                time.sleep(GATHER_SECONDS)
            try:
                while True:
                    group.append(self._queue.get_nowait())
            except Empty:
                pass
            self._flush(group)

    def _flush(self, group: list[Work]) -> None:
        """Write all that came while the group before it was being written."""
        for incoming in {work[0] for work in group if not isinstance(work, threading.Event)}:
            try:
                incoming.flush()
            except ModelError as problem:
                self._failed[incoming] = str(problem)
        for work in group:
            if isinstance(work, threading.Event):
                work.set()
            elif work[1] is not None:
                work[1].ack()
