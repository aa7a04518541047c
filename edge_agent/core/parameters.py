"""Typed parameters: the fields of a frozen record, read from the JSON object of a stranger.

The declaration is all there is: parsing, the text of each error and the usage follow from it, and a
JSON Schema can. Without pydantic, which a daemon that starts from a plan never imports.

    @record
    class Rollback:
        model: Name
        wait_s: Annotated[float, Number(0, 60)] | None = None
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Protocol, TypeVar, get_args, get_type_hints

from .errors import RequestError
from .frozen import record
from .names import NAME, is_name, is_version
from .text import closest, label_trouble

R = TypeVar("R")


class Kind(Protocol):
    """What a parameter may be."""

    def parse(self, value: object) -> object:
        """Return the value as the record holds it.

        Raises:
            ValueError: with what was expected, and what came.
        """


class _Text:
    """A text that is not empty."""

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError("is missing; a text is expected")
        return value


MOST_LABEL = 256
"""Characters of a label."""


class _Label(_Text):
    """A label of what models find."""

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected a text, found {shown(value)}")  # noqa: TRY004 - one fate
        label = super().parse(value)
        trouble = label_trouble(label)
        if len(label) > MOST_LABEL:
            trouble = f"has more than {MOST_LABEL} characters"
        if trouble is not None:
            raise ValueError(f"{shown(label)} {trouble}")
        return label


class _Name(_Text):
    """A name of a device, pipeline, model and the like."""

    def parse(self, value: object) -> str:
        name = super().parse(value)
        if not is_name(name):
            raise ValueError(f"{shown(name)} is not a name")
        return name


class _Version(_Text):
    """A version of a model."""

    def parse(self, value: object) -> str:
        version = super().parse(value)
        if not is_version(version):
            raise ValueError(f"{shown(version)} is not a version (dot-separated integers)")
        return version


class _Flag:
    """A boolean, and nothing that could be read as one."""

    def parse(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, found {shown(value)}")  # noqa: TRY004 - one fate
        return value


class Number:
    """A finite number within bounds."""

    def __init__(self, least: float, most: float) -> None:
        self.least = least
        self.most = most

    def parse(self, value: object) -> float:
        try:
            plain = isinstance(value, int | float) and not isinstance(value, bool)
            number = float(value) if plain else math.nan  # type: ignore[arg-type]
        except OverflowError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"expected a number, found {shown(value)}")
        if number <= 0 < self.least:
            raise ValueError(f"expected a number above 0, found {shown(value)}")
        if not self.least <= number <= self.most:
            bounds = f"from {_plain(self.least)} to {_plain(self.most)}"
            raise ValueError(f"expected a number {bounds}, found {shown(value)}")
        return number


class Items:
    """A list, of which each item is of one kind."""

    def __init__(self, kind: Kind, least: int = 0, most: int = 1000) -> None:
        self.kind = kind
        self.least = least
        self.most = most

    def parse(self, value: object) -> tuple[object, ...]:
        if not isinstance(value, list | tuple) or not self.least <= len(value) <= self.most:
            raise ValueError(
                f"expected a list of {self.least} to {self.most}, found {shown(value)}"
                if self.least != self.most
                else f"expected a list of {self.least}, found {shown(value)}"
            )
        return tuple([self.kind.parse(item) for item in value])


class Table:
    """An object, of which each value is of one kind, and each key."""

    def __init__(self, kind: Kind, most: int = 1000, *, keys: Kind) -> None:
        self.kind = kind
        self.keys = keys
        self.most = most

    def parse(self, value: object) -> dict[str, object]:
        if not isinstance(value, Mapping) or len(value) > self.most:
            raise ValueError(f"expected an object, found {shown(value)}")
        return {str(self.keys.parse(key)): self.kind.parse(item) for key, item in value.items()}


class Whole(Number):
    """A whole number within bounds."""

    def parse(self, value: object) -> int:
        number = super().parse(value)
        if number != int(number):
            raise ValueError(f"expected a whole number, found {shown(value)}")
        return int(number)


@record
class Clearable:
    """What may be given as null, to take back what it was: that is CLEARED."""

    kind: Kind

    def parse(self, value: object) -> object:
        return CLEARED if value is None else self.kind.parse(value)


CLEARED = object()
TEXT = _Text()
LABEL = _Label()
FLAG = _Flag()
Text = Annotated[str, TEXT]
Name = Annotated[str, _Name()]
Version = Annotated[str, _Version()]
Flag = Annotated[bool, FLAG]


@record
class Parameter:
    """A field of a record."""

    field: str
    kind: Kind
    required: bool

    @property
    def name(self) -> str:
        """Its key: without the last underscore of a field that would be a word of Python."""
        return self.field.removesuffix("_")


def parameters(kind: type) -> tuple[Parameter, ...]:
    """Return the parameters that a record declares."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        Parameter(
            item.name,
            _kind_of(hints[item.name]),
            item.default is MISSING and item.default_factory is MISSING,
        )
        for item in fields(kind)
    )


