"""Moves promises between memory and disk, in a thread of its own.

What the broker acknowledges at once never comes near the disk. All the rest is written in one
transaction each PERIOD, which is thereby what the death of the process can cost while the broker
is away. The disk is touched without the link's lock, so that a slow card delays no live result;
where the disk refuses, what waits stays in memory, and that is said.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator

from .inflight import Batch, Inflight, InflightMessage
from .message import Channel, Message, aged
from .spool import ROW_BYTES, ROW_MESSAGES, DamagedError, Kind, Row, Spool, SpoolError, pack

log = logging.getLogger(__name__)

PERIOD = 0.25
"""Seconds between two writes."""
TIDY = 1.0
"""Seconds between two writes that only remove what has arrived."""
SYNC = 2.0
"""Seconds of writes that a power cut may undo."""
WRITE_RATE = 256 * 1024
"""Bytes a second, compressed: beyond, results wait in memory, and the oldest give way."""
RETRY = 5.0
"""Seconds until a disk that has refused is tried again."""
IDLE = 30.0
"""Seconds after which a file in which nothing lies is removed."""
AHEAD = 100
"""Messages read from disk in advance."""

Made = tuple[Batch, list[InflightMessage], bytes]
"""A row to be written, whose promises lie in it, and what is in it."""


class SpoolWriter:
    """Writes and reads; at work while `run` runs."""

    def __init__(self, spool: Spool, backlog: Inflight, lock: threading.Condition) -> None:
        """Prepare; nothing is opened.

        Args:
            spool: the file.
            backlog: whose promises are kept.
            lock: guards the backlog.

        """
        self.spool = spool
        self.problem: str | None = None
        """Why what waits is in memory only."""
        self._backlog = backlog
        self._lock = lock
        self._opened = False
        self._soon = False
        """Something is left to do."""
        self._unsynced = False
        self._next_row = 1
        self._retry_at = self._written = self._synced = self._damaged = float("-inf")
        self._budget, self._budgeted = float(WRITE_RATE), time.monotonic()

    def run(self, wake: threading.Event, closing: threading.Event) -> None:
        """Look whenever *wake* is set, until *closing* is, and once more then."""
        while True:
            wake.clear()
            last = closing.is_set()
            self._turn(last=last)
            if last:
                if self._soon:
                    self._turn(last=True)
                return
            roused = wake.wait(self._patience())
            # Gather first: a broker that is back in a moment costs no write.
            closing.wait(PERIOD if roused else 0.0)

    def _patience(self) -> float | None:
        """Give the seconds after which there is something to do without being roused."""
        if self.problem is not None:
            return RETRY
        if self._soon:
            return PERIOD
        if self._unsynced:
            return SYNC
        return IDLE if self._opened else None

    def _turn(self, *, last: bool) -> None:
        """Do what is due; where the disk refuses, go on without it."""
        self._soon = False
        try:
            if last or self.problem is None or time.monotonic() >= self._retry_at:
                self._keep(last=last)
            # Also from a disk that is full.
            if self._opened and not last:
                self._fetch()
            if self._opened:
                self._settle(last=last)
        except DamagedError as damage:
            self._begin_anew(damage)
        except SpoolError as problem:
            self._say(str(problem))

    def _keep(self, *, last: bool) -> None:
        """Write what takes long."""
        backlog = self._backlog
        with self._lock:
            now_or_never = last or backlog.connected_since is None or backlog.late()
            due = backlog.unsaved() if now_or_never else []
            for promise in due:
                promise.saving = True
        wrote = False
        try:
            if self._open(wanted=bool(due), last=last):
                wrote = self._save(due, last=last)
        finally:
            with self._lock:
                for promise in due:
                    promise.saving = False
        if self.problem is not None:
            if wrote:
                log.info("%s: what waits is kept on disk again", self.spool.path)
            with self._lock:
                self.problem = None

    def _settle(self, *, last: bool) -> None:
        """Make sure of what was written; remove the file where nothing is in it."""
        now = time.monotonic()
        if self._unsynced and (last or now - self._synced >= SYNC):
            self.spool.sync()
            self._unsynced, self._synced = False, now
        with self._lock:
            backlog = self._backlog
            empty = not (backlog.batches or backlog.arrived or backlog.unsaved())
        if empty and (last or now - self._written >= IDLE):
            self.spool.discard()
            self._opened = False
        elif last:
            self.spool.close()

    def _say(self, problem: str) -> None:
        """Report what is wrong with the disk, once; it stays in health."""
        self._retry_at = time.monotonic() + RETRY
        if problem != self.problem:
            log.warning("%s: what waits for the broker is kept in memory only", problem)
            with self._lock:
                self.problem = problem

    def _begin_anew(self, damage: DamagedError) -> None:
        """Set a damaged file aside."""
        with self._lock:
            for batch in list(self._backlog.batches.values()):
                self._backlog.drop(batch)
            self._backlog.arrived.clear()
        self._opened = self._unsynced = False
        before, self._damaged = self._damaged, time.monotonic()
        try:
            aside = self.spool.set_aside()
        except SpoolError as stuck:
            self._say(str(stuck))
            return
        if self._damaged - before < IDLE:
            self._say(f"{damage}: the disk damages what is written to it")
            return
        log.warning("%s: damaged; set aside as %s, beginning anew", damage, aside.name)
        self._soon = True

    def _open(self, *, wanted: bool, last: bool) -> bool:
        """Open the file where there is a reason to; tell whether it is open."""
        if self._opened:
            return True
        if not wanted and (last or not self.spool.exists()):
            return False
        rows = self.spool.open()
        if rows:
            self._next_row = max(self._next_row, rows[-1].id + 1)
            count = sum(row.count for row in rows)
            log.info("%s: %d messages of an earlier run are sent now", self.spool.path, count)
        with self._lock:
            self._backlog.adopt(rows)
        self._opened = True
        return True

    def _save(self, due: Iterable[InflightMessage], *, last: bool) -> bool:
        """Write what is due and remove what has arrived, in one transaction, where there is any."""
        spool, backlog = self.spool, self._backlog
        now = time.monotonic()
        made = list(self._rows(due, now, last=last))
        new = [batch for batch, _, _ in made]
        with self._lock:
            arrived = list(backlog.arrived)
            count = sum(batch.left for batch in (*backlog.batches.values(), *new)) - spool.most
            size = spool.bytes + sum(batch.row.size for batch in new) - spool.most_bytes
            chosen = backlog.victims(new, count, size)
        # What is too unimportant to be written stays in memory, where room is made likewise.
        written = [each for each in made if each[0] not in chosen]
        victims = [batch for batch in chosen if batch not in new]
        if not written and not victims and not (arrived and (last or now - self._written >= TIDY)):
            self._soon = self._soon or bool(arrived)
            return False
        spool.write(
            [(batch.row, body) for batch, _, body in written],
            [*arrived, *(batch.row.id for batch in victims)],
        )
        self._written = now
        self._unsynced = self._unsynced or bool(written)
        with self._lock:
            del backlog.arrived[: len(arrived)]
            for batch in victims:
                backlog.drop(batch)
            for batch, members, _ in written:
                backlog.saved(batch, members)
        return True

    def _rows(self, due: Iterable[InflightMessage], now: float, *, last: bool) -> Iterator[Made]:
        """Make rows of what the write rate allows, in the order of sending."""
        earned = (now - self._budgeted) * WRITE_RATE
        self._budget, self._budgeted = min(self._budget + earned, float(WRITE_RATE)), now
        for members in _grouped(due):
            if self._budget <= 0 and not last:
                self._soon = True
                return
            first = members[0].parcel
            # Encoded when sent at the latest, so that nothing is encoded here in earnest.
            body = pack(
                [aged(p.parcel.seal(), now - p.parcel.since, replayed=True) for p in members]
            )
            self._budget -= len(body)
            row = Row(self._next_row, _kind(first), first.topic, len(members), len(body))
            self._next_row += 1
            yield Batch(row, first.channel), members, body

    def _fetch(self) -> None:
        """Read ahead of the link."""
        backlog = self._backlog
        damaged = 0
        while True:
            with self._lock:
                batch = backlog.first_asleep()
                enough = backlog.connected_since is None or len(backlog.fetched) >= AHEAD
            if batch is None or enough:
                break
            try:
                read = self.spool.read(batch.row)
            except SpoolError:
                with self._lock:
                    backlog.unreadable = True
                raise
            with self._lock:
                backlog.unreadable = False
                if read is None:
                    damaged += batch.asleep
                    backlog.drop(batch)
                    backlog.arrived.append(batch.row.id)
                else:
                    backlog.fetched.extend(batch.wake(*read))
        if damaged:
            log.warning("%s: %d messages in it are damaged", self.spool.path, damaged)


def _kind(parcel: Message) -> Kind:
    if parcel.event:
        return Kind.EVENT
    return Kind.LOSSLESS if parcel.channel.lossless else Kind.RESULT


def _grouped(due: Iterable[InflightMessage]) -> list[list[InflightMessage]]:
    """Put together what can share a row: of one topic and channel, and not too much."""
    rows: list[list[InflightMessage]] = []
    open_rows: dict[tuple[str, Channel], tuple[list[InflightMessage], int]] = {}
    for promise in due:
        key = (promise.parcel.topic, promise.parcel.channel)
        row, size = open_rows.get(key, ([], 0))
        if not row or len(row) >= ROW_MESSAGES or size >= ROW_BYTES:
            row, size = [], 0
            rows.append(row)
        row.append(promise)
        open_rows[key] = (row, size + promise.size)
    return rows
