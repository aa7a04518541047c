"""Where captures wait for a lane: the newest wins, the oldest goes first, and every one is counted.

One lock holds it all, so that the account adds up at any moment and a model is exchanged exactly
between two frames. Knows nothing of sources, engines or MQTT.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from .records import Sample

Reason = Literal["superseded", "rate", "deadline", "still", "partial", "error"]
REASONS: tuple[Reason, ...] = ("superseded", "rate", "deadline", "still", "partial", "error")


class Counted(Protocol):
    """Something that serves frames and must not be closed while it does."""

    users: int


W = TypeVar("W", bound=Counted)


@dataclass(slots=True)
class Account:
    """captured = inferred + waiting + all dropped, at any moment."""

    captured: int = 0
    inferred: int = 0
    waiting: int = 0
    """Queued or being inferred."""
    dropped: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))


class Slot(Generic[W]):
    """One pipeline's place on the board."""

    def __init__(
        self, name: str, *, room: int, lossless: bool, priority: int = 0, deadline: float = 0.0
    ) -> None:
        self.name = name
        self.room = room
        self.lossless = lossless
        self.priority = priority
        self.deadline = deadline
        """Seconds; 0: none."""
        self.account = Account()
        self.pick: Callable[[], W | None] = lambda: None
        """Chooses the model for the next frame; None: there is none yet."""
        self.work: Callable[[Job[W]], None] = lambda _job: None
        """What a lane does with a frame of this pipeline."""
        self.queue: deque[Sample] = deque()
        self.seq = 0
        self.gone = False
        self._taken = 0
        self._given = 0
        self._done: dict[int, Callable[[], None]] = {}
        self._delivering = False


@dataclass(frozen=True, slots=True)
class Job(Generic[W]):
    """A frame that a lane has taken, and the model it goes through."""

    slot: Slot[W]
    sample: Sample
    model: W
    ticket: int


class Board(Generic[W]):
    """Any number of pipelines put captures on it, any number of lanes take them off."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._slots: list[Slot[W]] = []
        self._closed = False

    # Capture side

    def add(self, slot: Slot[W]) -> None:
        with self._changed:
            self._slots.append(slot)

    def remove(self, slot: Slot[W]) -> None:
        """Take a pipeline off; what waits is forgotten with its account."""
        with self._changed:
            slot.gone = True
            slot.queue.clear()
            self._slots.remove(slot)
            self._changed.notify_all()

    def skip(self, slot: Slot[W], reason: Reason) -> None:
        """Count a capture that goes no further."""
        with self._changed:
            slot.seq += 1
            slot.account.captured += 1
            slot.account.dropped[reason] += 1

    def put(self, slot: Slot[W], make: Callable[[int], Sample]) -> bool:
        """Leave a capture; a lossless slot waits for room, a live one lets its oldest give way.

        Args:
            slot: whose capture it is.
            make: makes the sample, given its sequence number.

        Returns:
            False once nobody will come for it.

        """
        with self._changed:
            if slot.lossless:
                self._changed.wait_for(
                    lambda: len(slot.queue) < slot.room or self._closed or slot.gone
                )
            if self._closed or slot.gone:
                return False
            if len(slot.queue) >= slot.room:
                slot.queue.popleft()
                slot.account.dropped["superseded"] += 1
                slot.account.waiting -= 1
            slot.queue.append(make(slot.seq))
            slot.seq += 1
            slot.account.captured += 1
            slot.account.waiting += 1
            # Lanes and waiting lossless captures share the condition: one might be the wrong one.
            self._changed.notify_all()
            return True

    # Lane side

    def take(self) -> Job[W] | None:
        """Wait for the oldest capture of the highest priority; None once closed."""
        with self._changed:
            while not self._closed:
                job = self._next()
                if job is not None:
                    return job
                self._changed.wait()
            return None

    def _next(self) -> Job[W] | None:
        now = time.monotonic()
        while True:
            ready = [slot for slot in self._slots if slot.queue]
            ready.sort(key=lambda slot: (-slot.priority, slot.queue[0].since))
            for slot in ready:
                if slot.deadline and now - slot.queue[0].since > slot.deadline:
                    slot.queue.popleft()
                    slot.account.waiting -= 1
                    slot.account.dropped["deadline"] += 1
                    self._changed.notify_all()
                    break  # the order has changed
                model = slot.pick()
                if model is None:
                    continue
                model.users += 1
                sample = slot.queue.popleft()
                slot._taken += 1  # noqa: SLF001 - a slot is the board's own
                if slot.lossless:
                    self._changed.notify_all()
                return Job(slot, sample, model, slot._taken - 1)  # noqa: SLF001
            else:
                return None

    @contextmanager
    def using(self, pick: Callable[[], Sequence[W | None]]) -> Iterator[Sequence[W | None]]:
        """Keep further models from being closed while a lane works with them."""
        with self._changed:
            models = pick()
            for model in models:
                if model is not None:
                    model.users += 1
        try:
            yield models
        finally:
            with self._changed:
                for model in models:
                    if model is not None:
                        model.users -= 1
                        if model.users == 0:
                            self._changed.notify_all()

    def finish(self, job: Job[W], deliver: Callable[[], None] | None) -> None:
        """Count a taken frame and hand its result over in the order of capture.

        Args:
            job: what `take` gave.
            deliver: publishes the result; None: inference failed. Called here, or by the lane
                that finishes the frame before it.

        """
        slot = job.slot
        with self._changed:
            job.model.users -= 1
            slot.account.waiting -= 1
            if deliver is None:
                slot.account.dropped["error"] += 1
            else:
                slot.account.inferred += 1
            if job.model.users == 0:
                self._changed.notify_all()
            slot._done[job.ticket] = deliver or _nothing  # noqa: SLF001
            if slot._delivering:  # noqa: SLF001
                return
            slot._delivering = True  # noqa: SLF001
        while True:
            with self._changed:
                ready = slot._done.pop(slot._given, None)  # noqa: SLF001
                if ready is None:
                    slot._delivering = False  # noqa: SLF001
                    self._changed.notify_all()
                    return
            ready()
            with self._changed:
                slot._given += 1  # noqa: SLF001

    def settled(self, slot: Slot[W], closing: threading.Event) -> None:
        """Wait until every capture of a slot that has ended is inferred and handed over."""
        with self._changed:
            while not (self._closed or slot.gone or closing.is_set()):
                if slot.account.waiting == 0 and slot._given == slot._taken:  # noqa: SLF001
                    return
                self._changed.wait(0.1)

    # Control side

    @contextmanager
    def boundary(self) -> Iterator[None]:
        """Hold all lanes between two frames."""
        with self._changed:
            yield
            self._changed.notify_all()

    def drained(self, model: W, timeout: float) -> bool:
        """Wait until no lane uses *model*; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: model.users == 0, timeout)

    def accounts(self) -> dict[str, Account]:
        """Copy all accounts at one moment."""
        with self._changed:
            return {
                slot.name: Account(
                    slot.account.captured,
                    slot.account.inferred,
                    slot.account.waiting,
                    dict(slot.account.dropped),
                )
                for slot in self._slots
            }

    def close(self) -> None:
        """Wake everyone; nothing is taken any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _nothing() -> None:
    pass
