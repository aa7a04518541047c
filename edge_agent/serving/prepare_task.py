"""Creates a prepared form of every serving model for a quick next start."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from ..core.codec import pack
from ..core.containment import contained, words
from ..core.errors import AgentError, ModelError
from ..core.types import Kind
from ..inference.engines.engine import EngineChoice, PreparedForm
from ..inference.engines.registry import installed, titles
from ..inference.model import Model
from ..inference.prepared.artifact import (
    BLOB,
    WEIGHTS,
    Artifact,
    ArtifactError,
    MappedWeights,
    check_weights,
)
from ..inference.prepared.compile.cache import StoppedError, discard, find, prepare
from ..inference.prepared.compile.collect import collect_artifacts
from ..models.manifest import ModelFolder
from ..models.store.store import Store
from .active import ActiveModels, Serving
from .choice import EngineCandidate
from .loader import ModelLoader
from .planned_model import PlannedModel

log = logging.getLogger(__name__)

DAMAGE_SECONDS = 2.0
"""Seconds between checks for forms found damaged while running."""
POLL_SECONDS = 0.1
"""Seconds between checks whether a form is ready."""


class PrepareTask:
    """Prepares each serving model, and prepares it again if its form is found damaged."""

    def __init__(
        self,
        store: Store,
        active: ActiveModels,
        loader: ModelLoader,
        quota: Callable[[], int],
        changed: Callable[[], None],
        closing: threading.Event,
    ) -> None:
        """Set up without preparing anything."""
        self._store = store
        self._active = active
        self._engines = loader.engines
        self._budget_mb = loader.engines.profile.memory_budget_mb
        self._quota = quota
        self._changed = changed
        """Called before a form is created, and when it is ready or has failed."""
        self._closing = closing
        self._forms: dict[Path, Artifact | str] = {}
        """Form, or the reason why there is none, by folder of the model."""
        self._maker = ThreadPoolExecutor(1, "prepare")
        self._making: tuple[ModelFolder, Future[Artifact]] | None = None
        """The form being created, one at a time."""
        self._again: set[Path] = set()
        """Folders of models whose form was damaged, until a new one exists."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Find or create the form of a model; replace a damaged one."""
        damaged = _damaged(model)
        if damaged is not None:
            self._discard(model, damaged)
        self._finish()
        if serving.model is not model or model.folder.path in self._forms:
            return None
        if self._making is None:
            self._prepare(model, serving)
        return None if model.folder.path in self._forms else POLL_SECONDS

    def step(self) -> float:
        """Replace forms found damaged; return the seconds until the next call."""
        self._finish()
        for serving in self._active.all():
            model = serving.model
            if model is None:
                continue
            if _damaged(model) is not None or model.folder.path in self._again:
                self.run(serving, model)
        return POLL_SECONDS if self._making is not None else DAMAGE_SECONDS

    def close(self) -> None:
        """Wait until the creation of a form, which was told to stop, has ended."""
        self._maker.shutdown()

    def _discard(self, model: Model, damaged: PreparedForm) -> None:
        """Delete the damaged form that a model runs from."""
        damaged.damaged = None
        try:
            discard(damaged.folder, self._store)
        except ModelError as problem:
            log.error("model %s: %s", model.id, problem)  # noqa: TRY400 - one line, no traceback
        self._forms.pop(model.folder.path, None)
        self._again.add(model.folder.path)
        if not damaged.is_streaming:
            return
        # Nothing else can run it: it is loaded as before, which creates a form.
        servings = [each for each in self._active.all() if each.model is model]
        for old in self._active.unload(lambda _serving, one: one is model):
            self._active.retire(old)
        for each in servings:
            self._active.load(each)

    def _prepare(self, model: Model, serving: Serving) -> None:
        """Find the form of a model, or begin creating it."""
        choice = self._choice(model)
        if choice is None:
            self._keep(model.folder, f"is not for {titles('graph')}")
            return
        try:
            form = self._found(model, choice, serving.kind)
        except (AgentError, OSError) as problem:
            self._refuse(model.folder, problem)
            return
        if form is not None:
            self._keep(model.folder, form)
            return
        # It may take minutes: until then the plan of the next start must not use a form.
        self._changed()
        making = self._maker.submit(self._make, model.folder, choice, serving.kind)
        self._making = model.folder, making

    def _make(self, folder: ModelFolder, choice: EngineChoice, kind: Kind) -> Artifact:
        serving = [each.model for each in self._active.all()]
        used = [model.folder.path for model in serving if model is not None]
        with contained(f"{folder.manifest.id}: preparing it"):
            return prepare(
                self._store,
                folder,
                choice,
                kind,
                budget_mb=self._budget_mb,
                quota=self._quota(),
                used=used if len(used) == len(serving) else None,
                stopped=lambda: "the agent ends" if self._closing.is_set() else None,
            )

    def _finish(self) -> None:
        """Collect the form being created if it is finished."""
        if self._making is None or not self._making[1].done():
            return
        (folder, making), self._making = self._making, None
        try:
            form = making.result()
        except StoppedError:
            log.debug("model %s: the next start uses its form", folder.manifest.id)
        except (AgentError, OSError) as problem:
            self._refuse(folder, problem)
        else:
            self._keep(folder, form)

    def _refuse(self, folder: ModelFolder, problem: Exception) -> None:
        log.warning("model %s: no prepared form: %s", folder.manifest.id, words(problem))
        self._keep(folder, words(problem))

    def _keep(self, folder: ModelFolder, form: Artifact | str) -> None:
        """Record the outcome of creating a model's form; remove unneeded forms."""
        self._forms[folder.path] = form
        self._again.discard(folder.path)
        # Until all forms are known, one whose model has been moved would seem unused.
        if isinstance(form, Artifact) and self._all_known():
            keep = [form.key for form in self._forms.values() if isinstance(form, Artifact)]
            for line in collect_artifacts(self._store, keep):
                log.info("%s", line)
        self._changed()

    def _all_known(self) -> bool:
        """Whether it is known of each serving model if it has a form."""
        serving = [each.model for each in self._active.all()]
        return all(model is None or model.folder.path in self._forms for model in serving)

    def _found(self, model: Model, choice: EngineChoice, kind: Kind) -> Artifact | None:
        """Find the form of a model; delete it if it is incomplete.

        If a model was not loaded from its form, that may have failed: the form is checked in full,
        or else it would fail at every start.
        """
        form = find(self._store.root, model.folder.path, choice, kind, self._budget_mb)
        if form is None or model.engine.prepared is not None:
            return form
        try:
            _check_whole(form)
        except ArtifactError as problem:
            log.warning("model %s: the prepared form is made again: %s", model.id, problem)
            discard(form.folder, self._store)
            return None
        return form

    def _choice(self, model: Model) -> EngineChoice | None:
        if model.engine.prepared is not None:
            return model.choice
        return self._engines.prepared_choice(model.folder)

    def state(self, name: str) -> str | None:
        """Return the state of the serving model's form under a name, or None if nothing serves."""
        for serving in self._active.all():
            if serving.reference == name and serving.model is not None:
                form = self._forms.get(serving.model.folder.path)
                if form is None:
                    return "preparing"
                if not isinstance(form, Artifact):
                    return f"no: {form}"
                return self._readiness(serving.model)
        return None

    def _readiness(self, model: Model) -> str:
        """Return the state of a finished form; a start does not use an unverified one."""
        choice = self._choice(model)
        if choice is None or not self._engines.unverified(model.folder, choice):
            return "ready"
        verdicts = self._engines.verdicts
        why = None if verdicts is None else verdicts.why_wrong(model.folder.path, choice)
        return "preparing" if why is None else f"no: {why}"

    def planned(self) -> list[PlannedModel]:
        """List the serving models with the fastest way to load each at the next start."""
        found = []
        for serving in self._active.all():
            model = serving.model
            if model is None or serving.lazy or model.is_reference:
                continue  # the next start must compare the underlying engine
            start, place = self._start(model)
            if start is None and serving.passed:
                continue  # the next start must try whether the preferred engine works again
            start = start or EngineCandidate("whole", model.choice)
            if self._engines.unverified_alone(model.folder, start.choice):
                continue  # the next start must compare it first
            found.append(
                PlannedModel(
                    serving.arm.name,
                    serving.arm.version,
                    serving.kind,
                    pack(model.folder),
                    pack(start.choice),
                    place if start.way == "prepared" else "",
                    start.way,
                    start.way != "quick" and self._engines.unverified(model.folder, start.choice),
                )
            )
        return found

    def _start(self, model: Model) -> tuple[EngineCandidate | None, str]:
        """Return the fastest way to a model's first result, and the folder of its form."""
        form, running = self._forms.get(model.folder.path), model.engine.prepared
        if isinstance(form, Artifact):
            choice, place = self._choice(model) or model.choice, form.folder
            return self._engines.at_start(model.folder, choice), place
        if form is None and running is not None and Path(running.folder).is_dir():
            # Loaded from it and not checked yet, as when stopped right after the start.
            return EngineCandidate("prepared", model.choice), running.folder
        return self._engines.at_start(model.folder, None), ""


def _damaged(model: Model) -> PreparedForm | None:
    """Return the form that a model was loaded from if it was found damaged."""
    prepared = model.engine.prepared
    return prepared if prepared is not None and prepared.damaged is not None else None


def _check_whole(form: Artifact) -> None:
    """Check all checksums of a form, and the version of its engine."""
    here, found = installed().get(form.engine), str(form.table["version"])
    # Some engines append their build to the version.
    if here is None or not f"{found}-".startswith(f"{here}-"):
        raise ArtifactError(
            f"{form.folder}: made by {form.engine} {found}, here is {here or 'none'}"
        )
    try:
        for name, (_, digest) in form.table["files"].items():
            if digest and xxh3_64_hexdigest(Path(form.path(name)).read_bytes()) != digest:
                raise ArtifactError(f"{form.path(name)}: damaged")
        weights = MappedWeights(form.path(BLOB if BLOB in form.table["files"] else WEIGHTS))
        check_weights(weights, [tuple(stage["range"]) for stage in form.table["stages"]])
    except OSError as problem:
        raise ArtifactError(f"{form.folder}: cannot be read: {problem.strerror}") from None
