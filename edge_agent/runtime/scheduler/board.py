"""The scheduler's board: captures wait here for a lane, in one bounded queue per pipeline.

A live queue keeps the newest captures; among queues the oldest capture goes first, within fair
shares; every capture is counted. One lock guards everything, so that accounts always add up and a
model is exchanged exactly between two frames. Independent of sources, engines and MQTT.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic

from ...core.types import Sample
from . import read_ahead
from .fair_share import FairShare
from .lanes import Lanes
from .queue import REASONS, Account, FrameQueue, Job, M, Reason

__all__ = ["REASONS", "Account", "Board", "FrameQueue", "Job"]

RESULT_SECONDS = 2.0
"""Time for frames in lanes to give their results at the end of a pipeline, or of the agent."""
PATIENCE = 0.02
"""Seconds that an idle lane waits before one more recording may continue."""


def _unsuited(model: M, queue: FrameQueue[M]) -> bool:
    """Whether the first waiting frame was cut for another version than *model*."""
    return not queue.route.suits(model, queue.frames[0])


class Board(Generic[M]):
    """Any number of pipelines put captures on it, any number of lanes take them off."""

    def __init__(
        self,
        *,
        max_delay: float = 0.0,
        lanes: int = 2,
        clock: Callable[[], float] = time.monotonic,
        starting: bool = False,
    ) -> None:
        """Create an empty board.

        A lane waits up to *max_delay* seconds for further frames for its batch.
        *starting*: models are still being loaded, until `settled` is set.
        """
        self.settled = threading.Event()
        """Set when the initial models are loaded and the first result is published or overdue. The
        first frame of each pipeline added before that has priority over all others."""
        if not starting:
            self.settled.set()
        self.max_delay = max_delay
        self._clock = clock
        self._lock = threading.RLock()
        # A condition for each kind of waiting: a capture wakes only one lane.
        self._work = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._queues: list[FrameQueue[M]] = []
        self._shares = FairShare()
        self._gathering: list[M] = []
        """Models for which a lane collects frames: no other lane takes these."""
        self._untried: list[M] = []
        """Models whose first frame is in a lane: if it never ends, it blocks no other lane."""
        self.lanes = Lanes(lanes)
        self._ahead = lanes * read_ahead.AHEAD
        self._waiting = 0
        """Number of recordings waiting for a grant."""
        self._closed = False

    # Capture side

    def add(self, queue: FrameQueue[M]) -> None:
        with self._lock:
            queue.attach(self._lock)
            queue.is_new = not self.settled.is_set()
            self._queues.append(queue)

    def remove(self, queue: FrameQueue[M]) -> None:
        """Remove a pipeline, discarding its queue and its account."""
        with self._lock:
            queue.removed = True
            queue.frames.clear()
            self._queues.remove(queue)
            self._waiting -= queue.pacing.waiting
            self._grant()
            queue.notify()
            self._changed.notify_all()

    def drop(self, queue: FrameQueue[M], reason: Reason, *, follows: bool = True) -> None:
        """Count a capture that is dropped before it is queued; *follows*: see `Sample`."""
        with self._lock:
            queue.pacing.count()
            queue.drop(reason, follows=follows)

    def put(self, queue: FrameQueue[M], make: Callable[[int], Sample]) -> bool:
        """Add a capture; a full lossless queue waits, a full live queue drops its oldest.

        *make* creates the sample, given its sequence number. False once closed or removed.
        """
        with self._lock:
            queue.pacing.count()
            if queue.full and queue.lossless and not queue.pacing.paced:
                queue.wait(lambda: self._gone(queue) or queue.half_empty)
            if self._gone(queue):
                return False
            if not queue.frames and not queue.pacing.paced:
                self._shares.join(queue.share)
            queue.append(make)
            if self._gathering:
                self._work.notify_all()  # for the lane that collects frames, or another
            elif not queue.held(self._clock()):  # otherwise `finish` wakes a lane for it
                self._work.notify()
            return True

    def offer(self, queue: FrameQueue[M], make: Callable[[int], Sample]) -> bool:
        """Add a capture like `put`, but return False if the queue is full."""
        with self._lock:
            return not queue.full and self.put(queue, make)

    def wait_turn(
        self, queue: FrameQueue[M], *, burst: bool = True, timeout: float | None = None
    ) -> bool:
        """Wait until a recording may deliver its next capture; see `read_ahead`.

        False once it is closed or removed, or after *timeout* seconds. *burst*: it could deliver
        several in a row.
        """
        with self._lock:
            if self._gone(queue):
                return False
            pacing = queue.pacing
            if not pacing.granted:
                if not pacing.waiting:
                    pacing.waiting, pacing.may_burst, pacing.paced = True, burst, True
                    self._waiting += 1
                    if not queue.frames:
                        self._shares.join(queue.share)
                self._grant()
                queue.wait(lambda: self._gone(queue) or not pacing.waiting, timeout)
            return not (self._gone(queue) or pacing.waiting)

    def end_turn(self, queue: FrameQueue[M]) -> None:
        """Release the rest of a recording's grant: it has ended, or cannot be read now."""
        if self._closed:
            return  # no recording needs it, and all captures end at once
        with self._lock:
            queue.pacing.granted = 0
            self._grant()

    def _grant(self) -> None:
        """Grant captures to waiting recordings, as far as `read_ahead` allows."""
        if self._waiting:
            for queue in read_ahead.grant(self._queues, self._ahead, idle=self.lanes.idle):
                self._waiting -= 1
                queue.notify()

    def _grant_due(self) -> bool:
        """Whether a recording with nothing queued waits for a grant."""
        return self._waiting > 0 and any(q.pacing.waiting and not q.frames for q in self._queues)

    def _gone(self, queue: FrameQueue[M]) -> bool:
        return self._closed or queue.removed

    # Lane side

    def take(self) -> Job[M] | None:
        """Wait for a capture, and take the next one in turn; None once closed."""
        lanes, lane = self.lanes, threading.get_ident()
        with self._lock:
            lanes.running.pop(lane, None)
            while not self._closed:
                job = self._next() if lanes.free else None
                if job is not None:
                    lanes.running[lane] = self._clock()
                    return job
                lanes.spare += 1
                self._grant()
                self._work.wait(PATIENCE if self._grant_due() else None)
                lanes.spare -= 1
            return None

    @contextmanager
    def waiting_for_disk(self) -> Iterator[None]:
        """Have another lane run while this one, if the thread is one, waits for the disk.

        On a worn card that may take seconds, for which the frames of all pipelines would wait.
        """
        lanes, lane = self.lanes, threading.get_ident()
        with self._lock:
            runs = lanes.running.pop(lane, None) is not None
            lacks = runs and lanes.spare == 0
            results = lanes.delivers.get(lane) if runs else None
            if runs:
                lanes.waiting[lane] = self._clock()
            if results is not None:
                results.waits = True
            self._work.notify()
        try:
            if lacks:
                lanes.add()
            yield
        finally:
            if runs:
                with self._lock:
                    del lanes.waiting[lane]
                    lanes.running[lane] = self._clock()
                    if results is not None:
                        results.waits = False
                        self._work.notify()

    def gather(self, job: Job[M]) -> list[Job[M]]:
        """Add further frames for the same model from any pipeline; return all of them.

        Waits for them at most `max_delay`, and not at all if none can arrive or another model's
        frame waits for a lane.
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
            # Lanes woken meanwhile have left their frames to this one.
            self._work.notify_all()
        for one in jobs:
            one.batched = len(jobs)
        return jobs

    def _worth_waiting(self, jobs: list[Job[M]]) -> bool:
        """Whether a pipeline may still add a frame, and no other frame needs the lane."""
        model, served = jobs[0].model, {id(job.queue) for job in jobs}
        more = False
        for queue in self._queues:
            chosen = queue.route.choose()
            if queue.frames and chosen is not None and chosen is not model and not self.lanes.idle:
                return False
            more = more or (chosen is model and id(queue) not in served)
        return more

    def _next(self, only: M | None = None) -> Job[M] | None:
        """Take the next frame in turn, or the next one for the model *only*."""
        now = self._clock()
        waiting: list[FrameQueue[M]] = []
        for queue in self._queues:
            if queue.deadline and queue.frames:
                self._drop_while(queue, "deadline", lambda q: now - q.head > q.deadline)
            if queue.frames:
                waiting.append(queue)
        while waiting:
            new = [queue for queue in waiting if queue.is_new]
            queue = self._shares.choose(new or waiting, now)
            model = queue.route.choose()
            if model is not None and not queue.route.suits(model, queue.frames[0]):
                self._drop_while(queue, "partial", partial(_unsuited, model))
                if not queue.frames:
                    waiting.remove(queue)
                continue
            if only is not None:
                others = model is not only
            else:
                others = model in self._gathering or model in self._untried
            if model is None or others or queue.results.behind or queue.held(now):
                waiting.remove(queue)
                continue
            charged = (queue.cost or model.cost).seconds
            self._shares.charge(queue.share, waiting, now, charged)
            if model.first_at is None and only is None:
                self._untried.append(model)
            job = queue.pop(model, now, charged)
            if queue.lossless and not queue.pacing.paced and queue.half_empty:
                queue.notify()
            self._grant()
            return job
        return None

    def _drop_while(
        self, queue: FrameQueue[M], reason: Reason, useless: Callable[[FrameQueue[M]], bool]
    ) -> None:
        """Drop the first waiting frames that are of no use."""
        while queue.frames and useless(queue):
            queue.drop_oldest(reason)
            queue.notify()
            if not queue.account.waiting:
                self._changed.notify_all()

    def wait(self, ready: Callable[[], bool]) -> bool:
        """Have a lane wait until *ready*, which a boundary changes, is True; False: closed."""
        with self._lock:
            self._changed.wait_for(lambda: self._closed or ready())
            return ready()

    @contextmanager
    def using(self, choose: Callable[[], Sequence[M | None]]) -> Iterator[Sequence[M | None]]:
        """Keep further models from being closed while a lane uses them."""
        with self._lock:
            models = choose()
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

    def finish(self, job: Job[M], deliver: Callable[[], None] | None) -> None:
        """Count a frame taken and deliver its result in the order of capture.

        *deliver* is called here or by the lane that finishes the previous frame; None: inference
        failed.
        """
        queue = job.queue
        with self._lock:
            now = self._clock()
            held = queue.one_by_one(job.model) or queue.overdue(now)
            queue.complete(job, (now - job.began) / job.batched, deliver)
            if job.beside or job.model.users == 0:
                self._changed.notify_all()
            if job.model in self._untried:
                self._untried.remove(job.model)
                self._work.notify_all()
            if held and queue.frames:
                self._work.notify()
            ready = queue.results.next()
            self.lanes.delivers[threading.get_ident()] = queue.results
        while ready is not None:
            ready()
            with self._lock:
                behind = queue.results.behind
                queue.results.delivered()
                ready = queue.results.next()
                if behind and not queue.results.behind:
                    self._work.notify()
                if ready is None:
                    self._changed.notify_all()

    def wait_delivered(self, queue: FrameQueue[M], closing: threading.Event) -> None:
        """Wait until all captures of an ended source are inferred and delivered."""
        if closing.is_set():
            return
        with self._lock:
            while not (self._gone(queue) or closing.is_set() or queue.at_rest):
                self._changed.wait(0.1)

    # Control side

    def end_results(self, queues: Sequence[FrameQueue[M]]) -> None:
        """Wait for the results of frames in lanes; those that come later are not delivered.

        Called after `close` or `remove`, and before what each published result must have passed,
        as the rules, is closed.
        """
        with self._lock:
            self._changed.wait_for(lambda: all(q.results.complete for q in queues), RESULT_SECONDS)
            for queue in queues:
                queue.results.close()

    @contextmanager
    def boundary(self) -> Iterator[None]:
        """Hold all lanes between two frames."""
        with self._lock:
            yield
            self._work.notify_all()
            self._changed.notify_all()

    def drain(self, models: Sequence[M], timeout: float) -> list[M]:
        """Wait until no lane uses any of *models*; return those that are then unused.

        The lock is acquired once for all: at the end a thousand captures may wait for it.
        """
        with self._lock:
            self._changed.wait_for(lambda: not any(model.users for model in models), timeout)
            return [model for model in models if not model.users]

    def accounts(self) -> dict[str, Account]:
        """Return consistent copies of all accounts."""
        with self._lock:
            return {queue.name: queue.account.copy() for queue in self._queues}

    def lost_frames(self) -> int:
        """Count the frames whose loss an exchange may have caused: superseded or failed."""
        accounts = self.accounts().values()
        return sum(each.dropped["superseded"] + each.dropped["error"] for each in accounts)

    def close(self) -> None:
        """Wake all waiting threads; no more captures are taken."""
        self.settled.set()
        # Before the lock: if many captures wait, running lanes would hardly release it.
        self._closed = True
        with self._lock:
            self._work.notify_all()
            self._changed.notify_all()
            for queue in self._queues:
                queue.notify()
