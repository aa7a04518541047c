"""What serves in the long run: the engine that the profile prefers, if it deserves it here.

A start loads what gives the first result soonest. Behind it is built what runs best, and takes
over between two frames. What could not be started like that, as it was pushed or is new here, runs
as the engine loads it; once its prepared form is there, that may be the better way to run it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from ...core.errors import AgentError, EngineError
from ...core.types import Tensors
from ...inference.engines.protocol import EngineChoice, PreparedForm
from ...inference.model import Model, load_model
from ...inference.prepared.artifact import Artifact
from ...inference.prepared.engine import accepts_batches
from ..serving.active import ActiveModels, Serving
from ..serving.challenger_results import Decision, name_of, remember, turned
from ..serving.loader import ModelLoader
from .challenger import rehearse

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
"""Until a form is looked at again whose model has no frames, or is on probation."""
FRAMES_SECONDS = 30.0
"""For the frames on which a form has to agree. Where so few come, nobody waits for a faster way:
it is not built again and again."""


class Offer(NamedTuple):
    """A prepared form that is there now, of a model that was loaded without."""

    serving: Serving
    model: Model
    form: Artifact


class EngineUpgrade:
    """Sees to the models that serve, one after the other."""

    def __init__(
        self, active: ActiveModels, loader: ModelLoader, *, watched: Callable[[str], bool]
    ) -> None:
        """Prepare.

        Args:
            active: what serves.
            loader: how models are loaded here.
            watched: whether a model of a name is on trial or on probation, and so stays as it is.

        """
        self._active = active
        self._loader = loader
        self._watched = watched
        self._offers: SimpleQueue[Offer | None] = SimpleQueue()
        self._closing = threading.Event()
        self.done = threading.Event()
        """Every model of the start has the engine that it keeps."""

    def close(self) -> None:
        self._closing.set()
        self._offers.put(None)

    def offer(self, serving: Serving, model: Model, form: Artifact) -> None:
        """Take a form that was made of a model that serves as it was loaded."""
        self._offers.put(Offer(serving, model, form))

    def run(self) -> None:
        """Give each model that was loaded quickly the engine that it shall keep, then the others.

        Until closed.
        """
        try:
            self._see_to_start()
        finally:
            self.done.set()
        while (offer := self._offers.get()) is not None:
            if self._may_improve(offer) and not self._improve(offer):
                self._closing.wait(AGAIN_SECONDS)
                self._offers.put(offer)
            del offer  # else the model stays in memory until there is another one

    def _see_to_start(self) -> None:
        for serving in self._active.all():
            model = serving.model
            if model is None or model.engine.prepared is None:
                continue
            prepared = model.engine.prepared
            if self._closing.is_set():
                return
            self._tune(serving, model)
            try:
                choices = self._loader.choices_for(model.folder)
            except EngineError:
                continue
            self._settle(model, prepared, choices)
            preferred = choices[0]
            if preferred.place != model.choice.place:
                self._rehearse(serving, model, prepared, preferred)

    def _tune(self, serving: Serving, model: Model) -> None:
        """Find out what suits a model, where the profile asks for it and nothing is known yet."""
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

    def _settle(self, model: Model, prepared: PreparedForm, choices: list[EngineChoice]) -> None:
        """Give it the threads that the lanes leave, and prepared weights."""
        if prepared.damaged is not None:
            return
        own = next(
            (choice for choice in choices if choice.engine == model.choice.engine), model.choice
        )
        try:
            if prepared.finish_load(own.threads or None):
                log.info("model %s: settled for the long run", model.id)
        except EngineError as problem:
            log.warning("model %s: stays as it was loaded: %s", model.id, problem)

    def _rehearse(
        self, serving: Serving, model: Model, prepared: PreparedForm, preferred: EngineChoice
    ) -> None:
        """Let the engine that the profile prefers take over, if it is faster."""
        best = self._loader.best_way(model.folder)
        decision = rehearse(
            _Role(serving, self._active),
            lambda: load_model(model.folder, [preferred], serving.kind, checked=True)[0],
            Path(prepared.folder),
            name_of(preferred),
            tolerance=model.manifest.trial.tolerance,
            stopped=self._closing.wait,
            faster=None if best is None else f"tuned: {best}",
        )
        _say(model, decision.engine, decision)

    def _may_improve(self, offer: Offer) -> bool:
        """Whether a form could take over what serves."""
        serving, model, form = offer
        return (
            not self._closing.is_set()
            and serving.model is model
            and model.engine.prepared is None
            # A form takes one sample at a time.
            and (
                max(self._loader.max_batch(model.folder), serving.crops) == 1
                or not accepts_batches(form)
            )
            # A device that cannot hold two versions of a model does not hold one twice.
            and self._loader.profile.swap != "replace"
        )

    def _improve(self, offer: Offer) -> bool:
        """Let the form take over if it is faster; False: to be seen later."""
        serving, model, form = offer
        role = _Role(serving, self._active)
        choice = self._loader.prepared_choice(model.folder)
        best = self._loader.best_way(model.folder)
        if choice is None or (best is not None and best.engine != choice.engine):
            return True  # nothing is left to find out
        if self._watched(model.manifest.name) or role.live() is None:
            return False
        notes = Path(form.folder)
        until = time.monotonic() + FRAMES_SECONDS
        decision = rehearse(
            role,
            lambda: self._loader.load_prepared(model.folder, form, serving.kind),
            notes,
            f"form of {name_of(choice)}",
            tolerance=model.manifest.trial.tolerance,
            stopped=lambda seconds: self._closing.wait(seconds) or time.monotonic() > until,
        )
        _say(model, f"its prepared form on {form.table['label']}", decision)
        known = turned(decision, model.engine.label)
        if known is not None and model.choice.place != choice.place:
            # The next start begins with the form, and need not find out again.
            remember(notes, name_of(model.choice), known)
        return True


def _say(model: Model, who: str, decision: Decision) -> None:
    log.info(
        "model %s: %s %s: %s",
        model.id,
        who,
        "takes over" if decision.takes_over else "does not take over",
        decision.why,
    )


class _Role:
    """A serving, as an understudy sees it."""

    def __init__(self, serving: Serving, active: ActiveModels) -> None:
        self._serving = serving
        self._active = active
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
        return self._active.replace(old, new)
