"""Turns what pydantic found wrong into one line that a person can act on.

Strangers' data (settings, profiles, manifests, packages, commands) is described by frozen standard
dataclasses and checked here, so that reading a record back never needs pydantic.
"""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import AgentError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

# What strangers may not exceed before a parser sees it.
MAX_TOML_BYTES = 256 * 1024


def read_toml(path: Path, error: type[AgentError]) -> dict[str, Any]:
    """Read a TOML file; every failure is one line of *error*."""
    try:
        if path.stat().st_size > MAX_TOML_BYTES:
            raise error(f"{path}: larger than {MAX_TOML_BYTES // 1024} KiB, not a settings file")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except IsADirectoryError:
        raise error(f"{path}: is a folder, expected a file") from None
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise error(f"{path}: is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise error(f"{path}: not valid TOML: {problem}") from None


def build(kind: type[T], data: Mapping[str, Any], where: str, error: type[AgentError]) -> T:
    """Check *data* and make a record of it.

    Raises:
        AgentError: of the type *error*: "<where>: <key>: <what is wrong>, <mend>".

    """
    from pydantic import ValidationError

    try:
        made: T = _adapter(kind).validate_python(dict(data))  # type: ignore[arg-type]
        return made
    except ValidationError as problem:
        raise error(f"{where}: {explain(problem, kind)}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def explain(problem: ValidationError, kind: type | None = None) -> str:
    """Say what the first thing wrong is, where, and how to mend it."""
    # An unknown key first: it is usually why another one is "missing".
    entries = problem.errors(include_url=False)
    entries.sort(key=lambda entry: entry["type"] not in _UNKNOWN)
    entry = entries[0]
    key = ".".join(str(part) for part in entry["loc"] if not _is_variant(part)) or "(top level)"
    more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    if entry["type"] in _UNKNOWN:
        return f"{key}: unknown key{nearest(str(entry['loc'][-1]), _keys_at(kind, entry['loc'][:-1]))}{more}"
    if entry["type"] in {"missing", "missing_keyword_only_argument"}:
        return f"{key}: is missing{more}"
    text = entry["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    text = text[:1].lower() + text[1:]
    found = entry.get("input")
    secret = any(word in key for word in ("password", "secret"))
    if not secret and isinstance(found, str | int | float | bool):
        text += f", found {found!r}"
    return f"{key}: {text}{more}"


_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})


def _is_variant(part: object) -> bool:
    """Whether a step of a location is pydantic's name of a union member, not a key."""
    return isinstance(part, str) and (
        part.startswith(("tuple[", "list[", "literal[", "function-"))
        or part in {"str", "int", "float", "bool", "none"}
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """Name the known word that *word* was probably meant to be."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""


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
        return {field.name for field in fields(record)}
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
