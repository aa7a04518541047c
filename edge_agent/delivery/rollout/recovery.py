"""What an end of the agent leaves under way, and what its next start makes of that.

An orderly end says in the marks that nobody is to blame. After any other, a version on probation is
taken for the cause, and so is a candidate whose trial has been begun too often.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ...config.settings import Trial
from ...core.errors import ModelError
from ...core.files import fault
from ...models.store.catalog import Library
from ...models.store.store import Store
from ...runtime.serving.active import ActiveModels
from . import trial_marks
from .acceptance import bounds_of
from .candidate import Candidate
from .candidates import Underway
from .probation import Probations
from .reports import Reports
from .rollback import Retreat
from .trial_marks import Mark

log = logging.getLogger(__name__)

MOST_STARTS = 2
"""Starts of the agent during one trial after which the candidate is held responsible."""


class Recovery:
    """Reads marks at a start, and leaves word in them at an end."""

    def __init__(
        self,
        store: Store,
        library: Library,
        underway: Underway,
        probations: Probations,
        reports: Reports,
        retreat: Retreat,
    ) -> None:
        self._store = store
        self._library = library
        self._underway = underway
        self._probations = probations
        self._reports = reports
        self._retreat = retreat

    # At a start, before any model is loaded

    def look_back(self) -> list[Candidate]:
        """See what was under way when the agent ended; gives what is to be tried, or tried anew."""
        found: list[Candidate] = []
        for name in self._store.names():
            mark = self._store.pointers(name).trial
            try:
                if mark is None:
                    found += self._untried(name)
                elif mark.phase == "probation" and mark.starts < 0:
                    self._underway.unresumed[name] = mark
                elif mark.phase == "probation":
                    self._undo_crash(name, mark)
                else:
                    found += self._again(name, mark)
            except ModelError as problem:
                # A full disk: what serves, serves.
                log.error("%s: %s", name, problem)  # noqa: TRY400 - one line, no traceback
        return found

    def _untried(self, name: str) -> list[Candidate]:
        """Find what came into the store and was never tried: by `add`, or just before a crash."""
        untried = [v for v in self._store.versions(name) if not self._store.accepted(name, v)]
        return [self._stored(name, version) for version in untried[-1:]]

    def _undo_crash(self, name: str, mark: Mark) -> None:
        """Bring the version before back, before the one on probation can crash us once more."""
        why = "the agent did not outlive its probation: it crashed, was killed, or the power failed"
        candidate = self._stored(name, mark.version)
        try:
            self._library.rollback(name)
        except ModelError as problem:
            self._store.set_trial(name, None)
            self._retreat.keep_all_the_same(candidate, why, problem)
            return
        fault("rollback.done")
        log.warning("%s: rolled back: %s", candidate.id, why)
        self._reports.record(candidate, "rolled-back", why, {})
        self._reports.finish(candidate, "rolled-back", why)

    def _again(self, name: str, mark: Mark) -> list[Candidate]:
        """Have a trial begin again that the agent's end has interrupted; not again and again."""
        starts = mark.starts + 1
        if starts > MOST_STARTS or self._store.path(name, mark.version) is None:
            why = f"the agent ended {starts} times during its trial"
            self._store.set_trial(name, None)
            trial_marks.discard_rejected(self._store, name, mark.version, why)
            self._reports.finish(self._stored(name, mark.version), "rejected", why)
            return []
        self._store.set_trial(name, replace(mark, starts=starts))
        log.info("%s@%s: its trial was interrupted, begins again", name, mark.version)
        return [self._stored(name, mark.version, starts)]

    def _stored(self, name: str, version: str, starts: int = 0) -> Candidate:
        """Make a candidate of what is in the store."""
        return Candidate(
            name,
            version,
            self._store.transfer(name, version),
            lambda: self._library.find(name, version),
            starts=starts,
        )

    # When the models are loaded

    def resume(self, active: ActiveModels, device: Trial) -> None:
        """Go on with the probations that an orderly end has interrupted.

        The caller has `Swap.changing`.
        """
        for name, mark in list(self._underway.unresumed.items()):
            try:
                bounds = bounds_of(self._library.live(name), device)
                self._store.set_trial(name, replace(mark, starts=0))
            except ModelError as problem:
                log.error("%s: %s", name, problem)  # noqa: TRY400 - one line, no traceback
            else:
                fault("probation.resumed")
                models = [s.model for s in active.servings_of(name) if s.model is not None]
                self._probations.begin(self._stored(name, mark.version), models, bounds)
                self._reports.changed()
            self._underway.unresumed.pop(name)

    # At an orderly end

    def suspend(self) -> None:
        """Note that those under way are not to blame; the caller has `Swap.changing`."""
        trial_marks.suspend(self._store, self._underway.names())
