"""A question that was admitted, and its answer."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from ..core.frozen import record
from ..core.types import Outcome, Sample


@record
class Answer:
    """What a model has found."""

    sample: Sample
    outcome: Outcome
    warnings: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Ticket:
    """A question that was admitted; `future` gets its answer, or the reason why there is none."""

    model: str
    version: str | None
    """The only one that may answer; None: whichever serves."""
    since: float
    future: Future[Answer] = field(default_factory=Future)
    inner: tuple[Future[Outcome], ...] = ()
    """Of the lanes, one for each row."""
    held: int = 0
    """Bytes of its arrays."""
