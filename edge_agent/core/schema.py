"""Reading of records from untrusted data, with errors of one line: key, what is wrong, mend.

Settings, profiles, manifests, packages and plans are described by frozen dataclasses. Data is held
to the declared types and bounds; nothing is converted but a whole number to a float. Of the types
these can be declared: records, str, int, float, bool, Any, literals, unions, tuples, and mappings
by text. Our own code, as pydantic takes 60 ms to import, which a first result would wait for, and
its errors would have to be put in other words all the same.
"""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from .errors import AgentError
from .files import read_plain_file
from .text import closest

T = TypeVar("T")
Place = tuple[int | str, ...]
"""Keys and numbers of entries that lead to a value."""

# Limits on untrusted TOML, checked before it is parsed.
MAX_TOML_BYTES = 256 * 1024
MAX_KEY_PARTS = 64
# A dotted key with more parts than that. `tomllib` keeps every beginning of one while it reads it:
# 256 KiB of "a.a.a…" would take all memory (seen: 20 GB, and killed).
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.){0,256}"|'[^'\n]{0,256}')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MAX_KEY_PARTS}}}", re.ASCII)
_WANTED = {str: "a text in quotes", int: "a whole number", float: "a number", bool: "true or false"}
_UNIONS = frozenset({Union, types.UnionType})


def read_toml(path: Path, error: type[AgentError]) -> dict[str, Any]:
    """Read a TOML file; every failure is one line of *error*."""
    try:
        data = read_plain_file(path, MAX_TOML_BYTES, error, "a settings file")
        # Lines of Windows, whose editors also begin a file with a mark that is no part of it.
        text = data.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        if (long := _LONG_KEY.search(text)) is not None:
            line = text.count("\n", 0, long.start()) + 1
            raise error(f"{path}: line {line}: a key of more than {MAX_KEY_PARTS} parts")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except IsADirectoryError:
        raise error(f"{path}: is a folder, expected a file") from None
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise error(f"{path}: is not UTF-8 text") from None
    except (ValueError, RecursionError) as problem:
        # ValueError: TOMLDecodeError, but also a date in month 13 or a number of 5000 digits.
        raise error(f"{path}: not valid TOML: {str(problem).partition(';')[0]}") from None


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lay tables over each other, the first on top; of lists and values the topmost counts."""
    made: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            above = made.get(key)
            if isinstance(above, dict) and isinstance(value, Mapping):
                made[key] = merged(above, value)
            else:
                made.setdefault(key, value)
    return made


class WrongDataError(Exception):
    """Data is not what a record declares; the text is "<key>: <what is wrong>, <mend>"."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


def build(kind: type[T], data: Mapping[str, Any], where: str, error: type[AgentError]) -> T:
    """Check *data* and return the record made of it.

    Raises:
        AgentError: of the type *error*: "<where>: <key>: <what is wrong>, <mend>".
    """
    try:
        return read(kind, data)
    except WrongDataError as wrong:
        raise error(f"{where}: {wrong}") from None


def read(kind: type[T], data: Mapping[str, Any]) -> T:
    """Check *data* and return the record made of it.

    Raises:
        WrongDataError: it is not what the record declares.
    """
    problems: list[_Problem] = []
    try:
        made: T = _record(kind, data, (), problems)
    except RecursionError:
        raise WrongDataError((), "is nested too deep") from None
    if not problems:
        return made
    # An unknown key first: it is usually why another one is "missing". Of a value that may be of
    # several kinds, first what is deepest inside.
    problems.sort(key=lambda each: (each.known is None, -len(each.place)))
    place = problems[0].place
    others = {
        other
        for other in (each.place for each in problems)
        if other[: len(place)] != place and place[: len(other)] != other
    }
    more = f" (and {len(others)} more)" if others else ""
    here = [each for each in problems if each.place == place]
    raise WrongDataError(place, f"{_key(place, data)}: {_trouble(here, kind)}{more}")


class _Problem(NamedTuple):
    """What is wrong with one value, which may have been tried as several types."""

    place: Place
    wanted: str
    """Empty: a key that is missing or unknown."""
    found: object = None
    bounded: bool = False
    """It is of the right type."""
    known: Iterable[str] | None = None
    """Of an unknown key: those that there are."""


def is_key(item: Field[Any]) -> bool:
    """Whether a record's field is one that its users may write."""
    return bool(item.metadata.get("key", True))


@cache
def keys_of(record: Any) -> dict[str, Any]:
    """Return the types of a record's keys."""
    hints = get_type_hints(record, include_extras=True)
    return {item.name: hints[item.name] for item in fields(record) if is_key(item)}


