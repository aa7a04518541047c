"""Moves a model from the engine that starts soonest to the one that the profile prefers.

A start loads what gives the first result soonest. Beside it the preferred engine is built, and
serves from then on if it is faster.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from weakref import WeakSet

from ...core.errors import AgentError, EngineError
from ...inference.engines.engine import EngineChoice, PreparedForm
from ...inference.model import Model, load_model
from ..serving.active import ActiveModels, Serving
from ..serving.challenger_results import name_of
from ..serving.loader import ModelLoader
from .challenger import POLL_SECONDS, Challenger, log_decision

log = logging.getLogger(__name__)


class EngineUpgrade:
    """Gives each model that a start has loaded from its prepared form the engine that it keeps."""

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        challenger: Challenger,
        closing: threading.Event,
    ) -> None:
        """Take the models that serve now for those of the start.

        Args:
            active: the models that serve.
            loader: how models are loaded here.
            challenger: compares engines.
            closing: set when the agent ends.

        """
        self._loader = loader
        self._challenger = challenger
        self._closing = closing
        models = [serving.model for serving in active.all()]
        self._started = WeakSet(
            model for model in models if model and model.engine.prepared is not None
        )
        self._settled: WeakSet[Model] = WeakSet()

    def run(self, serving: Serving, model: Model) -> float | None:
        """Tune a model if its profile says so, settle it, and try the engine preferred to it."""
        prepared = model.engine.prepared
        if model not in self._started or prepared is None:
            return None
        if model not in self._settled:
            self._settled.add(model)
            self._tune(serving, model)
            self._settle(model, prepared)
        if not self._challenger.compares(model):
            if self._challenger.busy:
                return POLL_SECONDS
            preferred = self._preferred(model)
            if preferred is None:
                return None
            best = self._loader.best_way(model.folder)
            self._challenger.begin(
                serving,
                model,
                lambda: load_model(model.folder, [preferred], serving.kind, checked=True)[0],
                Path(prepared.folder),
                name_of(preferred),
                faster=None if best is None else f"tuned: {best}",
            )
        decision = self._challenger.compare()
        if decision is None:
            return POLL_SECONDS
        log_decision(model, decision.engine, decision)
        return None

    def _preferred(self, model: Model) -> EngineChoice | None:
        """Return the engine preferred to the one that serves; None: there is none."""
        choices = self._choices(model)
        if not choices or choices[0].place == model.choice.place:
            return None
        # No other engine could load the whole of what exceeds the budget.
        return None if self._loader.exceeds_budget(model.folder) else choices[0]

    def _choices(self, model: Model) -> list[EngineChoice]:
        try:
            return self._loader.choices_for(model.folder)
        except EngineError:
            return []

    def _tune(self, serving: Serving, model: Model) -> None:
        """Measure what suits a model, where the profile asks for it and nothing is known yet."""
        if not self._loader.wants_tune(model.folder):
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
            best = self._loader.best_way(model.folder)
            log.info("model %s: tuned: %s", model.id, best or "nothing is better than another")

    def _settle(self, model: Model, prepared: PreparedForm) -> None:
        """Run it with the threads that the lanes leave, and prepared weights."""
        choices = self._choices(model)
        if not choices or prepared.damaged is not None:
            return
        own = next((one for one in choices if one.engine == model.choice.engine), model.choice)
        try:
            if prepared.finish_load(own.threads or None):
                log.info("model %s: settled for the long run", model.id)
        except EngineError as problem:
            log.warning("model %s: stays as it was loaded: %s", model.id, problem)
