"""Where captures wait for a lane: the newest wins, the oldest goes first, and every one is counted.

One lock holds it all, so that the account adds up at any moment and a model is exchanged exactly
between two frames. Whose turn it is where not all can be served is decided by `shares`. Knows
nothing of sources, engines or MQTT.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from ...core.types import Sample
from . import read_ahead
from .fair_share import Shares
from .queue import REASONS, Account, Job, Reason, Slot, W

__all__ = ["REASONS", "Account", "Board", "Job", "Slot"]

PATIENCE = 0.02
"""Seconds that a lane with nothing to do waits before one more recording goes on."""


class Board(Generic[W]):
    """Any number of pipelines put captures on it, any number of lanes take them off."""

    def __init__(
        self,
        *,
        max_delay: float = 0.0,
        lanes: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin empty.

        Args:
            max_delay: how long a lane waits for frames that may go together with what it has,
                seconds.
            lanes: how many will take captures off.
            clock: monotonic seconds, as captures have them.

        """
        self.max_delay = max_delay
        self._clock = clock
        self._lock = threading.RLock()
        # A condition for each kind of waiting: a capture wakes one lane, and nobody else.
        self._work = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._slots: list[Slot[W]] = []
        self._shares = Shares()
        self._gathering: list[W] = []
        """Models that a lane waits for more frames for: no other lane takes theirs."""
        self._ahead = lanes * read_ahead.AHEAD
        self._resting = 0
        """Recordings that wait for their turn."""
        self._idle = 0
        """Lanes that have nothing to do."""
        self._closed = False

    # Capture side

    def add(self, slot: Slot[W]) -> None:
        with self._lock:
            slot._room = threading.Condition(self._lock)  # noqa: SLF001 - a slot is the board's own
            self._slots.append(slot)

    def remove(self, slot: Slot[W]) -> None:
        """Take a pipeline off; what waits is forgotten with its account."""
        with self._lock:
            slot.gone = True
            slot.queue.clear()
            self._slots.remove(slot)
            self._resting -= slot.turn.rests
            self._call()
            slot._room.notify_all()  # noqa: SLF001
            self._changed.notify_all()

    def skip(self, slot: Slot[W], reason: Reason) -> None:
        """Count a capture that goes no further."""
        with self._lock:
            slot.turn.gave()
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
        with self._lock:
            slot.turn.gave()
            if slot.lossless and not slot.turn.asks and len(slot.queue) >= slot.room:
                slot._room.wait_for(  # noqa: SLF001
                    lambda: self._closed or slot.gone or len(slot.queue) < slot.room
                )
            if self._closed or slot.gone:
                return False
            if not slot.lossless and len(slot.queue) >= slot.room:
                slot.queue.popleft()
                slot.account.dropped["superseded"] += 1
                slot.account.waiting -= 1
            elif not slot.queue and not slot.turn.asks:
                self._shares.arrive(slot.share)
            slot.queue.append(make(slot.seq))
            slot.seq += 1
            slot.account.captured += 1
            slot.account.waiting += 1
            if self._gathering:
                self._work.notify_all()  # it may be for the lane that gathers, or for another
            else:
                self._work.notify()
            return True

    def turn(self, slot: Slot[W], *, several: bool = True, timeout: float | None = None) -> bool:
        """Wait until a recording shall give its next capture; see `turns`.

        Args:
            slot: the recording's.
            several: whether it could give several in a row.
            timeout: seconds; None: as long as it takes.

        Returns:
            False once nobody will come for it, or when the time is over.

        """
        with self._lock:
            if self._closed or slot.gone:
                return False
            turn = slot.turn
            if not turn.left:
                if not turn.rests:
                    turn.rests, turn.several, turn.asks = True, several, True
                    self._resting += 1
                    if not slot.queue:
                        self._shares.arrive(slot.share)
                self._call()
                slot._room.wait_for(  # noqa: SLF001
                    lambda: self._closed or slot.gone or not turn.rests, timeout
                )
            return not (self._closed or slot.gone or turn.rests)

    def pass_on(self, slot: Slot[W]) -> None:
        """Leave the rest of a recording's turn to others: it has ended, or cannot be read now."""
        with self._lock:
            slot.turn.left = 0
            self._call()

    def _call(self) -> None:
        """Let recordings go on whose turn it is."""
        if self._resting:
            for slot in read_ahead.call(self._slots, self._ahead, idle=self._idle > 0):
                self._resting -= 1
                slot._room.notify()  # noqa: SLF001

    def _asked_for(self) -> bool:
        """Whether a recording would give something if it were let."""
        return self._resting > 0 and any(s.turn.rests and not s.queue for s in self._slots)

    # Lane side

    def take(self) -> Job[W] | None:
        """Wait for a capture, and take the one whose turn it is; None once closed."""
        with self._lock:
            while not self._closed:
                job = self._next()
                if job is not None:
                    return job
                self._idle += 1
                self._call()
                self._work.wait(PATIENCE if self._asked_for() else None)
                self._idle -= 1
            return None

    def gather(self, job: Job[W]) -> list[Job[W]]:
        """Take more frames that go through the same model, of any pipelines, and give all.

        Waits for them no longer than `max_delay`, and not where nothing could come or another
        model's frame waits for a lane.
        """
        jobs, model = [job], job.model
        with self._lock:
            until = job.began + self.max_delay
            self._gathering.append(model)
            while not self._closed:
                more = self._next(model) if len(jobs) < model.together else None
                if more is not None:
                    jobs.append(more)
                    continue
                left = until - self._clock()
                if len(jobs) == model.together or left <= 0 or not self._worth_waiting(jobs):
                    break
                self._work.wait(left)
            self._gathering.remove(model)
            # Lanes that were woken meanwhile have left what they saw to this one.
            self._work.notify_all()
        for one in jobs:
            one.fellows = len(jobs)
        return jobs

    def _worth_waiting(self, jobs: list[Job[W]]) -> bool:
        """Whether a pipeline may yet give a frame for these, and no other frame wants the lane."""
        model, served = jobs[0].model, {id(job.slot) for job in jobs}
        more = False
        for slot in self._slots:
            picked = slot.pick()
            if slot.queue and picked is not None and picked is not model and not self._idle:
                return False
            more = more or (picked is model and id(slot) not in served)
        return more

    def _next(self, only: W | None = None) -> Job[W] | None:
        """Take the frame whose turn it is; of those for one model, where that is given."""
        now = self._clock()
        waiting: list[Slot[W]] = []
        for slot in self._slots:
            if slot.deadline and slot.queue:
                self._drop_late(slot, now)
            if slot.queue:
                waiting.append(slot)
        while waiting:
            slot = self._shares.choose(waiting, now)
            model = slot.pick()
            others = model is not only if only is not None else model in self._gathering
            if model is None or others:
                waiting.remove(slot)
                continue
            slot.taken()
            model.users += 1
            charged = (slot.cost or model.cost).seconds
            self._shares.went(slot.share, waiting, now, charged)
            sample = slot.queue.popleft()
            slot._taken += 1  # noqa: SLF001
            if slot.lossless and not slot.turn.asks:
                slot._room.notify()  # noqa: SLF001
            self._call()
            return Job(slot, sample, model, slot._taken - 1, now, charged)  # noqa: SLF001
        return None

    def _drop_late(self, slot: Slot[W], now: float) -> None:
        while slot.queue and now - slot.head > slot.deadline:
            slot.queue.popleft()
            slot.account.waiting -= 1
            slot.account.dropped["deadline"] += 1
            slot._room.notify()  # noqa: SLF001
            if not slot.account.waiting:
                self._changed.notify_all()

    @contextmanager
    def using(self, pick: Callable[[], Sequence[W | None]]) -> Iterator[Sequence[W | None]]:
        """Keep further models from being closed while a lane works with them."""
        with self._lock:
            models = pick()
            for model in models:
                if model is not None:
                    model.users += 1
        try:
            yield models
        finally:
            with self._lock:
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
        with self._lock:
            took = (self._clock() - job.began) / job.fellows
            (slot.cost or job.model.cost).learn(took)
            if slot.cost is not None:
                slot.share.spent += took - job.charged
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
            ready = slot._done.pop(slot._given, None)  # noqa: SLF001
            slot._delivering = ready is not None  # noqa: SLF001
        while ready is not None:
            ready()
            with self._lock:
                slot._given += 1  # noqa: SLF001
                ready = slot._done.pop(slot._given, None)  # noqa: SLF001
                if ready is None:
                    slot._delivering = False  # noqa: SLF001
                    self._changed.notify_all()

    def settled(self, slot: Slot[W], closing: threading.Event) -> None:
        """Wait until every capture of a slot that has ended is inferred and handed over."""
        with self._lock:
            while not (self._closed or slot.gone or closing.is_set()):
                if slot.account.waiting == 0 and slot._given == slot._taken:  # noqa: SLF001
                    return
                self._changed.wait(0.1)

    # Control side

    @contextmanager
    def boundary(self) -> Iterator[None]:
        """Hold all lanes between two frames."""
        with self._lock:
            yield
            self._work.notify_all()
            self._changed.notify_all()

    def drained(self, model: W, timeout: float) -> bool:
        """Wait until no lane uses *model*; False when the time is over."""
        with self._lock:
            return self._changed.wait_for(lambda: model.users == 0, timeout)

    def accounts(self) -> dict[str, Account]:
        """Copy all accounts at one moment."""
        with self._lock:
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
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._changed.notify_all()
            for slot in self._slots:
                slot._room.notify_all()  # noqa: SLF001


def _nothing() -> None:
    pass
