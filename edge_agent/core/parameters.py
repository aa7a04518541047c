"""Typed parameters: the fields of a frozen record, read from an untrusted JSON object.

Parsing, the text of each error, the usage and a JSON Schema follow from the declaration alone.
Without pydantic, which a daemon that starts from a plan never imports.

    @record
    class Rollback:
        model: Name
        wait_s: Annotated[float, number(0, 60)] | None = None
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from .errors import RequestError
from .frozen import record
from .names import NAME, is_name, is_version
from .text import closest, label_trouble

R = TypeVar("R")


CLEARED = object()
"""The value of a null that clears an earlier value."""


@record(eq=False)
class Kind:
    """The type of a parameter."""

    parse: Callable[[object], Any]
    """Returns the value as the record stores it; raises ValueError with the expected and the
    actual value."""
    schema: Mapping[str, Any]
    """The type as JSON Schema."""
    clears: bool = False
    """Whether it may be null, which is read as CLEARED."""


def _text(value: object) -> str:
    if value is None:
        raise ValueError("is missing; a text is expected")
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected a text, found {shown(value)}")
    return value


def _label(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {shown(value)}")  # noqa: TRY004 - one fate
    label = _text(value)
    trouble = label_trouble(label)
    if trouble is not None:
        raise ValueError(f"{shown(label)} {trouble}")
    return label


def _name(value: object) -> str:
    name = _text(value)
    if not is_name(name):
        raise ValueError(f"{shown(name)} is not a name")
    return name


def _version(value: object) -> str:
    version = _text(value)
    if not is_version(version):
        raise ValueError(f"{shown(version)} is not a version (dot-separated integers)")
    return version


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {shown(value)}")  # noqa: TRY004 - one fate
    return value


def number(least: float, most: float) -> Kind:
    """Return the kind of a finite number within bounds."""

    def parse(value: object) -> float:
        try:
            plain = isinstance(value, int | float) and not isinstance(value, bool)
            number = float(value) if plain else math.nan  # type: ignore[arg-type]
        except OverflowError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"expected a number, found {shown(value)}")
        if number <= 0 < least:
            raise ValueError(f"expected a number above 0, found {shown(value)}")
        if not least <= number <= most:
            bounds = f"from {_plain(least)} to {_plain(most)}"
            raise ValueError(f"expected a number {bounds}, found {shown(value)}")
        return number

    return Kind(parse, {"type": "number", "minimum": least, "maximum": most})


def whole(least: float, most: float) -> Kind:
    """Return the kind of a whole number within bounds."""
    bounded = number(least, most)

    def parse(value: object) -> int:
        found = bounded.parse(value)
        if found != int(found):
            raise ValueError(f"expected a whole number, found {shown(value)}")
        return int(found)

    return Kind(parse, {**bounded.schema, "type": "integer"})


def items(kind: Kind, least: int = 0, most: int = 1000) -> Kind:
    """Return the kind of a list whose items are all of one kind."""

    def parse(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not least <= len(value) <= most:
            count = f"{least} to {most}" if least != most else f"{least}"
            raise ValueError(f"expected a list of {count}, found {shown(value)}")
        return tuple([kind.parse(item) for item in value])

    schema = {"type": "array", "items": kind.schema, "minItems": least, "maxItems": most}
    return Kind(parse, schema)


def table(kind: Kind, keys: Kind, most: int = 1000) -> Kind:
    """Return the kind of an object whose keys are of one kind and whose values are of another."""

    def parse(value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping) or len(value) > most:
            raise ValueError(f"expected an object, found {shown(value)}")
        return {keys.parse(key): kind.parse(item) for key, item in value.items()}

    return Kind(parse, {"type": "object", "additionalProperties": kind.schema})


def clearable(kind: Kind) -> Kind:
    """Return a kind that may be given as null, to clear an earlier value."""
    schema = {"anyOf": [kind.schema, {"type": "null"}]}
    return Kind(lambda value: CLEARED if value is None else kind.parse(value), schema, clears=True)


_SOME = {"type": "string", "minLength": 1}
LABEL = Kind(_label, _SOME)
FLAG = Kind(_flag, {"type": "boolean"})
Text = Annotated[str, Kind(_text, _SOME)]
NAMED = Kind(_name, {"type": "string", "pattern": f"^{NAME}$"})
Name = Annotated[str, NAMED]
Version = Annotated[str, Kind(_version, _SOME)]
Flag = Annotated[bool, FLAG]


@record
class Parameter:
    """A field of a record."""

    field: str
    kind: Kind
    required: bool

    @property
    def name(self) -> str:
        """The key: the field's name, without the last underscore that avoids a Python keyword."""
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
            if isinstance(kind, Kind):
                return kind
    raise TypeError(f"{hint}: declares no kind of parameter")


def parse(kind: type[R], body: Mapping[str, Any]) -> R:
    """Build a record from a JSON object; unknown keys are ignored.

    Null counts as absent, except for parameters that are `clearable`.

    Raises:
        RequestError: "<key>: <what is wrong>".
    """
    values: dict[str, object] = {}
    for parameter in parameters(kind):
        value = body.get(parameter.name)
        clears = parameter.name in body and parameter.kind.clears
        if value is None and not parameter.required and not clears:
            continue
        try:
            values[parameter.field] = parameter.kind.parse(value)
        except ValueError as problem:
            raise RequestError(f"{parameter.name}: {problem}") from None
    return kind(**values)


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of a record's parameters."""
    declared = parameters(kind)
    return {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "required": [each.name for each in declared if each.required],
        "properties": {each.name: each.kind.schema for each in declared},
    }


def unknown(kind: type, body: Mapping[str, Any], besides: Collection[str] = ()) -> list[str]:
    """List the keys of a JSON object that a record does not declare, one line each."""
    known = [each.name for each in parameters(kind)]
    lines = []
    for key in body:
        if key in known or key in besides:
            continue
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
    """Return an untrusted value as an error quotes it: at most 40 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer with thousands of digits
        return "a number too large to write down"
    return text if len(text) <= 40 else text[:39] + "…"