def _kind_of(hint: Any) -> Kind:
    """Find the kind in `Annotated[…, kind]` or `Annotated[…, kind] | None`."""
    for part in (hint, *get_args(hint)):
        for kind in getattr(part, "__metadata__", ()):
            if hasattr(kind, "parse"):
                found: Kind = kind
                return found
    raise TypeError(f"{hint}: declares no kind of parameter")


def parse(kind: type[R], body: Mapping[str, Any]) -> R:
    """Make a record of a JSON object; unknown keys are ignored.

    Null counts as absent, but of what is `Clearable`.

    Raises:
        RequestError: "<key>: <what is wrong>".
    """
    values: dict[str, object] = {}
    for parameter in parameters(kind):
        value = body.get(parameter.name)
        clears = parameter.name in body and isinstance(parameter.kind, Clearable)
        if value is None and not parameter.required and not clears:
            continue
        try:
            values[parameter.field] = parameter.kind.parse(value)
        except ValueError as problem:
            raise RequestError(f"{parameter.name}: {problem}") from None
    return kind(**values)


def json_schema(kind: type) -> dict[str, Any]:
    """Return what a record declares as JSON Schema."""
    declared = parameters(kind)
    return {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "required": [each.name for each in declared if each.required],
        "properties": {each.name: _schema_of(each.kind) for each in declared},
    }


def _schema_of(kind: Kind) -> dict[str, Any]:
    match kind:
        case Clearable():
            return {"anyOf": [_schema_of(kind.kind), {"type": "null"}]}
        case _Flag():
            return {"type": "boolean"}
        case Number():
            whole = "integer" if isinstance(kind, Whole) else "number"
            return {"type": whole, "minimum": kind.least, "maximum": kind.most}
        case Items():
            each = _schema_of(kind.kind)
            return {"type": "array", "items": each, "minItems": kind.least, "maxItems": kind.most}
        case Table():
            return {"type": "object", "additionalProperties": _schema_of(kind.kind)}
        case _Name():
            return {"type": "string", "pattern": f"^{NAME}$"}
        case _Text():
            return {"type": "string", "minLength": 1}
        case _:
            return {"type": "object"}


def unknown(kind: type, body: Mapping[str, Any], besides: Collection[str] = ()) -> list[str]:
    """List the keys of a JSON object that a record does not declare; a line each."""
    known = [each.name for each in parameters(kind)]
    found = [key for key in body if key not in known and key not in besides]
    if not found:
        return []
    lines = []
    for key in found:
        close = closest(key, known, cutoff=0.7)
        meant = f"; did you mean {close!r}?" if close else ""
        lines.append(f"{shown(key)} is not known, and ignored{meant}")
    return lines


def usage(kind: type) -> str:
    """Return the parameters of a record in one line: `{pipeline, rate?}`."""
    names = [each.name + "?" * (not each.required) for each in parameters(kind)]
    return "{" + ", ".join(names) + "}"


def _plain(number: float) -> str:
    return f"{number:.5f}".rstrip("0").rstrip(".")


def shown(value: object) -> str:
    """Return a value of a stranger's as an error quotes it: at most 40 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number too large to write down"
    return text if len(text) <= 40 else text[:39] + "…"
