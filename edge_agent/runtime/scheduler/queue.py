"""What stands on the board: each pipeline's place, its account, and the frames that lanes take."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from ...core.errors import AgentError
from ...core.types import Outcome, Request, Sample
from ...inference.cost import Cost
from .fair_share import Share
from .read_ahead import Turn

Reason = Literal["superseded", "rate", "deadline", "still", "partial", "error"]
REASONS: tuple[Reason, ...] = ("superseded", "rate", "deadline", "still", "partial", "error")


class Counted(Protocol):
    """Something that serves frames and must not be closed while it does."""

    users: int
    together: int
    """How many frames, of whatever pipelines, may go through it at a time; 1: each by itself."""
    cost: Cost
    """What a frame of it takes of a lane."""


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
        self.share = Share(priority)
        self.turn = Turn()
        self.cost: Cost | None = None
        """What its frames take, where that is not what its model's take; then each counts for what
        it took itself."""
        self.deadline = deadline
        """Seconds; 0: none."""
        self.account = Account()
        self.pick: Callable[[], W | None] = lambda: None
        """Chooses the model for the next frame, and the same one until it is taken; None: there is
        none yet."""
        self.taken: Callable[[], None] = lambda: None
        """Told that the next frame goes through the model that was picked."""
        self.work: Callable[[Job[W]], None] = lambda _job: None
        """What a lane does with a frame of this pipeline."""
        self.ask: Callable[[Job[W]], Request]
        """Says what is to be inferred, where that is done together with frames of others …"""
        self.tell: Callable[[Job[W], Outcome | AgentError], None]
        """… and does what remains to be done with what came of it."""
        self.queue: deque[Sample] = deque()
        self.seq = 0
        self.gone = False
        self._room: threading.Condition
        """Of the board's lock: there is room again."""
        self._taken = 0
        self._given = 0
        self._done: dict[int, Callable[[], None]] = {}
        self._delivering = False

    def wanted(self) -> bool:
        """Whether a lane could take what waits."""
        return self.pick() is not None

    def needs(self) -> tuple[float, int]:
        """Say what a frame usually takes of a lane, and how many go together.

        Returns:
            Seconds, 0 where nobody knows yet; and frames that a lane takes at a time, at most.

        """
        model = self.pick()
        if model is None:
            return 0.0, 1
        return (self.cost or model.cost).seconds, model.together

    @property
    def head(self) -> float:
        """When the first that waits was captured."""
        return self.queue[0].since


@dataclass(slots=True, eq=False)
class Job(Generic[W]):
    """A frame that a lane has taken, and the model it goes through."""

    slot: Slot[W]
    sample: Sample
    model: W
    ticket: int
    began: float
    charged: float
    """Lane time that its pipeline has been charged so far."""
    fellows: int = 1
    """How many are inferred together, itself included."""
