"""Probation: a version serves and is still watched, until it passes or the previous one is back."""

from __future__ import annotations

import logging
import time

from ...config.settings import Trial
from ...core.errors import AgentError, ModelError
from ...core.files import fault
from ...inference.model import Model
from ...models.store.catalog import Library
from ...models.store.store import Store
from .acceptance import Watch
from .ledger import Candidate, Ledger
from .swap import Swap, close_all, exchange_details, log_live

log = logging.getLogger(__name__)


class Probations:
    """One of a model at most. All but `check_all` need `Swap.changing`."""

    def __init__(self, store: Store, library: Library, ledger: Ledger, swap: Swap) -> None:
        self._store = store
        self._library = library
        self._ledger = ledger
        self._swap = swap

    def begin(self, candidate: Candidate, models: list[Model], bounds: Trial) -> None:
        """Watch a version that serves from now on."""
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
        """End the probation of a model's version that passes or is replaced."""
        for candidate in self._ledger.on_probation(name):
            self._ledger.clear_mark(name, candidate.version)
            log.info("%s: probation is over", candidate.id)
            self._ledger.finish(candidate, "live", None)

    def _fail(self, candidate: Candidate, why: str) -> None:
        log.warning("%s: failed on probation: %s", candidate.id, why)
        try:
            self.roll_back(candidate.name, why)
        except AgentError as problem:
            self._ledger.clear_mark(candidate.name, candidate.version)
            self.keep_live(candidate, why, problem)
            return
        self._ledger.finish(candidate, "rolled-back", why)

    def roll_back(self, name: str, why: str) -> str:
        """Make the previous version live, and record the reason.

        Returns:
            The version that is live now.

        Raises:
            AgentError: there is none, it does not load, or it is not what was accepted; nothing
                has changed then.
        """
        pointers = self._store.pointers(name)
        if pointers.live is None:
            self._library.live(name)  # of a mistyped name it tells the nearest
        if pointers.live is None or pointers.previous is None:
            raise ModelError(
                f"{name}: there is no version before {pointers.live or 'the one that runs'}"
                " to go back to"
            )
        folder, models = self._swap.reopen(name, pointers.previous)
        try:
            self._library.rollback(name)
        except ModelError:
            close_all(models)
            raise
        fault("rollback.done")
        for candidate in self._ledger.on_probation(name):
            self._ledger.remove(candidate)
        details = exchange_details(self._swap.exchange(name, models))
        self._ledger.record_last(name, pointers.live, "rolled-back", why, details)
        log.info("%s@%s: rolled back: %s", name, pointers.live, why)
        log_live(name, folder.manifest.version, pointers.live, details)
        self._ledger.changed()
        return folder.manifest.version

    def keep_live(self, candidate: Candidate, why: str, problem: AgentError) -> None:
        """Record that a version has failed and stays live, as there is no other."""
        why = f"{why}; it goes on all the same: {problem}"
        log.warning("%s: %s", candidate.id, why)
        self._ledger.record_last(candidate.name, candidate.version, "live", why)
        self._ledger.finish(candidate, "live", why)
