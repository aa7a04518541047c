"""One pipeline's queue: the captures that wait, their account, and results in order of capture.

A queue has no lock of its own: all of it is used under the board's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from ...core.errors import AgentError
from ...core.types import Outcome, Request, Sample
from ...inference.statistics import Cost
from .fair_share import Share
from .read_ahead import Pacing

Reason = Literal["superseded", "rate", "deadline", "still", "partial", "gap", "error"]
REASONS: tuple[Reason, ...] = (
    *("superseded", "rate", "deadline", "still", "partial", "gap", "error"),
)


class Servable(Protocol):
    """A model that serves frames and must not be closed while it does."""

    users: int
    """Frames that are going through it."""
    together: int
    """How many frames, of whatever pipelines, may go through it at a time; 1: each by itself."""
    cost: Cost
    """The lane time that one of its frames takes."""

    @property
    def first_at(self) -> float | None:
        """When the first frame had gone through it; None: none has."""

    @property
    def in_order(self) -> bool:
        """Whether a pipeline's frames go through it one at a time."""


M = TypeVar("M", bound=Servable)


class Route(Protocol[M]):
    """A pipeline's decisions about its frames. `choose` and `advance` hold the board's lock."""

    def choose(self) -> M | None:
        """Return the model for the next frame, the same until `advance`, or None."""

    def advance(self) -> None:
        """Record that the next frame goes through the chosen model."""

    def request(self, sample: Sample) -> Request:
        """Return the request for the model."""

    def complete(self, job: Job[M], answer: Outcome | AgentError) -> None:
        """Do the work that remains after inference, down to `Board.finish`."""


@dataclass(slots=True)
class Account:
    """captured = inferred + waiting + all dropped, at any moment."""

    captured: int = 0
    inferred: int = 0
    waiting: int = 0
    """Queued or being inferred."""
    dropped: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    def copy(self) -> Account:
        """Return the counts of this moment."""
        return Account(self.captured, self.inferred, self.waiting, dict(self.dropped))


@dataclass(slots=True, eq=False)
class Job(Generic[M]):
    """A frame that a lane has taken, and the model it goes through."""

    queue: FrameQueue[M]
    sample: Sample
    model: M
    ticket: int
    """Its place among the frames taken from its queue."""
    began: float
    charged: float
    """Lane time that its pipeline has been charged so far."""
    batched: int = 1
    """How many are inferred together, itself included."""


MOST_RESULTS = 64
"""Results of a pipeline that wait to be handed over, before no more of its frames are taken: where
inference takes less than what follows, one lane would run away from the one that hands over."""


class ResultsInOrder:
    """Hands results over in the order in which their frames were taken."""

    def __init__(self) -> None:
        self._taken = 0
        self._delivered = 0
        self._waiting: dict[int, Callable[[], None]] = {}
        """By ticket: results that wait for an older one."""
        self._delivering = False
        """A lane is handing results over."""

    def ticket(self) -> int:
        """Return the number of a frame that is taken."""
        self._taken += 1
        return self._taken - 1

    def put(self, ticket: int, deliver: Callable[[], None] | None) -> None:
        """Keep the function that delivers a result; None: the frame has no result."""
        self._waiting[ticket] = deliver or (lambda: None)

    def next(self) -> Callable[[], None] | None:
        """Return a function that delivers the next one; None if not due, or a lane is delivering.

        The lane that gets one calls it without the lock, then `delivered`.
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
        """Whether too many results wait to be handed over for another frame to be taken."""
        return len(self._waiting) >= MOST_RESULTS

    @property
    def complete(self) -> bool:
        """Whether every result was handed over."""
        return self._delivered == self._taken


class FrameQueue(Generic[M]):
    """The captures of one pipeline that wait for a lane."""

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
        """Start empty, with room for *room* captures.

        Those of a *lossless* queue wait for room, else the oldest is dropped; after *deadline*
        seconds one is dropped, 0: never. *cost* is what its frames take, where that is not what its
        model's take; then each counts for what it took itself.
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
        """The next capture's number."""
        self.removed = False
        self.is_new = False
        """No frame of it has been taken since the agent started."""
        self._changed: threading.Condition
        self.results = ResultsInOrder()

    # The capture side

    def attach(self, lock: threading.RLock) -> None:
        """Wait and notify with the board's lock from now on."""
        self._changed = threading.Condition(lock)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """Release the lock and wait until something is true, at most *timeout* seconds."""
        self._changed.wait_for(ready, timeout)

    def notify(self) -> None:
        """Wake the capture that waits."""
        self._changed.notify_all()

    def drop(self, reason: Reason) -> None:
        """Count a capture that does not enter the queue."""
        self.seq += 1
        self.account.captured += 1
        self.account.dropped[reason] += 1

    @property
    def full(self) -> bool:
        """Whether the queue has reached its limit."""
        return len(self.frames) >= self.room

    @property
    def half_empty(self) -> bool:
        """Whether a capture that has waited for room goes on.

        It would be woken for each frame otherwise, and take the processor from the lane that has
        woken it.
        """
        return len(self.frames) <= self.room // 2

    def append(self, make: Callable[[int], Sample]) -> None:
        """Add a capture, given its number, at the end; a full live queue drops its oldest."""
        if not self.lossless and self.full:
            self.drop_oldest("superseded")
        self.frames.append(make(self.seq))
        self.seq += 1
        self.account.captured += 1
        self.account.waiting += 1

    def drop_oldest(self, reason: Reason) -> None:
        """Drop the capture that has waited longest."""
        self.frames.popleft()
        self.account.waiting -= 1
        self.account.dropped[reason] += 1

    # The lane side

    @property
    def busy(self) -> bool:
        """Whether a frame of it is in a lane."""
        return self.account.waiting > len(self.frames)

    @property
    def held(self) -> bool:
        """Whether waiting frames have to wait for the one that is in a lane."""
        if not self.busy:
            return False
        model = self.route.choose()
        return model is not None and model.in_order

    @property
    def head(self) -> float:
        """When the first that waits was captured."""
        return self.frames[0].since

    def servable(self) -> bool:
        """Whether a lane could take a waiting frame."""
        return self.route.choose() is not None

    def usual(self) -> tuple[float, int]:
        """Return the usual lane time of a frame, and the largest number of frames per batch.

        The time is in seconds, 0 if not known yet.
        """
        model = self.route.choose()
        if model is None:
            return 0.0, 1
        return (self.cost or model.cost).seconds, model.together

    def pop(self, model: M, now: float, charged: float) -> Job[M]:
        """Take the first frame for a lane; the model is in use until `complete`."""
        self.route.advance()
        model.users += 1
        job = Job(self, self.frames.popleft(), model, self.results.ticket(), now, charged)
        self.is_new = False
        return job

    def complete(self, job: Job[M], took: float, deliver: Callable[[], None] | None) -> None:
        """Count a frame that has left its model after *took* seconds of lane time.

        *deliver* hands its result over; None: inference failed.
        """
        (self.cost or job.model.cost).learn(took)
        if self.cost is not None:
            self.share.spent += took - job.charged
        job.model.users -= 1
        self.account.waiting -= 1
        if deliver is None:
            self.account.dropped["error"] += 1
        else:
            self.account.inferred += 1
        self.results.put(job.ticket, deliver)

    @property
    def at_rest(self) -> bool:
        """Whether every capture is inferred and handed over, or dropped."""
        return self.account.waiting == 0 and self.results.complete
