"""A question that was admitted, and its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.frozen import record
from ..core.types import Kind, Outcome, Sample

if TYPE_CHECKING:
    from ..inference.model import Model
    from .question import Question  # and NumPy with it


@record
class Answer:
    """A model's answer to a question."""

    sample: Sample
    outcome: Outcome
    warnings: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Ticket:
    """An admitted question; `future` gets its answer or an error."""

    model: str
    version: str | None
    """The only version that may answer; None: whichever serves."""
    since: float
    future: Future[Answer] = field(default_factory=Future)
    inner: tuple[Future[Outcome], ...] = ()
    """Futures from the lanes, one for each row."""
    held: int = 0
    """Total bytes of its arrays."""
    tell: Callable[[str, str], None] | None = None
    """Receives the model and each piece of its text, in the model's thread; must not raise."""
    heard: float = 0.0
    """When the last piece came."""

    def hear(self, model: str, piece: str) -> None:
        """Take a piece of the text."""
        self.heard = time.monotonic()
        if self.tell is not None:
            self.tell(model, piece)


def ask_payload(payload: bytes) -> Callable[[Model, Kind], Question]:
    """Return a parser for a question whose payload has arrived completely."""

    def parse(model: Model, kind: Kind) -> Question:
        from .question import read_question

        return read_question(payload, model, kind)

    return parse
