"""Calls the keeper when there is work for it, and not before.

The keeper, SQLite and the file come into being with the first promise that the broker does not
acknowledge at once; until then this is all there is, so that a start waits for none of it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .inflight import LATE, Inflight

if TYPE_CHECKING:
    from .spool_writer import SpoolWriter

log = logging.getLogger(__name__)

GRACE = 10.0
"""Seconds of a connection after which an earlier run's file is opened, results or not."""


class Standby:
    """Stands between the link and the keeper's thread."""

    def __init__(self, path: Path, backlog: Inflight, lock: threading.Condition) -> None:
        """Prepare; nothing is begun.

        Args:
            path: of the spool's file.
            backlog: whose promises are kept.
            lock: the link's; held by whoever calls, but for `close`.

        """
        self._path = path
        self._backlog = backlog
        self._lock = lock
        self._keeper: SpoolWriter | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._looked = False

    @property
    def problem(self) -> str | None:
        """Why what waits is in memory only."""
        return self._keeper.problem if self._keeper is not None else None

    @property
    def bytes(self) -> int:
        """On disk."""
        return self._keeper.spool.bytes if self._keeper is not None else 0

    def tick(self, *, wanted: bool) -> None:
        """See whether there is work; called a few times a second.

        Args:
            wanted: whether anybody makes promises, so that an earlier run's are kept too.

        """
        backlog = self._backlog
        since = backlog.connected_since
        if not self._looked and wanted and since is not None:
            # Not before the first result: start-up shall not wait for this.
            self._looked = backlog.promised > 0 or time.monotonic() - since > GRACE
            if self._looked and self._path.exists():
                self.rouse()
        if backlog.arrived or backlog.late():
            self.rouse()

    def rouse(self) -> None:
        """Have the keeper look."""
        if self._closing.is_set() or self._wake.is_set():
            return
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="spool", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        # A broker that is there in a moment costs nothing.
        self._closing.wait(LATE)
        from .spool import Spool
        from .spool_writer import SpoolWriter

        self._keeper = SpoolWriter(Spool(self._path), self._backlog, self._lock)
        self._keeper.run(self._wake, self._closing)

    def close(self, patience: float = 2.0) -> None:
        """Have what is left written down; without the lock."""
        with self._lock:
            if self._backlog.unsaved():
                self.rouse()
            self._closing.set()
            self._wake.set()
            thread = self._thread
        if thread is not None:
            thread.join(patience)
            if thread.is_alive():
                log.warning("%s: the disk hangs; not all that waits is on it", self._path)
