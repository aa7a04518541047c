"""What serves in the long run: the engine that the profile prefers, if it deserves it here.

A start loads what gives the first result soonest. Behind it is built what runs best, and takes
over between two frames.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from .engines import EngineChoice
from .engines.probe import installed
from .errors import EngineError
from .model import Model, open_model
from .opening import Engines
from .quick import QuickEngine
from .records import Tensors
from .serving import Serving, Servings
from .understudy import rehearse

log = logging.getLogger(__name__)


class Steady:
    """Sees to the models of a quick start, one after the other."""

    def __init__(self, servings: Servings, engines: Engines) -> None:
        self._servings = servings
        self._engines = engines
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()

    def run(self) -> None:
        """Give each model that was loaded quickly the engine that it shall keep."""
        for serving in self._servings.all():
            model = serving.model
            if model is None or not isinstance(model.engine, QuickEngine):
                continue
            if self._closing.is_set():
                return
            try:
                choices = self._engines.choices_for(model.folder)
            except EngineError:
                continue
            self._settle(model, model.engine, choices)
            preferred = choices[0]
            here = (model.choice.engine, model.choice.device.upper())
            if (preferred.engine, preferred.device.upper()) != here:
                self._rehearse(serving, model, model.engine, preferred)

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
        version = installed().get(preferred.engine, "?")
        decision = rehearse(
            _Role(serving, self._servings),
            lambda: open_model(model.folder, [preferred], serving.kind, checked=True)[0],
            Path(engine.form.form.folder),
            f"{preferred} {version}",
            tolerance=model.manifest.trial.tolerance,
            stopped=self._closing.wait,
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

    def live(self) -> tuple[Model, Tensors] | None:
        model = self._serving.model
        if model is None or model.last is None:
            return None
        return model, model.last

    def exchange(self, old: Model, new: Model) -> bool:
        return self._servings.replace(old, new)
