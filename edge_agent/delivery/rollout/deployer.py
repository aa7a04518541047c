"""From "it has arrived" to "it serves", and back if it does not hold what it promised.

One thread takes candidates one after the other, all the way; commands come from another. This
module knows the steps and their order; each step has a module of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from ...config.settings import Trial
from ...core.errors import AgentError
from ...core.files import fault
from ...core.types import Kind
from ...inference.model import Model
from ...models.manifest import ModelFolder
from ...models.packages.package import PackageHeader
from ...models.store.catalog import Library
from ...models.store.pointers import same_version
from ...models.store.store import Store
from ...runtime.serving.active import ActiveModels
from ..trial.early_policy import Expecting
from ..trial.early_trial import Ahead
from . import trial_marks
from .acceptance import bounds_of
from .candidate import Candidate, Interrupted
from .candidates import Underway
from .commands import VersionCommands
from .probation import Probations
from .proving import Proving
from .recovery import Recovery
from .reports import Reports
from .rollback import Retreat
from .swap import Swap, told

POLL_SECONDS = 0.25
WATCH_SECONDS = 0.05
"""While a version is on probation: each frame that it fails on is one lost."""
FIRST_SECONDS = 1.0
"""That a live source has to show a new model a frame, before it is reported without."""


class Deployer:
    """All that changes which version serves."""

    def __init__(
        self,
        store: Store,
        library: Library,
        active: ActiveModels,
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
            active: what serves.
            trial: the device's bounds, which may be reloaded.
            swap: the profile's "overlap" or "replace".
            memory_budget_mb: what models may take; 0: no bound.
            say_push: says something on the topic of a transfer.
            on_change: the state of a model has changed.

        """
        overlap = swap != "replace"
        self._store = store
        self._active = active
        self._trial = trial
        self._queue: SimpleQueue[Candidate | None] = SimpleQueue()
        self._closing = threading.Event()
        self._reports = reports = Reports(store.root, say_push, on_change)
        self._probations = probations = Probations(store, reports)
        self._underway = underway = Underway(library, probations)
        self._swap = Swap(store, library, active, overlap=overlap)
        self._retreat = retreat = Retreat(store, library, self._swap, probations, reports)
        self._proving = Proving(active, reports, self._closing, memory_budget_mb)
        self._recovery = Recovery(store, library, underway, probations, reports, retreat)
        self._expecting = Expecting(
            store, active, trial, overlap=overlap, budget_mb=memory_budget_mb
        )
        self.commands = VersionCommands(
            store,
            library,
            active,
            underway=underway,
            swap=self._swap,
            probations=probations,
            retreat=retreat,
            reports=reports,
        )
        """What operators decide about versions."""

    # What others ask

    def expect(self, header: PackageHeader) -> Ahead | None:
        """Begin the trial of a package that is about to arrive, where that is worth it."""
        return self._expecting.begin(header)

    def submit(self, candidate: Candidate) -> None:
        """Take a candidate; its trial may have to wait for another's."""
        self._underway.submit(candidate)
        self._queue.put(candidate)

    def watches(self, name: str) -> bool:
        """Whether a version of a model is on its way to serve, or on probation."""
        return self._underway.watches(name)

    def standing(self, name: str, version: str) -> str | None:
        """Say how far a version is that is here already, as section 5 has it."""
        return self._underway.standing(name, version)

    def state(self, name: str) -> dict[str, Any]:
        """Give what the model's topic says of candidate and last."""
        last = self._reports.last(name)
        return self._underway.state(name) | ({} if last is None else {"last": last})

    def names(self) -> set[str]:
        """Name the models of which `state` has something to say."""
        return self._underway.names() | (self._reports.names() & set(self._store.names()))

    # Life

    def recover(self) -> None:
        """See what was under way when the agent ended; before anybody asks how far it is."""
        for candidate in self._recovery.look_back():
            self.submit(candidate)

    def run(self) -> None:
        """Take candidates and watch those on probation, until closed."""
        with self._swap.changing:
            self._recovery.resume(self._active, self._trial())
        while not self._closing.is_set():
            try:
                candidate = self._queue.get(
                    timeout=WATCH_SECONDS if self._probations.names() else POLL_SECONDS
                )
            except Empty:
                candidate = None
            if candidate is not None:
                try:
                    self._process(candidate)
                finally:
                    candidate.leave()
            self._retreat.watch()

    def suspend(self) -> None:
        """Note, at an orderly end, that those under way are not to blame for it."""
        self._closing.set()
        with self._swap.changing:  # after this nothing goes live any more
            self._recovery.suspend()

    def close(self) -> None:
        """Have the thread end."""
        self._closing.set()
        self._queue.put(None)

    # One candidate, in the thread

    def _process(self, candidate: Candidate) -> None:
        """Take one candidate all the way."""
        folder = self._install(candidate)
        if folder is None or self._serves_already(candidate):
            return
        self._underway.installed(candidate)
        models: dict[Kind, Model] = {}
        """Loaded, and not yet in anybody's hands but ours."""
        try:
            self._reports.phase(candidate, "preparing")
            trial_marks.begin(self._store, candidate)
            bounds = bounds_of(folder, self._trial())
            details = self._proving.apart(candidate, folder, bounds)
            fault("trial.passed")
            if self._swap.must_replace(folder):
                self._replace(candidate, folder, details, bounds)
                return
            models = self._swap.open(folder)
            details |= self._proving.beside(candidate, models, bounds, self._retreat.watch)
            with self._swap.changing:
                candidate.check_wanted(self._closing)
                self._go_live(candidate, models, details, bounds)
                models = {}
        except Interrupted:
            for model in models.values():
                self._active.retire(model)
        except AgentError as problem:
            for model in models.values():
                self._active.retire(model)
            self._reject(candidate, str(problem))

    def _install(self, candidate: Candidate) -> ModelFolder | None:
        """Have it in the store, under the name that its manifest gives; None: it is rejected."""
        self._underway.begin(candidate)
        self._reports.changed()
        try:
            folder = candidate.install()
        except AgentError as problem:
            self._underway.leave(candidate)
            candidate.durable()
            self._reports.finish(candidate, "rejected", str(problem))
            return None
        candidate.name, candidate.version = folder.manifest.name, folder.manifest.version
        candidate.durable()
        return folder

    def _serves_already(self, candidate: Candidate) -> bool:
        """Deal with one that is asked for twice, as by a push that was repeated.

        It need not prove itself again.
        """
        standing = self._underway.serves(candidate.name, candidate.version)
        pointed = self._store.pointers(candidate.name).live
        if not (standing and pointed and same_version(pointed, candidate.version)):
            return False
        self._underway.leave(candidate)
        self._reports.say(candidate, standing)
        candidate.finished("live", None)
        self._reports.changed()
        return True

    def _go_live(
        self,
        candidate: Candidate,
        models: dict[Kind, Model],
        details: dict[str, Any],
        bounds: Trial,
    ) -> None:
        """Put it in the incumbent's place; the caller has the lock."""
        self._probations.end(candidate.name)
        exchange = self._swap.go_live(candidate, models, bounds)
        self._lived(candidate, list(models.values()), details | told(exchange), bounds)
        self._swap.retire(exchange)

    def _replace(
        self, candidate: Candidate, folder: ModelFolder, details: dict[str, Any], bounds: Trial
    ) -> None:
        """Put it in the incumbent's place where memory does not hold two."""
        with self._swap.changing:
            candidate.check_wanted(self._closing)
            self._probations.end(candidate.name)
            models, exchange = self._swap.replace(candidate, folder, bounds)
            details |= {"mode": "replace", **told(exchange)}
            self._lived(candidate, list(models.values()), details, bounds)
            self._swap.retire(exchange)

    def _lived(
        self, candidate: Candidate, models: list[Model], details: dict[str, Any], bounds: Trial
    ) -> None:
        """Say that it serves, and watch it; the caller has the lock."""
        self._underway.leave(candidate)
        if bounds.probation_s > 0:
            self._probations.begin(candidate, models, bounds)
        # Pipelines that name this very version may have waited for it.
        self._active.load_all()
        self._wait_for_first(models)
        details |= _first_inference(candidate, models)
        self._reports.record(candidate, "live", None, details)
        if bounds.probation_s > 0:
            self._reports.say(candidate, "probation", **details)
            self._reports.changed()
        else:
            self._reports.finish(candidate, "live", None, **details)

    def _wait_for_first(self, models: list[Model]) -> None:
        """Give a live source a moment to show the new model a frame."""
        deadline = time.monotonic() + FIRST_SECONDS
        while (
            models
            and not any(model.first_at or model.errors for model in models)
            and time.monotonic() < deadline
        ):
            self._closing.wait(0.005)

    def _reject(self, candidate: Candidate, why: str) -> None:
        """Leave nothing of it but the report."""
        with self._swap.changing:
            self._underway.leave(candidate)
            trial_marks.discard_rejected(self._store, candidate.name, candidate.version, why)
        # It may have hidden the same version of another place.
        self._active.load_all()
        self._reports.finish(candidate, "rejected", why)


def _first_inference(candidate: Candidate, models: list[Model]) -> dict[str, Any]:
    firsts = [
        at for at in (candidate.first_at, *(model.first_at for model in models)) if at is not None
    ]
    if not firsts:
        return {"first_inference_ms": None}
    return {"first_inference_ms": round((min(firsts) - candidate.began) * 1e3, 1)}
