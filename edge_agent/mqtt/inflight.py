"""What was promised and is not acknowledged yet: who has it, and who gives way to whom.

Bookkeeping only: the link sends, the keeper writes and reads, and both hold the link's lock while
they call. A promise is in memory, on disk, or both; it ends when the broker acknowledges it, or
when it is given up and counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .message import Channel, Message

if TYPE_CHECKING:
    from .spool import Row

ROOM = 1000
ROOM_BYTES = 16 * 2**20
"""What may wait in memory, and as much again be under way; without a disk that is all there is."""
LATE = 0.25
"""Seconds after which an acknowledgement is late: until then it costs the disk nothing."""

DONE, IN_HAND, COUNTED = 1, 2, 4


class InflightMessage:
    """A parcel until it is acknowledged or given up."""

    # Not a dataclass: making one takes half a millisecond, on the way to the first result.
    __slots__ = ("batch", "done", "flying", "index", "number", "parcel", "saving")

    def __init__(
        self, parcel: Message, number: int = 0, batch: Batch | None = None, index: int = 0
    ) -> None:
        """Make one that is nowhere yet, or on disk.

        Args:
            parcel: what is promised.
            number: its place in the order of sending.
            batch: where it lies on disk.
            index: its place there.

        """
        self.parcel = parcel
        self.number = number
        self.batch = batch
        self.index = index
        self.flying = False
        """Handed to the present connection."""
        self.done = False
        self.saving = False
        """Being written to disk."""

    @property
    def size(self) -> int:
        """Bytes of its payload in memory."""
        return len(self.parcel.body or b"")


class Batch:
    """A row on disk, and what has become of its messages."""

    __slots__ = ("channel", "in_hand", "left", "marks", "row")

    def __init__(self, row: Row, channel: Channel, mark: int = 0) -> None:
        """Make one of whose messages none is acknowledged or in hand."""
        self.row = row
        self.channel = channel
        self.marks = bytearray([mark]) * row.count
        """For each message: DONE, IN_HAND (flying, or about to), COUNTED as published."""
        self.left = row.count
        """Not acknowledged."""
        self.in_hand = 0

    @property
    def asleep(self) -> int:
        """Messages that are on disk and nowhere else."""
        return self.left - self.in_hand

    def take(self, index: int) -> None:
        self.marks[index] |= IN_HAND
        self.in_hand += 1

    def put_back(self, index: int, *, counted: bool) -> None:
        self.marks[index] = COUNTED if counted else 0
        self.in_hand -= 1

    def finish(self, index: int) -> None:
        self.in_hand -= bool(self.marks[index] & IN_HAND)
        self.marks[index] = DONE
        self.left -= 1

    def wake(self, messages: Sequence[bytes], waited: float) -> Iterator[InflightMessage]:
        """Take in hand all that is asleep, given the row's messages and their seconds on disk."""
        since = time.monotonic() - waited
        for index, body in enumerate(messages):
            mark = self.marks[index]
            if mark & (DONE | IN_HAND):
                continue
            self.take(index)
            parcel = Message(
                self.channel,
                self.row.topic,
                None,
                event=self.row.event,
                counted=bool(mark & COUNTED),
                replayed=True,
                body=body,
                since=since,
            )
            yield InflightMessage(parcel, 0, self, index)


