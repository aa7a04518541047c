"""Moves a model from the engine that starts soonest to the one that the profile prefers.

A start loads what gives the first result soonest: the prepared form, or the network itself in the
quick way. Beside it the preferred engine is built, and serves from then on if it agrees and is
faster. For a model that was loaded the quick way, which is slow in the long run, all engines of the
profile are tried, one after the other, until one takes over.
"""

from __future__ import annotations

import logging
import threading
from weakref import WeakKeyDictionary, WeakSet

from ..core.errors import AgentError, EngineError
from ..inference.engines.engine import EngineChoice, PreparedForm
from ..inference.model import Model, load_model
from .active import ActiveModels, Serving
from .challenger import POLL_SECONDS, Challenge, Challenger, Notes, log_decision, name_of
from .loader import ModelLoader

log = logging.getLogger(__name__)


class EngineUpgrade:
    """Gives each model that a start has loaded in haste the engine that it keeps."""

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        challenger: Challenger,
        closing: threading.Event,
    ) -> None:
        """Take the models that serve now for those of the start."""
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
        """What is still to be tried instead of a model."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Tune a model if its profile says so, settle it, and try the engines preferred to it."""
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
        # The same engine, too: what serves is optimized lightly, to be there soon.
        fully = ", fully optimized," if decision.engine == model.engine.label else ""
        log_decision(model, f"{decision.engine}{fully}", decision)
        left.pop(0)
        return 0.0 if left and not decision.takes_over else None

    def _begin(self, serving: Serving, model: Model, choice: EngineChoice) -> None:
        """Start the challenge of a model by an engine."""
        prepared = model.engine.prepared
        best = self._loader.engines.best_way(model.folder)
        known = best is not None and best.engine == choice.engine
        verdicts, path = self._loader.engines.verdicts, model.folder.path
        # What is loaded in haste is measured again: it has no form that the next start begins with.
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
            # What was checked of a model loaded quickly is a copy: its file may be another.
            checked = not model.loaded_quickly
            return load_model(model.folder, [choice], serving.kind, checked=checked)
        except EngineError as problem:
            if model.loaded_quickly:
                # It should have served from the beginning.
                serving.passed = [*serving.passed, str(problem)]
            raise

    def _preferred(self, model: Model) -> list[EngineChoice]:
        """List the engines to try instead of the one that serves, in order."""
        choices = self._loader.engines.left_for(model.folder)
        # No other engine could load the whole of what exceeds the budget.
        if self._loader.engines.exceeds_budget(model.folder):
            return []
        if model.loaded_quickly:
            return choices
        return [choice for choice in choices[:1] if choice.place != model.choice.place]

    def _tune(self, serving: Serving, model: Model) -> None:
        """Measure what suits a model, where the profile asks for it and nothing is known yet."""
        if not self._loader.engines.wants_tune(model.folder):
            return
        from .tuner import tune_model  # seldom needed

        try:
            tune_model(
                self._loader,
                model.folder,
                serving.kind,
                live=True,
                stopped=self._closing.is_set,
            )
        except (AgentError, OSError) as problem:
            log.warning("model %s: not tuned: %s", model.id, problem)
        else:
            best = self._loader.engines.best_way(model.folder)
            log.info("model %s: tuned: %s", model.id, best or "nothing is better than another")

    def _settle(self, model: Model, prepared: PreparedForm) -> None:
        """Run it with the threads that the lanes leave, and prepared weights."""
        choices = self._loader.engines.left_for(model.folder)
        if not choices or prepared.damaged is not None:
            return
        own = next((one for one in choices if one.engine == model.choice.engine), model.choice)
        try:
            if prepared.finish_load(own.threads or None):
                log.info("model %s: settled for the long run", model.id)
        except EngineError as problem:
            log.warning("model %s: stays as it was loaded: %s", model.id, problem)
