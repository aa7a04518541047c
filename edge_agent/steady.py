"""What serves in the long run: the engine that the profile prefers, if it deserves it here.

A start loads what gives the first result soonest. Behind it is built what runs best, and takes
over between two frames.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from .engines import EngineChoice
from .errors import AgentError, EngineError
from .model import Model, open_model
from .opening import Engines
from .quick import QuickEngine
from .records import Tensors
from .serving import Serving, Servings
from .understudy import name_of, rehearse

log = logging.getLogger(__name__)


class Steady:
    """Sees to the models of a quick start, one after the other."""

    def __init__(self, servings: Servings, engines: Engines) -> None:
        self._servings = servings
        self._engines = engines
        self._closing = threading.Event()
        self.done = threading.Event()
        """Every model of the start has the engine that it keeps."""

    def close(self) -> None:
        self._closing.set()

    def run(self) -> None:
        """Give each model that was loaded quickly the engine that it shall keep."""
        try:
            self._run()
        finally:
            self.done.set()

    def _run(self) -> None:
        for serving in self._servings.all():
            model = serving.model
            if model is None or not isinstance(model.engine, QuickEngine):
                continue
            if self._closing.is_set():
                return
            self._tune(serving, model)
            try:
                choices = self._engines.choices_for(model.folder)
            except EngineError:
                continue
            self._settle(model, model.engine, choices)
            preferred = choices[0]
            if preferred.place != model.choice.place:
                self._rehearse(serving, model, model.engine, preferred)

    def _tune(self, serving: Serving, model: Model) -> None:
        """Find out what suits a model, where the profile asks for it and nothing is known yet."""
        if not self._engines.wants_tune(model.folder):
            return
        from .tuner import tune_model  # seldom needed

        try:
            tune_model(
                self._engines,
                model.folder,
                serving.kind,
                live=True,
                stopped=self._closing.is_set,
            )
        except (AgentError, OSError) as problem:
            log.warning("model %s: not tuned: %s", model.id, problem)
        else:
            best = self._engines.best_way(model.folder)
            log.info("model %s: tuned: %s", model.id, best or "nothing is better than another")

    def _settle(self, model: Model, engine: QuickEngine, choices: list[EngineChoice]) -> None:
        """Give it the threads that the lanes leave, and prepared weights."""
        if engine.damaged is not None:
            return
        own = next(
            (choice for choice in choices if choice.engine == model.choice.engine), model.choice
        )
        try:
            if engine.form.settle(own.threads or None):
                log.info("model %s: settled for the long run", model.id)
        except EngineError as problem:
            log.warning("model %s: stays as it was loaded: %s", model.id, problem)

    def _rehearse(
        self, serving: Serving, model: Model, engine: QuickEngine, preferred: EngineChoice
    ) -> None:
        """Let the engine that the profile prefers take over, if it is faster."""
        best = self._engines.best_way(model.folder)
        decision = rehearse(
            _Role(serving, self._servings),
            lambda: open_model(model.folder, [preferred], serving.kind, checked=True)[0],
            Path(engine.form.form.folder),
            name_of(preferred),
            tolerance=model.manifest.trial.tolerance,
            stopped=self._closing.wait,
            faster=None if best is None else f"tuned: {best}",
        )
        log.info(
            "model %s: %s %s: %s",
            model.id,
            decision.engine,
            "takes over" if decision.takes_over else "does not take over",
            decision.why,
        )


class _Role:
    """A serving, as an understudy sees it."""

    def __init__(self, serving: Serving, servings: Servings) -> None:
        self._serving = serving
        self._servings = servings
        self._last: Tensors | None = None
        self._seen: Tensors = {}

    def live(self) -> tuple[Model, Tensors] | None:
        model = self._serving.model
        last = None if model is None else model.last
        if model is None or last is None:
            return None
        if last is not self._last:
            # As any engine takes it, for one that is not folded, or otherwise.
            self._last, self._seen = last, model.unfolded(last)
        return model, self._seen

    def exchange(self, old: Model, new: Model) -> bool:
        return self._servings.replace(old, new)
