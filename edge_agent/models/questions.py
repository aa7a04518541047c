"""The open questions of a drafted manifest: a model is refused as long as there are any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.errors import ModelError
from ..core.text import printable

KEY = "to_decide"
"""Key of the questions in `model.toml`."""
_MOST_NAMED = 8


def keys_of(questions: Iterable[object]) -> str:
    """Return what questions ask for, without the choices."""
    return "; ".join(str(question).partition(":")[0] for question in questions)


def as_toml(questions: Sequence[str]) -> str:
    """Return questions as they stand in `model.toml`, before its first table."""
    if not questions:
        return ""
    how = "Write what holds into the keys that a line names, and take the line out"
    lines = "".join(f"    {_quoted(each)},\n" for each in questions)
    return f"# {how}; refused until none is left.\n{KEY} = [\n{lines}]\n"


def _quoted(question: str) -> str:
    """Return a question as a TOML string without escapes; it may name tensors of a stranger."""
    text = printable(question).replace("'''", "''")
    mark = "'''" if "'" in text else "'"
    return f"{mark}{text}{mark}"


def answered(data: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return a manifest's content without its list of questions, which must be empty.

    Raises:
        ModelError: there are some.
    """
    questions = data.get(KEY, [])
    if questions:
        listed = questions if isinstance(questions, list) else [questions]
        raise ModelError(
            f"{where}: {KEY}: not decided yet: {keys_of(listed[:_MOST_NAMED])}; write what holds "
            f"into these keys, and take each answered line out of {KEY}"
        )
    return {key: value for key, value in data.items() if key != KEY}
