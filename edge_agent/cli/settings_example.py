"""A commented example of all settings, generated from the records that read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from .. import __version__
from .schemas import schemas

HEAD = f"""\
# All settings of edge-agent {__version__}, with their defaults, or an example where there is none.
# To set a key, take away the # before it and before the [table] above it.
"""
EXAMPLES: Mapping[str, Any] = {
    "device_id": "edge-01",
    "name": "door",
    "source": "rtsp://camera/stream",
    "model": "parts-inspection",
    "rate": 5.0,
    "threshold": 0.6,
    "when": "enter",
    "zone": "yard",
    "line": "gate",
    "above": 30.0,
    "below": 28.0,
    "value": "temperature",
    "polygon": [[0.1, 0.4], [0.9, 0.4], [0.9, 1.0], [0.1, 1.0]],
    "points": [[0.2, 0.6], [0.8, 0.6]],
    "all": ["door/enter", "yard/count"],
    "url": "https://server.lan:8000/v1",
    "publish": "siren/set",
    "http": "http://127.0.0.1:9000/hook",
    "prompt": "What is the {label} doing?",
    "ca_file": "/etc/edge-agent/ca.pem",
    "cert_file": "/etc/edge-agent/device.pem",
    "key_file": "/etc/edge-agent/device.key",
}
"""Example values by key, for keys without a default."""
_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
_MUCH = 1_000_000
"""Larger bounds are not shown: they only protect against typing errors."""


def settings_example() -> str:
    """Return the TOML file, with everything commented out."""
    known = schemas()
    return "\n".join([HEAD, *_lines(known["settings"], known, ())]) + "\n"


def _lines(table: Mapping[str, Any], known: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the keys of a table, then the tables in it, unless nested in one of the same kind."""
    lines, below = list[str](), list[str]()
    for key, schema in table["properties"].items():
        inner = _table(schema, known)
        if inner is None:
            lines += _told(schema, needed=key in table.get("required", ()))
            lines.append(_line(key, schema))
        elif key not in path:
            head = ".".join([*path, key])
            below += ["", *_wrapped(schema.get("description", inner.get("description", "")))]
            below.append(f"#[[{head}]]" if schema.get("type") == "array" else f"#[{head}]")
            below += _lines(inner, known, (*path, key))
    return lines + below


def _choices(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas that a value may have, except null."""
    return [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]


def _table(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of a key that is a table or a list of tables; None: it is neither."""
    first, *others = _choices(schema)
    reference = str(first.get("items", first).get("$ref", ""))
    named: Mapping[str, Any] = known.get(reference.rpartition("/")[2], {})
    return named if "properties" in named and not others else None


def _told(schema: Mapping[str, Any], *, needed: bool) -> Iterator[str]:
    """Yield lines with the description of a key and its possible values."""
    words = [str(schema["description"])] if "description" in schema else []
    for choice in _choices(schema):
        if "enum" in choice:
            words.append(f"One of {', '.join(map(_value, choice['enum']))}.")
        limits = [(text, choice[key]) for key, text in _BOUNDS.items() if key in choice]
        bounds = [f"{text} {limit:.9g}" for text, limit in limits if abs(limit) < _MUCH]
        words += [f"A number {' '.join(bounds)}."] if bounds else []
    words += ["Required."] if needed else []
    return _wrapped(" ".join(words).replace("None:", "unset:"))


def _wrapped(text: str) -> Iterator[str]:
    return (f"# {line}" for line in wrap(text, 96))


def _line(key: str, schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    if value is None:
        first = _choices(schema)[0]
        empty = {"string": "", "array": [], "object": {}}
        value = EXAMPLES.get(key, empty.get(first.get("type", ""), first.get("minimum", 1)))
    return f"#{key} = {_value(value)}"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # the same in TOML for all these values
