"""Constraints on numbers, for `Annotated`; read by pydantic and by `plain_record`.

Records that carry them are imported before the first result, where the library for such constraints
would cost milliseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


class Bound:
    """A limit on a number or a length."""

    def __init__(self, key: str, compare: Callable[[float, float], bool], limit: float) -> None:
        self.key = key
        """Pydantic's name for it."""
        self._compare = compare
        self._limit = limit

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), self.key: self._limit}

    def holds(self, number: float) -> bool:
        """Whether a number is within the limit; NaN never is."""
        return self._compare(number, self._limit)


def Ge(limit: float) -> Bound:  # noqa: N802 - as in annotated-types
    """At least this limit."""
    return Bound("ge", operator.ge, limit)


def Gt(limit: float) -> Bound:  # noqa: N802
    """Above this limit."""
    return Bound("gt", operator.gt, limit)


def Le(limit: float) -> Bound:  # noqa: N802
    """At most this limit."""
    return Bound("le", operator.le, limit)


def MinLength(limit: int) -> Bound:  # noqa: N802
    """At least this many items."""
    return Bound("min_length", operator.ge, limit)


class Plain:
    """Strict type: nothing is converted, so "yes" and 1 are not booleans."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "strict": True}
