"""Reads a record from plain data without pydantic if the data is certainly valid.

Importing pydantic takes 60 ms, as long as loading a small model, before the first result of a start
without a plan. Data with exactly the declared types and within the declared bounds needs no
pydantic; for anything else, wrong or only unusual, `core.schema` uses it. So all errors come from
pydantic.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .constraints import Bound, Plain

T = TypeVar("T")


class DoubtError(Exception):
    """The data does not match the declaration, or this module cannot tell whether it does."""


def read_plain(kind: type[T], data: object) -> T:
    """Return the record of type *kind* that *data* describes.

    Raises:
        DoubtError: pydantic has to decide.
    """
    try:
        made: T = _record(kind, data)
    except RecursionError:
        raise DoubtError from None
    return made


def _record(kind: Any, data: object) -> Any:
    if not isinstance(data, Mapping):
        raise DoubtError
    hints = _hints(kind)
    if not hints.keys() >= data.keys():
        raise DoubtError
    values = {name: _value(hints[name], value) for name, value in data.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError):
        raise DoubtError from None  # a key is missing


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a record's keys."""
    hints = get_type_hints(kind, include_extras=True)
    return {item.name: hints[item.name] for item in fields(kind) if is_key(item)}


def is_key(item: Field[Any]) -> bool:
    """Whether users may write a record's field."""
    return bool(item.metadata.get("key", True))


def _value(hint: Any, value: object) -> Any:  # noqa: PLR0911 - one for each kind of type
    origin = get_origin(hint)
    if origin is Annotated:
        return _bounded(hint, value)
    if hint is float:
        return _float(value)
    if hint in {str, bool, int, types.NoneType}:
        if type(value) is not hint:
            raise DoubtError
        return value
    if is_dataclass(hint):
        return _record(hint, value)
    arguments = get_args(hint)
    if origin is Literal:
        # The type too: 1 equals True.
        for choice in arguments:
            if type(choice) is type(value) and choice == value:
                return choice
        raise DoubtError
    if origin in {Union, types.UnionType}:
        return _one_of(arguments, value)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        if not isinstance(value, list | tuple):
            raise DoubtError
        return tuple([_value(arguments[0], item) for item in value])
    if origin is Mapping and arguments[0] is str:
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise DoubtError
        return {key: _value(arguments[1], item) for key, item in value.items()}
    if hint is Any:
        return value
    raise DoubtError


def _float(value: object) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise DoubtError from None
    if type(value) is not float or not math.isfinite(value):
        raise DoubtError
    return value


def _bounded(hint: Any, value: object) -> Any:
    inner, *constraints = get_args(hint)
    read = _value(inner, value)
    for constraint in constraints:
        if isinstance(constraint, Plain):
            continue
        if not isinstance(constraint, Bound):
            raise DoubtError
        if not constraint.holds(len(read) if constraint.key == "min_length" else read):
            raise DoubtError
    return read


def _one_of(kinds: tuple[Any, ...], value: object) -> Any:
    """Read a value of one of several types; it is in doubt if more than one fits."""
    found = []
    for kind in kinds:
        try:
            found.append(_value(kind, value))
        except DoubtError:
            continue
    if len(found) != 1:
        raise DoubtError
    return found[0]
