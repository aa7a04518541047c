"""Writes the plan of the next start whenever the serving models have changed."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ...config.device_profile import default_dirs
from ...config.settings import Settings
from ...core import codec
from ...core.codec import pack
from ...core.files import subfolders
from ...models.store.catalog import Catalog
from ...models.store.pointers import FILE as POINTERS
from ...models.store.store import Store
from ...runtime.pipelines.runner import Runner
from ...serving import planned_model
from ...serving.planned_model import PlannedModel
from . import plan
from .fingerprint import digest, stamp
from .plan import FILE, Plan, forget, write

log = logging.getLogger(__name__)

Stamps = dict[Path, list[int] | None]
SETTLE_SECONDS = 1.0
"""How long to wait after a change, because changes often come in groups."""


class PlanWriter:
    """Writes the plan when something that it depends on has changed; an upkeep task."""

    def __init__(
        self,
        runner: Runner,
        store: Store,
        catalog: Catalog,
        lanes: int,
        *,
        lazy: bool,
        origins: tuple[str | None, str],
        models: Callable[[], Sequence[PlannedModel]],
    ) -> None:
        self._runner = runner
        self._store = store
        self._catalog = catalog
        self._lanes = lanes
        self._lazy = lazy
        self._config, self._origins = origins
        self._settings, self._pending = runner.settings, self._origins
        self._adopting = threading.Lock()
        self._models = models
        self._unchanging = _stamps(_unchanging())
        self._served: dict[Path, Stamps] = {}
        """By folder of each serving model: stamps of its files when it started to serve."""
        self._checking = threading.Lock()
        self.waits_for_restart = False
        """Whether settings have been read that take effect at the next start."""
        self._due: float | None = None
        """When to write the plan again, if something has changed, else None."""
        self._writing = threading.Lock()

    def reread(self) -> None:
        """Compute the fingerprint of the inputs, right before the settings are read again.

        It is only used if the new settings are applied: wrong ones change nothing.
        """
        self._adopt()
        self._pending = digest(self._config)

    def go_on(self, settings: Settings) -> None:
        """Give the runner settings that were not changed through their inputs."""
        with self._adopting:
            if self._runner.settings is not self._settings:
                self._origins = self._pending
            self._runner.settings = self._settings = settings
        if self._runner.overrides.unsaved:
            forget(settings.state)

    def is_put_back(self) -> bool:
        """Whether inputs that `reread` found changed are back to those of the settings in use."""
        return self._pending != self._origins == digest(self._config)

    def _adopt(self) -> None:
        with self._adopting:
            if self._runner.settings is not self._settings:
                self._settings, self._origins = self._runner.settings, self._pending

    def changed(self) -> None:
        """Schedule writing the plan; called as soon as another model serves."""
        self._outdated()
        if self._due is None:
            self._due = time.monotonic() + SETTLE_SECONDS

    def step(self) -> float:
        """Write the plan shortly after a change; return the seconds until then."""
        due = self._due
        if due is None:
            return math.inf
        wait = due - time.monotonic()
        if wait > 0:
            return wait
        self.write()
        return math.inf

    def close(self) -> None:
        """Write the plan if something has changed."""
        if self._due is not None:
            self.write()

    def write(self) -> None:
        """Write the plan, or remove it if the next start must read everything."""
        with self._writing:
            self._due = None
            self._write()

    def _write(self) -> None:
        state = self._runner.settings.state
        self._adopt()
        try:
            unsaved = self._runner.overrides.unsaved
            if self.waits_for_restart or unsaved or self._outdated():
                # What runs differs from the files, and the next start must read those.
                forget(state)
                return
            if any(self._store.pointers(name).marks for name in self._store.names()):
                # A crash would have to be undone before anything is loaded.
                forget(state)
                return
            if any(serving.stands_in for serving in self._runner.active.all()):
                # A model that serves in place of another is checked at each start, and reported.
                forget(state)
                return
            urgency = self._runner.settings.urgency
            made = Plan(
                str(state),
                self._origins,
                self._lanes,
                self._lazy,
                pack(self._runner.settings),
                # The most urgent model is loaded first.
                sorted(self._models(), key=lambda each: -urgency.get(each.reference, 0)),
            )
            write(made, self._dependencies())
        except OSError as problem:
            log.warning("%s: cannot be written: %s", state / FILE, problem.strerror)

    def _dependencies(self) -> list[Path]:
        """List the files and folders that decide which models run, and how."""
        found: list[Path] = [self._store.models]
        for name in self._store.names():
            found += [self._store.models / name, self._store.models / name / POINTERS]
        for folder in (*self._catalog.models_dirs, self._catalog.bundled_dir):
            if folder is None:
                continue
            found.append(folder)
            with suppress(OSError):  # its stamp changes when it can be read
                found += [path / "model.toml" for path in subfolders(folder)]
        for entry in self._catalog.entries():
            found += [entry.path, entry.path / "model.toml"]
        for stamps in self._served.values():
            found += stamps
        return found + _unchanging()

    def _outdated(self) -> bool:
        """Whether a file has changed since the running agent read it."""
        models = [serving.model for serving in self._runner.active.all()]
        folders = {model.folder.path for model in models if model is not None}
        with self._checking:
            now = {folder: _stamps(_files(folder)) for folder in sorted(folders)}
            self._served = {folder: self._served.get(folder, now[folder]) for folder in now}
            return self._served != now or self._unchanging != _stamps(_unchanging())


def _files(folder: Path) -> list[Path]:
    """List the files that affect a model's results, as far as its folders can be read."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return found


def _stamps(paths: list[Path]) -> Stamps:
    return {path: stamp(str(path)) for path in paths}


def _unchanging() -> list[Path]:
    """List the files that are read once per run: profiles, their folders, and record modules.

    The modules matter in a checkout, and in a build with the same version.
    """
    profiles = [
        path for folder in default_dirs() for path in (folder, *sorted(folder.glob("*.toml")))
    ]
    return [*profiles, *codec.modules(), Path(plan.__file__), Path(planned_model.__file__)]
