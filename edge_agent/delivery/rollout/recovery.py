"""Recovery: candidates that the agent continues, retries or rolls back at its next start.

The marks in the models' pointers name the candidates in progress. At a clean shutdown they are
changed so that the candidates are not blamed for it. After a crash or a hang a version on probation
is considered the cause, unless another model is known to be; after a kill for lack of memory only
where it was in use; after any other kill or a power cut it is not.
If the agent has ended too often during a trial or probation, that candidate is given up anyway.
Transfers are resumed by `receive.router`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from ...core.errors import ModelError
from ...core.files import fault
from ...core.flight_recorder import PreviousCrash
from ...models.store.catalog import untried
from ...models.store.pointers import CANCELED, ROLLED_BACK, WAITING, same_version
from ...models.store.pointers import Trial as Mark
from .acceptance import bounds_of
from .ledger import Candidate
from .swap import Swap

log = logging.getLogger(__name__)

MOST_STARTS = 2
"""Starts of the agent during one trial, or one probation, after which the candidate is blamed."""


class Recovery:
    """Reads the marks at a start."""

    def __init__(self, swap: Swap) -> None:
        self._swap = swap

    def find_candidates(self, last: PreviousCrash | None) -> list[Candidate]:
        """Read the marks before any model is loaded; return the candidates to try (again)."""
        found: list[Candidate] = []
        for name in self._swap.store.names():
            pointers = self._swap.store.pointers(name)
            mark, watched = pointers.trial, pointers.watched
            try:
                if watched is not None:
                    self._watch_again(name, watched, last)
                if mark is None or mark.phase == WAITING:
                    found += self._mark_untried(name, mark)
                elif mark.phase == CANCELED:
                    self._reject(name, mark, mark.why or "by an earlier run")
                else:
                    found += self._try_again(name, mark, last)
            except ModelError as problem:
                # The disk is full, but the models that serve can continue.
                log.error("model %s: not recovered: %s", name, problem)  # noqa: TRY400 - one line, no traceback
        return found

    def _mark_untried(self, name: str, mark: Mark | None) -> list[Candidate]:
        """Return what is in the store but was never tried: from `add`, or just before a crash.

        It is marked, so that it serves no pin meanwhile.
        """
        version = untried(self._swap.store, name)
        found = [] if version is None else [self._stored(name, version)]
        if found or mark is not None:
            waits = Mark(found[0].version, WAITING, time.time()) if found else None
            self._swap.store.set_trial(name, waits)
        return found

    def _try_again(self, name: str, mark: Mark, last: PreviousCrash | None) -> list[Candidate]:
        """Restart a trial interrupted by the end of the agent, unless it caused that.

        An end in one of its own calls, in shadow, is its doing; so are too many ends.
        """
        if self._swap.store.path(name, mark.version) is None:
            # It was rejected, and a full disk did not take that.
            self._swap.store.set_trial(name, None)
            return []
        self._swap.store.retract(name, mark.version)
        starts = _counted(mark, last).starts
        crashed = last is not None and _called(name, mark.version, last)
        if crashed or starts > MOST_STARTS:
            often = f"ended {starts} times"
            why = f"the agent {last.why if last and crashed else often} during its trial"
            self._reject(name, mark, why)
            return []
        candidate = self._stored(name, mark.version, mark.push)
        candidate.starts = starts
        self._swap.store.set_trial(name, replace(mark, starts=starts))
        log.info("%s: its trial was interrupted, begins again", candidate.id)
        return [candidate]

    def _reject(self, name: str, mark: Mark, why: str) -> None:
        """Record that a candidate on trial was rejected."""
        candidate = self._stored(name, mark.version, mark.push)
        self._swap.store.set_trial(name, None)
        self._swap.ledger.discard(name, mark.version, why)
        self._swap.ledger.finish(candidate, "rejected", why)

    def _watch_again(self, name: str, mark: Mark, last: PreviousCrash | None) -> None:
        """Continue a probation, or end it as the end of the agent demands."""
        if mark.phase == ROLLED_BACK:
            self._record_undone(name, mark, mark.why or "by an earlier run")
        elif (why := _reason_against(name, mark, last)) is not None:
            self._undo_crash(name, mark, why)
        else:
            self._add_interrupted(name, _counted(mark, last))

    def _add_interrupted(self, name: str, mark: Mark) -> None:
        """Add a version whose probation has not ended, for `resume_probations`."""
        candidate = self._stored(name, mark.version, mark.push)
        candidate.phase = "preparing"  # whether it stays live is still to be decided
        candidate.interrupted = mark
        self._swap.ledger.add(candidate)
        try:
            self._swap.store.set_watched(name, mark)
        except ModelError as problem:  # it is watched all the same
            log.warning("%s: a start is not counted: %s", candidate.id, problem)

    def _undo_crash(self, name: str, mark: Mark, why: str) -> None:
        """Roll back before the version on probation can crash the agent again."""
        trouble = ModelError(f"{name}: there is no version before {mark.version} to go back to")
        for version in self._swap.store.pointers(name).history[-2::-1]:
            try:
                self._swap.catalog.find_unchanged(name, version)
            except ModelError as problem:
                log.warning("%s: does not go back to %s: %s", name, version, problem)
                trouble = problem
                continue
            try:
                self._swap.catalog.rollback(name, why, to=version)
            except ModelError as problem:
                log.warning("%s@%s: rolled back later: %s", name, mark.version, problem)
                self._add_interrupted(name, replace(mark, why=why))
                return
            fault("rollback.done")
            self._record_undone(name, mark, why)
            return
        candidate = self._stored(name, mark.version)
        candidate.phase = "probation"
        self._swap.keep_live(candidate, why, trouble)
        self._swap.ledger.clear_mark(name, mark.version)

    def _record_undone(self, name: str, mark: Mark, why: str) -> None:
        """Record that a version was rolled back, possibly by a run that was killed meanwhile."""
        version = mark.version
        candidate = self._stored(name, version)
        candidate.phase = "probation"
        log.warning("%s: rolled back: %s", candidate.id, why)
        self._swap.ledger.record_last(name, version, "rolled-back", why, push=mark.push)
        self._swap.ledger.clear_mark(name, version)
        self._swap.ledger.finish(candidate, "rolled-back", why)

    def _stored(self, name: str, version: str, push: str | None = None) -> Candidate:
        """Make a candidate from a version in the store; *push* is of its mark."""
        return Candidate(
            name,
            version,
            self._swap.store.transfer(name, version),
            lambda: self._swap.catalog.find_unchanged(name, version),
            # Where it has a signature, that is judged anyway.
            unsigned=self._swap.store.received(name, version),
            push=push,
        )

    def resume_probations(self) -> None:
        """Once models are loaded, continue probations interrupted by the end of the agent.

        The caller has `Swap.changing`.
        """
        for candidate in self._swap.ledger.interrupted():
            name = candidate.name
            try:
                live = self._swap.catalog.live(name)
                bounds = bounds_of(live, self._swap.trial())
            except ModelError as problem:
                log.error("%s: probation not resumed: %s", candidate.id, problem)  # noqa: TRY400 - one line, no traceback
                self._swap.ledger.remove(candidate)
                continue
            if not same_version(live.manifest.version, candidate.version):
                self._end_replaced(candidate, live.manifest.version)
                continue
            fault("probation.resumed")
            servings = self._swap.active.servings_of(name)
            broken = next((s.stands_in for s in servings if s.stands_in is not None), None)
            mark = candidate.interrupted
            broken = broken or (None if mark is None else mark.why)
            self._swap.begin_probation(candidate, bounds, broken=broken)
            candidate.figures = self._swap.ledger.figures(name, candidate.version)
            self._swap.ledger.changed()

    def _end_replaced(self, candidate: Candidate, live: str) -> None:
        """End the probation of a version that a command has replaced while models were loaded."""
        name, version = candidate.name, candidate.version
        candidate.phase = "probation"
        self._swap.ledger.clear_mark(name, version)
        last = self._swap.ledger.describe(name).get("last", {})
        if (last.get("version"), last.get("outcome")) == (version, "rolled-back"):
            self._swap.ledger.finish(candidate, "rolled-back", last.get("why"))
        else:
            self._swap.ledger.end_replaced(candidate, live)


def _counted(mark: Mark, last: PreviousCrash | None) -> Mark:
    """Count a start of the agent, unless a client's question is why there is one more."""
    return mark if last is not None and last.asked else replace(mark, starts=mark.starts + 1)


def _called(name: str, version: str, last: PreviousCrash) -> bool:
    """Whether a run ended by itself within a call into a version, not of a client's question."""
    target = f"{name}@{version} "
    return last.self_inflicted and any(
        call.kind != "ask" and call.target.startswith(target) for call in last.calls
    )


def _reason_against(name: str, mark: Mark, last: PreviousCrash | None) -> str | None:
    """Return why a version on probation caused the last run's end, or None if it did not.

    After a clean shutdown, which the mark records, only its own calls count.
    """
    unknown = last is not None and last.self_inflicted and not last.calls and mark.starts >= 0
    if last is not None and (unknown or _called(name, mark.version, last)):
        return f"the agent {last.why} during its probation"
    if mark.starts >= MOST_STARTS:
        return f"the agent ended {mark.starts + 1} times during its probation"
    return None
