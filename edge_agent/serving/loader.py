"""Loads the models of this device, each in the first way that works."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.settings import Settings
from ..core.bundled import bundled
from ..core.containment import contained
from ..core.errors import EngineError, ModelError, Unfit
from ..core.files import check_state_folder, make_state_folder
from ..core.types import Kind
from ..inference.prepared.artifact import ArtifactError
from ..models.store.catalog import Catalog
from ..models.store.store import MODELS, Store
from .choice import DeviceEngines, EngineCandidate
from .open import Forms, open_prepared, open_streamed

if TYPE_CHECKING:
    from ..inference.engines.engine import EngineChoice
    from ..inference.model import Model
    from ..inference.prepared.artifact import Artifact
    from ..models.manifest import ModelFolder

log = logging.getLogger(__name__)


def open_library(settings: Settings, store: Store) -> Catalog:
    """Open the three places of models."""
    return Catalog(store, [Path(folder) for folder in settings.models_dirs], bundled("models"))


def open_store(settings: Settings, *, make: bool = True) -> Store:
    """Open the store, creating its folder; not so with *make* false, for what only looks.

    Raises:
        UsageError: it cannot be created or written.
    """
    (make_state_folder if make else check_state_folder)(settings.state)
    return Store(settings.state, make=make)


class ModelLoader:
    """Loads models on the engines of this device."""

    def __init__(self, engines: DeviceEngines, store: Store | None = None) -> None:
        """Set up without loading anything; *store*, if given, keeps prepared forms."""
        self.engines = engines
        self.forms = None if store is None else Forms(store.root, engines.profile.memory_budget_mb)
        """The place of prepared forms; None: nothing is kept."""

    def load(
        self, folder: ModelFolder, kind: Kind, *, checked: bool = False
    ) -> tuple[Model, list[str]]:
        """Load a model on the first engine that can run it, see also `attach_check`.

        Returns:
            The model, and why each engine before its own was passed over.

        Raises:
            ModelError: the model is not fit to run.
            EngineError: no engine can run it.
        """
        name, passed = folder.manifest.id, list[str]()
        with contained(name), self.engines.budget.loading(folder):
            candidates = self.engines.candidates(folder)
            if not checked:
                from ..models.files.check_onnx import check_network

                self.verify(folder)

                with contained(name, ModelError):
                    check_network(folder.network)
            for candidate in candidates:
                try:
                    model = self.open(folder, candidate, kind)
                except EngineError as problem:
                    if len(candidates) == 1:
                        raise
                    if candidate.why:
                        log.info("model %s: not %s: %s", name, candidate.way, problem)
                    else:
                        passed.append(reason(name, candidate.choice, problem))
                    continue
                break
            else:
                raise EngineError(f"{name}: no engine can run it: {'; '.join(passed)}")
        self.attach_check(model, kind)
        return model, self.engines.passed_over(folder) + passed

    def verify(self, folder: ModelFolder) -> None:
        """Check that a version of the store is as it was installed; read only if it was written.

        Raises:
            ModelError: it is not.
        """
        if self.forms is not None and folder.path.is_relative_to(self.forms.state / MODELS):
            from ..inference.prepared.digests import digests

            digests(self.forms.state, folder.path)

    def open(
        self, folder: ModelFolder, candidate: EngineCandidate, kind: Kind, *, checked: bool = True
    ) -> Model:
        """Load a model in one way.

        Raises:
            ModelError: the model is not fit to run.
            EngineError: it cannot be loaded this way.
        """
        choice = candidate.choice
        if candidate.way == "prepared":
            form = self.prepared_form(folder, kind)
            if form is None:
                raise EngineError(f"{folder.manifest.id}: it has no prepared form")
            return self.load_prepared(folder, form, kind)
        if candidate.way == "streamed" and self.forms is not None:
            return open_streamed(folder, choice, kind, self.forms, checked=checked)
        from ..inference.model import load_model

        model = load_model(folder, [choice], kind, checked=checked)
        model.is_reference = candidate.way == "reference"
        return model

    def attach_check(self, model: Model, kind: Kind) -> None:
        """Attach a check to a model if its engine is not known to compute it correctly."""
        if self.engines.wants_check(model.folder, model.choice):
            from .reference_check import attach_check  # not needed from the second start on

            attach_check(model, kind)

    def prepared_form(
        self, folder: ModelFolder, kind: Kind, *, make: bool = False
    ) -> Artifact | None:
        """Find the prepared form of a model, or *make* it; None: there is none.

        Raises:
            ModelError: a file of the model cannot be read.
        """
        choice = self.engines.prepared_choice(folder)
        if self.forms is None or choice is None:
            return None
        try:
            return self.forms.find(folder, choice, kind, make=make)
        except ArtifactError as problem:
            log.warning("model %s: no prepared form: %s", folder.manifest.id, problem)
            return None

    def load_prepared(self, folder: ModelFolder, form: Artifact, kind: Kind) -> Model:
        """Load a model from its prepared form, for the long run.

        Raises:
            EngineError: the form does not load or run.
        """
        choice = self.engines.prepared_choice(folder)
        if choice is None:
            raise EngineError(f"{folder.manifest.id}: no engine may run its prepared form")
        choices = self.engines.choices_for(folder)
        own = next((one for one in choices if one.place == choice.place), choice)
        return open_prepared(folder, choice, form, kind, threads=own.threads)


def reason(name: str, choice: EngineChoice, problem: EngineError) -> str:
    """Return why an engine is passed over that has not loaded the model *name*."""
    why = str(problem).removeprefix(f"{name}: no engine can run it: ")
    return Unfit(why) if choice.place[1] == "CPU" else why
