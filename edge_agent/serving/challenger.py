"""Replaces the serving engine by a faster one after a comparison on live inputs.

A challenger is loaded next to the incumbent. It replaces it between two frames if it agrees on live
inputs and is faster; both are measured here in alternation. The decision is kept, so that an engine
that does not help is not built again until the model, the engine or the machine changes.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable
from pathlib import Path

from ..core.containment import contained
from ..core.errors import AgentError
from ..core.frozen import record
from ..core.types import Tensors
from ..inference.agreement import compare_models
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import engine_words, installed
from ..inference.model import Model
from ..inference.probe import race
from .active import ActiveModels, Serving
from .golden_check import is_held_to_golden, why_not_golden
from .reference_check import is_confirmed
from .verdicts import NOT_FASTER, Decision, Load, Verdicts

log = logging.getLogger(__name__)

MARGIN = 0.05
"""Share by which it must be faster to be worth the exchange."""
INPUTS = 3
"""Number of live inputs on which it must agree."""
RUNS = 15
"""Number of measured runs of each engine, in alternation."""
POLL_SECONDS = 0.05
_DISAGREES = "disagrees"


def name_of(choice: EngineChoice) -> str:
    """Return a challenger's name for the log: engine, device, options and version."""
    options = "".join(f" {key}={value}" for key, value in choice.options.items())
    version = installed().get(choice.engine, "?")
    return f"{choice.engine}:{choice.device}{options} {version}"


@record
class Notes:
    """The place where the decision about a challenger is kept."""

    verdicts: Verdicts
    folder: Path
    """The model's folder."""
    choice: EngineChoice
    load: Load = "whole"

    def read(self) -> Decision | None:
        """Return the decision, or None if there is none yet."""
        return self.verdicts.race(self.folder, self.choice, self.load)

    def write(self, decision: Decision) -> None:
        """Store the decision."""
        self.verdicts.record_race(self.folder, self.choice, decision, self.load)


class Challenge:
    """A comparison of a challenger with the serving model, while frames continue."""

    def __init__(
        self,
        serving: Serving,
        incumbent: Model,
        active: ActiveModels,
        load: Callable[[], Model],
        notes: Notes | None,
        name: str,
        *,
        faster: str | None = None,
        verified: bool = False,
    ) -> None:
        """Set up without loading anything.

        Args:
            serving: the serving whose model is challenged.
            incumbent: its present model.
            active: exchanges the model.
            load: loads the challenger's model; raises `AgentError` if that fails.
            notes: where the decision is kept; None: nowhere.
            name: the challenger's name for the log.
            faster: the evidence that it is faster, such as a tune: it only needs to agree. None:
                it must be measured.
            verified: whether its engine is known to compute this model correctly; if it is also
                known to be faster, nothing is compared.
        """
        self.incumbent = incumbent
        self._serving = serving
        self._active = active
        self._verified = verified
        self._load = load
        self._notes = notes
        self._name = name
        self._faster = faster
        self._known: Decision | None = None
        self._model: Model | None = None
        self._compared_with: Model | None = None
        self._last: Tensors | None = None
        """The latest compared input, in the incumbent's form."""
        self._inputs: list[Tensors] = []
        """All compared inputs, in the form that any engine accepts."""

    def step(self) -> Decision | None:
        """Load the challenger, then compare it on one live input per call; decide at the end.

        Returns:
            The decision; None: call again after `POLL_SECONDS`. If the challenger failed to load
            or another model serves now, nothing is kept.
        """
        if self._model is None:
            decision = self._begin()
            if decision is not None or self._model is None:
                return decision
        model = self._model
        try:
            decision = self._compare(model)
        except AgentError as problem:
            decision = self._against(str(problem))
        except BaseException:
            self.close()
            raise
        if decision is None:
            return None
        if not decision.takes_over:
            self.close()
        # The measurements of a tune are kept by the tune.
        kept = self._faster is None or not decision.takes_over
        if self._compared_with is not None and kept and self._notes is not None:
            self._notes.write(decision)
        return decision

    def stopped(self) -> Decision:
        """Return the decision of an unfinished challenge."""
        return self._against("stopped before it was tried")

    def close(self) -> None:
        """Close the challenger if it does not serve."""
        if self._model is not None:
            self._model.close()

    def _begin(self) -> Decision | None:
        """Load the challenger, unless it is known not to help."""
        known = None if self._notes is None else self._notes.read()
        # If it was refused only for its speed, its times are stored.
        refused = known is not None and not known.takes_over
        if known is not None and refused and (self._faster is None or known.incumbent_ms is None):
            return known
        if known is None or refused:
            known = None
            if self._faster is not None:
                known = Decision(engine=self._name, takes_over=True, why=self._faster)
        self._known = known
        try:
            with contained(self._name):
                self._model = self._load()
        except AgentError as problem:
            return Decision(engine=self._name, takes_over=False, why=f"not loaded: {problem}")
        if not is_held_to_golden(self._model.folder):
            return None
        try:
            why = why_not_golden(self._model)
        except AgentError as problem:
            why = str(problem)
        if why is None:
            return None
        decision = self._against(f"{_DISAGREES}: {why}")
        self.close()
        return decision

    def _compare(self, model: Model) -> Decision | None:
        """Compare on the latest input; decide after enough inputs."""
        incumbent = self._serving.model
        last = None if incumbent is None else incumbent.last
        # A model that is itself still being compared is no reference.
        if incumbent is None or last is None or last is self._last or incumbent.check is not None:
            return None
        self._last = last
        if self._compared_with not in {None, incumbent}:
            self._compared_with = None
            return self.stopped()
        self._compared_with = incumbent
        if self._verified and self._known is not None:
            return self._decide(incumbent, model)
        tensors = incumbent.unfolded(last)
        self._inputs.append(tensors)
        agreement = compare_models(incumbent, model, tensors)
        if not agreement.passed:
            may_be_right = incumbent.loaded_quickly and _is_unchanged(incumbent)
            if not may_be_right or not is_confirmed(model, self._serving.kind, [tensors]):
                return self._against(f"{_DISAGREES}: {agreement.why}")
            # The model that was loaded first is wrong, however fast it is.
            self._known = Decision(
                engine=self._name,
                takes_over=True,
                why=f"another engine agrees with it: {agreement.why}",
            )
            return self._decide(incumbent, model)
        return self._decide(incumbent, model) if len(self._inputs) == INPUTS else None

    def _decide(self, incumbent: Model, model: Model) -> Decision:
        """Measure both, unless it is known which is faster, and replace a slower incumbent."""
        if self._known is not None:
            why = self._known.why
            old_ms, new_ms = self._known.incumbent_ms, self._known.challenger_ms
        else:
            with contained(model.id):
                old_ms, new_ms = _race(incumbent, model, self._inputs)
            quickly = ", as it was loaded first" if incumbent.loaded_quickly else ""
            why = f"{new_ms:.2f} ms beside {old_ms:.2f} ms of {incumbent.engine.label}{quickly}"
            if new_ms > old_ms * (1 - MARGIN):
                return self._against(f"{NOT_FASTER}: {why}", old_ms, new_ms)
        if not self._active.replace(incumbent, model):
            self._compared_with = None
            return self.stopped()
        return Decision(
            engine=model.engine.label,
            takes_over=True,
            why=why,
            incumbent_ms=old_ms,
            challenger_ms=new_ms,
        )

    def _against(
        self, why: str, old_ms: float | None = None, new_ms: float | None = None
    ) -> Decision:
        label = self._name if self._model is None else self._model.engine.label
        return Decision(
            engine=label, takes_over=False, why=why, incumbent_ms=old_ms, challenger_ms=new_ms
        )


