"""An engine that takes longer to build learns its part behind the one that plays.

It takes over between two frames, and only if it agrees on live inputs and is faster, as measured
here beside the other. What came of it is kept with the prepared form, so that one that is not worth
it is not built again until the model, the engine or the machine is another.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ...core.errors import AgentError
from ...core.types import Tensors
from ...inference.compare import compare_findings, race
from ...inference.model import Model, default_threshold
from ..serving.challenger_results import Decision, recall, remember

MARGIN = 0.05
"""Share by which it must be faster: less is not worth the exchange."""
INPUTS = 3
"""Live inputs on which it must agree."""
DOUBT = 0.05
"""How far above the threshold of a score a box is in doubt: INT8 differs from engine to engine."""
RUNS = 15
"""Of each engine, in turns."""
POLL_SECONDS = 0.05


class Role(Protocol):
    """What is played: a serving, as far as it matters here."""

    def live(self) -> tuple[Model, Tensors] | None:
        """Give who plays and the tensors of its latest inference; None where there was none yet."""

    def exchange(self, old: Model, new: Model) -> bool:
        """Have *new* play from the next frame on, and retire *old* when its last frame is through.

        False, and nothing is done, where *old* does not play any more.
        """


def rehearse(
    role: Role,
    build: Callable[[], Model],
    notes: Path,
    name: str,
    *,
    tolerance: float,
    stopped: Callable[[float], bool],
    faster: str | None = None,
) -> Decision:
    """Build an understudy, compare it with who plays, and let the better one play.

    Takes as long as it takes, in a thread of the caller's; frames go on meanwhile.

    Args:
        role: what is played.
        build: makes the understudy's model, loaded; raises `AgentError` where it cannot be.
        notes: folder of the prepared form that decisions are kept with; it may vanish meanwhile.
        name: of the understudy, by which it will be known again: engine, version and options.
        tolerance: of numbers, as for golden inputs.
        stopped: waits for so many seconds; True: stop.
        faster: how it is known to be the faster one, as from a tune: it need only agree. None: it
            has to show it.

    Returns:
        What came of it. Where it failed to load, or was stopped, nothing is kept.

    """
    known = recall(notes, name)
    # One that was refused for its speed alone has its times noted.
    refused = known is not None and not known.takes_over
    if known is not None and refused and (faster is None or known.incumbent_ms is None):
        return known
    if known is None or refused:
        known = None if faster is None else Decision(engine=name, takes_over=True, why=faster)
    try:
        model = build()
    except AgentError as problem:
        return Decision(engine=name, takes_over=False, why=f"not loaded: {problem}")
    decision = None
    try:
        decision = _audition(role, model, known, tolerance, stopped)
    except AgentError as problem:
        decision = Decision(engine=model.engine.label, takes_over=False, why=str(problem))
    finally:
        if decision is None or not decision.takes_over:
            model.close()
    if decision is None:
        return Decision(
            engine=model.engine.label, takes_over=False, why="stopped before it was tried"
        )
    if faster is None or not decision.takes_over:
        # What a tune says is asked of the tune again.
        remember(notes, name, decision)
    return decision


def _audition(
    role: Role,
    model: Model,
    known: Decision | None,
    tolerance: float,
    stopped: Callable[[float], bool],
) -> Decision | None:
    """See that it agrees and is faster, and exchange; None: stopped, or another model plays now.

    Raises:
        AgentError: it fails on a live input.

    """
    label = model.engine.label
    incumbent: Model | None = None
    seen: list[Tensors] = []
    while len(seen) < INPUTS:
        playing = role.live()
        if playing is not None and incumbent is not None and playing[0] is not incumbent:
            return None
        if playing is not None and not any(playing[1] is each for each in seen):
            incumbent, tensors = playing
            seen.append(tensors)
            expected = incumbent.decode(incumbent.raw(tensors), tensors)
            agreement = compare_findings(
                expected,
                model.decode(model.raw(tensors), tensors),
                tolerance,
                doubt=default_threshold(model.folder) + DOUBT,
            )
            if not agreement.passed:
                return Decision(engine=label, takes_over=False, why=f"disagrees: {agreement.why}")
        if stopped(POLL_SECONDS if len(seen) < INPUTS else 0):
            return None
    assert incumbent is not None  # noqa: S101 - set with the first input
    if known is not None:
        why, old_ms, new_ms = known.why, known.incumbent_ms, known.understudy_ms
    else:
        old_ms, new_ms = _race(incumbent, model, seen)
        why = f"{new_ms:.2f} ms beside {old_ms:.2f} ms of {incumbent.engine.label}"
        if new_ms > old_ms * (1 - MARGIN):
            return Decision(
                engine=label,
                takes_over=False,
                why=f"not faster: {why}",
                incumbent_ms=old_ms,
                understudy_ms=new_ms,
            )
    if not role.exchange(incumbent, model):
        return None
    return Decision(
        engine=label, takes_over=True, why=why, incumbent_ms=old_ms, understudy_ms=new_ms
    )


def _race(one: Model, other: Model, inputs: list[Tensors]) -> tuple[float, float]:
    """Return the median of a run of each, ms, as frames come to them."""

    def runs(model: Model) -> Callable[[int], object]:
        ready = [model.ready(tensors) for tensors in inputs]
        return lambda number: model.raw(ready[number % len(ready)])

    took = race([runs(one), runs(other)], RUNS)
    return round(statistics.median(took[0]), 3), round(statistics.median(took[1]), 3)
