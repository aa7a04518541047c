"""Swap: one version replaces another, first on disk, then in service, between two frames.

The pointer changes before the serving models do: after a crash the device runs either the old
version or the new one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ...config.settings import Trial, parse_route
from ...core.errors import AgentError, ModelError
from ...core.files import fault, size_of
from ...core.flight_recorder import recorder
from ...core.types import Kind
from ...device.headroom import has_room
from ...inference.golden import check_golden
from ...inference.model import Model
from ...models.manifest import ModelFolder
from ...models.store.catalog import Catalog
from ...models.store.pointers import Trial as Mark
from ...models.store.pointers import same_version
from ...models.store.store import Store
from ...serving.active import ActiveModels, Exchange
from ..protocol import agreement_words
from .acceptance import Watch, bounds_of
from .ledger import Candidate, Ledger

log = logging.getLogger(__name__)


class UnwrittenError(ModelError):
    """The pointers could not be written, as on a full disk: nothing has changed, try it again."""


Models = Mapping[Kind, Model]
"""One version, loaded for each kind of sample from its pipelines."""


@dataclass(slots=True, eq=False)
class Swap:
    """Changes which version serves; a method that does so needs the lock `changing`."""

    store: Store
    catalog: Catalog
    active: ActiveModels
    ledger: Ledger
    trial: Callable[[], Trial]
    """Returns the device's bounds, which may be reloaded."""
    overlap: bool
    """Whether two versions may be in memory at once, if there is room."""
    changing: threading.RLock = field(default_factory=threading.RLock)
    """Held for every change of the live version, by the deployer's thread and by commands."""

    def room_for(self, folder: ModelFolder, *, back: bool = False) -> AbstractContextManager[None]:
        """Have the memory budget count a version from before it is loaded until it serves.

        So what is loaded meanwhile leaves it its room. *back*: it has been accepted before, and
        what is on trial gives way; otherwise it is itself on trial. Needs no lock.

        Raises:
            EngineError: there is no room for it.
        """
        if not self.active.servings_of(folder.manifest.name):
            return nullcontext()  # it is not loaded
        budget = self.active.loader.engines.budget
        return budget.loading(folder, on_trial=not back, back=back)

    def check_room(self, folder: ModelFolder) -> None:
        """Check once more that a version on trial can serve: another one may have come back.

        Raises:
            EngineError: there is no room for it any more.
        """
        if self.active.servings_of(folder.manifest.name):
            self.active.loader.engines.budget.check(folder)

    @contextmanager
    def reopen(self, name: str, version: str) -> Iterator[tuple[ModelFolder, dict[Kind, Model]]]:
        """Load a version that has been accepted before, to serve with it before the context ends.

        It may have been on disk for long, so its files and golden outputs are checked again. If
        memory has no room for both, the incumbent is unloaded first.

        Raises:
            AgentError: it is missing, does not load, or differs from what was accepted; the
                incumbent serves.
        """
        folder = self.catalog.find_unchanged(name, version)
        with self.room_for(folder, back=True):
            if self.must_replace(folder):
                self._unload(name)
            models: dict[Kind, Model] = {}
            try:
                models = self.open(folder, checked=False)
                if bounds_of(folder, self.trial()).golden:
                    for model in models.values():
                        check_golden(model)
            except AgentError:
                self._discard(name, models)
                raise
            try:
                yield folder, models
            finally:
                if name in self.active.swapping:  # something unexpected: frames must not wait
                    self._discard(name, models)

    def _unload(self, name: str) -> None:
        """Unload the version that serves, if it is loaded; its frames wait or are superseded."""
        self.active.swapping.add(name)
        with self.active.loading:  # it may be just being loaded
            unloaded = self.active.unload(
                lambda serving, _model: serving.arm.name == name and serving.arm.version is None
            )
        for old in unloaded:
            self.active.retire(old)

    def _discard(self, name: str, models: Models) -> None:
        """Close models that will not serve, and load the live version if it was unloaded."""
        close_all(models)
        self.active.end_swap(name)  # a failure is logged, and kept for health

    def open(self, folder: ModelFolder, *, checked: bool = True) -> dict[Kind, Model]:
        """Load a version for every kind of sample from its pipelines; needs no lock.

        *checked* says whether its network has already been checked, as in a trial.

        Raises:
            AgentError: it does not load.
        """
        opened: dict[Kind, Model] = {}
        try:
            for kind in {each.kind for each in self.active.servings_of(folder.manifest.name)}:
                opened[kind] = self.active.loader.load(folder, kind, checked=checked)[0]
        except AgentError:
            close_all(opened)
            raise
        return opened

    def _serves(self, name: str) -> bool:
        """Whether a live version is in memory."""
        return any(serving.model for serving in self.active.servings_of(name))

    def must_replace(self, folder: ModelFolder) -> bool:
        """Whether memory has no room for the old and the new version at once; needs no lock.

        The old one counts though it is unloaded: the next frame that needs it would load it.
        """
        name, size, old = folder.manifest.name, size_of(folder.path), None
        if not self._serves(name):
            old = next(self.catalog.runnable(name), None)
            if old is None or not self.active.servings_of(name):
                return False
            size += size_of(old.path)
        fits = self.active.loader.engines.budget.fits_beside(folder, old)
        return not (self.overlap and fits and has_room(size))

    def go_live(self, candidate: Candidate, models: Models, bounds: Trial) -> Exchange:
        """Replace the incumbent with a loaded candidate; the caller retires the incumbent."""
        name, version = candidate.name, candidate.version
        self._activate(candidate, self.running(name, version), bounds)
        exchange = self.active.exchange(models, name)
        fault("swap.exchanged")
        return exchange

    def replace(
        self, candidate: Candidate, folder: ModelFolder, bounds: Trial
    ) -> tuple[dict[Kind, Model], Exchange]:
        """Unload the incumbent, then load the candidate, if memory has no room for both.

        Meanwhile frames wait or are superseded; the returned exchange says how long and how many.

        Raises:
            ModelError: the new one does not load, or the disk is full; the old one serves again.
        """
        name = candidate.name
        incumbent = self.catalog.live(name)
        start = time.perf_counter()
        before = self.active.lost_frames()
        self._unload(name)
        models: dict[Kind, Model] = {}
        try:
            models = self.open(folder)
            self._activate(candidate, incumbent.manifest.version, bounds)
        except AgentError as problem:
            self._discard(name, models)
            raise ModelError(candidate.blamed(str(problem))) from None
        exchange = self.active.exchange(models, name)
        fault("swap.exchanged")
        took = (time.perf_counter() - start) * 1e3
        return models, Exchange(exchange.retired, took, self.active.lost_frames() - before)

    def activate(self, folder: ModelFolder, models: Models, *, cancels: str) -> Exchange:
        """Replace the version that serves with one loaded by `reopen`.

        *cancels* is why a candidate on trial is not tried again, should the agent end now.

        Raises:
            ModelError: the disk is full; nothing has changed.
        """
        name = folder.manifest.name
        try:
            self.catalog.activate(name, folder.manifest.version, cancels=cancels)
        except ModelError:
            self._discard(name, models)
            raise
        return self.exchange(name, models)

    def exchange(self, name: str, models: Models) -> Exchange:
        """Replace the serving models with these, and retire the old ones."""
        exchange = self.active.exchange(models, name)
        self.retire(exchange)
        return exchange

    def retire(self, exchange: Exchange) -> None:
        """Close models that no longer serve, after their last frame; needs no lock."""
        for old in exchange.retired:
            self.active.retire(old)

    def _activate(self, candidate: Candidate, before: str | None, bounds: Trial) -> None:
        """Make a candidate live on disk, with the mark of its probation in the same write."""
        version = candidate.version
        push = self.ledger.push_of(candidate)
        mark = Mark(version, "probation", time.time(), push=push)
        watched = mark if bounds.probation_s > 0 else None
        self.store.activate(candidate.name, version, before=before, watched=watched)
        fault("swap.activated")

    def idle(self, name: str, version: str) -> str | None:
        """Return why nothing runs a version that serves, where only others are named; else None."""
        arms = [serving.arm for serving in self.active.all()]
        arms += [arm for route in self.active.asked() for arm in parse_route(route)]
        named = {arm.version for arm in arms if arm.name == name}
        if not named or any(pin is None or same_version(pin, version) for pin in named):
            return None
        pins = ", ".join(sorted(f"{name}@{pin}" for pin in named))
        return f"nothing runs it: what uses the model names {pins}"

    def running(self, name: str, other: str) -> str | None:
        """Return the version that runs, even if no pointer names it; None: none except *other*."""
        try:
            version = self.catalog.live(name).manifest.version
        except ModelError:
            return None
        return None if same_version(version, other) else version

    # Probation: a version serves and is still watched; at most one per model

    def begin_probation(
        self,
        candidate: Candidate,
        bounds: Trial,
        *,
        broken: str | None = None,
    ) -> None:
        """Watch a version that serves from now on, unless it is *broken*."""
        until = time.monotonic() + bounds.probation_s
        candidate.watch = Watch(partial(self._models_of, candidate), until, bounds, broken)
        candidate.interrupted = None
        self.ledger.advance(candidate, "probation")

    def _models_of(self, candidate: Candidate) -> list[Model]:
        """List the models in memory that serve with a version."""
        # Those that a pin or a split names, too.
        models = [each.model for each in self.active.all() if each.arm.name == candidate.name]
        return [
            model
            for model in models
            if model and same_version(model.manifest.version, candidate.version)
        ]

    def failed(self, folder: Path, why: str, how: Literal["ended", "not loaded"]) -> None:
        """Note that a version with a process of its own has failed; called by any thread."""
        for candidate in self.ledger.on_probation():
            watch = candidate.watch
            if watch is None or folder != self.store.path(candidate.name, candidate.version):
                continue
            watch.ends, watch.ended = watch.ends + 1, why
            if how == "not loaded":
                watch.broken = why

    def check_probations(self) -> None:
        """Check every version on probation: pass those whose time is over, roll back failing ones.

        Acquires the lock.
        """
        for candidate in self.ledger.on_probation():
            watch = candidate.watch
            if watch is None:
                continue
            why = watch.fault
            with self.changing:
                if candidate not in self.ledger.on_probation():
                    continue
                if time.monotonic() < watch.again:
                    continue
                if why is not None:
                    self._fail(candidate, watch, why)
                elif time.monotonic() < watch.until:
                    continue
                elif recorder.is_within(candidate.id, watch.until):
                    continue  # it may hang: then only the end of the agent decides
                elif watch.stuck:
                    self._fail(candidate, watch, "gave no result at all during its probation")
                else:
                    fault("probation.passed")
                    self._pass(candidate)

    def _pass(self, candidate: Candidate) -> None:
        """End the probation of a version that has outlived it, once that can be written.

        With its mark it would be a version that nothing goes back to, and to blame for a crash.
        """
        watch = candidate.watch
        try:
            self.store.clear_marks(candidate.name, candidate.version)
        except ModelError as problem:
            if watch is not None and watch.put_off():
                log.warning("%s: its probation goes on: %s", candidate.id, problem)
            return
        tried = watch is None or watch.inferred
        why = None if tried else "nothing came for it during its probation"
        log.info("%s: probation is over%s", candidate.id, f": {why}" if why else "")
        self.ledger.finish(candidate, "live", why)

    def end_probation(self, name: str, version: str) -> None:
        """End the probation of what served until *version* went live, in place of its mark."""
        for candidate in self.ledger.on_probation(name):
            if same_version(candidate.version, version):
                self._pass(candidate)  # a command says so
            else:
                self.ledger.end_replaced(candidate, version)

    def _fail(self, candidate: Candidate, watch: Watch, why: str) -> None:
        first = watch.put_off() or watch.broken is None
        watch.broken = watch.broken or why
        if first:
            log.warning("%s: failed on probation: %s", candidate.id, why)
        try:
            self.roll_back(candidate.name, why)
        except UnwrittenError as problem:
            if first:
                log.warning("%s: it goes on until this can be written: %s", candidate.id, problem)
        except AgentError as problem:
            self.ledger.clear_mark(candidate.name, candidate.version)
            self.keep_live(candidate, why, problem)

    def roll_back(
        self,
        name: str,
        why: str,
        *,
        told: str | None = None,
        reply_to: Mapping[str, Any] | None = None,
    ) -> str:
        """Make the version before live, record the reason, and return the version.

        By itself it goes back further where that one cannot serve.

        Who has pushed the version on probation is told that, or *told*, if it is by command: that
        also cancels the candidate on trial. *reply_to* is of the command.

        Raises:
            AgentError: there is none, it does not load, or it differs from what was accepted;
                nothing has changed.
        """
        pointers = self.store.pointers(name)
        if pointers.live is None:
            self.catalog.live(name)  # for a mistyped name it suggests the nearest
        if pointers.live is None or pointers.previous is None:
            raise ModelError(
                f"{name}: there is no version before {pointers.live or 'the one that runs'}"
                " to go back to"
            )
        # By command to the one before only: who asks for that can choose another.
        ways = pointers.history[-2::-1] if told is None else (pointers.previous,)
        trouble: AgentError | None = None
        for version in ways:
            try:
                self._go_back(name, version, why, told=told, reply_to=reply_to)
            except UnwrittenError:
                raise
            except AgentError as problem:
                log.warning("%s: does not go back to %s: %s", name, version, problem)
                trouble = trouble or problem
            else:
                return version
        raise trouble or ModelError(f"{name}: there is no version to go back to")

    def _go_back(
        self,
        name: str,
        version: str,
        why: str,
        *,
        told: str | None,
        reply_to: Mapping[str, Any] | None,
    ) -> None:
        """Make an earlier version live; see `roll_back`.

        Raises:
            UnwrittenError: that could not be written.
            AgentError: it is missing, does not load, or differs from what was accepted.
        """
        bad = self.store.pointers(name).live or ""
        with self.reopen(name, version) as (folder, models):
            mode = {"mode": "replace"} if name in self.active.swapping else {}
            try:
                self.catalog.rollback(name, why, to=version, reply_to=reply_to, cancels=told)
            except ModelError as problem:
                self._discard(name, models)
                raise UnwrittenError(str(problem)) from None
            fault("rollback.done")
            failed = self.ledger.on_probation(name)
            for candidate in failed:
                self.ledger.remove(candidate)
            details = exchange_details(self.exchange(name, models)) | mode
        push = next((self.ledger.push_of(candidate) for candidate in failed), None)
        self.ledger.record_last(name, bad, "rolled-back", why, details, push=push)
        for candidate in failed:
            self.ledger.finish(candidate, "rolled-back", told or why)
        self.ledger.clear_mark(name, bad)
        log.info("%s@%s: rolled back: %s", name, bad, why)
        log_live(name, folder.manifest.version, bad, details)
        self.ledger.changed()

    def keep_live(self, candidate: Candidate, why: str, problem: AgentError) -> None:
        """Record that a version has failed but stays live, because there is no other."""
        why = f"{why}; it goes on all the same: {problem}"
        log.warning("%s: %s", candidate.id, why)
        self.ledger.record_last(candidate.name, candidate.version, "live", why)
        self.ledger.finish(candidate, "kept", why)


def close_all(models: Models) -> None:
    """Close models that have never served."""
    for model in models.values():
        model.close()


def exchange_details(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange in the form used in a model's topic."""
    return {"swap_ms": round(exchange.swap_ms, 3), "frames_dropped": exchange.frames_dropped}


def log_live(name: str, version: str, before: str | None, details: Mapping[str, Any]) -> None:
    """Log that a version serves from now on, in place of *before*.

    *details* must include those of `exchange_details`, and may have `first_inference_ms` and
    `shadow`.
    """
    first = details.get("first_inference_ms")
    agreed, low = agreement_words(details)
    log.log(
        logging.WARNING if low else logging.INFO,
        "%s@%s is live%s: swapped in %s ms, %d frames dropped%s%s",
        name,
        version,
        "" if before is None else f" in place of {before}",
        details["swap_ms"],
        details["frames_dropped"],
        "" if first is None else f", first inference after {first} ms",
        "" if agreed is None else f"; {agreed}",
    )