def _is_needed(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _record(kind: Any, data: object, place: Place, problems: list[_Problem]) -> Any:
    if not isinstance(data, Mapping):
        problems.append(_Problem(place, "a table", data))
        return None
    hints, before = keys_of(kind), len(problems)
    if not getattr(kind, "ignores_unknown_keys", False):
        unknown = [key for key in data if key not in hints]
        problems += [_Problem((*place, key), "", known=hints) for key in unknown]
    problems += [
        _Problem((*place, item.name), "")
        for item in fields(kind)
        if _is_needed(item) and item.name not in data
    ]
    values = {
        key: _value(hints[key], value, (*place, key), problems)
        for key, value in data.items()
        if key in hints
    }
    return kind(**values) if len(problems) == before else None


def _value(hint: Any, value: Any, place: Place, problems: list[_Problem]) -> Any:  # noqa: PLR0911 - one for each kind of type
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(arguments, value, place, problems)
    if is_dataclass(hint):
        return _record(hint, value, place, problems)
    if origin in _UNIONS:
        return _one_of(arguments, value, place, problems)
    if origin is tuple:
        return _items(arguments, value, place, problems)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            problems.append(_Problem(place, "a table", value))
            return None
        return {k: _value(arguments[1], v, (*place, k), problems) for k, v in value.items()}
    if origin is Literal:
        # By type too: 1 is equal to True.
        if any(type(choice) is type(value) and choice == value for choice in arguments):
            return value
        *most, last = map(repr, arguments)
        wanted = f"{', '.join(most)} or {last}" if most else last
        problems.append(_Problem(place, wanted, value))
    elif hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    elif hint is not Any and type(value) is not hint:
        problems.append(_Problem(place, _WANTED.get(hint, "nothing"), value))
    return value


def _bounded(
    arguments: tuple[Any, ...], value: object, place: Place, problems: list[_Problem]
) -> Any:
    before = len(problems)
    read = _value(arguments[0], value, place, problems)
    if len(problems) == before:
        broken = [bound for bound in arguments[1:] if not bound.holds(read)]
        for bound in broken[-1:]:
            text = f"{bound.limit:.12g}"
            text = f"{bound.limit:.12f}".rstrip("0") if "e-" in text else text
            problems.append(_Problem(place, f"{bound.words} {text}", value, bounded=True))
    return read


def _one_of(kinds: tuple[Any, ...], value: object, place: Place, problems: list[_Problem]) -> Any:
    """Read a value as the first of several types that it is of."""
    if value is None and types.NoneType in kinds:
        return None
    tried: list[_Problem] = []
    for kind in kinds:
        wrong: list[_Problem] = []
        if kind is not types.NoneType:
            read = _value(kind, value, place, wrong)
            if not wrong:
                return read
            tried += wrong
    problems += tried
    return None


def _items(kinds: tuple[Any, ...], value: object, place: Place, problems: list[_Problem]) -> Any:
    if not isinstance(value, list | tuple):
        problems.append(_Problem(place, "a list", value))
        return None
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    elif len(value) != len(kinds):
        problems.append(_Problem(place, f"a list of {len(kinds)}", value))
    each = enumerate(zip(kinds, value, strict=False))
    return tuple([_value(kind, item, (*place, n), problems) for n, (kind, item) in each])


# What is wrong, in words


def _trouble(problems: list[_Problem], kind: type) -> str:
    """Return what is wrong with one value of a record of type *kind*."""
    place, _, found, _, known = problems[0]
    if known is not None:
        key = str(place[-1])
        homes = list(_homes(kind, key))
        if homes:
            return f"unknown key here; it goes below {' or '.join(homes)}"
        return f"unknown key{nearest(key, known)}"
    if not problems[0].wanted:
        return "is missing"
    # For a value of the right type but out of bounds the other types are not mentioned.
    meant = [each for each in problems if each.bounded] or problems
    wanted = list(dict.fromkeys(each.wanted for each in meant))
    text = f"expected {' or '.join(wanted)}"
    head = ".".join(step for step in place if isinstance(step, str))
    if isinstance(found, Mapping) and "a list" in wanted:
        return f"{text}, found a table; write its head in double brackets, [[{head}]]"
    if wanted == ["a table"] and isinstance(place[-1], str):
        return f"{text}; write its keys below a line [{head}]"
    shown = repr(found) if isinstance(found, str | int | float | bool) else ""
    secret = (
        "://" in shown
        or "@" in shown
        or any(word in str(step) for step in place for word in ("password", "secret"))
    )
    if not shown or secret:
        return text
    text += f", found {shown if len(shown) <= 80 else shown[:77] + '…'}"
    if isinstance(found, str):
        close = closest(found, re.findall("'([^']*)'", wanted[0]))
        text += f"; did you mean '{close}'?" if close else ""
    return text


def _key(place: Place, data: Any) -> str:
    """Write a place as a user would: pipelines[door].rate."""
    text = ""
    for step in place:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            data = None
        if isinstance(step, int):
            name = data.get("name") if isinstance(data, Mapping) else None
            text += f"[{name if isinstance(name, str) and name else step}]"
        else:
            text += f".{step}" if text else step
    return text or "(top level)"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known word closest to *word*, or the known words."""
    names = sorted(known)
    close = closest(word, names, cutoff=0.5)
    if close:
        return f"; did you mean '{close}'?"
    return f"; known: {', '.join(names)}" if names else ""


def _homes(kind: Any, key: str, above: str = "") -> Iterator[str]:
    """Yield the heads of the tables within *kind* that have a key: [input], [[pipelines]]."""
    for name, hint in keys_of(kind).items():
        record = _record_within(hint)
        if record is None or record is kind:
            continue
        head = f"{above}.{name}" if above else name
        if key in keys_of(record):
            yield f"[[{head}]]" if get_origin(hint) is tuple else f"[{head}]"
        yield from _homes(record, key, head)


def _record_within(hint: Any) -> Any:
    """Return the record X in tuple[X, ...], X | None and the like; None: there is none."""
    if is_dataclass(hint):
        return hint
    inner = get_args(hint) if get_origin(hint) in {tuple, Annotated, *_UNIONS} else ()
    return next(filter(None, map(_record_within, inner)), None)
