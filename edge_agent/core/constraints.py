"""Bounds on numbers, for `Annotated`: pydantic reads them, and nothing else needs to.

They stand in records that are on the way to the first result, where a library for them would cost
milliseconds.
"""

from __future__ import annotations

from typing import Any


class _Bound:
    """A limit that a number, or a length, must keep."""

    key: str

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), self.key: self.limit}


class Ge(_Bound):
    """At least."""

    key = "ge"


class Gt(_Bound):
    """Above."""

    key = "gt"


class Le(_Bound):
    """At most."""

    key = "le"


class Plain:
    """Of the very type, not of one that can be read as it: "yes" and 1 are no boolean."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "strict": True}
