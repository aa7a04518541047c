"""Back to the version before: by command, or because the one that serves fails on probation."""

from __future__ import annotations

import logging

from ...core.errors import AgentError, ModelError
from ...core.files import fault
from ...models.store.catalog import Library
from ...models.store.store import Store
from . import trial_marks
from .candidate import Candidate
from .probation import Probations
from .reports import Reports
from .swap import Swap, close_all

log = logging.getLogger(__name__)


class Retreat:
    """Rolls back, and says why."""

    def __init__(
        self,
        store: Store,
        library: Library,
        swap: Swap,
        probations: Probations,
        reports: Reports,
    ) -> None:
        self._store = store
        self._library = library
        self._swap = swap
        self._probations = probations
        self._reports = reports

    def watch(self) -> None:
        """Look at the versions on probation: let those go that have stood it, bring others down."""
        for probation in self._probations.all():
            why = probation.fault
            with self._swap.changing:
                candidate = probation.candidate
                if self._probations.of(candidate.name) is not probation:
                    continue
                if why is not None:
                    self._fail(candidate, why)
                elif probation.over and probation.stuck:
                    self._fail(candidate, "gave no result at all during its probation")
                elif probation.over:
                    fault("probation.passed")
                    self._probations.end(candidate.name)

    def _fail(self, candidate: Candidate, why: str) -> None:
        """Bring the version before back; the caller has the lock."""
        log.warning("%s: fails: %s", candidate.id, why)
        self._probations.drop(candidate.name)
        try:
            self.roll_back(candidate.name, why)
        except AgentError as problem:
            trial_marks.clear(self._store, candidate.name, candidate.version)
            self.keep_all_the_same(candidate, why, problem)
            return
        self._reports.finish(candidate, "rolled-back", why)

    def roll_back(self, name: str, why: str) -> str:
        """Make the version before live; the caller has the lock.

        Returns:
            The version that is live now.

        Raises:
            AgentError: there is none, or it does not load; nothing has changed then.

        """
        pointers = self._store.pointers(name)
        if pointers.live is None or pointers.previous is None:
            raise ModelError(
                f"{name}: there is no version before {pointers.live or 'the one that runs'}"
                " to go back to"
            )
        folder = self._library.find(name, pointers.previous)
        models = self._swap.open(folder)
        try:
            self._library.rollback(name)
        except ModelError:
            close_all(models)
            raise
        fault("rollback.done")
        self._probations.drop(name)
        self._swap.exchange(name, models)
        self._reports.record_last(name, pointers.live, "rolled-back", why)
        self._reports.changed()
        return folder.manifest.version

    def keep_all_the_same(self, candidate: Candidate, why: str, problem: AgentError) -> None:
        """Leave a version live that has failed, for want of another."""
        why = f"{why}; it goes on all the same: {problem}"
        log.warning("%s: %s", candidate.id, why)
        self._reports.record(candidate, "live", why, {})
        self._reports.finish(candidate, "live", why)
