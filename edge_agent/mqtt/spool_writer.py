"""Moves QoS 1 messages between memory and disk in its own thread.

Messages that the broker acknowledges at once are never written. The rest is written in one
transaction every `period_s`, so a kill of the process while the broker is unreachable can lose that
much. The disk is used without the client's lock, so that a slow card delays no live result; if the
disk fails, messages stay in memory, which is logged and published in health.

The thread, SQLite (`spool`) and the file are created with the first message that the broker does
not acknowledge at once; the start waits for none of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.containment import words
from ..core.errors import SpoolDamagedError, SpoolError
from ..core.threads import start_thread
from .inflight import OVERDUE, Batch, Inflight, InflightMessage
from .message import Channel, with_age

if TYPE_CHECKING:
    from .spool import Spool

log = logging.getLogger(__name__)

MOST = 100_000
MOST_BYTES = 64 * 2**20
"""Largest size of the file."""
TIDY = 1.0
"""Seconds between writes that only remove acknowledged messages."""
SYNC = 2.0
"""Seconds of writes that a power cut may lose."""
POLL = 0.02
"""Seconds between two looks at how many messages wait."""
WRITE_RATE = 256 * 1024
"""Compressed bytes per second; beyond that, messages wait in memory and the oldest are dropped."""
RETRY = 5.0
"""Seconds until a failed disk is tried again."""
IDLE = 30.0
"""Seconds after which an empty file is removed."""
AHEAD = 100
"""Number of messages read from disk in advance."""
GRACE = 10.0
"""Seconds after connecting when an earlier run's file is opened even without results."""

RowToWrite = tuple[Batch, list[InflightMessage], bytes]
"""A row, its messages, and their compressed payloads."""


@dataclass(slots=True)
class _File:
    """The thread's state of the spool file. Times are monotonic seconds."""

    opened: bool = False
    unsynced: bool = False
    next_row: int = 1
    written: float = float("-inf")
    synced: float = float("-inf")
    damaged: float = float("-inf")
    budget: float = WRITE_RATE
    """Bytes that may be written now: it grows by WRITE_RATE per second, up to WRITE_RATE."""
    earned: float = field(default_factory=time.monotonic)
    """When the budget last grew."""


