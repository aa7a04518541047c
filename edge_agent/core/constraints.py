"""Constraints on numbers, for `Annotated`; read by pydantic.

Records that carry them are imported before the first result, where the library for such constraints
would cost milliseconds.
"""

from __future__ import annotations

from typing import Any


class _Bound:
    """A limit on a number or a length."""

    key: str

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), self.key: self.limit}


class Ge(_Bound):
    """At least this limit."""

    key = "ge"


class Gt(_Bound):
    """Above this limit."""

    key = "gt"


class Le(_Bound):
    """At most this limit."""

    key = "le"


class Plain:
    """Strict type: nothing is converted, so that "yes" and 1 are no boolean."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "strict": True}
