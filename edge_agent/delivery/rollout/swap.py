"""One version in another's place: first on disk, then in what serves, between two frames.

The pointer changes before what serves does: after a crash the device runs the old version or the
new one. Knows nothing of trials, probations and reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from ...config.settings import Trial
from ...core.errors import AgentError, ModelError
from ...core.files import fault
from ...core.types import Kind
from ...device.headroom import has_room
from ...inference.model import Model
from ...models.manifest import ModelFolder
from ...models.store.catalog import Library
from ...models.store.pointers import same_version
from ...models.store.store import Store
from ...runtime.serving.active import ActiveModels, Exchange
from . import trial_marks
from .candidate import Candidate

Models = Mapping[Kind, Model]
"""One version, loaded for each kind of sample that it is given here."""


class Swap:
    """Changes which version serves. Whoever calls a method that does holds `changing`."""

    def __init__(
        self, store: Store, library: Library, active: ActiveModels, *, overlap: bool
    ) -> None:
        """Prepare.

        Args:
            store: of versions.
            library: of all versions.
            active: what serves.
            overlap: whether two versions may be in memory at once, where there is room.

        """
        self._store = store
        self._library = library
        self._active = active
        self._overlap = overlap
        self.changing = threading.RLock()
        """Held for every change of what is live: the deployer's thread makes them, and commands."""

    def open(self, folder: ModelFolder, *, checked: bool = True) -> dict[Kind, Model]:
        """Load it for every kind of sample that its pipelines give it; needs no lock.

        What comes here has been through a trial, unless a command names what never needed one.

        Raises:
            AgentError: it does not load.

        """
        opened: dict[Kind, Model] = {}
        wanted: set[Kind] = {
            serving.kind for serving in self._active.servings_of(folder.manifest.name)
        }
        try:
            for kind in wanted:
                opened[kind] = self._active.loader.load(folder, kind, checked=checked)[0]
        except AgentError:
            close_all(opened)
            raise
        return opened

    def must_replace(self, folder: ModelFolder) -> bool:
        """Whether there is no room in memory for the old and the new one at once; needs no lock."""
        if not any(s.model for s in self._active.servings_of(folder.manifest.name)):
            return False
        size = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
        return not self._overlap or not has_room(size)

    def go_live(self, candidate: Candidate, models: Models, bounds: Trial) -> Exchange:
        """Put a candidate that is loaded in the incumbent's place; what it retires still runs."""
        name, version = candidate.name, candidate.version
        self._activate(candidate, self._running(name, version), bounds)
        exchange = self._active.exchange(models, name)
        fault("swap.exchanged")
        return exchange

    def replace(
        self, candidate: Candidate, folder: ModelFolder, bounds: Trial
    ) -> tuple[dict[Kind, Model], Exchange]:
        """Exchange where memory does not hold two: the old one goes before the new one comes.

        Frames wait, or give way to newer ones, meanwhile; how long and how many is told.

        Raises:
            ModelError: the new one does not load, or the disk is full; the old one serves again.

        """
        name = candidate.name
        incumbent = self._library.live(name)
        start = time.perf_counter()
        before = self._active.lost_frames()
        for old in self._active.unload(
            lambda serving, _model: serving.arm.name == name and serving.arm.version is None
        ):
            self._active.retire(old)
        models: dict[Kind, Model] = {}
        try:
            models = self.open(folder)
            self._activate(candidate, incumbent.manifest.version, bounds)
        except AgentError as problem:
            close_all(models)
            self.exchange(name, self.open(incumbent))
            raise ModelError(candidate.blamed(str(problem))) from None
        exchange = self._active.exchange(models, name)
        fault("swap.exchanged")
        took = (time.perf_counter() - start) * 1e3
        return models, Exchange(exchange.retired, took, self._active.lost_frames() - before)

    def activate(self, name: str, folder: ModelFolder) -> None:
        """Put a version that has been accepted before in the place of the one that serves.

        Raises:
            AgentError: it does not load, or the disk is full; nothing has changed then.

        """
        models = self.open(folder, checked=False)
        try:
            self._library.activate(name, folder.manifest.version)
        except ModelError:
            close_all(models)
            raise
        self.exchange(name, models)

    def exchange(self, name: str, models: Models) -> None:
        """Have these serve, and let go of what did."""
        self.retire(self._active.exchange(models, name))

    def retire(self, exchange: Exchange) -> None:
        """Close what serves nothing any more, when the last frame has left it; needs no lock."""
        for old in exchange.retired:
            self._active.retire(old)

    def _activate(self, candidate: Candidate, before: str | None, bounds: Trial) -> None:
        """Make a candidate live on disk, and note that it is watched from now on."""
        version = candidate.version
        watched = trial_marks.of_probation(version, bounds)
        self._store.activate(candidate.name, version, before=before, watched=watched)
        fault("swap.activated")

    def _running(self, name: str, candidate: str) -> str | None:
        """Name what ran until now, for when no pointer does."""
        try:
            version = self._library.live(name).manifest.version
        except ModelError:
            return None
        return None if same_version(version, candidate) else version


def close_all(models: Models) -> None:
    """Let go of models that have never served."""
    for model in models.values():
        model.close()


def told(exchange: Exchange) -> dict[str, Any]:
    """Give what a model's topic says of an exchange."""
    return {
        "swap_ms": round(exchange.swap_ms, 3),
        "frames_dropped": exchange.frames_dropped,
    }