def _is_unchanged(model: Model) -> bool:
    """Whether a model's files are still those it was loaded from.

    Unlike the modification time, the time of the last status change cannot be set.
    """
    try:
        changed = [each.stat().st_ctime_ns for each in model.folder.path.iterdir()]
    except OSError:
        return False
    return max(changed, default=0) < model.stats.loaded_ns


class Challenger:
    """One challenge at a time: a challenger takes as much memory as the serving model."""

    def __init__(self, active: ActiveModels) -> None:
        self.active = active
        self.challenge: Challenge | None = None

    def compares(self, model: Model) -> bool:
        """Whether this model is being challenged."""
        return self.challenge is not None and self.challenge.incumbent is model

    def compare(self) -> Decision | None:
        """Continue the challenge; return the decision, or None: call again after `POLL_SECONDS`."""
        decision = None if self.challenge is None else self.challenge.step()
        if decision is not None:
            self.challenge = None
        return decision

    def step(self) -> float:
        """End a challenge whose incumbent no longer serves."""
        model = None if self.challenge is None else self.challenge.incumbent
        if model is not None and not self.active.serves(model):
            self.close()
        return math.inf

    def close(self) -> None:
        """End the challenge."""
        challenge, self.challenge = self.challenge, None
        if challenge is not None:
            challenge.close()


def log_decision(model: Model, who: str, decision: Decision) -> None:
    """Log the decision about a challenger of a model."""
    who, why = engine_words(who), engine_words(decision.why)
    if decision.takes_over:
        log.info("model %s: %s takes over: %s", model.id, who, why)
        return
    stays = engine_words(model.engine.label)
    level = logging.INFO
    if decision.why.startswith(_DISAGREES):
        level = logging.WARNING
    elif decision.why.startswith(NOT_FASTER):
        level = logging.DEBUG  # nothing changes, and there is nothing to do about it
    log.log(level, "model %s stays on %s; %s was tried: %s", model.id, stays, who, why)


def _race(one: Model, other: Model, inputs: list[Tensors]) -> tuple[float, float]:
    """Return the median of a run of each, ms, at the pace of frames."""

    def runs(model: Model) -> Callable[[int], object]:
        ready = [model.ready(tensors) for tensors in inputs]
        return lambda number: model.run(ready[number % len(ready)])

    took = race([runs(one), runs(other)], RUNS)
    return round(statistics.median(took[0]), 3), round(statistics.median(took[1]), 3)