class SpoolWriter:
    """Writes and reads the spool when needed; `wake`, `tick` and `close` control it."""

    def __init__(
        self,
        path: Path,
        inflight: Inflight,
        lock: threading.Condition,
        *,
        period_s: float = 0.25,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Store the parameters; `wake` creates the file and the thread.

        *lock* is the client's and guards *inflight*; the file may hold at most *most* messages
        and *most_bytes*.
        """
        self.problem: str | None = None
        """Why messages wait only in memory."""
        self._path = path
        self._inflight = inflight
        inflight.series.earlier = path.exists()
        self._lock = lock
        self._most = most
        self._most_bytes = most_bytes
        self._spool: Spool | None = None
        self._thread: threading.Thread | None = None
        self._work = threading.Event()
        self._closing = threading.Event()
        self._checked_earlier = False
        """Whether it has looked for a file left by an earlier run."""
        self._file = _File()
        self._period_s = period_s
        self._more_work = False
        self._retry_at = float("-inf")

    # For the client

    @property
    def bytes(self) -> int:
        """Space used on disk."""
        return self._spool.bytes if self._spool is not None else 0

    def tick(self, *, adopt: bool) -> None:
        """Wake the thread if there is work. Called a few times per second with the lock held.

        *adopt*: also publish messages of an earlier run.
        """
        inflight = self._inflight
        since = inflight.connected_since
        if not self._checked_earlier and adopt and since is not None:
            # Not before the first result: start-up does not wait for this.
            self._checked_earlier = inflight.added > 0 or time.monotonic() - since > GRACE
            if self._checked_earlier and self._path.exists():
                self.wake()
        if inflight.finished_rows or inflight.overdue():
            self.wake()

    def wake(self) -> None:
        """Wake the thread to look for work; the caller holds the lock."""
        if self._closing.is_set() or self._work.is_set():
            return
        if self._thread is None:
            self._thread = start_thread(
                "spool", self._run, lambda limit: self._report(f"{self._path}: {limit}")
            )
        if self._thread is not None:  # otherwise `tick` tries again
            self._work.set()

    def close(self, patience: float = 2.0) -> None:
        """Save messages that are only in memory, and end the thread. Called without the lock."""
        with self._lock:
            if self._inflight.unsaved():
                self.wake()
            self._closing.set()
            self._work.set()
            thread = self._thread
        if thread is not None:
            thread.join(patience)
            if thread.is_alive():
                log.warning(
                    "%s: the disk did not answer within %.0f s; some results were not written",
                    self._path,
                    patience,
                )

    # The thread

    def _run(self) -> None:
        # If the broker is back in a moment, this costs nothing.
        self._collect(OVERDUE)
        while True:
            self._work.clear()
            last = self._closing.is_set()
            self._process_if_possible(last=last)
            if last:
                if self._more_work:
                    self._process_if_possible(last=True)
                return
            woken = self._work.wait(self._timeout())
            # Collect first: if the broker is back in a moment, nothing is written.
            self._collect(self._period_s if woken else 0.0)

    def _collect(self, seconds: float) -> None:
        """Wait for more messages, unless they soon find no room in memory and are written."""
        until, stuck = time.monotonic() + seconds, self.problem is not None or self._more_work
        while time.monotonic() < until and (stuck or not self._inflight.crowded):
            if self._closing.wait(POLL):
                return

    def _timeout(self) -> float | None:
        """Return the seconds until work is due without `wake`."""
        if self.problem is not None:
            return RETRY
        if self._more_work:
            return self._period_s
        if self._file.unsynced:
            return SYNC
        return IDLE if self._file.opened else None

    def _process_if_possible(self, *, last: bool) -> None:
        """Do the work that is due; leave messages in memory while there is none to write them."""
        try:
            if self._spool is None:
                from .spool import Spool

                self._spool = Spool(self._path)
            self._process(self._spool, last=last)
        except (MemoryError, ImportError) as problem:  # ImportError: SQLite could not be loaded
            why = words(problem) or "not enough memory"
            self._report(f"{self._path}: cannot be written: {why}")

    def _process(self, spool: Spool, *, last: bool) -> None:
        """Do the work that is due; if the disk fails, leave messages in memory."""
        self._more_work = False
        try:
            if last or self.problem is None or time.monotonic() >= self._retry_at:
                self._write_due(spool, last=last)
            # Even from a full disk.
            if self._file.opened and not last:
                self._read_ahead(spool)
            if self._file.opened:
                self._sync_or_remove(spool, last=last)
        except SpoolDamagedError as damage:
            self._replace_damaged(spool, damage)
        except SpoolError as problem:
            self._report(str(problem))

    def _write_due(self, spool: Spool, *, last: bool) -> None:
        """Write the messages whose acknowledgment is overdue."""
        inflight = self._inflight
        with self._lock:
            due_now = last or inflight.connected_since is None or inflight.overdue()
            due = inflight.unsaved() if due_now else []
            for entry in due:
                entry.saving = True
        wrote = False
        try:
            if self._open(spool, wanted=bool(due), last=last):
                wrote = self._save(spool, due, last=last)
        finally:
            with self._lock:
                for entry in due:
                    entry.saving = False
        if self.problem is not None:
            if wrote:
                log.info("%s: written again: waiting messages are on disk", spool.path)
            with self._lock:
                self.problem = None

    def _sync_or_remove(self, spool: Spool, *, last: bool) -> None:
        """Sync the written messages; remove the file when it is empty."""
        now = time.monotonic()
        if self._file.unsynced and (last or now - self._file.synced >= SYNC):
            spool.sync()
            self._file.unsynced, self._file.synced = False, now
        with self._lock:
            inflight = self._inflight
            empty = not (inflight.batches or inflight.finished_rows or inflight.unsaved())
        if empty and (last or now - self._file.written >= IDLE):
            spool.discard()
            self._file.opened = False
        elif last:
            spool.close()

    def _report(self, problem: str) -> None:
        """Log a problem with the disk once; it stays in health."""
        self._retry_at = time.monotonic() + RETRY
        self._inflight.series.earlier = False
        if problem != self.problem:
            log.warning("%s: messages for the broker wait in memory only", problem)
            with self._lock:
                self.problem = problem

    def _replace_damaged(self, spool: Spool, damage: SpoolDamagedError) -> None:
        """Set a damaged file aside."""
        with self._lock:
            for batch in list(self._inflight.batches.values()):
                self._inflight.drop_batch(batch)
            self._inflight.finished_rows.clear()
            self._inflight.series.earlier = False
        self._file.opened = self._file.unsynced = False
        before, self._file.damaged = self._file.damaged, time.monotonic()
        try:
            aside = spool.set_aside()
        except SpoolError as stuck:
            self._report(str(stuck))
            return
        if self._file.damaged - before < IDLE:
            self._report(f"{damage}: the disk corrupts data written to it")
            return
        log.warning("%s: damaged; set aside as %s, starting a new file", damage, aside.name)
        self._more_work = True

    def _open(self, spool: Spool, *, wanted: bool, last: bool) -> bool:
        """Open the file if there is a reason; return whether it is open."""
        if self._file.opened:
            return True
        if not wanted and (last or not spool.exists()):
            return False
        rows = spool.open()
        if rows:
            self._file.next_row = max(self._file.next_row, rows[-1].id + 1)
            count = sum(row.count for row in rows)
            log.info("%s: publishing %d messages of an earlier run", spool.path, count)
        with self._lock:
            self._inflight.adopt(rows)
        self._file.opened = True
        return True

    def _save(self, spool: Spool, due: Iterable[InflightMessage], *, last: bool) -> bool:
        """Save due messages and remove done ones in one transaction; return its success."""
        inflight = self._inflight
        now = time.monotonic()
        rows = list(self._rows(due, now, last=last))
        new = [batch for batch, _, _ in rows]
        with self._lock:
            finished = list(inflight.finished_rows)
            count = sum(batch.left for batch in (*inflight.batches.values(), *new)) - self._most
            size = spool.bytes + sum(batch.row.size for batch in new) - self._most_bytes
            chosen = inflight.choose_evicted(new, count, size)
        # Messages too unimportant to be written stay in memory, whose limit drops them likewise.
        written = [each for each in rows if each[0] not in chosen]
        evicted = [batch for batch in chosen if batch not in new]
        tidy = finished and (last or now - self._file.written >= TIDY)
        if not (written or evicted or tidy):
            self._more_work = self._more_work or bool(finished)
            return False
        spool.write(
            [(batch.row, body) for batch, _, body in written],
            [*finished, *(batch.row.id for batch in evicted)],
        )
        self._file.written = now
        self._file.unsynced = self._file.unsynced or bool(written)
        with self._lock:
            del inflight.finished_rows[: len(finished)]
            for batch in evicted:
                inflight.drop_batch(batch)
            for batch, members, _ in written:
                inflight.saved(batch, members)
        return True

    def _rows(
        self, due: Iterable[InflightMessage], now: float, *, last: bool
    ) -> Iterator[RowToWrite]:
        """Build rows from as many due messages as the write rate allows, in publishing order."""
        from .spool import Row, kind_of, pack

        file = self._file
        file.budget = min(file.budget + (now - file.earned) * WRITE_RATE, WRITE_RATE)
        file.earned = now
        for members in _group(due):
            if file.budget <= 0 and not last:
                self._more_work = True
                return
            first = members[0].message
            # Encoded at the latest when published, so there is little left to encode here.
            body = pack(
                [
                    with_age(m.encode_to_wait(), now - m.encoded_at, replayed=True)
                    for m in (member.message for member in members)
                ]
            )
            file.budget -= len(body)
            row = Row(self._file.next_row, kind_of(first), first.topic, len(members), len(body))
            self._file.next_row += 1
            yield Batch(row, first.channel), members, body

    def _read_ahead(self, spool: Spool) -> None:
        """Load the messages to publish next."""
        inflight = self._inflight
        damaged = 0
        while True:
            with self._lock:
                batch = inflight.first_on_disk_only()
                enough = inflight.connected_since is None or len(inflight.loaded) >= AHEAD
            if batch is None or enough:
                break
            try:
                read = spool.read(batch.row)
            except SpoolError:
                with self._lock:
                    inflight.unreadable = True
                raise
            with self._lock:
                inflight.unreadable = False
                if inflight.first_on_disk_only() is not batch:
                    continue  # the connection broke meanwhile: loaded messages come first again
                if read is None:
                    damaged += batch.on_disk_only
                    inflight.drop_batch(batch)
                    inflight.finished_rows.append(batch.row.id)
                else:
                    inflight.loaded.extend(batch.load_all(*read))
        if damaged:
            log.warning("%s: %d damaged messages were dropped", spool.path, damaged)


def _group(due: Iterable[InflightMessage]) -> list[list[InflightMessage]]:
    """Group messages that can share a row: same topic and channel, within the limits."""
    from .spool import ROW_BYTES, ROW_MESSAGES

    rows: list[list[InflightMessage]] = []
    open_rows: dict[tuple[str, Channel], tuple[list[InflightMessage], int]] = {}
    for entry in due:
        key = (entry.message.topic, entry.message.channel)
        row, size = open_rows.get(key, ([], 0))
        if not row or len(row) >= ROW_MESSAGES or size >= ROW_BYTES:
            row, size = [], 0
            rows.append(row)
        row.append(entry)
        open_rows[key] = (row, size + entry.size)
    return rows
