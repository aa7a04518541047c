"""QoS 1 messages that the broker has not acknowledged: where each is, and which are dropped first.

Bookkeeping only: the outbox publishes, the spool writer writes and reads, and both hold the
client's lock during calls. A message is in memory, on disk, or both; it is done when the broker
acknowledges it, or when it is dropped and counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from .message import Channel, Message

if TYPE_CHECKING:
    from .spool import Row

ROOM = 1000
ROOM_BYTES = 16 * 2**20
"""Limit of messages waiting in memory, and also of those in flight; the total without a disk."""
OVERDUE = 0.25
"""Seconds after which an acknowledgment is overdue: until then nothing is written to disk."""

DONE, IN_MEMORY, COUNTED = 1, 2, 4


class InflightMessage:
    """A message until it is acknowledged or dropped."""

    # Not a dataclass: creating that class takes 0.5 ms, which delays the first result.
    __slots__ = ("batch", "done", "index", "message", "number", "saving", "sent")

    def __init__(
        self, message: Message, number: int = 0, batch: Batch | None = None, index: int = 0
    ) -> None:
        """Create a message in memory, or also in *batch*; *number* is its publishing order."""
        self.message = message
        self.number = number
        self.batch = batch
        self.index = index
        self.sent = False
        """Whether it was passed to the present connection."""
        self.done = False
        self.saving = False
        """Whether it is being written to disk."""

    @property
    def size(self) -> int:
        """Size of its payload in memory, bytes."""
        return len(self.message.body or b"")


class Batch:
    """A row on disk, and the state of its messages."""

    __slots__ = ("channel", "in_memory", "left", "marks", "row")

    def __init__(self, row: Row, channel: Channel, mark: int = 0) -> None:
        """Create a batch with no message acknowledged or in memory."""
        self.row = row
        self.channel = channel
        self.marks = bytearray([mark]) * row.count
        """For each message: DONE, IN_MEMORY (sent, or about to be), COUNTED as published."""
        self.left = row.count
        """Number of messages not acknowledged."""
        self.in_memory = 0

    @property
    def on_disk_only(self) -> int:
        """Number of messages that are on disk and not in memory."""
        return self.left - self.in_memory

    def load(self, index: int) -> None:
        """Record that a message is in memory."""
        self.marks[index] |= IN_MEMORY
        self.in_memory += 1

    def unload(self, index: int, *, counted: bool) -> None:
        """Record that a message is only on disk."""
        self.marks[index] = COUNTED if counted else 0
        self.in_memory -= 1

    def finish(self, index: int) -> None:
        """Record that a message was acknowledged."""
        self.in_memory -= bool(self.marks[index] & IN_MEMORY)
        self.marks[index] = DONE
        self.left -= 1

    def load_all(self, bodies: Sequence[bytes], waited: float) -> Iterator[InflightMessage]:
        """Load the messages that are only on disk, given their bodies and seconds on disk."""
        encoded_at = time.monotonic() - waited
        for index, body in enumerate(bodies):
            mark = self.marks[index]
            if mark & (DONE | IN_MEMORY):
                continue
            self.load(index)
            message = Message(
                self.channel,
                self.row.topic,
                None,
                event=self.row.event,
                counted=bool(mark & COUNTED),
                replayed=True,
                body=body,
                encoded_at=encoded_at,
            )
            yield InflightMessage(message, 0, self, index)


class Series:
    """What has to wait: behind a message of its series that may wait, or for its topic."""

    def __init__(self) -> None:
        self.earlier = False
        """Whether an earlier run may have left messages that are not looked at yet."""
        self.held: Collection[str] = ()
        """Topics that are not published yet: what waits on them is left aside."""
        self._waiting: set[str] = set()

    def follows(self, message: Message) -> bool:
        """Whether an older message of its series may wait.

        A copy may be of a series of an earlier run; these are not known.
        """
        return bool(message.series) and (message.replayed or message.series in self._waiting)

    def wait(self, message: Message) -> None:
        """Record that a message waits, and the rest of its series with it."""
        if message.closes:
            self._waiting.discard(message.series)
        elif message.series:
            self._waiting.add(message.series)

    def sent(self, message: Message) -> None:
        """Record that a message is in flight: if it is the last one, nothing follows."""
        if message.closes:
            self._waiting.discard(message.series)

    def clear(self) -> None:
        """Record that no message waits or is in flight."""
        self._waiting.clear()


class Inflight:  # noqa: PLR0904 - one for each event of a message
    """All messages with spooled delivery that are not done. Callers hold the client's lock."""

    def __init__(self) -> None:
        self.on_work: Callable[[], object] = lambda: None
        """Called when there is work for the spool writer, if there is one."""
        self.finished_rows: list[int] = []
        """Rows to remove from disk: all their messages are done."""
        self.batches: dict[int, Batch] = {}
        """Batches on disk by row id, oldest first."""
        self.loaded: deque[InflightMessage] = deque()
        """Messages read from disk, to be published next."""
        self.connected_since: float | None = None
        self.dropped = 0
        """Messages dropped for lack of space, or because they cannot be published or read."""
        self.added = 0
        """Messages added since the start."""
        self.unreadable = False
        """Whether the disk cannot be read at present; messages in memory do not wait for it."""
        self.series = Series()
        self._sent: dict[int, InflightMessage] = {}
        """Messages in flight, by message id on the present connection."""
        self._waiting: deque[InflightMessage] = deque()
        self._sent_bytes = self._waiting_bytes = 0
        self._left = 0
        """Number of messages that are not done."""
        self._interrupted = False
        """Whether the last connection has broken."""

    # For the outbox

    @property
    def has_room(self) -> bool:
        """Whether another message may be in flight."""
        return len(self._sent) < ROOM and self._sent_bytes < ROOM_BYTES

    @property
    def crowded(self) -> bool:
        """Whether messages that wait in memory soon find no room there."""
        return len(self._waiting) > ROOM / 2 or self._waiting_bytes > ROOM_BYTES / 2

    @property
    def has_waiting(self) -> bool:
        """Whether `take` can return a message now or once the disk is read."""
        return bool(self.loaded or self._next()) or self.first_on_disk_only() is not None

    def must_wait(self, message: Message) -> bool:
        """Whether a message must not be published yet: its topic is held, or it would overtake.

        It would overtake an older one of its series; so may a copy of one of an earlier run, whose
        series are not known here.
        """
        if message.topic in self.series.held:
            return True
        return self.series.follows(message) and (self.has_waiting or self.series.earlier)

    @property
    def waiting(self) -> int:
        """Number of messages that are not in flight."""
        return max(0, self._left - len(self._sent))

    @property
    def copies(self) -> int:
        """Number of replayed messages in flight."""
        return sum(entry.message.replayed for entry in self._sent.values())

    def add(self, message: Message) -> InflightMessage:
        """Accept a message; a call of `enqueue` or `sent` must follow."""
        self.added += 1
        self._left += 1
        message.channel.pending += 1
        return InflightMessage(message, self.added)

    def enqueue(self, entry: InflightMessage) -> None:
        """Queue a message."""
        message = entry.message
        message.replayed = message.replayed or self._interrupted or self.must_wait(message)
        message.encode_to_wait()
        self.series.wait(message)
        self._waiting.append(entry)
        self._waiting_bytes += entry.size
        if len(self._waiting) > ROOM:
            self._make_room()
        while self._waiting_bytes > ROOM_BYTES and self._make_room():
            pass
        self.on_work()

    def mark_overtaken(self) -> None:
        """Mark waiting messages as replayed because a newer one goes first."""
        for entry in reversed(self._waiting):
            if entry.message.replayed:
                return
            entry.message.replayed = True

    def take(self) -> InflightMessage | None:
        """Remove and return the oldest waiting message, or None if there is none in memory.

        `sent` or `drop` must follow.
        """
        if self.loaded:
            return self.loaded.popleft()
        entry = self._next()
        first = None if entry is None else entry.message
        held = self.series.earlier and first is not None and first.replayed and first.series
        if held or self.first_on_disk_only() is not None:
            self.on_work()
            if not self.unreadable:
                return None
        return self._take_waiting(entry)

    def take_unsent(self) -> InflightMessage | None:
        """Remove and return the oldest message in memory if it is not a copy and may precede them.

        `sent` or `drop` must follow.
        """
        entry = self._next()
        return None if entry is None or entry.message.replayed else self._take_waiting(entry)

    def _next(self) -> InflightMessage | None:
        """Return the oldest waiting message in memory that may be published."""
        return next((e for e in self._waiting if e.message.topic not in self.series.held), None)

    def _take_waiting(self, entry: InflightMessage | None) -> InflightMessage | None:
        if entry is not None:
            self._waiting.remove(entry)
            self._waiting_bytes -= entry.size
        return entry

    def sent(self, mid: int, entry: InflightMessage) -> None:
        """Record that a message is in flight, under this message id."""
        entry.sent = True
        self.series.sent(entry.message)
        self._sent[mid] = entry
        self._sent_bytes += entry.size

    def acknowledged(self, mid: int, *, refused: bool = False) -> None:
        """Record that a message id is acknowledged, or *refused*, which counts as lost.

        Ids of other messages are ignored.
        """
        entry = self._sent.pop(mid, None)
        if entry is not None:
            self._sent_bytes -= entry.size
            (self.drop if refused else self._finish)(entry)

    def drop(self, entry: InflightMessage) -> None:
        """Count a message as lost."""
        self.dropped += 1
        entry.message.channel.lost += 1
        self._finish(entry)

    def connected(self) -> None:
        """Record that there is a connection."""
        self.connected_since, self._interrupted = time.monotonic(), False

    def disconnected(self) -> None:
        """Record that the connection is lost: messages in flight wait again, as copies."""
        self.connected_since, self._interrupted = None, True
        for entry in (*self._sent.values(), *self.loaded):
            entry.sent = False
            if entry.batch is not None:
                entry.batch.unload(entry.index, counted=entry.message.counted)
        everything = (*self._sent.values(), *self.loaded, *self._waiting)
        for entry in everything:
            self.series.wait(entry.message)
        self._sent.clear()
        self.loaded.clear()
        self._sent_bytes = 0
        in_memory = [entry for entry in everything if entry.batch is None]
        self._replace_waiting(sorted(in_memory, key=lambda entry: entry.number))
        for entry in self._waiting:
            entry.message.replayed = True
        if self._waiting:
            self.on_work()

    # For the spool writer

    def unsaved(self) -> list[InflightMessage]:
        """Return the messages that are only in memory, in publishing order."""
        unsaved = [entry for entry in self._sent.values() if entry.batch is None]
        return sorted([*unsaved, *self._waiting], key=lambda entry: entry.number)

    def unsaved_since(self, channel: Channel) -> float:
        """Return since when a channel's oldest message is only in memory; infinite: none is."""
        entries = (*self._sent.values(), *self._waiting)
        mine = (each for each in entries if each.batch is None and each.message.channel is channel)
        return min((each.message.encoded_at for each in mine), default=inf)

    def overdue(self) -> bool:
        """Whether a message that is only in memory should have been acknowledged by now."""
        sent = next((entry for entry in self._sent.values() if entry.batch is None), None)
        first = [*([sent] if sent is not None else []), *list(self._waiting)[:1]]
        now = time.monotonic()
        return any(now - entry.message.encoded_at > OVERDUE for entry in first)

    def first_on_disk_only(self) -> Batch | None:
        """Find the oldest batch with messages that are not in memory and may be published."""
        for batch in self.batches.values():
            if batch.on_disk_only and batch.row.topic not in self.series.held:
                return batch
        return None

    def adopt(self, rows: Iterable[Row]) -> None:
        """Take over the messages of an earlier run, whose pipeline counts ended with it."""
        earlier = Channel("earlier", 1, lossless=False)
        self.series.earlier = False
        for row in rows:
            self.batches[row.id] = Batch(row, earlier, COUNTED)
            earlier.pending += row.count
            self._left += row.count

    def saved(self, batch: Batch, members: Iterable[InflightMessage]) -> None:
        """Record that messages are on disk now; release the waiting ones from memory."""
        self.batches[batch.row.id] = batch
        for index, entry in enumerate(members):
            entry.batch, entry.index = batch, index
            if entry.message.counted:
                batch.marks[index] |= COUNTED
            if entry.done:
                batch.finish(index)
            elif entry.sent:
                batch.load(index)
        self._remove_if_finished(batch)
        self._replace_waiting([entry for entry in self._waiting if entry.batch is None])

    def choose_evicted(self, new: Sequence[Batch], count: int, size: int) -> list[Batch]:
        """Choose the batches to drop: the least important first, and of those the oldest.

        They hold at least *count* messages and *size* bytes; *new* are about to be written.
        """
        chosen: list[Batch] = []
        if count <= 0 and size <= 0:
            return chosen
        everything = (*self.batches.values(), *new)
        for kind in sorted({batch.row.kind for batch in everything}):
            for batch in everything:
                if count <= 0 and size <= 0:
                    return chosen
                if batch.row.kind == kind and not batch.in_memory:
                    chosen.append(batch)
                    count -= batch.left
                    size -= batch.row.size
        return chosen

    def drop_batch(self, batch: Batch) -> None:
        """Count as lost the messages that are only in a row on disk."""
        self.batches.pop(batch.row.id, None)
        for entry in (*self._sent.values(), *self.loaded):
            if entry.batch is batch:
                entry.batch = None
        lost = batch.on_disk_only
        self.dropped += lost
        self._left -= lost
        batch.channel.lost += lost
        batch.channel.pending -= lost

    # For both

    def _replace_waiting(self, entries: Iterable[InflightMessage]) -> None:
        self._waiting = deque(entries)
        self._waiting_bytes = sum(entry.size for entry in self._waiting)

    def _finish(self, entry: InflightMessage) -> None:
        entry.done, entry.sent = True, False
        entry.message.channel.pending -= 1
        self._left -= 1
        if not self._left:
            self.series.clear()
        if entry.batch is not None:
            entry.batch.finish(entry.index)
            self._remove_if_finished(entry.batch)

    def _remove_if_finished(self, batch: Batch) -> None:
        if batch.left == 0:
            del self.batches[batch.row.id]
            self.finished_rows.append(batch.row.id)

    def _make_room(self) -> bool:
        """Drop the oldest of the least important messages in memory; return whether there was one.

        Lossless pipelines wait for credit instead, so their messages are few and never dropped.
        What is on held topics takes no room from others.
        """
        if self.series.held:
            held = [each for each in self._waiting if each.message.topic in self.series.held]
            if self._drop_one(held):
                return True
            if len(self._waiting) <= 2 * ROOM and any(entry.saving for entry in held):
                return False
        return self._drop_one(self._waiting)

    def _drop_one(self, waiting: Iterable[InflightMessage]) -> bool:
        for event in (False, True):
            # What is being written leaves memory soon: no event goes in its place.
            if event and len(self._waiting) <= 2 * ROOM and any(e.saving for e in self._waiting):
                return False
            for entry in waiting:
                message = entry.message
                if message.event != event or (message.channel.lossless and not event):
                    continue
                if not entry.saving:
                    self._waiting.remove(entry)
                    self._waiting_bytes -= entry.size
                    self.drop(entry)
                    return True
        return False
