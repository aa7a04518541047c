"""Untrusted JSON in messages, commands and variables; and JSON in this agent's own files."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NoReturn

from .text import half_letter


class HalfLetterError(ValueError):
    """Well-formed JSON with a string that cannot be encoded: it has a lone surrogate."""

    def __init__(self, half: str, content: Any) -> None:
        super().__init__(
            f"holds half of a letter, {ascii(half)[1:-1]}; send whole letters, as UTF-8 or both "
            "escapes of a pair"
        )
        self.content = content


DEPTH = 100
"""Most levels of untrusted JSON."""
_MOST_DIGITS = 20
"""Most digits of an integer that the agent itself writes, including its sign."""


def read_own(text: bytes | str) -> Any:
    """Parse JSON that this agent has written: only finite numbers and 64-bit integers.

    Raises:
        ValueError: it is not JSON, or has other numbers, which callers do not expect.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_float=_finite, parse_int=_integer, parse_constant=_refuse)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _refuse(digits)


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= _MOST_DIGITS else _refuse(digits)


def _refuse(digits: str) -> NoReturn:
    raise ValueError(f"{digits[:30]} is no finite number of 64 bits")


def read_json(text: bytes | str, *, finite: bool = False) -> Any:
    """Parse JSON, and refuse strings that could not be written again.

    *finite*: and numbers that no other reader takes, NaN and infinite ones.

    Raises:
        HalfLetterError: a string or key in it has a lone surrogate.
        ValueError: it is not JSON.
        RecursionError: it is nested more than `DEPTH` levels. The parser's own limit depends on
            Python's version, and is above what code that follows the levels can take.
    """
    content = read_own(text) if finite else json.loads(text)
    # Brackets in strings count as well, which only costs a look.
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, brackets)) > DEPTH and _is_deep(content):  # type: ignore[arg-type]
        raise RecursionError(f"nested more than {DEPTH} levels")
    # Without an escape, only non-ASCII bytes can encode one: messages that arrive many times a
    # second are not searched.
    escaped = "\\" in text if isinstance(text, str) else b"\\" in text
    if escaped or not text.isascii():
        half = half_letter(json.dumps(content, ensure_ascii=False))
        if half is not None:
            raise HalfLetterError(half, content)
    return content


def _is_deep(content: Any) -> bool:
    level = [content]
    for _ in range(DEPTH + 1):
        level = [
            each
            for one in level
            if isinstance(one, dict | list)
            for each in (one.values() if isinstance(one, dict) else one)
        ]
    return bool(level)
