"""Probation: versions that serve and are still watched, until they pass or are rolled back."""

from __future__ import annotations

import logging
import time

from ...config.settings import Trial
from ...core.errors import AgentError
from ...core.files import fault
from ...inference.model import Model
from .acceptance import Watch
from .ledger import Candidate, Ledger
from .rollback import Rollbacks
from .swap import Swap

log = logging.getLogger(__name__)


class Probations:
    """One of a model at most; a method that begins or ends one needs `Swap.changing`."""

    def __init__(self, ledger: Ledger, swap: Swap, rollback: Rollbacks) -> None:
        self._ledger = ledger
        self._swap = swap
        self._rollback = rollback

    def begin(self, candidate: Candidate, models: list[Model], bounds: Trial) -> None:
        """Watch a version that serves from now on; the caller has the lock."""
        until = time.monotonic() + bounds.probation_s
        candidate.watch = Watch(models, until, bounds)
        candidate.interrupted = None
        self._ledger.advance(candidate, "probation")

    def check_all(self) -> None:
        """Check every version on probation: pass those whose time is over, roll back failing ones.

        Takes the lock.
        """
        for candidate in self._ledger.on_probation():
            watch = candidate.watch
            if watch is None:
                continue
            why = watch.fault
            with self._swap.changing:
                if candidate not in self._ledger.on_probation():
                    continue
                if why is not None:
                    self._fail(candidate, why)
                elif watch.over and watch.stuck:
                    self._fail(candidate, "gave no result at all during its probation")
                elif watch.over:
                    fault("probation.passed")
                    self.end(candidate.name)

    def end(self, name: str) -> None:
        """End the probation of a model's version that passes or is replaced; needs the lock."""
        for candidate in self._ledger.on_probation(name):
            self._ledger.clear_mark(name, candidate.version)
            log.info("%s: probation is over", candidate.id)
            self._ledger.finish(candidate, "live", None)

    def _fail(self, candidate: Candidate, why: str) -> None:
        """Roll back to the previous version; the caller has the lock."""
        log.warning("%s: failed on probation: %s", candidate.id, why)
        try:
            self._rollback.roll_back(candidate.name, why)
        except AgentError as problem:
            self._ledger.clear_mark(candidate.name, candidate.version)
            self._rollback.keep_live(candidate, why, problem)
            return
        self._ledger.finish(candidate, "rolled-back", why)
