"""Checks what the next start begins with, where another engine serves in the long run.

A prepared form gives the numbers of its own engine, bit for bit; whether these are right is seen
here, beside what serves, which has been checked. Else the next start would have to check it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..core.types import Tensors
from ..inference.engines.engine import EngineChoice
from ..inference.model import Model
from ..models.manifest import ModelFolder
from .active import ActiveModels, Serving
from .challenger import POLL_SECONDS
from .golden_check import is_held_to_golden, why_not_golden
from .loader import ModelLoader
from .reference_check import INPUTS, why_wrong

log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""Until a model without frames, or not yet checked itself, is looked at again."""


class FormCheck:
    """Checks the form of one model at a time, once for each model and version of an engine."""

    def __init__(
        self, active: ActiveModels, loader: ModelLoader, found: Callable[[], None]
    ) -> None:
        """Check nothing yet."""
        self._active = active
        self._loader = loader
        self._found = found
        self._beside: Model | None = None
        """What serves, beside the form under way."""
        self._form: Model | None = None
        self._inputs: list[Tensors] = []

    def run(self, serving: Serving, model: Model) -> float | None:  # noqa: PLR0911 - each a reason not to compare now
        """Compare the form of a model with what serves, or None if there is nothing to compare."""
        if self._beside is not None and not self._active.serves(self._beside):
            self.close()
        verdicts, folder = self._loader.engines.verdicts, model.folder
        choice = self._loader.engines.prepared_choice(folder)
        if verdicts is None or choice is None or model.engine.prepared is not None:
            return None
        if not self._loader.engines.unverified(folder, choice):
            return None
        if is_held_to_golden(folder):
            return self._check_golden(serving, folder, choice)
        if not model.loaded_quickly and not verdicts.is_correct(folder.path, model.choice):
            return IDLE_SECONDS
        if model.last is None or self._beside not in {None, model}:
            return IDLE_SECONDS
        if self._form is None:
            form = self._loader.prepared_form(folder, serving.kind)
            if form is None:
                return None
            self._form = self._loader.load_prepared(folder, form, serving.kind)
            self._beside = model
        last = model.last
        if any(last is each for each in self._inputs):
            return POLL_SECONDS
        self._inputs.append(last)
        why = why_wrong(model, self._form, serving.kind, [model.unfolded(last)])
        if why is None and len(self._inputs) < INPUTS:
            return POLL_SECONDS
        beside = self._form
        self.close()
        self._conclude(beside, choice, why)
        return None

    def _check_golden(
        self, serving: Serving, folder: ModelFolder, choice: EngineChoice
    ) -> float | None:
        """Hold a form to the golden outputs of its model; no frame is needed for that."""
        form = self._loader.prepared_form(folder, serving.kind)
        if form is not None:
            loaded = self._loader.load_prepared(folder, form, serving.kind)
            try:
                self._conclude(loaded, choice, why_not_golden(loaded))
            finally:
                loaded.close()
        return None

    def _conclude(self, form: Model, choice: EngineChoice, why: str | None) -> None:
        """Keep what was found of a form."""
        verdicts, path = self._loader.engines.verdicts, form.folder.path
        if verdicts is None:
            return
        if why is None:
            verdicts.mark_correct(path, choice)
            self._found()
        else:
            verdicts.mark_wrong(path, choice, why)
            label = form.engine.label
            log.warning("model %s: %s computes it wrongly: %s", form.id, label, why)

    def close(self) -> None:
        """Give up the check under way."""
        form, self._form, self._beside = self._form, None, None
        self._inputs = []
        if form is not None:
            form.close()
