"""The part of a payload that has the types of the schemas that `edge-agent schema` prints.

What devices say is read by everybody who looks at the fleet: one that is damaged or hostile must
cost its own lines only. Ranges, patterns and required keys are not checked, nor are unknown keys:
older and newer agents may have others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any

_MOST = 2**63
_ODD = object()
_TYPES: Mapping[str, type] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


@cache
def schemas() -> dict[str, Any]:
    """Return the JSON Schema of each payload, by the kind that its topic has, and their parts."""
    from importlib.resources import files  # not when an agent starts

    text = files("edge_agent.mqtt").joinpath("payloads.json").read_text("utf-8")
    defined: dict[str, Any] = json.loads(text)["$defs"]
    return defined


def as_declared(kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a *payload* of a *kind*, such as `status`, has the types of its schema."""
    cleaned: dict[str, Any] = _clean(schemas()[kind], dict(payload))
    return cleaned


def _clean(schema: Mapping[str, Any], value: Any) -> Any:
    """Return a value without the keys and items of other types; `_ODD` if it is itself of one."""
    if "$ref" in schema:
        return _clean(schemas()[schema["$ref"].rpartition("/")[2]], value)
    if "anyOf" in schema:
        each = [_clean(one, value) for one in schema["anyOf"]]
        value = next((one for one in each if one is not _ODD), _ODD)
    if value is _ODD or not _is(schema, value):
        return _ODD
    if isinstance(value, dict):
        others, own = schema.get("additionalProperties", {}), schema.get("properties", {})
        pairs = ((key, _clean(own.get(key, others), each)) for key, each in value.items())
        return {key: each for key, each in pairs if each is not _ODD}
    if isinstance(value, list):
        items = (_clean(schema.get("items", {}), each) for each in value)
        return [each for each in items if each is not _ODD]
    return value


def _is(schema: Mapping[str, Any], value: Any) -> bool:
    """Return whether a value is of the type, or of one of the types, of a schema."""
    if "const" in schema or "enum" in schema:
        known = schema["enum"] if "enum" in schema else [schema["const"]]
        return type(value) in {type(each) for each in known}
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    return not names or any(_has(name, value) for name in names)


def _has(name: str, value: Any) -> bool:
    if name in {"number", "integer"}:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return abs(value) < _MOST and isfinite(value) and (name == "number" or value == int(value))
    return isinstance(value, _TYPES[name])
