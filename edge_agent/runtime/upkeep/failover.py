"""Has a model leave an engine that fails, for the next one of the profile, and come back later.

Looks twice a second at what the lanes count: nothing of it is on the way of a frame. An engine that
fails on FAILURES frames in a row, with an error or with numbers that are not finite, is left when
another one, loaded beside it, does better on the very frame that it failed on. Where every engine
fails on that frame it is the model's fault, or the frame's, and no exchange would help.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ...core.errors import AgentError, EngineError
from ...core.types import Sample
from ...inference.engines.protocol import EngineChoice
from ...inference.model import Model, Region, load_model
from ..serving.active import ActiveModels, Serving
from ..serving.loader import ModelLoader
from .breaker import FAILURES, Breaker

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5

Key = tuple[Path, str]
"""The model's folder, and the engine with its device."""
Failure = tuple[str, Sample, Region | None]
"""What was said, and what it was given."""


class Failover:
    """Watches what serves."""

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            active: what serves.
            loader: how models are opened here.
            clock: monotonic seconds.

        """
        self._active = active
        self._loader = loader
        self._clock = clock
        self._breakers: dict[Key, Breaker] = {}
        self._failures: dict[Key, Failure | None] = {}
        """What an engine must do better to be taken back."""
        self._hopeless: dict[Path, Breaker] = {}
        """Models that fail on every engine."""
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()

    def run(self) -> None:
        """Look until closed."""
        while not self._closing.wait(POLL_SECONDS):
            self.look()

    def look(self) -> None:
        """See to what fails, and to what may be tried again."""
        for serving in self._active.all():
            model = serving.model
            if model is None or self._closing.is_set():
                continue
            self._notice_passed(serving, model)
            if model.failing >= FAILURES:
                self._demote(serving, model)
            else:
                self._promote(serving, model)

    def why(self) -> list[str]:
        """Say which models fail whatever runs them; demotions are told of by what serves."""
        served = {s.model.folder.path: s.model for s in self._active.all() if s.model}
        return [
            f"model {served[path].id}: {breaker.why}"
            for path, breaker in list(self._hopeless.items())
            if path in served and served[path].failing >= FAILURES
        ]

    # Away from an engine

    def _demote(self, serving: Serving, model: Model) -> None:
        failure = model.failure
        if failure is None or self._waits(model):
            return
        words, sample, _ = failure
        if sample.data.dtype.kind == "f" and not np.isfinite(sample.data).all():
            model.failing = 0  # what goes in is not finite either: no engine is to blame
            return
        here = _name(model.choice)
        choices = self._choices(model)
        for choice in choices:
            if _name(choice) == here or not self._may(model, choice):
                continue
            better = self._better(serving, model, choice, failure)
            if better is not None:
                breaker = self._trip(model, here, words, failure)
                log.warning(
                    "model %s: %s serves instead of %s, which failed on %d frames in a row: %s; "
                    "that is tried again in %.0f s",
                    *(model.id, better.engine.label, here, model.failing, words, breaker.wait),
                )
                passed = [f"{here}: {words}", *_without(serving.passed, here)]
                self._exchange(model, better, passed)
                return
        if self._anew(serving, model, choices, failure):
            return
        known = model.folder.path in self._hopeless
        hopeless = self._hopeless.setdefault(model.folder.path, Breaker(self._clock))
        hopeless.trip(f"fails on every engine: {words}")
        if not known:
            log.error("model %s: %s", model.id, hopeless.why)

    def _anew(
        self, serving: Serving, model: Model, choices: list[EngineChoice], failure: Failure
    ) -> bool:
        """Load it once more on the engine it is on: a device that was reset takes new networks."""
        here = _name(model.choice)
        known = self._breakers.get((model.folder.path, here))
        if known is not None and known.state != "closed":
            return False  # done already, and it has not helped
        same = next((choice for choice in choices if _name(choice) == here), model.choice)
        better = self._better(serving, model, same, failure)
        if better is None:
            return False
        self._trip(model, here, failure[0], failure).close()
        log.warning("model %s: loaded anew on %s, which failed: %s", model.id, here, failure[0])
        self._exchange(model, better, serving.passed)
        return True

    def _waits(self, model: Model) -> bool:
        """Whether every engine has failed on it, not long ago."""
        hopeless = self._hopeless.get(model.folder.path)
        return hopeless is not None and hopeless.state == "open" and not hopeless.due

    def _trip(self, model: Model, here: str, words: str, failure: Failure | None) -> Breaker:
        key = (model.folder.path, here)
        breaker = self._breakers.setdefault(key, Breaker(self._clock))
        breaker.trip(words)
        self._failures[key] = failure
        return breaker

    def _may(self, model: Model, choice: EngineChoice) -> bool:
        breaker = self._breakers.get((model.folder.path, _name(choice)))
        return breaker is None or breaker.state != "open" or breaker.due

    # Back to it

    def _notice_passed(self, serving: Serving, model: Model) -> None:
        """Have what was passed over when the model was loaded tried again too."""
        if not serving.passed or model.engine.prepared is not None:
            return
        for choice in self._before(model):
            key = (model.folder.path, _name(choice))
            why = next((w for w in serving.passed if w.startswith(f"{key[1]}: ")), None)
            if why is not None and key not in self._breakers:
                self._trip(model, key[1], why.partition(": ")[2], None)

    def _promote(self, serving: Serving, model: Model) -> None:
        """Take an engine back that the profile prefers, if it works again."""
        for choice in self._before(model):
            key = (model.folder.path, _name(choice))
            breaker = self._breakers.get(key)
            if breaker is None or not breaker.due:
                continue
            better = self._better(serving, model, choice, self._failures.get(key))
            if better is None:
                # As long again and longer; said when it failed first, and in health all along.
                breaker.trip(breaker.why)
                continue
            breaker.close()
            log.info("model %s: %s works again and serves", model.id, better.engine.label)
            self._exchange(model, better, _without(serving.passed, key[1]))
            return

    def _before(self, model: Model) -> list[EngineChoice]:
        """List the engines that the profile prefers to the one that serves."""
        choices = self._choices(model)
        names = [_name(choice) for choice in choices]
        here = _name(model.choice)
        return choices[: names.index(here)] if here in names else choices

    def _choices(self, model: Model) -> list[EngineChoice]:
        try:
            return self._loader.choices_for(model.folder)
        except EngineError:
            return []

    # Both

    def _better(
        self, serving: Serving, model: Model, choice: EngineChoice, failure: Failure | None
    ) -> Model | None:
        """Load a model on an engine and have it do what another could not; None: it cannot."""
        if self._loader.exceeds_budget(model.folder):
            return None  # there is no room for the whole of it
        try:
            better = load_model(model.folder, [choice], serving.kind, checked=True)[0]
        except AgentError as problem:
            log.debug("model %s: %s: %s", model.id, _name(choice), problem)
            return None
        if failure is None:
            return better  # it had failed to load
        try:
            better.infer(failure[1], region=failure[2])
        except AgentError as problem:
            log.debug("model %s: %s: %s", model.id, _name(choice), problem)
            better.close()
            return None
        return better

    def _exchange(self, old: Model, new: Model, passed: list[str]) -> None:
        """Put one in the other's place between two frames, unless a push was faster."""
        self._hopeless.pop(old.folder.path, None)
        for serving in self._active.all():
            if serving.model is old:
                serving.passed = passed
        if not self._active.replace(old, new):
            new.close()


def _name(choice: EngineChoice) -> str:
    return f"{choice.engine}:{choice.device}"


def _without(passed: Iterable[str], name: str) -> list[str]:
    return [why for why in passed if not why.startswith(f"{name}: ")]
