"""Checks of untrusted data by pydantic, with one-line errors: key, what is wrong, fix.

Settings, profiles, manifests, packages and commands are described by frozen standard dataclasses
and checked here, so that reading a record back never needs pydantic.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import AgentError
from .files import read_plain_file
from .plain_record import DoubtError, is_key, read_plain
from .text import closest

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails

T = TypeVar("T")

# Limits on untrusted TOML, checked before it is parsed.
MAX_TOML_BYTES = 256 * 1024
MAX_KEY_PARTS = 64
# A dotted key with more parts than that. `tomllib` stores every prefix of a key while reading it:
# 256 KiB of "a.a.a…" would use up all memory (seen: 20 GB, then killed).
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.){0,256}"|'[^'\n]{0,256}')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MAX_KEY_PARTS}}}", re.ASCII)


def read_toml(path: Path, error: type[AgentError]) -> dict[str, Any]:
    """Read a TOML file; every failure is raised as a one-line *error*."""
    try:
        data = read_plain_file(path, MAX_TOML_BYTES, error, "a settings file")
        # Windows line ends; editors there may also begin a file with a byte order mark.
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
    """Merge tables; of lists and single values, those of the first table that has them count."""
    made: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            above = made.get(key)
            if isinstance(above, dict) and isinstance(value, Mapping):
                made[key] = merged(above, value)
            else:
                made.setdefault(key, value)
    return made


def build(kind: type[T], data: Mapping[str, Any], where: str, error: type[AgentError]) -> T:
    """Check *data* and return the record made from it.

    Raises:
        AgentError: an instance of *error*: "<where>: <key>: <what is wrong>, <fix>".
    """
    try:
        return read_plain(kind, data)
    except DoubtError:
        pass
    from pydantic import ValidationError

    try:
        made: T = _adapter(kind).validate_python(dict(data))  # type: ignore[arg-type]
        return made
    except ValidationError as problem:
        raise error(f"{where}: {explain(problem, kind, data)}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def json_schema(kind: type, refs: str) -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of a record, with its field docstrings as descriptions.

    Args:
        kind: the record.
        refs: where the schemas of other records are, such as "#/$defs/{model}".
    """
    from pydantic.json_schema import GenerateJsonSchema

    class Described(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            del schema
            return False  # a title such as "Quota Mb" adds nothing

        def dataclass_schema(self, schema: Any) -> dict[str, Any]:
            made = super().dataclass_schema(schema)
            hidden = {item.name for item in fields(schema["cls"]) if not is_key(item)}
            told = _comments(schema["cls"])
            made["properties"] = {
                key: each | ({"description": told[key]} if key in told else {})
                for key, each in made["properties"].items()
                if key not in hidden
            }
            return made | {"additionalProperties": False}

    made: dict[str, Any] = _adapter(kind).json_schema(ref_template=refs, schema_generator=Described)
    return made


def _comments(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a record, from the source of its module."""
    module = ast.parse(Path(str(sys.modules[kind.__module__].__file__)).read_text("utf-8"))
    (made,) = [
        each
        for each in module.body
        if isinstance(each, ast.ClassDef) and each.name == kind.__name__
    ]
    return {
        item.target.id: " ".join(str(ast.literal_eval(text.value)).split())
        for item, text in pairwise(made.body)
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and isinstance(text, ast.Expr)
    }


def explain(
    problem: ValidationError, kind: type | None = None, data: Mapping[str, Any] | None = None
) -> str:
    """Return the first problem in words: where, what is wrong, and the fix.

    Args:
        problem: pydantic's error.
        kind: the type of the record, to suggest its keys.
        data: the checked data, to refer to list entries by their `name`.
    """
    entries = problem.errors(include_url=False)
    members = frozenset(_members(kind))
    for entry in entries:
        entry["loc"] = tuple(part for part in entry["loc"] if part not in members)
    # An unknown key first: it is usually why another one is "missing". For a value of several
    # possible kinds, the deepest problem first.
    entries.sort(key=lambda entry: (entry["type"] not in _UNKNOWN, -len(_steps(entry["loc"]))))
    steps = _steps(entries[0]["loc"])
    here = [entry for entry in entries if _steps(entry["loc"]) == steps]
    others = {
        other
        for entry in entries
        if (other := _steps(entry["loc"]))[: len(steps)] != steps and steps[: len(other)] != other
    }
    more = f" (and {len(others)} more)" if others else ""
    return f"{_key(steps, data)}: {_trouble(here, kind)}{more}"


def _trouble(entries: list[ErrorDetails], kind: type | None) -> str:
    """Return the problem with one value, for which pydantic may have tried several types."""
    entry = entries[0]
    if entry["type"] in _UNKNOWN:
        key = str(entry["loc"][-1])
        homes = list(_homes(kind, key))
        if homes:
            return f"unknown key here; it goes below {' or '.join(homes)}"
        return f"unknown key{nearest(key, _keys_at(kind, entry['loc'][:-1]))}"
    if entry["type"] in _MISSING:
        return "is missing"
    # For a value of the right type but out of bounds, the other types are not mentioned.
    bounds = [each for each in entries if each["type"] in _BOUNDS]
    wanted = list(dict.fromkeys(_wanted(each) for each in bounds or entries))
    text = f"expected {' or '.join(wanted)}"
    found = entry.get("input")
    head = ".".join(step for step in _steps(entry["loc"]) if isinstance(step, str))
    if isinstance(found, Mapping) and "a list" in wanted:
        return f"{text}, found a table; write its head in double brackets, [[{head}]]"
    if wanted == ["a table"] and isinstance(entry["loc"][-1], str):
        return f"{text}; write its keys below a line [{head}]"
    shown = repr(found) if isinstance(found, str | int | float | bool) else ""
    secret = (
        "://" in shown
        or "@" in shown
        or any(word in str(step) for step in entry["loc"] for word in ("password", "secret"))
    )
    if not shown or secret:
        return text
    text += f", found {shown if len(shown) <= 80 else shown[:77] + '…'}"
    if entry["type"] == "literal_error" and isinstance(found, str):
        close = closest(found, re.findall("'([^']*)'", wanted[0]))
        text += f"; did you mean '{close}'?" if close else ""
    return text


def _wanted(entry: ErrorDetails) -> str:
    """Return the expected type or bound in TOML terms, not Python ones."""
    kind, bounds = entry["type"], entry.get("ctx", {})
    if kind in _BOUNDS:
        (bound,) = bounds.values()
        text = f"{bound:.12g}"
        text = f"{bound:.12f}".rstrip("0") if "e-" in text else text
        return f"a number {_BOUNDS[kind]} {text}"
    if kind == "literal_error":
        return str(bounds["expected"])
    for beginning, words in _KINDS.items():
        if kind.startswith(beginning):
            return words
    return entry["msg"]


_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_MISSING = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})
_BOUNDS = {
    "greater_than": "above",
    "greater_than_equal": "of at least",
    "less_than": "below",
    "less_than_equal": "of at most",
}
# Prefixes of pydantic's error names, with what was expected.
_KINDS = {
    "int_": "a whole number",
    "float_": "a number",
    "bool_": "true or false",
    "string_": "a text in quotes",
    "tuple_": "a list",
    "list_": "a list",
    "dataclass_": "a table",
    "dict_": "a table",
    "mapping_": "a table",
    "model_": "a table",
}


def _steps(place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    return tuple(part for part in place if not _is_variant(part))


def _key(steps: tuple[int | str, ...], data: Any) -> str:
    """Write a location as a user would: pipelines[door].rate."""
    text = ""
    for step in steps:
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


def _is_variant(part: object) -> bool:
    """Whether a step of a location is pydantic's name of a union member, not a key."""
    return isinstance(part, str) and (
        part.startswith(("tuple[", "list[", "literal[", "function-", "constrained-"))
        or part in {"str", "int", "float", "bool", "none"}
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known word closest to *word*, or the known words."""
    names = sorted(known)
    close = closest(word, names, cutoff=0.5)
    if close:
        return f"; did you mean '{close}'?"
    return f"; known: {', '.join(names)}" if names else ""


def _members(kind: Any, above: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield pydantic's names of the alternative records that a value within *kind* may be."""
    record = _record_within(kind)
    if not is_dataclass(record) or record in above:
        return
    for hint in get_type_hints(record, include_extras=False).values():
        if get_origin(hint) in {Union, types.UnionType}:
            parts = [part for part in get_args(hint) if isinstance(part, type)]
            yield from (part.__name__ for part in parts if is_dataclass(part))
        yield from _members(hint, (*above, record))


def _homes(kind: Any, key: str, above: str = "") -> Iterator[str]:
    """Yield the headers of the tables within *kind* that have a key: [input], [[pipelines]]."""
    if not is_dataclass(kind):
        return
    for item in fields(kind):
        hint = get_type_hints(kind, include_extras=False)[item.name]
        record = _record_within(hint)
        if not is_key(item) or not is_dataclass(record) or record is kind:
            continue
        name = f"{above}.{item.name}" if above else item.name
        if any(is_key(inner) and inner.name == key for inner in fields(record)):
            yield f"[[{name}]]" if get_origin(hint) in {list, tuple} else f"[{name}]"
        yield from _homes(record, key, name)


def _keys_at(kind: Any, path: tuple[int | str, ...]) -> set[str]:
    """List the keys that the record at *path* within *kind* has."""
    for part in path:
        kind = _record_within(kind)
        if isinstance(part, int) or _is_variant(part) or kind is None:
            continue
        kind = get_type_hints(kind, include_extras=False).get(part)
    record = _record_within(kind)
    if record is None:
        return set()
    if is_dataclass(record):
        return {item.name for item in fields(record) if is_key(item)}
    return set(getattr(record, "model_fields", {}))


def _record_within(kind: Any) -> Any:
    """Unwrap list[X], tuple[X, ...], X | None and the like down to the record X."""
    if kind is None or is_dataclass(kind) or hasattr(kind, "model_fields"):
        return kind
    if get_origin(kind) in {list, tuple, Union, types.UnionType}:
        for inner in get_args(kind):
            found = _record_within(inner)
            if found is not None and found is not type(None):
                return found
    return None
