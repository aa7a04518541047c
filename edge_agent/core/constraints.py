"""Bounds of numbers and lengths, for `Annotated`; `core.schema` holds data to them.

Apart from it, as records are imported before the first result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple


class Bound(NamedTuple):
    """A limit on a number, or on the length of a list."""

    key: str
    """As JSON Schema calls it."""
    words: str
    """Between what is bounded and the limit."""
    compare: Callable[[float, float], bool]
    limit: float

    def holds(self, value: Any) -> bool:
        """Whether a number or list is within it; NaN never is."""
        return self.compare(len(value) if isinstance(value, tuple) else value, self.limit)


def Ge(limit: float) -> Bound:  # noqa: N802 - as in annotated-types
    """At least this limit."""
    return Bound("minimum", "a number of at least", operator.ge, limit)


def Gt(limit: float) -> Bound:  # noqa: N802
    """Above this limit."""
    return Bound("exclusiveMinimum", "a number above", operator.gt, limit)


def Le(limit: float) -> Bound:  # noqa: N802
    """At most this limit."""
    return Bound("maximum", "a number of at most", operator.le, limit)


def MinLength(limit: int) -> Bound:  # noqa: N802
    """At least this many items."""
    return Bound("minItems", "a list of at least", operator.ge, limit)
