"""Decisions about challenger engines, kept beside the prepared form."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.frozen import record
from ..core.state_file import StateFile
from ..inference.engines.engine import EngineChoice
from ..inference.engines.registry import installed

FILE = "understudies.json"
NOT_FASTER = "not faster"
"""How the reason of a decision begins, where the challenger agreed but was no quicker."""
_CHALLENGER_MS = "understudy_ms"
"""As the file has it: challengers were once called so."""


@record(kw_only=True)
class Decision:
    """The outcome of a challenge."""

    engine: str
    """The challenger's label, or its name where it was not built."""
    takes_over: bool
    why: str
    incumbent_ms: float | None = None
    """Median of a run of the engine that served; None: it was not measured."""
    challenger_ms: float | None = None


def name_of(choice: EngineChoice) -> str:
    """Name a challenger, by which it will be known again: engine, options and version."""
    return f"{choice} {installed().get(choice.engine, '?')}"


def refused(notes: Path, choice: EngineChoice) -> bool:
    """Whether an engine is known not to be worth it here."""
    known = read_decision(notes, name_of(choice))
    return known is not None and not known.takes_over


def reversed_decision(decision: Decision, engine: str) -> Decision | None:
    """Return the decision that there would be, had challenger and incumbent changed places.

    Args:
        decision: about a challenger.
        engine: label of the incumbent.

    Returns:
        None where they were not measured beside each other.
    """
    if decision.incumbent_ms is None or decision.challenger_ms is None:
        return None
    lost = f"{NOT_FASTER}: " if decision.takes_over else ""
    return Decision(
        engine=engine,
        takes_over=not decision.takes_over,
        why=f"{lost}{decision.incumbent_ms:.2f} ms beside {decision.challenger_ms:.2f} ms of "
        f"{decision.engine}",
        incumbent_ms=decision.challenger_ms,
        challenger_ms=decision.incumbent_ms,
    )


def read_decision(notes: Path, name: str) -> Decision | None:
    """Return the decision about a challenger; None where there is none that can be read."""
    try:
        entry = dict(_entries(notes)[name])
        return Decision(challenger_ms=entry.pop(_CHALLENGER_MS, None), **entry)
    except (KeyError, TypeError, ValueError):
        return None  # not known, or damaged: it is measured again


def write_decision(notes: Path, name: str, decision: Decision) -> None:
    """Keep a decision with a form; where that has gone meanwhile, it is no longer needed."""
    if notes.is_dir():
        entry = asdict(decision)
        entry[_CHALLENGER_MS] = entry.pop("challenger_ms")
        StateFile(notes / FILE).save({**_entries(notes), name: entry})


def _entries(notes: Path) -> dict[str, Any]:
    return StateFile(notes / FILE).read(dict) or {}
