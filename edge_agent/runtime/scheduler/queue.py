"""One pipeline's queue: waiting captures, their account, and results in the order of capture.

A queue has no lock: callers hold the board's lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

from ...core.errors import AgentError
from ...core.types import Outcome, Request, Sample
from ...inference.statistics import Cost
from .fair_share import Share
from .read_ahead import Pacing

Reason = Literal["superseded", "rate", "deadline", "still", "partial", "gap", "error"]
REASONS: tuple[Reason, ...] = (
    *("superseded", "rate", "deadline", "still", "partial", "gap", "error"),
)

STALL_SECONDS, STALL = 0.5, 10
"""A frame has stalled if it takes so much longer than usual, in seconds, and so many times as long.
It counts with its own time, or a model that is slow on some frames would take the lanes from all
others at its usual cost."""
MOST_STALL_SECONDS = 10.0
"""It counts as at most so much more, as the whole machine may have slept."""
OVERDUE_SECONDS, OVERDUE = 0.025, 8
"""A frame in a lane is overdue, and may never come back, after so long and so many times as long as
usual. Until it does, its pipeline gets no further lane, so that one is left to the others."""
ALONE = 100
"""Number of frames after a stall that go one at a time, so that one lane is left to the others."""


class Servable(Protocol):
    """A model that serves frames and must not be closed while it does."""

    users: int
    """Number of frames in it now."""
    together: int
    """Most frames of any pipelines in one batch; 1: no batches."""
    cost: Cost
    """The lane time of one of its frames."""

    @property
    def first_at(self) -> float | None:
        """When its first frame was done; None: none is yet."""

    @property
    def in_order(self) -> bool:
        """Whether it takes a pipeline's frames one at a time."""


M = TypeVar("M", bound=Servable)


class Route(Protocol[M]):
    """A pipeline's decisions about frames. `choose` and `advance` need the board's lock."""

    def choose(self) -> M | None:
        """Return the model for the next frame, the same until `advance`, or None."""

    def advance(self) -> None:
        """Record that the next frame goes through the chosen model."""

    def beside(self) -> Sequence[M | None]:
        """Return the further models that the next frame will go through; needs the board's lock."""

    def suits(self, model: M, sample: Sample) -> bool:
        """Whether a model can take a sample, which may have been cut for another version."""

    def request(self, sample: Sample) -> Request:
        """Return the request for the model."""

    def complete(self, job: Job[M], answer: Outcome | AgentError) -> None:
        """Do the remaining work after inference, including `Board.finish`."""


@dataclass(slots=True)
class Account:
    """Counts of captures: captured = inferred + waiting + all dropped at any time."""

    captured: int = 0
    inferred: int = 0
    waiting: int = 0
    """Captures queued or being inferred."""
    dropped: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    def copy(self) -> Account:
        """Return a copy of the present counts."""
        return Account(self.captured, self.inferred, self.waiting, dict(self.dropped))


@dataclass(slots=True, eq=False)
class Job(Generic[M]):
    """A frame that a lane has taken, and its models: an exchange closes none until it is done."""

    queue: FrameQueue[M]
    sample: Sample
    model: M
    ticket: int
    """Its number among the frames taken from its queue."""
    began: float
    charged: float
    """Lane time charged to its pipeline so far."""
    batched: int = 1
    """Number of frames inferred together, including this one."""
    beside: Sequence[M | None] = ()
    """Further models that it goes through; None: found when it comes to that."""

    def use(self, change: int) -> None:
        """Count it in the users of its models: 1 when it is taken, -1 when it is done."""
        for model in (self.model, *self.beside):
            if model is not None:
                model.users += change


MOST_RESULTS = 64
"""Most undelivered results of a pipeline before no more of its frames are taken: if inference is
faster than the work after it, one lane would run ahead of the one that delivers."""


