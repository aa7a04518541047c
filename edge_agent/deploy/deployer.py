"""From "it has arrived" to "it serves", and back if it does not hold what it promised.

One thread takes candidates one after the other; commands come from another. What is live changes
only under one lock, and the pointer on disk changes before what serves does: after a crash the
device runs the old version or the new one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from .. import wire
from ..durable import disk_errors, fault, replace_file
from ..errors import AgentError, ModelError
from ..manifest import ModelFolder
from ..model import Model
from ..names import is_name, is_version
from ..orders import text
from ..packages.package import PackageHeader
from ..serving import Servings
from ..settings import Trial
from ..sources import Kind
from ..store.catalog import Library
from ..store.pointers import Trial as TrialMark
from ..store.pointers import same_version
from ..store.store import Store
from .ahead import Ahead
from .candidate import Candidate, Last, Phase
from .shadow import Comparison
from .trial import run_trial

log = logging.getLogger(__name__)

MOST_STARTS = 2
"""Starts of the agent during one trial after which the candidate is held responsible."""
PROBATION_ERRORS = 3
POLL_SECONDS = 0.25
WATCH_SECONDS = 0.05
"""While a version is on probation: each frame that it fails on is one lost."""
MEMORY_FACTOR = 3.0
"""What a model may take in memory, by the size of its files, until it has been seen."""
MEMORY_FLOOR = 128 * 2**20
WORTH_BYTES = 2**20
"""A smaller package is there before a child could be."""


@dataclass(slots=True, eq=False)
class Probation:
    """A version that serves and is still watched."""

    candidate: Candidate
    models: list[Model]
    until: float
    bounds: Trial
    seen: int = 0
    """Frames that it had been through when this began."""

    def __post_init__(self) -> None:
        self.seen = sum(model.inferred for model in self.models)

    @property
    def stuck(self) -> bool:
        """Whether frames have gone in and none has come out."""
        waiting = any(model.users for model in self.models)
        return waiting and sum(model.inferred for model in self.models) == self.seen


class Deployer:
    """All that changes which version serves."""

    def __init__(
        self,
        store: Store,
        library: Library,
        servings: Servings,
        *,
        trial: Callable[[], Trial],
        swap: str,
        memory_budget_mb: int,
        say_push: Callable[[str, Mapping[str, Any]], object],
        on_change: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            store: of versions.
            library: of all versions.
            servings: what serves.
            trial: the device's bounds, which may be reloaded.
            swap: the profile's "overlap" or "replace".
            memory_budget_mb: what models may take; 0: no bound.
            say_push: says something on the topic of a transfer.
            on_change: the state of a model has changed.

        """
        self._store = store
        self._library = library
        self._servings = servings
        self._trial = trial
        self._swap = swap
        self._budget_mb = memory_budget_mb
        self._say_push = say_push
        self._on_change = on_change
        self._queue: SimpleQueue[Candidate | None] = SimpleQueue()
        self._changing = threading.RLock()
        self._candidates: dict[str, Candidate] = {}
        self._probations: dict[str, Probation] = {}
        self._submitted: list[Candidate] = []
        """On their way to the thread."""
        self._unresumed: dict[str, TrialMark] = {}
        """Probations from before the start, until the models are loaded."""
        self._last_file = store.root / "deployments.json"
        self._lasts: dict[str, dict[str, Any]] = _read_lasts(self._last_file)
        self._closing = threading.Event()
        self._ahead: Ahead | None = None
        """The latest trial that was begun before its model was there."""

    # What others ask

    def submit(self, candidate: Candidate) -> None:
        """Take a candidate; its trial may have to wait for another's."""
        self._submitted.append(candidate)
        self._queue.put(candidate)

    def expect(self, header: PackageHeader) -> Ahead | None:
        """Begin the trial of a package that is about to arrive, where that is worth it.

        One at a time, and only where there is room in memory for it beside all else.
        """
        if (
            header.size < WORTH_BYTES
            or self._swap == "replace"
            or (self._ahead is not None and not self._ahead.over)
            or _free_memory_mb() * 2**20 < MEMORY_FACTOR * header.size + MEMORY_FLOOR
        ):
            return None
        engines = self._servings.engines
        serving = next((s for s in self._servings.of(header.name) if s.model is not None), None)
        try:
            self._ahead = Ahead(
                [replace(choice, lanes=engines.lanes) for choice in engines.lineup.choices],
                serving,
                golden=self._trial().golden,
                memory_mb=self._budget_mb or _free_memory_mb(),
                stage=self._store.stage(),
            )
        except (AgentError, OSError) as problem:
            # It is tried when it is whole; if that cannot be either, that is said then.
            log.warning("%s: not tried while it arrives: %s", header.id, problem)
            return None
        return self._ahead

    def watches(self, name: str) -> bool:
        """Whether a version of a model is on its way to serve, or on probation."""
        return (
            name in self._candidates
            or name in self._probations
            or name in self._unresumed
            or any(candidate.name == name for candidate in list(self._submitted))
        )

    def standing(self, name: str, version: str) -> str | None:
        """Say how far a version is that is here already, as section 5 has it."""
        mark = self._unresumed.get(name)
        if mark is not None and same_version(mark.version, version):
            return "preparing"  # whether it stays live is about to be decided
        for candidate in (self._candidates.get(name), *list(self._submitted)):
            if (
                candidate is not None
                and candidate.name == name
                and same_version(candidate.version, version)
            ):
                return candidate.phase
        return self._serves(name, version)

    def _serves(self, name: str, version: str) -> Literal["live", "probation"] | None:
        """Say whether a version serves."""
        probation = self._probations.get(name)
        if probation is not None and same_version(probation.candidate.version, version):
            return "probation"
        try:
            live = self._library.live(name).manifest.version
        except ModelError:
            return None
        return "live" if same_version(live, version) else None

    def state(self, name: str) -> dict[str, Any]:
        """Give what the model's topic says of candidate and last."""
        found: dict[str, Any] = {}
        candidate = self._candidates.get(name)
        probation = self._probations.get(name)
        if candidate is not None:
            found["candidate"] = {
                "version": candidate.version,
                "phase": candidate.phase,
                "percent": 100.0,
            }
        elif probation is not None:
            found["candidate"] = {
                "version": probation.candidate.version,
                "phase": "probation",
                "percent": 100.0,
            }
        if name in self._lasts:
            found["last"] = self._lasts[name]
        return found

    def names(self) -> set[str]:
        return (
            set(self._candidates)
            | set(self._probations)
            | (set(self._lasts) & set(self._store.names()))
        )

    # Commands

    def rollback(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Go back to the version before."""
        name = _name(body)
        with self._changing:
            self._abort(name, "rolled back by command")
            version = self._roll_back(name, "by command")
        return {"model": name, "version": version}

    def activate(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a version live that has been accepted before."""
        name, version = _name(body), text(body, "version")
        if not is_version(version):
            raise ModelError(f"version: {version!r} is not a version (dot-separated integers)")
        with self._changing:
            self._abort(name, f"{version} was activated by command")
            folder = self._library.find(name, version)
            accepted = next(e.accepted for e in self._library.versions(name) if e.folder == folder)
            if not accepted:
                raise ModelError(f"{name}@{version} has not passed its trial; push it again")
            self._end_probation(name)
            models = self._open(folder, checked=False)
            self._library.activate(name, version)
            self._exchange(name, models)
            self._on_change()
        return {"model": name, "version": folder.manifest.version}

    def delete(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Delete a version that nothing uses."""
        name, version = _name(body), text(body, "version")
        if not is_version(version):
            raise ModelError(f"version: {version!r} is not a version (dot-separated integers)")
        for pinned, pin in self._servings.pins():
            if pinned == name and same_version(pin, version):
                raise ModelError(
                    f"{name}@{version} is named by a pipeline; change the settings first"
                )
        with self._changing:
            if self.standing(name, version) is not None:
                raise ModelError(
                    f"{name}@{version} is live or on its way there; activate another one first"
                )
            self._store.delete(name, version)
        self._on_change()
        return {"model": name, "version": version}

    # The thread

    def run(self) -> None:
        """Take candidates and watch those on probation, until closed."""
        for name, mark in list(self._unresumed.items()):
            self._resume_probation(name, mark)
            self._unresumed.pop(name)
        while not self._closing.is_set():
            try:
                candidate = self._queue.get(
                    timeout=WATCH_SECONDS if self._probations else POLL_SECONDS
                )
            except Empty:
                candidate = None
            if candidate is not None:
                try:
                    self._process(candidate)
                finally:
                    candidate.leave()
            self._watch_probations()

    def close(self) -> None:
        self._closing.set()
        self._queue.put(None)

    def recover(self) -> None:
        """See what was under way when the agent ended; before anybody asks how far it is."""
        for name in self._store.names():
            mark = self._store.pointers(name).trial
            try:
                if mark is None:
                    self._try_untried(name)
                elif mark.phase == "probation" and mark.starts < 0:
                    self._unresumed[name] = mark
                elif mark.phase == "probation":
                    self._undo_crash(name, mark)
                else:
                    self._try_again(name, mark)
            except ModelError as problem:
                # A full disk: what serves, serves.
                log.error("%s: %s", name, problem)  # noqa: TRY400 - one line, no traceback

    def _undo_crash(self, name: str, mark: TrialMark) -> None:
        """Bring the version before back, before the one on probation can crash us once more."""
        why = "the agent crashed during its probation"
        candidate = self._stored_candidate(name, mark.version)
        try:
            self._library.rollback(name)
        except ModelError as problem:
            self._store.set_trial(name, None)
            self._keep_all_the_same(candidate, why, problem)
            return
        fault("rollback.done")
        log.warning("%s: rolled back: %s", candidate.id, why)
        self._record(candidate, "rolled-back", why, {})
        self._finish(candidate, "rolled-back", why)

    def _try_again(self, name: str, mark: TrialMark) -> None:
        """Begin a trial anew that the agent's end has interrupted."""
        starts = mark.starts + 1
        if starts > MOST_STARTS or self._store.path(name, mark.version) is None:
            why = f"the agent ended {starts} times during its trial"
            self._store.set_trial(name, None)
            self._reject_stored(name, mark.version, why)
            self._finish(self._stored_candidate(name, mark.version), "rejected", why)
            return
        self._store.set_trial(name, replace(mark, starts=starts))
        log.info("%s@%s: its trial was interrupted, begins again", name, mark.version)
        self.submit(self._stored_candidate(name, mark.version, starts))

    def _stored_candidate(self, name: str, version: str, starts: int = 0) -> Candidate:
        """Make a candidate of what is in the store."""
        return Candidate(
            name,
            version,
            self._store.transfer(name, version),
            lambda: self._library.find(name, version),
            starts=starts,
        )

    def _try_untried(self, name: str) -> None:
        """Try what came into the store and was never tried: by `add`, or just before a crash."""
        untried = [v for v in self._store.versions(name) if not self._store.accepted(name, v)]
        for version in untried[-1:]:
            self.submit(self._stored_candidate(name, version))

    def _resume_probation(self, name: str, mark: TrialMark) -> None:
        """Go on with a probation after an orderly end of the agent."""
        try:
            bounds = self._bounds(self._library.live(name))
            self._store.set_trial(name, replace(mark, starts=0))
        except ModelError as problem:
            log.error("%s: %s", name, problem)  # noqa: TRY400 - one line, no traceback
            return
        fault("probation.resumed")
        models = [s.model for s in self._servings.of(name) if s.model is not None]
        with self._changing:
            self._probations[name] = Probation(
                self._stored_candidate(name, mark.version),
                models,
                time.monotonic() + bounds.probation_s,
                bounds,
            )
        self._on_change()

    def suspend(self) -> None:
        """Note, at an orderly end, that those under way are not to blame for it."""
        self._closing.set()
        with self._changing:  # after this nothing goes live any more
            for name in {*self._probations, *self._candidates}:
                mark = self._store.pointers(name).trial
                if mark is None:
                    continue
                try:
                    starts = -1 if mark.phase == "probation" else mark.starts - 1
                    self._store.set_trial(name, replace(mark, starts=starts))
                except ModelError as problem:
                    log.error("%s: %s", name, problem)  # noqa: TRY400 - one line, no traceback
                fault("probation.suspended")

    def _process(self, candidate: Candidate) -> None:
        """Take one candidate all the way."""
        if is_name(candidate.name):
            self._candidates[candidate.name] = candidate
            self._on_change()
        try:
            folder = candidate.install()
        except AgentError as problem:
            self._candidates.pop(candidate.name, None)
            self._submitted.remove(candidate)
            candidate.durable()
            self._finish(candidate, "rejected", str(problem))
            return
        candidate.name, candidate.version = folder.manifest.name, folder.manifest.version
        candidate.durable()
        models: dict[Kind, Model] = {}
        standing = self._serves(candidate.name, candidate.version)
        pointed = self._store.pointers(candidate.name).live
        if standing and pointed and same_version(pointed, candidate.version):
            # Asked for twice, as by a push that was repeated: it need not prove itself again.
            self._candidates.pop(candidate.name, None)
            self._submitted.remove(candidate)
            self._say(candidate, standing)
            candidate.finished("live", None)
            self._on_change()
            return
        self._candidates[candidate.name] = candidate
        self._submitted.remove(candidate)
        try:
            self._phase(candidate, "preparing")
            self._mark(candidate)
            bounds = self._bounds(folder)
            details = self._try(candidate, folder, bounds)
            fault("trial.passed")
            if self._must_replace(folder):
                self._replace(candidate, folder, details, bounds)
                return
            models = self._open(folder)
            details |= self._shadow(candidate, models, bounds)
            with self._changing:
                self._check_wanted(candidate)
                self._go_live(candidate, models, details, bounds)
                models = {}
        except _Interrupted:
            for model in models.values():
                self._servings.retire(model)
        except AgentError as problem:
            for model in models.values():
                self._servings.retire(model)
            with self._changing:
                self._candidates.pop(candidate.name, None)
                self._reject_stored(candidate.name, candidate.version, str(problem))
            # It may have hidden the same version of another place.
            self._servings.fill()
            self._finish(candidate, "rejected", str(problem))

    def _check_wanted(self, candidate: Candidate) -> None:
        """See that a candidate shall go on.

        Raises:
            ModelError: a command has overtaken it, or the agent ends.

        """
        if self._closing.is_set():
            raise _Interrupted(candidate.id)
        if candidate.aborted is not None:
            raise ModelError(candidate.aborted)

    def _phase(self, candidate: Candidate, phase: Phase) -> None:
        candidate.phase = phase
        log.info("%s: %s", candidate.id, phase)
        self._say(candidate, phase)
        self._on_change()

    def _mark(self, candidate: Candidate) -> None:
        self._store.set_trial(
            candidate.name,
            TrialMark(candidate.version, candidate.phase, time.time(), candidate.starts),
        )
        fault("trial.marked")

    def _bounds(self, folder: ModelFolder) -> Trial:
        """Lay the manifest's bounds over the device's: the stricter of the two."""
        device, own = self._trial(), folder.manifest.trial
        limits = [limit for limit in (device.max_infer_ms, own.max_infer_ms or 0.0) if limit > 0]
        return Trial(
            golden=device.golden or bool(own.golden),
            shadow_frames=max(device.shadow_frames, own.shadow_frames or 0),
            min_agreement=max(device.min_agreement, own.min_agreement or 0.0),
            max_infer_ms=min(limits, default=0.0),
            probation_s=max(device.probation_s, own.probation_s or 0.0),
            timeout_s=min(device.timeout_s, own.timeout_s or device.timeout_s),
        )

    def _kinds(self, folder: ModelFolder) -> set[Kind]:
        """Say what the model will be given here."""
        kinds: set[Kind] = {serving.kind for serving in self._servings.of(folder.manifest.name)}
        return kinds or {"signal" if folder.manifest.input.is_signal else "picture"}

    def _try(self, candidate: Candidate, folder: ModelFolder, bounds: Trial) -> dict[str, Any]:
        """Have it tried in a child process.

        Raises:
            ModelError: it has not passed.

        """
        self._phase(candidate, "trial")
        details: dict[str, Any] = {}
        for kind in sorted(self._kinds(folder)):
            verdict = run_trial(
                folder.path,
                self._servings.engines.choices_for(folder),
                kind,
                golden=bounds.golden,
                timeout_s=bounds.timeout_s,
                memory_mb=self._budget_mb or _free_memory_mb(),
                stopped=lambda: "the agent ends" if self._closing.is_set() else candidate.aborted,
                process=candidate.child(kind),
            )
            candidate.leave()
            if verdict.streamed:
                log.info("%s: %s", candidate.id, verdict.streamed)
            candidate.first_at = candidate.first_at or verdict.first_at
            self._check_wanted(candidate)
            if not verdict.passed:
                raise ModelError(_of(candidate, verdict.why))
            if bounds.max_infer_ms and verdict.infer_ms > bounds.max_infer_ms:
                raise ModelError(
                    f"{candidate.id}: too slow: {verdict.infer_ms:.1f} ms an inference, "
                    f"at most {bounds.max_infer_ms:g} ms are allowed"
                )
            details["trial"] = {
                "why": verdict.why,
                "engine": verdict.engine,
                "infer_ms": verdict.infer_ms,
                **({"streamed": verdict.streamed} if verdict.streamed else {}),
            }
        return details

    def _open(self, folder: ModelFolder, *, checked: bool = True) -> dict[Kind, Model]:
        """Load it for every kind of sample that its pipelines give it.

        What comes here has been through a trial, unless a command names what never needed one.
        """
        opened: dict[Kind, Model] = {}
        wanted: set[Kind] = {serving.kind for serving in self._servings.of(folder.manifest.name)}
        try:
            for kind in wanted:
                opened[kind] = self._servings.engines.open(folder, kind, checked=checked)[0]
        except AgentError:
            for model in opened.values():
                model.close()
            raise
        return opened

    def _shadow(
        self, candidate: Candidate, models: Mapping[Kind, Model], bounds: Trial
    ) -> dict[str, Any]:
        """Let it look at live frames beside the incumbent.

        Raises:
            ModelError: it fails, is too slow or does not agree.

        """
        servings = [
            s for s in self._servings.of(candidate.name) if s.model is not None and s.kind in models
        ]
        if not servings or bounds.shadow_frames == 0:
            return {}
        self._phase(candidate, "shadow")
        serving = servings[0]
        shadow = Comparison(models[serving.kind], bounds.shadow_frames)
        serving.shadow = shadow
        fault("shadow.begun")
        deadline = time.monotonic() + bounds.timeout_s
        try:
            while not shadow.done.wait(0.02):
                if (
                    time.monotonic() > deadline
                    or self._closing.is_set()
                    or candidate.aborted is not None
                    or not self._servings.flows(candidate.name)
                ):
                    break
                self._watch_probations()
        finally:
            serving.shadow = None
            shadow.stop()
        self._check_wanted(candidate)
        _judge_shadow(candidate, shadow, bounds)
        return {"shadow": shadow.payload()}

    def _go_live(
        self,
        candidate: Candidate,
        models: Mapping[Kind, Model],
        details: dict[str, Any],
        bounds: Trial,
    ) -> None:
        """Put it in the incumbent's place; the caller has the lock."""
        name, version = candidate.name, candidate.version
        self._end_probation(name)
        self._store.activate(
            name, version, before=self._running(name, version), watched=_watch(version, bounds)
        )
        fault("swap.activated")
        exchange = self._servings.exchange(models, name)
        fault("swap.exchanged")
        self._candidates.pop(name, None)
        details |= {
            "swap_ms": round(exchange.swap_ms, 3),
            "frames_dropped": exchange.frames_dropped,
        }
        self._lived(candidate, list(models.values()), details, bounds)
        for old in exchange.retired:
            self._servings.retire(old)

    def _lived(
        self, candidate: Candidate, models: list[Model], details: dict[str, Any], bounds: Trial
    ) -> None:
        """Say that it serves, and watch it."""
        if bounds.probation_s > 0:
            self._probations[candidate.name] = Probation(
                candidate, models, time.monotonic() + bounds.probation_s, bounds
            )
        # Pipelines that name this very version may have waited for it.
        self._servings.fill()
        self._wait_for_first(models)
        details |= _first_inference(candidate, models)
        self._record(candidate, "live", None, details)
        if bounds.probation_s > 0:
            self._say(candidate, "probation", **details)
        else:
            self._finish(candidate, "live", None, **details)
        self._on_change()

    def _wait_for_first(self, models: list[Model]) -> None:
        """Give a live source a moment to show the new model a frame."""
        deadline = time.monotonic() + 1.0
        while (
            models
            and not any(model.first_at or model.errors for model in models)
            and time.monotonic() < deadline
        ):
            self._closing.wait(0.005)

    def _must_replace(self, folder: ModelFolder) -> bool:
        """Whether there is no room in memory for the old and the new one at once."""
        if not any(s.model for s in self._servings.of(folder.manifest.name)):
            return False
        size = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
        return (
            self._swap == "replace"
            or _free_memory_mb() * 2**20 < MEMORY_FACTOR * size + MEMORY_FLOOR
        )

    def _replace(
        self, candidate: Candidate, folder: ModelFolder, details: dict[str, Any], bounds: Trial
    ) -> None:
        """Exchange where memory does not hold two: the old one goes before the new one comes.

        Frames wait, or give way to newer ones, meanwhile; how long and how many is reported.

        Raises:
            ModelError: the new one does not load; the old one serves again.

        """
        name, version = candidate.name, candidate.version
        with self._changing:
            self._check_wanted(candidate)
            self._end_probation(name)
            incumbent = self._library.live(name)
            start = time.perf_counter()
            before = self._servings.late()
            for old in self._servings.park(name).retired:
                self._servings.retire(old)
            try:
                models = self._open(folder)
            except AgentError as problem:
                self._servings.exchange(self._open(incumbent), name)
                raise ModelError(_of(candidate, str(problem))) from None
            self._store.activate(
                name,
                version,
                before=incumbent.manifest.version,
                watched=_watch(version, bounds),
            )
            fault("swap.activated")
            self._servings.exchange(models, name)
            fault("swap.exchanged")
            self._candidates.pop(name, None)
            details |= {
                "mode": "replace",
                "swap_ms": round((time.perf_counter() - start) * 1e3, 3),
                "frames_dropped": self._servings.late() - before,
            }
            self._lived(candidate, list(models.values()), details, bounds)

    # Probation

    def _watch_probations(self) -> None:
        for name, probation in list(self._probations.items()):
            why = _fault_of(probation)
            with self._changing:
                if self._probations.get(name) is not probation:
                    continue
                if why is not None:
                    self._fail_probation(probation.candidate, why)
                elif time.monotonic() >= probation.until:
                    if probation.stuck:
                        why = "gave no result at all during its probation"
                        self._fail_probation(probation.candidate, why)
                        continue
                    fault("probation.passed")
                    self._end_probation(name)

    def _end_probation(self, name: str) -> None:
        """Let go of what has stood it, or gives way to another; the caller has the lock."""
        probation = self._probations.pop(name, None)
        if probation is None:
            return
        self._clear_mark(name, probation.candidate.version)
        log.info("%s: probation is over", probation.candidate.id)
        self._finish(probation.candidate, "live", None)
        self._on_change()

    def _fail_probation(self, candidate: Candidate, why: str) -> None:
        """Bring the version before back; the caller has the lock."""
        log.warning("%s: fails: %s", candidate.id, why)
        self._probations.pop(candidate.name, None)
        try:
            self._roll_back(candidate.name, why)
        except AgentError as problem:
            self._clear_mark(candidate.name, candidate.version)
            self._keep_all_the_same(candidate, why, problem)
            return
        self._finish(candidate, "rolled-back", why)

    def _keep_all_the_same(self, candidate: Candidate, why: str, problem: AgentError) -> None:
        """Leave a version live that has failed, for want of another."""
        why = f"{why}; it goes on all the same: {problem}"
        log.warning("%s: %s", candidate.id, why)
        self._record(candidate, "live", why, {})
        self._finish(candidate, "live", why)

    def _roll_back(self, name: str, why: str) -> str:
        """Make the version before live; the caller has the lock.

        Raises:
            AgentError: there is none, or it does not load; nothing has changed then.

        """
        pointers = self._store.pointers(name)
        if pointers.live is None or pointers.previous is None:
            raise ModelError(
                f"{name}: there is no version before {pointers.live or 'the one that runs'}"
                " to go back to"
            )
        left = pointers.live
        folder = self._library.find(name, pointers.previous)
        models = self._open(folder)
        try:
            self._library.rollback(name)
        except ModelError:
            for model in models.values():
                model.close()
            raise
        fault("rollback.done")
        self._probations.pop(name, None)
        self._exchange(name, models)
        self._lasts[name] = Last(left, "rolled-back", wire.iso(time.time_ns()), why).payload()
        self._keep_lasts()
        self._on_change()
        return folder.manifest.version

    def _exchange(self, name: str, models: Mapping[Kind, Model]) -> None:
        exchange = self._servings.exchange(models, name)
        for old in exchange.retired:
            self._servings.retire(old)

    def _abort(self, name: str, why: str) -> None:
        candidate = self._candidates.get(name)
        if candidate is not None:
            candidate.aborted = why

    def _running(self, name: str, candidate: str) -> str | None:
        """Name what ran until now, for when no pointer does."""
        try:
            version = self._library.live(name).manifest.version
        except ModelError:
            return None
        return None if same_version(version, candidate) else version

    # The end of a candidate

    def _reject_stored(self, name: str, version: str, why: str) -> None:
        """Remove what was rejected, unless it had been accepted before."""
        log.warning("%s@%s: rejected: %s", name, version, why)
        self._clear_mark(name, version)
        try:
            with disk_errors(f"{name}@{version}: removing it"), self._store.locked():
                if not self._store.accepted(name, version):
                    self._store.discard(name, version)
        except ModelError as problem:
            log.error("%s", problem)  # noqa: TRY400 - one line, no traceback

    def _clear_mark(self, name: str, version: str) -> None:
        """Note that a version is not on trial any more; where the disk is full, that waits."""
        mark = self._store.pointers(name).trial
        if mark is None or not same_version(mark.version, version):
            return
        try:
            self._store.set_trial(name, None)
        except ModelError as problem:
            log.error("%s", problem)  # noqa: TRY400 - one line, no traceback

    def _record(
        self, candidate: Candidate, outcome: Any, why: str | None, details: Mapping[str, Any]
    ) -> None:
        if is_name(candidate.name):
            last = Last(candidate.version, outcome, wire.iso(time.time_ns()), why, details)
            self._lasts[candidate.name] = last.payload()
            self._keep_lasts()

    def _keep_lasts(self) -> None:
        try:
            replace_file(self._last_file, json.dumps(self._lasts).encode())
        except OSError as problem:
            log.warning("%s: cannot be written: %s", self._last_file, problem.strerror)

    def _finish(self, candidate: Candidate, outcome: str, why: str | None, **details: Any) -> None:
        if outcome == "rejected":
            self._record(candidate, "rejected", why, {})
        self._say(candidate, "live" if outcome == "live" else "rejected", why=why, **details)
        candidate.finished(outcome, why)
        self._on_change()

    def _say(self, candidate: Candidate, state: str, **more: Any) -> None:
        candidate.told(state, more.get("why"))
        if candidate.transfer is not None:
            payload = {"state": state, "have": 1, "total": 1, "percent": 100.0}
            self._say_push(
                candidate.transfer,
                {**payload, "model": candidate.name, "version": candidate.version}
                | {key: value for key, value in more.items() if value is not None},
            )


class _Interrupted(ModelError):
    """The agent ends; the trial begins again at its next start."""


def _watch(version: str, bounds: Trial) -> TrialMark | None:
    """Make the mark of a probation, where there is to be one."""
    return TrialMark(version, "probation", time.time()) if bounds.probation_s > 0 else None


def _judge_shadow(candidate: Candidate, shadow: Comparison, bounds: Trial) -> None:
    if shadow.errors:
        raise ModelError(f"{candidate.id}: shadow: failed on a live frame: {shadow.error}")
    if bounds.min_agreement > 0:
        if shadow.frames < shadow.wanted:
            raise ModelError(
                f"{candidate.id}: shadow: only {shadow.frames} of {shadow.wanted} frames came"
                f" within {bounds.timeout_s:g} s, too few to judge its agreement"
            )
        if shadow.agreement < bounds.min_agreement:
            raise ModelError(
                f"{candidate.id}: shadow: agrees on {shadow.agreement:.0%} of {shadow.frames}"
                f" frames, {bounds.min_agreement:.0%} wanted ({shadow.disagreement})"
            )
    p95 = shadow.payload()["infer_ms"]["p95"]
    if bounds.max_infer_ms and p95 > bounds.max_infer_ms:
        raise ModelError(
            f"{candidate.id}: shadow: too slow: p95 {p95:.1f} ms,"
            f" at most {bounds.max_infer_ms:g} ms are allowed"
        )


def _of(candidate: Candidate, why: str) -> str:
    """Say whose fault it is, once."""
    return why if why.startswith(candidate.id) else f"{candidate.id}: {why}"


def _fault_of(probation: Probation) -> str | None:
    """Say what is wrong with a version on probation."""
    for model in probation.models:
        if model.errors >= PROBATION_ERRORS:
            return f"failed on {model.errors} frames during its probation"
        recent = sorted(list(model.infer_ms)[-100:])
        limit = probation.bounds.max_infer_ms
        if limit and len(recent) >= 10 and recent[len(recent) // 2] > limit:
            return f"too slow: {recent[len(recent) // 2]:.1f} ms, at most {limit:g} ms are allowed"
    return None


def _first_inference(candidate: Candidate, models: list[Model]) -> dict[str, Any]:
    firsts = [
        at for at in (candidate.first_at, *(model.first_at for model in models)) if at is not None
    ]
    if not firsts:
        return {"first_inference_ms": None}
    return {"first_inference_ms": round((min(firsts) - candidate.began) * 1e3, 1)}


def _free_memory_mb() -> int:
    """Say what could be taken without others suffering: of the machine, or of our cgroup."""
    import psutil

    from ..facts import read_facts

    machine = psutil.virtual_memory().available / 2**20
    limit = read_facts().memory_mb
    own = psutil.Process().memory_info().rss / 2**20
    return int(max(64.0, min(machine, limit - own if limit else machine) * 0.8))


def _name(body: Mapping[str, Any]) -> str:
    name = text(body, "model")
    if not is_name(name):
        raise ModelError(f"model: {name!r} is not a name")
    return name


def _read_lasts(path: Path) -> dict[str, dict[str, Any]]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): dict(last) for name, last in read.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        log.warning("%s: damaged; how earlier pushes ended is forgotten", path)
        return {}
