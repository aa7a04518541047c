"""The table of serving models, and the exchange of one for another between two frames."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from ..config.settings import Arm, parse_route
from ..core.callbacks import Callbacks
from ..core.containment import contained
from ..core.errors import AgentError, BarredError, ModelError, OnTrialError, Unfit
from ..core.frozen import record
from ..core.types import Kind, Outcome, Sample
from ..device.allocator import trim_memory
from ..inference.engines.registry import engine_words
from ..inference.model import Model
from ..inference.preprocess.placement import Region
from ..inference.statistics import Statistics
from ..models.manifest import ModelFolder
from .budget import Held, NoRoomError

if TYPE_CHECKING:
    # Not needed before the first result.
    from ..models.store.catalog import Catalog
    from .loader import ModelLoader

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
CLOSE_SECONDS = 0.5
"""Time for frames in flight at the end, for all models together."""


class Lanes(Protocol):
    """The lanes in which frames go through models, see `runtime.scheduler.board`."""

    def boundary(self) -> AbstractContextManager[None]:
        """Hold all lanes between two frames."""

    def drain(self, models: Sequence[Model], timeout: float) -> list[Model]:
        """Wait until no lane uses any of *models*; return those that are then unused."""

    def lost_frames(self) -> int:
        """Count the frames whose loss an exchange may have caused: superseded or failed."""


class Shadow(Protocol):
    """A candidate that also infers the serving model's frames and compares the outcomes."""

    def compare(
        self,
        sample: Sample,
        incumbent: Outcome | None,
        threshold: float | None,
        region: Region | None,
    ) -> None:
        """Compare on a frame; *incumbent* is the serving model's outcome, None if it failed."""


@record
class Exchange:
    """The replacement of one version by another."""

    retired: list[Model]
    """Models that no longer serve anything; for `retire`."""
    swap_ms: float
    frames_dropped: int


@dataclass(slots=True, eq=False)
class Serving:
    """The model that "face" or "face@3" currently refers to."""

    arm: Arm
    kind: Kind
    model: Model | None = None
    problem: str | None = None
    """Why there is no model."""
    broken: bool = False
    """Whether there is a model that is not fit to run."""
    shadow: Shadow | None = None
    """A candidate that also infers the frames."""
    stands_in: str | None = None
    """The live version that this one replaces, and why."""
    passed: list[str] = field(default_factory=list)
    """Engines that should have served it but could not."""
    lazy: bool = False
    """Whether it is loaded when first needed and unloaded when idle."""
    crops: int = 1
    """Most crops per frame as a second stage; 1: it is not one."""
    crowded: bool = False
    """Whether the memory budget had no room for the model beside the others."""
    unloaded: tuple[str, Statistics] | None = None
    """Version and counts of a model that was unloaded; if it is loaded again, they go on."""
    swaps: Collection[str] = frozenset()
    """See `ActiveModels.swapping`."""

    @property
    def reference(self) -> str:
        return self.arm.reference

    @property
    def swapping(self) -> bool:
        return self.reference in self.swaps

    @property
    def awaited(self) -> bool:
        """Whether its model is being loaded, or will be at once, so that frames wait for it."""
        return self.model is None and self.problem is None and (self.swapping or not self.lazy)