class ResultsInOrder:
    """Delivers results in the order in which their frames were taken."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job[Any]] = {}
        """The frames in lanes, by ticket."""
        self._taken = 0
        self._delivered = 0
        self._waiting: dict[int, Callable[[], None]] = {}
        """Results waiting for an older one, by ticket."""
        self._delivering = False
        """Whether a lane is delivering results."""
        self.waits = False
        """Whether that lane waits for the disk."""
        self._closed = False
        self._anew = False
        """Whether a capture after a gap gives no result, so that the next one to be queued has to
        begin anew in its place."""

    def missed(self, *, follows: bool) -> None:
        """Record that a capture gives no result; *follows*: see `Sample`."""
        self._anew = self._anew or not follows

    def after_gap(self, sample: Sample) -> Sample:
        """Return a capture to be queued.

        It is marked as not following, if a capture after a gap was dropped before it.
        """
        anew, self._anew = self._anew, False
        return replace(sample, follows=False) if anew else sample

    def ticket(self) -> int:
        """Return the number of a frame being taken."""
        self._taken += 1
        return self._taken - 1

    def put(self, ticket: int, deliver: Callable[[], None] | None) -> None:
        """Store the function that delivers a result; None: the frame has no result."""
        self._waiting[ticket] = (lambda: None) if deliver is None or self._closed else deliver

    def close(self) -> None:
        """Deliver no further result."""
        self._closed = True
        self._waiting = dict.fromkeys(self._waiting, lambda: None)

    def next(self) -> Callable[[], None] | None:
        """Return the function that delivers the next result; None: not due, or a lane delivers.

        The lane calls it without the lock, then calls `delivered`.
        """
        if self._delivering:
            return None
        ready = self._waiting.pop(self._delivered, None)
        self._delivering = ready is not None
        return ready

    def delivered(self) -> None:
        """Record that the function returned by `next` was called."""
        self._delivered += 1
        self._delivering = False

    @property
    def behind(self) -> bool:
        """Whether no further frame is taken, as its result, and its picture, would have to wait."""
        return self.waits or len(self._waiting) >= MOST_RESULTS

    @property
    def complete(self) -> bool:
        """Whether all results were delivered."""
        return self._delivered == self._taken


class FrameQueue(Generic[M]):
    """The captures of one pipeline waiting for a lane."""

    def __init__(
        self,
        name: str,
        route: Route[M],
        *,
        room: int,
        lossless: bool,
        priority: int = 0,
        deadline: float = 0.0,
        cost: Cost | None = None,
    ) -> None:
        """Start empty, with space for *room* captures.

        If it is full, a *lossless* queue makes captures wait; another drops the oldest. A capture
        is dropped after *deadline* seconds; 0: never. *cost* is the cost of its frames if it
        differs from the model's; then each frame counts with its own time.
        """
        self.name = name
        self.route = route
        self.room = room
        self.lossless = lossless
        self.deadline = deadline
        self.cost = cost
        self.share = Share(priority)
        self.pacing = Pacing()
        self.account = Account()
        self.frames: deque[Sample] = deque()
        self.seq = 0
        """Number of the next capture."""
        self.removed = False
        self.is_new = False
        """Whether none of its frames has been taken since the agent started."""
        self._changed: threading.Condition
        self.results = ResultsInOrder()

    # The capture side

    def attach(self, lock: threading.RLock) -> None:
        """Use the board's lock for waiting and notifying."""
        self._changed = threading.Condition(lock)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """Release the lock and wait until *ready* returns True, at most *timeout* seconds."""
        self._changed.wait_for(ready, timeout)

    def notify(self) -> None:
        """Wake the waiting capture."""
        self._changed.notify_all()

    def drop(self, reason: Reason, *, follows: bool = True) -> None:
        """Count a capture that is not queued; *follows*: see `Sample`."""
        self.results.missed(follows=follows)
        self.seq += 1
        self.account.captured += 1
        self.account.dropped[reason] += 1

    @property
    def full(self) -> bool:
        """Whether the queue has reached its limit."""
        return len(self.frames) >= self.room

    @property
    def half_empty(self) -> bool:
        """Whether a capture that has waited for space continues.

        Otherwise it would wake for each frame, and take the processor from the lane that woke it.
        """
        return len(self.frames) <= self.room // 2

    def append(self, make: Callable[[int], Sample]) -> None:
        """Append the capture that *make* creates; a full live queue drops its oldest."""
        if not self.lossless and self.full:
            self.drop_oldest("superseded")
        self.frames.append(self.results.after_gap(make(self.seq)))
        self.seq += 1
        self.account.captured += 1
        self.account.waiting += 1

    def drop_oldest(self, reason: Reason) -> None:
        """Drop the oldest waiting capture."""
        self._missed_oldest(self.frames.popleft())
        self.account.waiting -= 1
        self.account.dropped[reason] += 1

    def _missed_oldest(self, sample: Sample) -> None:
        """Record that a capture older than all that wait gives no result."""
        if not self.frames:
            self.results.missed(follows=sample.follows)
        elif not sample.follows:
            self.frames[0] = replace(self.frames[0], follows=False)

    # The lane side

    @property
    def busy(self) -> bool:
        """Whether one of its frames is in a lane."""
        return self.account.waiting > len(self.frames)

    def held(self, now: float) -> bool:
        """Whether waiting frames must wait for the one in a lane."""
        if not self.busy:
            return False
        model = self.route.choose()
        return model is not None and (self.one_by_one(model) or self.overdue(now))

    def one_by_one(self, model: M) -> bool:
        """Whether its frames go through a model one at a time."""
        return model.in_order or self.share.alone > 0

    def overdue(self, now: float) -> bool:
        """Whether one of its frames in a lane may hang."""
        return any(
            now - job.began > max(OVERDUE_SECONDS, OVERDUE * job.charged * job.batched)
            for job in self.results.jobs.values()
        )

    @property
    def head(self) -> float:
        """When the first waiting frame was captured."""
        return self.frames[0].since

    def servable(self) -> bool:
        """Whether a lane could take a waiting frame."""
        return self.route.choose() is not None

    def usual(self) -> tuple[float, int]:
        """Return the usual lane time of a frame, seconds (0: unknown), and the most per batch."""
        model = self.route.choose()
        if model is None:
            return 0.0, 1
        return (self.cost or model.cost).seconds, model.together

    def pop(self, model: M, now: float, charged: float) -> Job[M]:
        """Take the first frame for a lane; its models are in use until `complete`."""
        self.route.advance()
        job = Job(self, self.frames.popleft(), model, self.results.ticket(), now, charged)
        job.beside = self.route.beside()
        job.use(1)
        self.results.jobs[job.ticket] = job
        self.is_new = False
        return job

    def complete(self, job: Job[M], took: float, deliver: Callable[[], None] | None) -> None:
        """Count a frame that has left its model after *took* seconds of lane time.

        *deliver* delivers its result; None: inference failed.
        """
        del self.results.jobs[job.ticket]
        (self.cost or job.model.cost).learn(took)
        late = took - job.charged
        stalled = late > STALL_SECONDS and took > STALL * job.charged
        self.share.alone = ALONE if stalled else max(0, self.share.alone - 1)
        if self.cost is not None:
            self.share.spent += late
        elif stalled:
            self.share.spent += min(late, MOST_STALL_SECONDS)
        job.use(-1)
        self.account.waiting -= 1
        if deliver is None:
            self._missed_oldest(job.sample)
            self.account.dropped["error"] += 1
        else:
            self.account.inferred += 1
        self.results.put(job.ticket, deliver)

    @property
    def at_rest(self) -> bool:
        """Whether all captures are either delivered or dropped."""
        return self.account.waiting == 0 and self.results.complete
