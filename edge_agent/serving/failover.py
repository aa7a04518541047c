"""Moves a model from a failing engine to the next one of the profile, and back later.

Checks the lanes' counts twice per second, so that it delays no frame. An engine that fails on
FAILURES frames in a row, with an error or with numbers that are not finite, is replaced when
another one, loaded next to it, succeeds on the same frame. If every engine fails on that frame, the
cause is the model or the frame, and no exchange would help.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from ..core.errors import AgentError, EngineError
from ..core.types import Request
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import engine_words
from ..inference.model import Model, load_model
from .active import ActiveModels, Serving
from .golden_check import GoldenCheck
from .loader import ModelLoader

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
FAILURES = 5
"""Failures in a row that are allowed. An engine that fails occasionally is kept."""
FIRST_PAUSE = 60.0
"""Seconds until an engine is tried again; doubled after each further failure."""
MOST_PAUSE = 6 * 3600.0
STABLE = 300.0
"""Seconds that a restored engine must work before its earlier failures are forgotten."""

State = Literal["closed", "open", "half-open"]

Failure = tuple[str, Request]
"""Error text and request."""


class Breaker:
    """Circuit breaker for one model on one engine: when to stop using it and when to retry.

    Closed while the engine may serve, open while it may not, and half-open after it was restored,
    until it has worked long enough. Each failure makes the pause longer.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start closed."""
        self._clock = clock
        self._state: State = "closed"
        self._since = clock()
        self._pause = 0.0
        self.why = ""
        """The reason for the latest failure."""
        self.failure: Failure | None = None
        """The failed request, on which the engine must succeed to be restored."""

    @property
    def state(self) -> State:
        """Closed, open or half-open at this time."""
        if self._state == "half-open" and self._clock() - self._since >= STABLE:
            self._state, self._pause = "closed", 0.0
        return self._state

    def trip(self, why: str, failure: Failure | None = None) -> None:
        """Open: the engine has failed too often, or failed to load."""
        # Read first: an engine that has worked long enough starts with the shortest pause again.
        known = self.state != "closed"
        self._pause = min(MOST_PAUSE, 2 * self._pause if known and self._pause else FIRST_PAUSE)
        self._state, self._since = "open", self._clock()
        self.why, self.failure = why, failure

    @property
    def wait(self) -> float:
        """Seconds until the engine is tried again; 0 if there is no wait."""
        if self.state != "open":
            return 0.0
        return max(0.0, self._since + self._pause - self._clock())

    @property
    def due(self) -> bool:
        """Whether to try the engine again now."""
        return self.state == "open" and self.wait == 0.0

    def close(self) -> None:
        """Half-open: the engine serves again on trial."""
        self._state, self._since = "half-open", self._clock()


class Failover:
    """Monitors the serving models."""

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with every breaker closed."""
        self._active = active
        self._loader = loader
        self._clock = clock
        self._breakers: dict[tuple[Path, str], Breaker] = {}
        """Breakers by the model's folder and the engine with its device."""
        self._hopeless: dict[Path, Breaker] = {}
        """Models that fail on every engine."""

    def step(self) -> float:
        """Replace failing engines, and retry those that are due."""
        for serving in self._active.all():
            model = serving.model
            if model is None:
                continue
            self._retry_passed(serving, model)
            if (failing := model.stats.failing) >= FAILURES:
                self._fail_over(serving, model, failing)
            else:
                self._fall_back(serving, model)
        return POLL_SECONDS

    def problems(self) -> list[str]:
        """List the models that fail on every engine; for those that failed over see `passed`."""
        served = {s.model.folder.path: s.model for s in self._active.all() if s.model}
        return [
            f"model {served[path].id}: {breaker.why}"
            for path, breaker in list(self._hopeless.items())
            if path in served and served[path].stats.failing >= FAILURES
        ]

    # Away from an engine

    def _fail_over(self, serving: Serving, model: Model, failing: int) -> None:
        """Replace an engine that has failed *failing* times in a row; frames go on meanwhile."""
        failure = model.stats.failure
        if failure is None or self._backs_off(model):
            return
        error, sample = failure[0], failure[1].sample
        if sample.data.dtype.kind == "f" and not np.isfinite(sample.data).all():
            model.stats.failing = 0  # the input is not finite either: no engine is at fault
            return
        if failure[1].foreign and _works(model):
            model.stats.failing = 0  # what clients have sent is at fault
            return
        here = _name(model.choice)
        choices = self._loader.engines.left_for(model.folder)
        for choice in choices:
            breaker = self._breaker(model, _name(choice))
            if _name(choice) == here or (breaker.state == "open" and not breaker.due):
                continue
            better = self._better(serving, model, choice, failure)
            if better is not None:
                left = self._breaker(model, here)
                left.trip(error, failure)
                name = engine_words(better.engine.label)
                log.warning(
                    "model %s: %s serves instead of %s, which failed on %d frames in a row: %s; "
                    "that is tried again in %.0f s",
                    *(model.id, name, here, failing, error, left.wait),
                )
                passed = [f"{here}: {error}", *_without(serving.passed, here)]
                self._exchange(model, better, passed)
                return
        if self._reload(serving, model, choices, failure):
            return
        known = model.folder.path in self._hopeless
        hopeless = self._hopeless.setdefault(model.folder.path, Breaker(self._clock))
        hopeless.trip(f"fails on every engine: {error}")
        if not known:
            log.error("model %s: %s", model.id, hopeless.why)

    def _reload(
        self, serving: Serving, model: Model, choices: list[EngineChoice], failure: Failure
    ) -> bool:
        """Load a model again on the same engine: a device that was reset accepts new networks."""
        here = _name(model.choice)
        if self._breaker(model, here).state != "closed":
            return False  # already done without success
        same = next((choice for choice in choices if _name(choice) == here), model.choice)
        better = self._better(serving, model, same, failure)
        if better is None:
            return False
        breaker = self._breaker(model, here)
        breaker.trip(failure[0], failure)
        breaker.close()
        log.warning("model %s: loaded again on %s, which failed: %s", model.id, here, failure[0])
        self._exchange(model, better, serving.passed)
        return True

    def _backs_off(self, model: Model) -> bool:
        """Whether every engine has failed on a model, and it is too early to try again."""
        hopeless = self._hopeless.get(model.folder.path)
        return hopeless is not None and hopeless.state == "open" and not hopeless.due

    def _breaker(self, model: Model, name: str) -> Breaker:
        return self._breakers.setdefault((model.folder.path, name), Breaker(self._clock))

    # Back to an engine

    def _retry_passed(self, serving: Serving, model: Model) -> None:
        """Count engines passed over when the model was loaded as failed, to try them again."""
        if not serving.passed or model.engine.prepared is not None:
            return
        for choice in self._preferred(model):
            name = _name(choice)
            why = next((w for w in serving.passed if w.startswith(f"{name}: ")), None)
            breaker = self._breaker(model, name)
            if why is not None and not breaker.why:
                breaker.trip(why.partition(": ")[2])

    def _fall_back(self, serving: Serving, model: Model) -> None:
        """Return to an engine that the profile prefers, if it works again."""
        for choice in self._preferred(model):
            breaker = self._breaker(model, _name(choice))
            if not breaker.due:
                continue
            better = self._better(serving, model, choice, breaker.failure)
            if better is None:
                # Wait twice as long; the first failure was logged, and health reports it.
                breaker.trip(breaker.why, breaker.failure)
                continue
            breaker.close()
            words = engine_words(better.engine.label)
            log.info("model %s: %s works again and serves", model.id, words)
            self._exchange(model, better, _without(serving.passed, _name(choice)))
            return

    def _preferred(self, model: Model) -> list[EngineChoice]:
        """List the engines that the profile prefers to the serving one."""
        choices = self._loader.engines.left_for(model.folder)
        names = [_name(choice) for choice in choices]
        here = _name(model.choice)
        return choices[: names.index(here)] if here in names else choices

    # Both

    def _better(
        self, serving: Serving, model: Model, choice: EngineChoice, failure: Failure | None
    ) -> Model | None:
        """Load a model on an engine if it succeeds where another failed, or return None."""
        if self._loader.engines.budget.exceeds(model.folder):
            return None  # there is not enough memory for all of it
        try:
            better = load_model(model.folder, [choice], serving.kind, checked=True)
        except AgentError as problem:
            log.debug("model %s: %s: %s", model.id, _name(choice), problem)
            return None
        self._loader.attach_check(better, serving.kind)
        try:
            held = better.check
            why = held.compare(better) if isinstance(held, GoldenCheck) else None
            if why is not None:
                raise EngineError(why)
            if failure is None:
                return better  # it had failed to load
            answer = better.answer(replace(failure[1], state=None))
            if isinstance(answer, AgentError):
                raise answer
        except AgentError as problem:
            log.debug("model %s: %s: %s", model.id, _name(choice), problem)
            better.close()
            return None
        return better

    def _exchange(self, old: Model, new: Model, passed: list[str]) -> None:
        """Replace a model by another between two frames, unless a push was faster."""
        self._hopeless.pop(old.folder.path, None)
        for serving in self._active.all():
            if serving.model is old:
                serving.passed = passed
        if not self._active.replace(old, new):
            new.close()


def _works(model: Model) -> bool:
    """Whether an engine still computes the last input that it has computed."""
    try:
        return model.last is not None and bool(model.run(model.last))
    except AgentError:
        return False


def _name(choice: EngineChoice) -> str:
    return f"{choice.engine}:{choice.device}"


def _without(passed: Iterable[str], name: str) -> list[str]:
    return [why for why in passed if not why.startswith(f"{name}: ")]