class ActiveModels:
    """All servings of the agent; models are loaded by one thread at a time."""

    def __init__(
        self,
        lanes: Lanes,
        catalog: Callable[[], Catalog],
        loader: Callable[[], ModelLoader],
        *,
        flows: Callable[[str], bool] = lambda _name: True,
        stopping: Callable[[], bool] = lambda: False,
        asked: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Start without any model.

        *flows* returns whether frames are expected for a model; *stopping* returns whether the
        agent is about to end, so that no further model is loaded; *asked* returns `[infer] models`.
        """
        self._lanes = lanes
        self._open_library = catalog
        self._open_loader = loader
        self.flows = flows
        self._stopping = stopping
        self.asked = asked
        self.loading = threading.Lock()
        """Held while a model is loaded to serve where none does."""
        self._all: dict[tuple[str, Kind], Serving] = {}
        self._exchanges: Counter[str] = Counter()
        """How often another version of each model has gone live."""
        self._room_made = False
        self.swapping: set[str] = set()
        """References whose models were unloaded for others, which have their room."""
        self.on_change = Callbacks()
        """Called when the serving models change."""

    @cached_property
    def _catalog(self) -> Catalog:
        return self._open_library()

    @cached_property
    def loader(self) -> ModelLoader:
        """How models are loaded on this device."""
        loader = self._open_loader()
        loader.engines.budget.holders.append(self._held)
        loader.engines.budget.pins = self.pins
        loader.engines.budget.freed = self._make_room
        return loader

    def _make_room(self) -> None:
        self._room_made = True

    def _held(self) -> Iterator[Held]:
        for serving in self.all():
            if serving.model is not None:
                yield Held(serving.model.folder, serving.arm.version is None)

    # Servings

    def serving_for(self, arm: Arm, kind: Kind) -> Serving:
        """Return the serving of *arm*, without a model if it is new."""
        return self._all.setdefault((arm.reference, kind), Serving(arm, kind, swaps=self.swapping))

    def all(self) -> list[Serving]:
        return list(self._all.values())

    def servings_of(self, name: str) -> list[Serving]:
        """List the servings that use the live version of a model."""
        return [s for s in self._all.values() if s.arm.name == name and s.arm.version is None]

    def serves(self, model: Model) -> bool:
        """Whether a model serves anything."""
        return any(serving.model is model for serving in self.all())

    def pins(self) -> set[tuple[str, str]]:
        """Return the name and version of each model that is pinned.

        By pipelines, or by `[infer] models`, though nobody may have asked yet.
        """
        arms = [serving.arm for serving in self.all()]
        arms += [arm for route in self.asked() for arm in parse_route(route)]
        return {(arm.name, arm.version) for arm in arms if arm.version is not None}

    def forget(self, used: Collection[tuple[str, Kind]]) -> list[Model]:
        """Drop the servings that no pipeline uses; return their models, for `retire`."""
        with self._lanes.boundary():
            gone = [self._all.pop(key) for key in list(self._all) if key not in used]
            return self._unused(serving.model for serving in gone)

    # Models

    def find(self, name: str, version: str | None) -> ModelFolder:
        """Find a version, or if it is the live one (None) and damaged, one that stands in for it.

        Raises:
            ModelError: it is missing or broken.
        """
        catalog = self._catalog.now()
        problem: ModelError | None = None
        first = catalog.find(name, version)
        others = (other for other in catalog.runnable(name) if other != first)
        for folder in (first,) if version else chain((first,), others):
            try:
                self.loader.verify(folder)
            except ModelError as found:
                log.warning("model %s", found)
                problem = problem or found
            else:
                return folder
        raise problem or ModelError(f"{name}: no version can run")

    def put(self, arm: Arm, kind: Kind, model: Model) -> None:
        """Serve with a model that was loaded elsewhere, unless one already serves."""
        serving = self.serving_for(arm, kind)
        with self.loading, self._lanes.boundary():
            if serving.model is None:
                serving.model = model

    def load_all(self, *, more_room: bool = False) -> None:
        """Load all missing models, until the agent is about to end.

        *more_room*: the caller will make room and call again, so what has none now is left out.
        """
        missing = [each for each in self.all() if each.model is None]
        wanted = [each for each in missing if not each.lazy]
        for lazy in (each for each in missing if each.lazy):  # tried again when it is needed
            lazy.problem, lazy.broken, lazy.crowded = None, False, False
        catalog = self._catalog.now() if wanted else self._catalog  # reads all manifests, once
        for serving in wanted:
            if self._stopping():
                return
            self.load(serving, catalog, more_room=more_room)

    def use_room(self) -> None:
        """Load what the memory budget had no room for, lazy models once they are needed.

        Does nothing unless a model has been unloaded since, or one that was counted has not come.
        """
        # What is being loaded has the room.
        if not self._room_made or self.swapping or any(each.awaited for each in self.all()):
            return
        self._room_made = False
        for serving in self.all():
            if serving.crowded and serving.model is None and not self._stopping():
                if serving.lazy:
                    serving.problem, serving.broken, serving.crowded = None, False, False
                else:
                    self.load(serving)

    def load(
        self, serving: Serving, catalog: Catalog | None = None, *, more_room: bool = False
    ) -> None:
        """Load one serving's model if it is missing and none is coming; log and store a failure.

        *more_room*: as for `load_all`.
        """
        catalog = catalog or self._catalog
        with self.loading:
            if serving.model is not None or serving.swapping or self._stopping():
                return
            folder, known = None, self._exchanges[serving.arm.name]
            try:
                with contained(serving.reference, ModelError):
                    folder = catalog.find(serving.arm.name, serving.arm.version)
                    model, passed, stands_in = self._open(folder, serving, catalog)
            except AgentError as problem:
                serving.crowded = isinstance(problem, NoRoomError)
                if serving.crowded and more_room:
                    return
                # A model barred for its crashes is no reason to end: another may be pushed.
                serving.broken = not isinstance(problem, BarredError | OnTrialError) and (
                    folder is not None
                    or self._catalog.accepts(serving.arm.name, serving.arm.version)
                )
                # The reference is always shown next to it.
                why = str(problem).removeprefix(f"{serving.reference}: ")
                if serving.problem != why:
                    log.error("model %s: %s", serving.reference, why)  # noqa: TRY400 - one line, no traceback
                with self._lanes.boundary():  # frames no longer wait for it
                    serving.problem = why
            else:
                shared = self.serves(model)
                with self._lanes.boundary():
                    # A rollback or a push may have installed another version meanwhile.
                    overtaken = serving.model is not None or (
                        serving.arm.version is None and self._exchanges[serving.arm.name] != known
                    )
                    if not overtaken:
                        serving.model = model
                if overtaken:
                    if not self.serves(model):
                        model.close()
                    return
                before, serving.unloaded = serving.unloaded, None
                if before is not None and before[0] == model.id and not shared:
                    model.stats.go_on_from(before[1])
                serving.passed, serving.problem, serving.broken = passed, None, False
                serving.crowded = False
                serving.stands_in = stands_in
                if stands_in is not None:
                    log.warning("model %s", stands_in)
                for reason in passed:
                    level = logging.INFO if isinstance(reason, Unfit) else logging.WARNING
                    log.log(level, "model %s: passed over %s", serving.reference, reason)
                told = serving.reference, model.id, engine_words(model.engine.label)
                log.info("model %s is live as %s on %s", *told)
        self.on_change()

    def _open(
        self, folder: ModelFolder, serving: Serving, catalog: Catalog
    ) -> tuple[Model, list[str], str | None]:
        """Load a version, or if it is the live one and damaged, one that stands in for it.

        Returns:
            The model, why each engine before its own was passed over, and for which live version
            it stands in, and why.
        """
        pinned, tried, damage = serving.arm.version is not None, None, None
        if pinned or catalog.stands_in(folder) is None:
            try:
                return *self._load(folder, serving), None
            except ModelError as problem:
                if pinned:
                    raise
                tried, damage = folder, problem
        first = damage
        for other in catalog.runnable(serving.arm.name):
            if other == tried:
                continue
            try:
                # It is live again after a long time, as in a rollback: its files are compared.
                loaded = self._load(catalog.unchanged(other), serving)
            except ModelError as problem:
                log.warning("model %s", problem)
                first = first or problem
                continue
            return *loaded, catalog.stands_in(other, damage)
        raise first or ModelError(f"{serving.arm.name}: no version can run")

    def _load(self, folder: ModelFolder, serving: Serving) -> tuple[Model, list[str]]:
        """Load a version, unless it serves under another reference: "face" and "face@3"."""
        for other in self.all():
            model = other.model
            if model and other.kind == serving.kind and model.folder.path == folder.path:
                return model, other.passed
        return self.loader.load(folder, serving.kind)

    def exchange(self, models: Mapping[Kind, Model], name: str) -> Exchange:
        """Serve *name* with another version from the next frame on.

        Nothing is closed yet: frames in flight through the old models finish. A kind of samples
        that came up while *models* were being loaded is loaded now.
        """
        start = time.perf_counter()
        before = self.lost_frames()
        with self._lanes.boundary():
            servings = self.servings_of(name)
            old = [serving.model for serving in servings]
            self._exchanges[name] += 1
            self.swapping.discard(name)
            for serving in servings:
                serving.model = models.get(serving.kind)
                if serving.model is not None:
                    serving.problem, serving.broken, serving.shadow = None, False, None
                    serving.stands_in = None
            retired = self._unused(old)
        took = (time.perf_counter() - start) * 1e3
        dropped = self.lost_frames() - before
        self.end_swap(name)
        self.on_change()
        return Exchange(retired, took, dropped)

    def end_swap(self, name: str) -> None:
        """Let frames go on that wait for another version, and load what has none."""
        with self._lanes.boundary():
            self.swapping.discard(name)
        for serving in self.servings_of(name):
            if serving.model is None and not serving.lazy:
                self.load(serving)

    def replace(self, old: Model, new: Model) -> bool:
        """Serve with a model loaded from the same files, and retire the old one.

        Returns:
            False, without doing anything, if the old one no longer serves.
        """
        with self._lanes.boundary():
            servings = [serving for serving in self._all.values() if serving.model is old]
            for serving in servings:
                serving.model = new
            if servings:
                # It is the same version, and continues its counts.
                new.stats.go_on_from(old.stats)
        if servings:
            self.on_change()
            self.retire(old)
        return bool(servings)

    def renew(self, old: Model, load: Callable[[], Model | None]) -> list[Serving]:
        """Unload a model, then serve with another one from the same files, to save memory.

        Meanwhile frames wait or are superseded.

        Returns:
            The servings that had the old one; where *load* gave None, the caller loads them.
        """
        with self._lanes.boundary():
            servings = [serving for serving in self._all.values() if serving.model is old]
            references = {serving.reference for serving in servings}
            self.swapping |= references
            for serving in servings:
                serving.model = None
        if not servings:
            return servings
        # Before the lock: frames that are still in it may need a lazy model to be loaded.
        self.retire(old)
        with self.loading:
            try:
                new = load()
            finally:
                with self._lanes.boundary():
                    self.swapping -= references
            with self._lanes.boundary():
                # A rollback or a push may have installed another version meanwhile.
                empty = [serving for serving in servings if serving.model is None]
                for serving in empty:
                    serving.model = new
            if new is not None and empty:
                # It is the same version, and continues its counts.
                new.stats.go_on_from(old.stats)
            elif new is not None:
                new.close()
        self.on_change()
        return servings

    def unload(self, chosen: Callable[[Serving, Model], bool]) -> list[Model]:
        """Remove the models of the chosen servings, whose frames then wait.

        Callbacks are not called: the caller loads another model or calls `on_change`.

        Returns:
            The models that no longer serve anything, for `retire`.
        """
        with self._lanes.boundary():
            servings = [s for s in self._all.values() if s.model and chosen(s, s.model)]
            old = [serving.model for serving in servings]
            for serving in servings:
                if serving.model is not None:
                    serving.unloaded = serving.model.id, serving.model.stats
                serving.model = None
            return self._unused(old)

    def retire(self, model: Model) -> None:
        """Close a model once its last frame is done."""
        if not self._lanes.drain([model], DRAIN_SECONDS):
            log.error("model %s is stuck in an inference; leaving it in memory", model.id)
            return
        model.close()
        self._room_made = True
        gc.collect()
        # Otherwise the C library keeps the freed memory of a model of a hundred megabytes.
        trim_memory()

    def close(self) -> None:
        """Close all models that are not inferring."""
        models = {id(s.model): s.model for s in self._all.values() if s.model is not None}
        for model in self._lanes.drain(list(models.values()), CLOSE_SECONDS):
            model.close()

    def lost_frames(self) -> int:
        """Count the frames whose loss an exchange may have caused: superseded or failed."""
        return self._lanes.lost_frames()

    def _unused(self, models: Iterable[Model | None]) -> list[Model]:
        """List the models that no longer serve, without duplicates."""
        serving = {id(each.model) for each in self._all.values()}
        return [
            model
            for key, model in {id(model): model for model in models}.items()
            if model is not None and key not in serving
        ]
