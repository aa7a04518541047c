"""Has a prepared form made of every model that serves, so that the next start is a quick one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from ...core.codec import pack
from ...core.errors import EngineError, ModelError
from ...core.types import Kind
from ...inference.engines.probe import installed
from ...inference.engines.protocol import EngineChoice
from ...inference.engines.registry import titles
from ...inference.model import Model
from ...inference.prepared.artifact import Artifact, ArtifactError
from ...inference.prepared.build.cache import StoppedError, discard, find, prepare
from ...inference.prepared.build.collect import collect_artifacts
from ...inference.prepared.mapped import MappedWeights, WeightCheck
from ...models.store.store import Store
from ..serving.active import ActiveModels, Serving
from ..serving.loader import ModelLoader
from ..serving.planned_model import PlannedModel

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How long a form may be damaged before somebody sees to it."""


class PrepareTask:
    """Prepares one model after the other, in the background."""

    def __init__(
        self,
        store: Store,
        active: ActiveModels,
        loader: ModelLoader,
        memory_budget_mb: int,
        quota: Callable[[], int],
        changed: Callable[[], None],
        offer: Callable[[Serving, Model, Artifact], None],
    ) -> None:
        """Prepare nothing yet.

        Args:
            store: in whose folder the forms lie.
            active: what serves.
            loader: how models are opened here.
            memory_budget_mb: what models may take; 0: no bound.
            quota: gives what the store may take, bytes.
            changed: called when a form is ready, or cannot be made.
            offer: takes the form of what serves without it.

        """
        self._store = store
        self._active = active
        self._loader = loader
        self._budget_mb = memory_budget_mb
        self._quota = quota
        self._changed = changed
        self._offer = offer
        self._forms: dict[Path, Artifact | str] = {}
        """By folder of the model: its form, or why there is none."""
        self._closing = threading.Event()
        self._wake = threading.Event()

    def wake(self) -> None:
        """See whether something new serves."""
        self._wake.set()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()

    def run(self) -> None:
        """Prepare what serves, until closed."""
        while True:
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            if self._closing.is_set():
                return
            for serving in self._active.all():
                # Making a form, or looking for one, takes its time: nothing more is begun.
                if self._closing.is_set():
                    return
                if serving.model is not None:
                    self._discard_damaged(serving.model)
                model = serving.model
                if model is not None and model.folder.path not in self._forms:
                    self._prepare(model, serving)
                    self._changed()

    def _discard_damaged(self, model: Model) -> None:
        """Throw away a form that turned out damaged, so that it is made anew."""
        prepared = model.engine.prepared
        if prepared is None or prepared.damaged is None:
            return
        prepared.damaged = None
        discard(prepared.folder, self._store)
        self._forms.pop(model.folder.path, None)
        if prepared.is_streaming:
            # Nothing else can run it: it is opened as at first, which makes a form.
            self._active.reopen(model)

    def _prepare(self, model: Model, serving: Serving) -> None:
        choice = self._choice(model)
        if choice is None:
            self._forms[model.folder.path] = f"is not for {titles('graph')}"
            return
        try:
            form = self._found(model, choice, serving.kind) or prepare(
                self._store,
                model.folder,
                choice,
                serving.kind,
                budget_mb=self._budget_mb,
                quota=self._quota(),
                stopped=self._stopped,
            )
        except StoppedError:
            log.debug("model %s: its form is made at the next start", model.id)
        except (EngineError, ModelError, OSError) as problem:
            log.warning("model %s: no prepared form: %s", model.id, problem)
            self._forms[model.folder.path] = str(problem)
        else:
            self._forms[model.folder.path] = form
            keep = [form.key for form in self._forms.values() if isinstance(form, Artifact)]
            for line in collect_artifacts(self._store, keep):
                log.info("%s", line)
            if model.engine.prepared is None:
                self._offer(serving, model, form)

    def _found(self, model: Model, choice: EngineChoice, kind: Kind) -> Artifact | None:
        """Find the form of a model; one that is not whole is thrown away.

        What was not loaded from its form may have been refused it: it is looked at in full, or
        it would be refused at every start.
        """
        form = find(self._store.root, model.folder.path, choice, kind, self._budget_mb)
        if form is None or model.engine.prepared is not None:
            return form
        try:
            _see_whole(form)
        except ArtifactError as problem:
            log.warning("model %s: the prepared form is made anew: %s", model.id, problem)
            discard(form.folder, self._store)
            return None
        return form

    def _stopped(self) -> str | None:
        return "the agent ends" if self._closing.is_set() else None

    def _choice(self, model: Model) -> EngineChoice | None:
        if model.engine.prepared is not None:
            return model.choice
        return self._loader.prepared_choice(model.folder)

    def state(self, name: str) -> str | None:
        """Say how far the form of what serves under a name is; None: nothing serves."""
        for serving in self._active.all():
            if serving.reference == name and serving.model is not None:
                form = self._forms.get(serving.model.folder.path)
                if form is None:
                    return "preparing"
                return "ready" if isinstance(form, Artifact) else f"no: {form}"
        return None

    def quick(self) -> list[PlannedModel]:
        """List what serves, as a start can load it at once."""
        found = []
        for serving in self._active.all():
            model = serving.model
            if model is None or serving.lazy:
                continue
            form = self._forms.get(model.folder.path)
            choice, folder = model.choice, ""
            if isinstance(form, Artifact):
                choice, folder = self._choice(model) or choice, form.folder
            elif serving.passed:
                continue  # the next start shall see whether the engine that it prefers is back
            found.append(
                PlannedModel(
                    serving.arm.name,
                    serving.arm.version,
                    serving.kind,
                    pack(model.folder),
                    pack(choice),
                    folder,
                )
            )
        return found


def _see_whole(form: Artifact) -> None:
    """Compare every checksum of a form, and the version of the engine that made it.

    Raises:
        ArtifactError: something is not as it was when the form was made.

    """
    here, found = installed().get(form.engine), str(form.table["version"])
    # Some engines name their build behind their version.
    if here is None or not f"{found}-".startswith(f"{here}-"):
        raise ArtifactError(
            f"{form.folder}: made by {form.engine} {found}, here is {here or 'none'}"
        )
    try:
        for name, (_, digest) in form.table["files"].items():
            if digest and xxh3_64_hexdigest(Path(form.path(name)).read_bytes()) != digest:
                raise ArtifactError(f"{form.path(name)}: damaged")
        weights = MappedWeights(form.weights)
        WeightCheck(weights, [tuple(stage["range"]) for stage in form.table["stages"]]).wait()
    except OSError as problem:
        raise ArtifactError(f"{form.folder}: cannot be read: {problem.strerror}") from None
