"""Moves a model from the engine with the fastest start to the one that the profile prefers.

A start loads whatever gives the first result soonest: the prepared form, or the network itself in
the quick way. Meanwhile the preferred engine is built, and serves from then on if it agrees and is
faster. For a model loaded in the quick way, which is slow in the long run, all engines of the
profile are tried in order until one takes over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet, ref

from ..core.containment import words
from ..core.errors import AgentError, EngineError, ModelError
from ..inference.engines.engine import EngineChoice, PreparedForm
from ..inference.model import Model, load_model
from ..inference.prepared.artifact import Artifact
from ..inference.prepared.engine import accepts_batches
from .active import ActiveModels, Serving
from .challenger import POLL_SECONDS, Challenge, Challenger, Notes, log_decision, name_of
from .loader import ModelLoader, reason

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
"""Seconds until a form is tried again if its model has no frames or is on probation."""
FRAMES_SECONDS = 30.0
"""Time limit for the frames on which a form must agree. With so few frames a faster way gains
nothing, so it is not built repeatedly."""


class EngineUpgrade:
    """Replaces the engine loaded for a fast start by the long-term one."""

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        challenger: Challenger,
        closing: threading.Event,
    ) -> None:
        """Record the models that serve now as those of the start."""
        self._loader = loader
        self._challenger = challenger
        self._closing = closing
        models = [serving.model for serving in active.all()]
        self._started = WeakSet(
            model
            for model in models
            if model and (model.engine.prepared is not None or model.loaded_quickly)
        )
        self._settled: WeakSet[Model] = WeakSet()
        self._left: WeakKeyDictionary[Model, list[EngineChoice]] = WeakKeyDictionary()
        """Choices still to try in place of a model."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Tune a model if the profile requests it, settle it, and try the preferred engines."""
        prepared = model.engine.prepared
        if model not in self._started or (prepared is None and not model.loaded_quickly):
            return None
        if model not in self._settled:
            self._settled.add(model)
            self._tune(serving, model)
            if prepared is not None:
                self._settle(model, prepared)
            self._left[model] = self._preferred(model)
        left = self._left[model]
        if not self._challenger.compares(model):
            if self._challenger.challenge is not None:
                return POLL_SECONDS
            if not left:
                return None
            self._begin(serving, model, left[0])
        decision = self._challenger.compare()
        if decision is None:
            return POLL_SECONDS
        # The same engine too: the serving model is only lightly optimized, for a quick start.
        fully = ", fully optimized," if decision.engine == model.engine.label else ""
        log_decision(model, f"{decision.engine}{fully}", decision)
        left.pop(0)
        return 0.0 if left and not decision.takes_over else None

    def _begin(self, serving: Serving, model: Model, choice: EngineChoice) -> None:
        """Begin the challenge of a model by an engine."""
        prepared = model.engine.prepared
        best = self._loader.engines.best_way(model.folder)
        known = best is not None and best.engine == choice.engine
        verdicts, path = self._loader.engines.verdicts, model.folder.path
        # A model loaded quickly is measured again: it has no form for the next start.
        self._challenger.challenge = Challenge(
            serving,
            model,
            self._challenger.active,
            lambda: self._challenger_of(serving, model, choice),
            Notes(verdicts, path, choice) if prepared and verdicts else None,
            name_of(choice),
            faster=f"tuned: {best}" if known else None,
            verified=verdicts is not None and verdicts.is_correct(path, choice),
        )

    def _challenger_of(self, serving: Serving, model: Model, choice: EngineChoice) -> Model:
        """Load a model on another engine."""
        try:
            # For a model loaded quickly, a copy was checked: its file may differ.
            checked = not model.loaded_quickly
            return load_model(model.folder, [choice], serving.kind, checked=checked)
        except EngineError as problem:
            if model.loaded_quickly:
                # It should have served from the start.
                serving.passed = [*serving.passed, reason(model.id, choice, problem)]
                self._challenger.active.on_change()
            raise

    def _preferred(self, model: Model) -> list[EngineChoice]:
        """List the engines to try in place of the serving one, in order."""
        choices = self._loader.engines.left_for(model.folder)
        # No other engine could load a whole model that exceeds the budget.
        if self._loader.engines.budget.exceeds(model.folder):
            return []
        if model.loaded_quickly:
            return choices
        return [choice for choice in choices[:1] if choice.place != model.choice.place]

    def _tune(self, serving: Serving, model: Model) -> None:
        """Tune a model if the profile requests it and it is not tuned yet."""
        if not self._loader.engines.wants_tune(model.folder):
            return
        from .tuner import tune_model  # rarely needed

        try:
            tune_model(
                self._loader,
                model.folder,
                serving.kind,
                live=True,
                stopped=self._closing.is_set,
            )
        except (AgentError, OSError) as problem:
            log.warning("model %s: not tuned: %s", model.id, words(problem))
        else:
            best = self._loader.engines.best_way(model.folder)
            log.info("model %s: tuned: %s", model.id, best or "no way is better than another")

    def _settle(self, model: Model, prepared: PreparedForm) -> None:
        """Run a model with its lane's share of threads and with prepared weights."""
        choices = self._loader.engines.left_for(model.folder)
        if not choices or prepared.damaged is not None:
            return
        own = next((one for one in choices if one.engine == model.choice.engine), model.choice)
        try:
            if prepared.finish_load(own.threads or None):
                log.info("model %s: settled for the long run", model.id)
        except EngineError as problem:
            log.warning("model %s: stays as it was loaded: %s", model.id, problem)


class FormUpgrade:
    """Tries the prepared form of each model once, in place of the model loaded first.

    A pushed or new model runs as its engine loads it. Once its prepared form is ready, that may be
    the better way to run it.
    """

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        challenger: Challenger,
        watched: Callable[[str], bool],
    ) -> None:
        """Start without any form tried."""
        self._loader = loader
        self._challenger = challenger
        self._watched = watched
        """Returns whether a model name is on trial or probation and must not be replaced."""
        self._first: dict[Path, ref[Model]] = {
            each.model.folder.path: ref(each.model)
            for each in active.all()
            if each.model and each.model.engine.prepared is not None
        }
        """The model first loaded from each folder: its replacement is the outcome of a comparison
        or a failure, and is not challenged."""
        self._tried: tuple[Artifact, EngineChoice]
        """The form being tried, and the choice that runs it."""
        self._until = 0.0

    def run(self, serving: Serving, model: Model) -> float | None:
        """Compare a model with its prepared form, if that may take over; return the pause."""
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
            # The next start begins with the form without measuring again.
            verdicts.record_race(path, model.choice, known)
        return None

    def _find(self, serving: Serving, model: Model) -> tuple[Artifact, EngineChoice] | None:
        """Find the form that could take over, and the choice that runs it, or None."""
        if self._loader.engines.profile.swap == "replace":
            return None  # without memory for two versions there is none for two copies
        choice = self._loader.engines.prepared_choice(model.folder)
        best = self._loader.engines.best_way(model.folder)
        if choice is None or (best is not None and best.engine != choice.engine):
            return None  # it is already known which is faster
        try:
            form = self._loader.prepared_form(model.folder, serving.kind)
        except ModelError:
            return None  # its files cannot be read anymore
        together = max(self._loader.engines.max_batch(model.folder), serving.crops)
        # A form takes one sample at a time.
        if form is None or (together > 1 and accepts_batches(form)):
            return None
        return form, choice