class Inflight:
    """All promises that are not kept yet. Whoever calls holds the link's lock."""

    def __init__(self) -> None:
        self.rouse: Callable[[], object] = lambda: None
        """Called when there is work for the keeper, if there is one."""
        self.arrived: list[int] = []
        """Rows in which nothing is left: to be removed from disk."""
        self.batches: dict[int, Batch] = {}
        """What is on disk, by its row's id, oldest first."""
        self.fetched: deque[InflightMessage] = deque()
        """Read from disk, about to go."""
        self.connected_since: float | None = None
        self.dropped = 0
        """Given up: for want of room, or not fit to be sent or read."""
        self.promised = 0
        """Since the start."""
        self.unreadable = False
        """What is on disk cannot be had at the moment; the rest does not wait for it."""
        self._flying: dict[int, InflightMessage] = {}
        self._waiting: deque[InflightMessage] = deque()
        self._flying_bytes = self._waiting_bytes = 0
        self._owed = 0
        self._broken = False

    # What the link says

    @property
    def room(self) -> bool:
        """Whether another message may be on its way."""
        return len(self._flying) < ROOM and self._flying_bytes < ROOM_BYTES

    @property
    def waits(self) -> bool:
        """Whether `next` has something, or will have."""
        return bool(self.fetched or self._waiting) or self.first_asleep() is not None

    @property
    def waiting(self) -> int:
        """Messages that are not on their way."""
        return max(0, self._owed - len(self._flying))

    @property
    def copies(self) -> int:
        """Replayed messages that are on their way."""
        return sum(promise.parcel.replayed for promise in self._flying.values())

    def promise(self, parcel: Message) -> InflightMessage:
        """Take responsibility for a parcel."""
        self.promised += 1
        self._owed += 1
        parcel.channel.pending += 1
        return InflightMessage(parcel, self.promised)

    def keep(self, promise: InflightMessage) -> None:
        """Have it wait for its turn."""
        promise.parcel.replayed = self._broken
        promise.parcel.seal()
        self._waiting.append(promise)
        self._waiting_bytes += promise.size
        if len(self._waiting) > ROOM:
            self._make_room()
        while self._waiting_bytes > ROOM_BYTES and self._make_room():
            pass
        self.rouse()

    def overtaken(self) -> None:
        """Something newer goes first: what waits can no longer pass for live."""
        for promise in reversed(self._waiting):
            if promise.parcel.replayed:
                return
            promise.parcel.replayed = True

    def next(self) -> InflightMessage | None:
        """Take what has waited longest; None where there is nothing, or nothing yet."""
        if self.fetched:
            return self.fetched.popleft()
        if self.first_asleep() is not None:
            self.rouse()
            if not self.unreadable:
                return None
        if not self._waiting:
            return None
        promise = self._waiting.popleft()
        self._waiting_bytes -= promise.size
        return promise

    def fly(self, message: int, promise: InflightMessage) -> None:
        """Note that it is on its way, under this message id."""
        promise.flying = True
        self._flying[message] = promise
        self._flying_bytes += promise.size

    def landed(self, message: int) -> None:
        """Note that it is acknowledged, if it is one of ours."""
        promise = self._flying.pop(message, None)
        if promise is not None:
            self._flying_bytes -= promise.size
            self._finish(promise)

    def give_up(self, promise: InflightMessage) -> None:
        """Count as lost what can neither be sent nor kept."""
        self.dropped += 1
        promise.parcel.channel.lost += 1
        self._finish(promise)

    def connected(self) -> None:
        self.connected_since, self._broken = time.monotonic(), False

    def broke(self) -> None:
        """Note that the connection is gone: all that was under way waits again, as a copy."""
        self.connected_since, self._broken = None, True
        for promise in (*self._flying.values(), *self.fetched):
            promise.flying = False
            if promise.batch is not None:
                promise.batch.put_back(promise.index, counted=promise.parcel.counted)
        everything = (*self._flying.values(), *self.fetched, *self._waiting)
        self._flying.clear()
        self.fetched.clear()
        self._flying_bytes = 0
        in_memory = [promise for promise in everything if promise.batch is None]
        self._wait(sorted(in_memory, key=lambda promise: promise.number))
        for promise in self._waiting:
            promise.parcel.replayed = True
        if self._waiting:
            self.rouse()

    # What the keeper asks

    def unsaved(self) -> list[InflightMessage]:
        """Give what is in memory only, in the order of sending."""
        unsaved = [promise for promise in self._flying.values() if promise.batch is None]
        return sorted([*unsaved, *self._waiting], key=lambda promise: promise.number)

    def late(self) -> bool:
        """Whether something that is in memory only should have arrived by now."""
        flying = next((p for p in self._flying.values() if p.batch is None), None)
        first = [*([flying] if flying is not None else []), *list(self._waiting)[:1]]
        now = time.monotonic()
        return any(now - promise.parcel.since > LATE for promise in first)

    def first_asleep(self) -> Batch | None:
        return next((batch for batch in self.batches.values() if batch.asleep), None)

    def adopt(self, rows: Iterable[Row]) -> None:
        """Take over what an earlier run had promised; its pipelines' counts ended with it."""
        earlier = Channel("earlier", 1, lossless=False)
        for row in rows:
            self.batches[row.id] = Batch(row, earlier, COUNTED)
            earlier.pending += row.count
            self._owed += row.count

    def saved(self, batch: Batch, members: Iterable[InflightMessage]) -> None:
        """Note that these are on disk now, and let go of those in memory that wait."""
        self.batches[batch.row.id] = batch
        for index, promise in enumerate(members):
            promise.batch, promise.index = batch, index
            if promise.parcel.counted:
                batch.marks[index] |= COUNTED
            if promise.done:
                batch.finish(index)
            elif promise.flying:
                batch.take(index)
        self._clear(batch)
        self._wait([promise for promise in self._waiting if promise.batch is None])

    def victims(self, new: Sequence[Batch], count: int, size: int) -> list[Batch]:
        """Choose who gives way: the least important first, and of those the oldest.

        Args:
            new: about to be written; may be chosen too.
            count: messages to be got rid of.
            size: bytes to be got rid of.

        """
        chosen: list[Batch] = []
        if count <= 0 and size <= 0:
            return chosen
        everything = (*self.batches.values(), *new)
        for kind in sorted({batch.row.kind for batch in everything}):
            for batch in everything:
                if count <= 0 and size <= 0:
                    return chosen
                if batch.row.kind == kind and not batch.in_hand:
                    chosen.append(batch)
                    count -= batch.left
                    size -= batch.row.size
        return chosen

    def drop(self, batch: Batch) -> None:
        """Give up what lies in a row and nowhere else."""
        self.batches.pop(batch.row.id, None)
        for promise in (*self._flying.values(), *self.fetched):
            if promise.batch is batch:
                promise.batch = None
        gone = batch.asleep
        self.dropped += gone
        self._owed -= gone
        batch.channel.lost += gone
        batch.channel.pending -= gone

    # Between the two

    def _wait(self, promises: Iterable[InflightMessage]) -> None:
        self._waiting = deque(promises)
        self._waiting_bytes = sum(promise.size for promise in self._waiting)

    def _finish(self, promise: InflightMessage) -> None:
        promise.done, promise.flying = True, False
        promise.parcel.channel.pending -= 1
        self._owed -= 1
        if promise.batch is not None:
            promise.batch.finish(promise.index)
            self._clear(promise.batch)

    def _clear(self, batch: Batch) -> None:
        if batch.left == 0:
            del self.batches[batch.row.id]
            self.arrived.append(batch.row.id)

    def _make_room(self) -> bool:
        """Give up the oldest of the least important in memory.

        Lossless pipelines wait for us instead, so that theirs are few and none is given up.
        """
        for event in (False, True):
            for promise in self._waiting:
                parcel = promise.parcel
                if parcel.event != event or (parcel.channel.lossless and not event):
                    continue
                if not promise.saving:
                    self._waiting.remove(promise)
                    self._waiting_bytes -= promise.size
                    self.give_up(promise)
                    return True
        return False
