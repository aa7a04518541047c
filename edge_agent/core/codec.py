"""Codec for frozen records to JSON and back, without type checks.

For files that this program itself has written to its own folder. Only `storable` records are ever
created; anything else is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path, PosixPath
from typing import Any, TypeVar

C = TypeVar("C")

_CLASS = "!"
_classes: dict[str, type] = {}
"""The records that may be read back, by name."""


def storable(record: type[C]) -> type[C]:
    """Register a record so that it can be packed and unpacked: a decorator above `@record`.

    Raises:
        TypeError: another record has the same name.
    """
    known = _classes.setdefault(record.__name__, record)
    if known is not record:
        raise TypeError(f"{record.__name__}: {known.__module__} has a storable record of this name")
    return record


def modules() -> list[Path]:
    """List the files that define the records: if one of these changes, old JSON may not fit."""
    names = {record.__module__ for record in _classes.values()}
    return sorted(Path(str(sys.modules[name].__file__)) for name in names)


_PLAIN = {str, int, float, bool, type(None)}


def pack(value: Any) -> Any:
    """Return a record as JSON: classes by name, tuples and paths marked as such.

    Raises:
        TypeError: the value could not be read back.
    """
    if type(value) in _PLAIN:  # most values: labels
        return value
    if is_dataclass(value) and _classes.get(type(value).__name__) is type(value):
        packed = {item.name: pack(getattr(value, item.name)) for item in fields(value)}
        return {_CLASS: type(value).__name__, **packed}
    if isinstance(value, tuple):
        return {_CLASS: "tuple", "of": [pack(item) for item in value]}
    if isinstance(value, PosixPath):
        return {_CLASS: "path", "of": str(value)}
    if isinstance(value, Mapping) and _CLASS in value:  # for example, a label with this name
        return {_CLASS: "table", "of": [[key, pack(item)] for key, item in value.items()]}
    if isinstance(value, Mapping):
        return {str(key): pack(item) for key, item in value.items()}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} cannot be packed: it is not decorated as storable")


def unpack(value: Any) -> Any:
    """Return the records that were passed to `pack`.

    Raises:
        KeyError: a class that is not storable.
        TypeError: a record's fields have changed since.
    """
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = value.get(_CLASS)
    if name is None:
        return {key: unpack(item) for key, item in value.items()}
    if name == "tuple":
        return tuple([unpack(item) for item in value["of"]])
    if name == "table":
        return {key: unpack(item) for key, item in value["of"]}
    if name == "path":
        return PosixPath(value["of"])
    given = {key: unpack(item) for key, item in value.items() if key != _CLASS}
    return _classes[name](**given)
