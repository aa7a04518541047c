"""Checks what the next start begins with, where another engine serves in the long run.

A prepared form gives the numbers of its own engine, bit for bit; whether these are right is seen
here, beside what serves, which has been checked. Else the next start would have to check it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

from ..core.types import Tensors
from ..inference.model import Model
from .active import Serving
from .challenger import POLL_SECONDS
from .golden_check import is_held_to_golden, why_not_golden
from .loader import ModelLoader
from .reference_check import INPUTS, why_wrong

log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""Until a model without frames, or not yet checked itself, is looked at again."""


class FormCheck:
    """Checks each form once for each model and version of an engine."""

    def __init__(self, loader: ModelLoader, found: Callable[[], None]) -> None:
        """Check nothing yet."""
        self._loader = loader
        self._found = found
        self._seen: WeakKeyDictionary[Model, list[Tensors]] = WeakKeyDictionary()
        """By what serves: the inputs on which its form will be compared with it."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Compare the form of a model with what serves, or None if there is nothing to compare."""
        verdicts, folder = self._loader.engines.verdicts, model.folder
        choice = self._loader.engines.prepared_choice(folder)
        if verdicts is None or choice is None or model.engine.prepared is not None:
            return None
        if not self._loader.engines.unverified(folder, choice):
            return None
        golden, seen = is_held_to_golden(folder), self._seen.setdefault(model, [])
        if not golden and len(seen) < INPUTS:
            sound = model.loaded_quickly or verdicts.is_correct(folder.path, model.choice)
            if not sound or model.last is None:
                return IDLE_SECONDS
            if not any(model.last is each for each in seen):
                seen.append(model.last)
            if len(seen) < INPUTS:
                return POLL_SECONDS
        found = self._loader.prepared_form(folder, serving.kind)
        if found is None:
            return None
        inputs = [model.unfolded(each) for each in self._seen.pop(model)]
        form = self._loader.load_prepared(folder, found, serving.kind)
        try:
            why = why_not_golden(form) if golden else why_wrong(model, form, serving.kind, inputs)
        finally:
            form.close()
        if why is None:
            verdicts.mark_correct(folder.path, choice)
            self._found()
        else:
            verdicts.mark_wrong(folder.path, choice, why)
            label = form.engine.label
            log.warning("model %s: %s computes it wrongly: %s", form.id, label, why)
        return None
