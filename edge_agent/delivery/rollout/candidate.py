"""A version on its way to being live, and how it is spoken of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...core.errors import ModelError
from ...core.types import Kind
from ...models.manifest import ModelFolder
from ..trial.early_trial import Ahead
from ..trial.process import TrialProcess

Phase = Literal["receiving", "verifying", "preparing", "trial", "shadow", "probation"]
Outcome = Literal["live", "rejected", "rolled-back"]


class Interrupted(ModelError):
    """The agent ends; the trial begins again at its next start."""


@dataclass(slots=True, eq=False)
class Candidate:
    """One version of one model."""

    name: str
    version: str
    transfer: str | None
    """What it came by; None: by hand."""
    install: Callable[[], ModelFolder]
    """Puts it into the store; raises ModelError."""
    durable: Callable[[], object] = lambda: None
    """Called when it is in the store."""
    finished: Callable[[Outcome, str | None], None] = lambda _outcome, _why: None
    """Called with how it ended, and why."""
    told: Callable[[str, str | None], None] = lambda _state, _why: None
    """Called at every step with the state and why."""
    ahead: Ahead | None = None
    """Its trial, begun while it was arriving."""
    first_at: float | None = None
    """Monotonic clock when its trial had inferred a live frame."""
    began: float = field(default_factory=time.monotonic)
    phase: Phase = "verifying"
    starts: int = 0
    """How often the agent has been started since its trial began."""
    aborted: str | None = None
    """Why it shall not go on."""

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    def check_wanted(self, closing: threading.Event) -> None:
        """See that it shall go on.

        Raises:
            Interrupted: the agent ends.
            ModelError: a command has overtaken it.

        """
        if closing.is_set():
            raise Interrupted(self.id)
        if self.aborted is not None:
            raise ModelError(self.aborted)

    def blamed(self, why: str) -> str:
        """Say whose fault it is, once."""
        return why if why.startswith(self.id) else f"{self.id}: {why}"

    def child(self, kind: Kind) -> TrialProcess | None:
        """Give the child that has been started for it, for the kind of sample that it is for."""
        if self.ahead is None or self.ahead.kind not in {kind, None}:
            return None
        return self.ahead.take()

    def leave(self) -> None:
        """End that child, if it was not needed."""
        if self.ahead is not None:
            self.ahead.close()


@dataclass(slots=True, eq=False)
class Last:
    """How the last candidate of a model ended."""

    version: str
    outcome: Outcome
    time: str
    why: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        why = {} if self.why is None else {"why": self.why}
        return {
            "version": self.version,
            "outcome": self.outcome,
            **why,
            **self.details,
            "time": self.time,
        }
