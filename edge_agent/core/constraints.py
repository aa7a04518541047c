"""Constraints on numbers, for `Annotated`; read by pydantic and by `plain_record`.

Records that carry them are imported before the first result, where the library for such constraints
would cost milliseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar


class Bound:
    """A limit on a number or a length."""

    key: str
    compare: ClassVar[Callable[[float, float], bool]]

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), self.key: self.limit}

    def holds(self, number: float) -> bool:
        """Whether a number is within it; NaN never is."""
        return type(self).compare(number, self.limit)


class Ge(Bound):
    """At least this limit."""

    key = "ge"
    compare = operator.ge


class Gt(Bound):
    """Above this limit."""

    key = "gt"
    compare = operator.gt


class Le(Bound):
    """At most this limit."""

    key = "le"
    compare = operator.le


class MinLength(Bound):
    """At least so many items."""

    key = "min_length"
    compare = operator.ge


class Plain:
    """Strict type: nothing is converted, so that "yes" and 1 are no boolean."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "strict": True}
