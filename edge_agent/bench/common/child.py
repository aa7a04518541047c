"""Calls a function of the benchmark in a separate process.

While cold starts are timed, the benchmark's process must not map the libraries that the timed ones
load: files that are mapped anywhere are not read from the disk again. The child prints messages for
the user on stderr.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...core.child import answer_question, ask


def call(module: str, function: str, **arguments: Any) -> Any:
    """Call a function of a module, named in full; arguments and result are JSON."""
    return ask(__name__, [module, function, arguments], f"{module}.{function}", stderr=None)


def _answer(question: list[Any]) -> Any:
    module, function, arguments = question
    return getattr(import_module(module), function)(**arguments)


if __name__ == "__main__":
    answer_question(_answer)
