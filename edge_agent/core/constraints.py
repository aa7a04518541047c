"""Constraints on numbers, for `Annotated`; read by pydantic and by `plain_record`.

Records that carry them are imported before the first result, where the library for such constraints
would cost milliseconds.
"""

from __future__ import annotations

from typing import Any


class Bound:
    """A limit on a number or a length."""

    key: str

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), self.key: self.limit}

    def holds(self, number: float) -> bool:
        """Whether a number is within it; NaN never is."""
        raise NotImplementedError


class Ge(Bound):
    """At least this limit."""

    key = "ge"

    def holds(self, number: float) -> bool:
        return number >= self.limit


class Gt(Bound):
    """Above this limit."""

    key = "gt"

    def holds(self, number: float) -> bool:
        return number > self.limit


class Le(Bound):
    """At most this limit."""

    key = "le"

    def holds(self, number: float) -> bool:
        return number <= self.limit


class MinLength(Bound):
    """At least so many items."""

    key = "min_length"

    def holds(self, number: float) -> bool:
        return number >= self.limit


class Plain:
    """Strict type: nothing is converted, so that "yes" and 1 are no boolean."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "strict": True}
