"""Versions that serve and are still watched: which, until when, and the end of those that pass.

What becomes of those that fail is `retreat`'s.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from ...config.settings import Trial
from ...inference.model import Model
from ...models.store.pointers import same_version
from ...models.store.store import Store
from . import trial_marks
from .acceptance import fault_of
from .candidate import Candidate
from .reports import Reports

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Probation:
    """A version that serves and is still watched."""

    candidate: Candidate
    models: list[Model]
    until: float
    """By the monotonic clock."""
    bounds: Trial
    seen: int = 0
    """Frames that it had been through when this began."""

    def __post_init__(self) -> None:
        self.seen = sum(model.inferred for model in self.models)

    @property
    def over(self) -> bool:
        """Whether its time has passed."""
        return time.monotonic() >= self.until

    @property
    def fault(self) -> str | None:
        """What is wrong with it by now; None: nothing."""
        return fault_of(self.models, self.bounds)

    @property
    def stuck(self) -> bool:
        """Whether frames have gone in and none has come out."""
        waiting = any(model.users for model in self.models)
        return waiting and sum(model.inferred for model in self.models) == self.seen


class Probations:
    """One of a model at most. Whoever begins or ends one holds `Swap.changing`; to ask is free."""

    def __init__(self, store: Store, reports: Reports) -> None:
        self._store = store
        self._reports = reports
        self._all: dict[str, Probation] = {}

    def of(self, name: str) -> Probation | None:
        return self._all.get(name)

    def names(self) -> set[str]:
        return set(self._all)

    def all(self) -> list[Probation]:
        return list(self._all.values())

    def serves(self, name: str, version: str) -> bool:
        """Whether this very version is on probation."""
        probation = self._all.get(name)
        return probation is not None and same_version(probation.candidate.version, version)

    def begin(self, candidate: Candidate, models: list[Model], bounds: Trial) -> None:
        """Watch a version that serves from now on."""
        until = time.monotonic() + bounds.probation_s
        self._all[candidate.name] = Probation(candidate, models, until, bounds)

    def drop(self, name: str) -> None:
        """Watch it no longer, whatever becomes of it."""
        self._all.pop(name, None)

    def end(self, name: str) -> None:
        """Let go of what has stood it, or gives way to another."""
        probation = self._all.pop(name, None)
        if probation is None:
            return
        trial_marks.clear(self._store, name, probation.candidate.version)
        log.info("%s: probation is over", probation.candidate.id)
        self._reports.finish(probation.candidate, "live", None)
        self._reports.changed()
