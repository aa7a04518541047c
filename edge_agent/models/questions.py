"""The open questions of a drafted manifest: as long as there are any, its defaults are a guess."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.text import printable

KEY = "to_decide"
"""Key of the questions in `model.toml`."""
NOT_DECIDED = "not decided yet"
_MOST_NAMED = 8


def keys_of(questions: Iterable[object]) -> str:
    """Return what questions ask for, without the choices."""
    return "; ".join(str(question).partition(":")[0] for question in questions)


def as_toml(questions: Sequence[str]) -> str:
    """Return questions as they stand in `model.toml`, before its first table."""
    if not questions:
        return ""
    how = "Write what holds into the keys that a line names, and take the line out."
    lines = "".join(f"    {_quoted(each)},\n" for each in questions)
    return f"# {how}\n{KEY} = [\n{lines}]\n"


def _quoted(question: str) -> str:
    """Return a question as a TOML string without escapes; it may name tensors of a stranger."""
    text = printable(question).replace("'''", "''")
    mark = "'''" if "'" in text else "'"
    return f"{mark}{text}{mark}"


def undecided(questions: Sequence[str]) -> str | None:
    """Return a line about open questions, whose defaults serve; None: there are none."""
    if not questions:
        return None
    return (
        f"{KEY}: {NOT_DECIDED}: {keys_of(questions[:_MOST_NAMED])}; write what holds into these "
        f"keys, and take each answered line out of {KEY}"
    )
