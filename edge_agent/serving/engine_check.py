"""Checks each engine once on its model: with golden outputs, or else against a plain session.

This is done once for each model, engine, engine version and processor: the verdict is kept. A wrong
engine is replaced by the next one between two frames; if all are wrong, a session without
optimization serves. Until an engine has been compared, its model's check answers, if it has one. If
a model fits in memory only once, a session without optimization serves first, and the engine is
loaded after that is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

from ..core.errors import AgentError, ModelError
from ..core.types import Kind, Tensors
from ..inference.engines.registry import QUICK_WAY
from ..inference.model import Model, OutputCheck, load_model
from ..models.manifest import ModelFolder
from .active import ActiveModels, Serving
from .challenger import POLL_SECONDS
from .golden_check import GoldenCheck, is_held_to_golden, why_not_golden
from .loader import ModelLoader
from .reference_check import INPUTS, Statement, is_confirmed, state, why_unlike, why_wrong
from .verdicts import Verdicts

log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""Seconds until a model without frames, or without its own check done, is tried again."""


class EngineCheck:
    """Checks each model's engine, and exchanges wrong ones."""

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        found: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up without checking anything."""
        self._active = active
        self._loader = loader
        self._found = found
        self._said: WeakKeyDictionary[Model, list[Statement]] = WeakKeyDictionary()
        """Statements of each serving session without optimization, for the next engine."""
        self._heard: Tensors | None = None
        """The input of the latest statement."""
        self._degraded: dict[str, str] = {}
        """Why a model does not run on its proper engine, by name of the model."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Check a model's engine; return the pause, or None when it has been checked."""
        verdicts = self._loader.engines.verdicts
        if verdicts is not None and self._must_give_golden(model):
            held = model.check
            why = held.compare(model) if isinstance(held, GoldenCheck) else why_not_golden(model)
            if why is not None or not model.is_reference:
                self._conclude(verdicts, serving, model, why)
                return None
        if model.loaded_quickly:
            return None  # computes the network exactly, and is the reference for others
        if verdicts is not None and model.is_reference:
            return self._take_turns(verdicts, serving, model)
        if verdicts is None or verdicts.is_correct(model.folder.path, model.choice):
            _dismiss(model)
            return None
        if model.check is None:  # it was loaded otherwise, after another one had failed
            if model.last is None:
                return IDLE_SECONDS
            if self._loader.engines.unverified_alone(model.folder, model.choice):
                self._load_again(model)
                return None
            self._loader.attach_check(model, serving.kind)
        return None if model.check is None else self._hear(verdicts, serving, model, model.check)

    def _must_give_golden(self, model: Model) -> bool:
        """Whether a model must still produce its golden outputs on its engine."""
        verdicts, folder = self._loader.engines.verdicts, model.folder
        if verdicts is None or not is_held_to_golden(folder):
            return False
        if model.loaded_quickly:
            return model.check is not None
        return not verdicts.is_correct(folder.path, model.choice)

    def problems(self) -> list[str]:
        """List the models that were moved off an engine since the start."""
        names = {each.model.manifest.name for each in self._active.all() if each.model is not None}
        return [why for name, why in list(self._degraded.items()) if name in names]

    def _hear(
        self, verdicts: Verdicts, serving: Serving, model: Model, check: OutputCheck
    ) -> float | None:
        """Act on a model's check once that has settled."""
        if not check.settled:
            return IDLE_SECONDS if model.last is None else POLL_SECONDS
        why, last = check.why, model.last
        if why is not None and last is not None:
            why = None if is_confirmed(model, serving.kind, [model.unfolded(last)]) else why
        if check.satisfied or check.why is not None:
            self._conclude(verdicts, serving, model, why)
        else:
            _dismiss(model)  # it could compute nothing, and has logged that
        return None

    def _take_turns(self, verdicts: Verdicts, serving: Serving, plain: Model) -> float | None:
        """Collect the serving session's answers to live inputs, then replace it by the engine."""
        said = self._said.setdefault(plain, [])
        if len(said) < INPUTS and not plain.folder.golden.is_file():
            last = plain.last
            if last is None:
                return IDLE_SECONDS
            if last is not self._heard:
                self._heard = last
                with suppress(AgentError):  # failures are counted where it serves
                    said.append(state(plain, plain.unfolded(last)))
            return POLL_SECONDS
        self._exchange_alone(verdicts, serving, plain, said, [])
        return None

    def _exchange_alone(
        self,
        verdicts: Verdicts,
        serving: Serving,
        plain: Model,
        said: list[Statement],
        wrong: list[str],
    ) -> None:
        """Unload a model, and serve with the first correct engine; *wrong*: the others' faults."""
        after = partial(self._after, verdicts, serving.kind, plain.folder, said, wrong)
        servings = self._active.renew(plain, after)
        if not servings:
            return
        now = serving.model
        if now is None:
            words = "; ".join(wrong) or f"model {plain.id} cannot be loaded"
            log.error("%s; nothing else runs it", words)
        elif wrong:
            self._report(now, wrong)
        else:
            label = plain.engine.label
            log.info("model %s: on %s: as on %s unoptimized", now.id, now.engine.label, label)
        for each in servings:  # one without a model, like the next start: refused with the reason
            self._active.load(each)

    def _after(
        self,
        verdicts: Verdicts,
        kind: Kind,
        folder: ModelFolder,
        said: list[Statement],
        wrong: list[str],
    ) -> Model | None:
        """Load a model that may serve, or return None if no engine may."""

        def load() -> Model:
            return load_model(folder, self._loader.engines.choices_for(folder), kind, checked=True)

        try:
            return self._first_right(verdicts, load, said, wrong)
        except AgentError as problem:
            log.debug("model %s: %s", folder.manifest.id, problem)  # logged at the next load
            return None

    def _first_right(
        self,
        verdicts: Verdicts,
        load: Callable[[], Model],
        said: list[Statement],
        wrong: list[str],
    ) -> Model:
        """Load the first engine that produces the golden outputs or agrees with the statements.

        The reasons against the others are appended to *wrong*.
        """
        while True:
            model = load()
            path, choice = model.folder.path, model.choice
            golden = self._must_give_golden(model)
            if not golden and not self._loader.engines.unverified_alone(model.folder, choice):
                return model
            try:
                why = why_not_golden(model) if golden else why_unlike(said, model)
            except AgentError as problem:
                why = str(problem)
            if why is None:
                verdicts.mark_correct(path, choice)
                _dismiss(model)
                self._found()
                return model
            verdicts.mark_wrong(path, choice, why)
            wrong.append(f"model {model.id}: {model.engine.label} computes it wrongly: {why}")
            model.close()
            if verdicts.why_wrong(path, choice) is None:
                raise ModelError(wrong[-1])  # its files can no longer be read

    def _conclude(
        self, verdicts: Verdicts, serving: Serving, model: Model, why: str | None
    ) -> None:
        """Record the verdict, and exchange a model whose engine is wrong."""
        choice = model.choice
        if model.loaded_quickly:
            choice = replace(choice, options=QUICK_WAY)
        if why is None:
            verdicts.mark_correct(model.folder.path, choice)
            _dismiss(model)
            self._found()
            return
        wrong = [f"model {model.id}: {model.engine.label} computes it wrongly: {why}"]
        verdicts.mark_wrong(model.folder.path, choice, why)
        if self._loader.engines.profile.swap == "replace" and is_held_to_golden(model.folder):
            self._exchange_alone(verdicts, serving, model, [], wrong)
            return

        def load() -> Model:
            return self._loader.load(model.folder, serving.kind, checked=True)[0]

        try:
            other = self._first_right(verdicts, load, [], wrong)
        except AgentError as problem:
            log.error("%s; nothing else runs it: %s", "; ".join(wrong), problem)  # noqa: TRY400 - one line
            # Like the next start: refused, with the reason in the device's reports.
            self._load_again(model)
            return
        if not self._active.replace(model, other):
            with suppress(AgentError):
                other.close()
            return
        self._report(other, wrong)

    def _report(self, now: Model, wrong: list[str]) -> None:
        """Log that a model was moved to another engine, and store that for health."""
        words, label = "; ".join(wrong), now.engine.label
        log.warning("%s; now on %s", words, label)
        self._degraded[now.manifest.name] = f"{words}; runs on {label}"

    def _load_again(self, model: Model) -> None:
        """Unload a model, and load it again as at a start; nothing else gets its room meanwhile."""
        servings = [each for each in self._active.all() if each.model is model]
        with self._loader.engines.budget.loading(model.folder, again=True):
            for old in self._active.unload(lambda _serving, one: one is model):
                self._active.retire(old)
            for each in servings:
                self._active.load(each)


class FormCheck:
    """Checks the form used by the next start, if another engine serves in the long run.

    A prepared form computes the same numbers as its own engine, bit for bit; here they are compared
    with the serving model, which has been checked. Otherwise the next start would have to do this.
    """

    def __init__(self, loader: ModelLoader, found: Callable[[], None]) -> None:
        """Set up without checking anything."""
        self._loader = loader
        self._found = found
        self._seen: WeakKeyDictionary[Model, list[Tensors]] = WeakKeyDictionary()
        """Inputs on which a form will be compared, by serving model."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Compare a model's form with the serving model; return the pause, or None when done."""
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


def _dismiss(model: Model) -> None:
    """Have a model's own engine answer from the next frame on."""
    check, model.check = model.check, None
    if check is not None:
        check.close()
