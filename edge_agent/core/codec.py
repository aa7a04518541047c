"""Frozen records to JSON and back, without asking what their types are.

For what this program wrote itself, into a folder that nobody else writes to. Only the classes given
are ever made; anything else is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PosixPath
from typing import Any

_CLASS = "!"


def pack(value: Any) -> Any:
    """Make JSON of a record: classes by name, tuples and paths marked as such."""
    if is_dataclass(value):
        packed = {item.name: pack(getattr(value, item.name)) for item in fields(value)}
        return {_CLASS: type(value).__name__, **packed}
    if isinstance(value, tuple):
        return {_CLASS: "tuple", "of": [pack(item) for item in value]}
    if isinstance(value, PosixPath):
        return {_CLASS: "path", "of": str(value)}
    if isinstance(value, Mapping):
        return {str(key): pack(item) for key, item in value.items()}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a plan")


def unpack(value: Any, classes: Mapping[str, Any]) -> Any:
    """Make records of what `pack` gave.

    Raises:
        KeyError: of a class that is not among *classes*.
        TypeError: a record has other fields by now.

    """
    if isinstance(value, list):
        return [unpack(item, classes) for item in value]
    if not isinstance(value, dict):
        return value
    name = value.get(_CLASS)
    if name is None:
        return {key: unpack(item, classes) for key, item in value.items()}
    if name == "tuple":
        return tuple([unpack(item, classes) for item in value["of"]])
    if name == "path":
        return PosixPath(value["of"])
    given = {key: unpack(item, classes) for key, item in value.items() if key != _CLASS}
    return classes[name](**given)
