"""What came of challenger engines, kept beside the prepared form."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.state_file import StateFile
from ...inference.engines.probe import installed
from ...inference.engines.protocol import EngineChoice

FILE = "understudies.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What came of an understudy."""

    engine: str
    """Its label, or its name where it was not built."""
    takes_over: bool
    why: str
    incumbent_ms: float | None = None
    """Median of a run of the engine that played; None: it did not come to that."""
    understudy_ms: float | None = None


def name_of(choice: EngineChoice) -> str:
    """Name an understudy, by which it will be known again: engine, options and version."""
    return f"{choice} {installed().get(choice.engine, '?')}"


def refused(notes: Path, choice: EngineChoice) -> bool:
    """Whether an engine is known not to deserve it here."""
    known = recall(notes, name_of(choice))
    return known is not None and not known.takes_over


def turned(decision: Decision, engine: str) -> Decision | None:
    """Give a decision as the one that played would have it, had the two changed their parts.

    Args:
        decision: about an understudy.
        engine: label of the one that played.

    Returns:
        None where they were not measured beside each other.

    """
    if decision.incumbent_ms is None or decision.understudy_ms is None:
        return None
    lost = "not faster: " if decision.takes_over else ""
    return Decision(
        engine=engine,
        takes_over=not decision.takes_over,
        why=f"{lost}{decision.incumbent_ms:.2f} ms beside {decision.understudy_ms:.2f} ms of "
        f"{decision.engine}",
        incumbent_ms=decision.understudy_ms,
        understudy_ms=decision.incumbent_ms,
    )


def recall(notes: Path, name: str) -> Decision | None:
    """Read what came of an understudy before; None where it is not known."""
    try:
        return Decision(**_decisions(notes)[name])
    except (KeyError, TypeError):
        return None  # not known, or damaged: it is found out again


def remember(notes: Path, name: str, decision: Decision) -> None:
    """Keep a decision with a form; where that has gone meanwhile, it is not needed any more."""
    if notes.is_dir():
        StateFile(notes / FILE).save({**_decisions(notes), name: asdict(decision)})


def _decisions(notes: Path) -> dict[str, Any]:
    return StateFile(notes / FILE).read(dict) or {}
