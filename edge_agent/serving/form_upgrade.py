"""Moves a model that was loaded whole to its prepared form, where that is the faster one.

A model that was pushed, or is new here, runs as its engine loads it. Once its prepared form is
there, that may be the better way to run it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from weakref import ref

from ..core.errors import ModelError
from ..inference.engines.engine import EngineChoice
from ..inference.model import Model
from ..inference.prepared.artifact import Artifact
from ..inference.prepared.engine import accepts_batches
from .active import ActiveModels, Serving
from .challenger import POLL_SECONDS, Challenge, Challenger, Notes, log_decision, name_of
from .loader import ModelLoader

AGAIN_SECONDS = 5.0
"""Until a form is tried again whose model has no frames, or is on probation."""
FRAMES_SECONDS = 30.0
"""For the frames on which a form has to agree. Where so few come a faster way gains nothing: it is
not built again and again."""


class FormUpgrade:
    """Tries the prepared form of each model, once, in the place of what was loaded first."""

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        challenger: Challenger,
        watched: Callable[[str], bool],
    ) -> None:
        """Try nothing yet."""
        self._loader = loader
        self._challenger = challenger
        self._watched = watched
        """Whether a model of that name is on trial or on probation, and so stays as it is."""
        self._first: dict[Path, ref[Model]] = {
            each.model.folder.path: ref(each.model)
            for each in active.all()
            if each.model and each.model.engine.prepared is not None
        }
        """By folder, the model that was loaded of it first: what has replaced that one is the
        outcome of a comparison, or of a failure, and is not challenged."""
        self._tried: tuple[Artifact, EngineChoice]
        """The form under way, and what runs it."""
        self._until = 0.0

    def run(self, serving: Serving, model: Model) -> float | None:
        """Compare the form of a model with the model, if the form may take over."""
        verdicts, path = self._loader.engines.verdicts, model.folder.path
        first = self._first.setdefault(path, ref(model))()
        if first is not model or model.engine.prepared is not None:
            return None
        if not self._challenger.compares(model):
            tried = self._find(serving, model)
            if tried is None:
                return None
            waits = model.last is None or self._watched(model.manifest.name)
            if waits or self._challenger.challenge is not None:
                return AGAIN_SECONDS
            self._tried = form, choice = tried
            self._until = time.monotonic() + FRAMES_SECONDS
            self._challenger.challenge = Challenge(
                serving,
                model,
                self._challenger.active,
                lambda: self._loader.load_prepared(model.folder, form, serving.kind),
                None if verdicts is None else Notes(verdicts, path, choice, "prepared"),
                f"form of {name_of(choice)}",
            )
        decision, challenge = self._challenger.compare(), self._challenger.challenge
        if challenge is not None and time.monotonic() > self._until:
            decision = challenge.stopped()
            self._challenger.close()
        if decision is None:
            return POLL_SECONDS
        form, choice = self._tried
        log_decision(model, f"its prepared form on {form.table['label']}", decision)
        known = decision.reversed(model.engine.label)
        if known and verdicts is not None and model.choice.place != choice.place:
            # The next start begins with the form, and need not measure again.
            verdicts.record_race(path, model.choice, known)
        return None

    def _find(self, serving: Serving, model: Model) -> tuple[Artifact, EngineChoice] | None:
        """Find the form that could take over, and what runs it, or None."""
        if self._loader.engines.profile.swap == "replace":
            return None  # where memory does not hold two versions it does not hold one twice
        choice = self._loader.engines.prepared_choice(model.folder)
        best = self._loader.engines.best_way(model.folder)
        if choice is None or (best is not None and best.engine != choice.engine):
            return None  # it is known already which is the faster
        try:
            form = self._loader.prepared_form(model.folder, serving.kind)
        except ModelError:
            return None  # its files cannot be read any more
        together = max(self._loader.engines.max_batch(model.folder), serving.crops)
        # A form takes one sample at a time.
        if form is None or (together > 1 and accepts_batches(form)):
            return None
        return form, choice
