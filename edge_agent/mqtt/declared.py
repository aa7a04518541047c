"""Whether a payload has the types that the agent publishes, as `edge-agent schema` states them.

What devices say is read by everybody who looks at the fleet: one that is damaged or hostile must
cost its own line only. Ranges, patterns and required keys are not checked, nor are unknown keys:
older and newer agents may have others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any

_MOST = 2**63
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": (int, float),
}


@cache
def schemas() -> dict[str, Any]:
    """Return the JSON Schema of each payload, by the kind that its topic has, and their parts."""
    from importlib.resources import files  # not when an agent starts

    text = files("edge_agent.mqtt").joinpath("payloads.json").read_text("utf-8")
    defined: dict[str, Any] = json.loads(text)["$defs"]
    return defined


def is_as_declared(kind: str, payload: Mapping[str, Any]) -> bool:
    """Return whether the values in a *payload* of a *kind*, such as `status`, have their types."""
    return _fits(schemas()[kind], payload)


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    if "$ref" in schema:
        return _fits(schemas()[schema["$ref"].rpartition("/")[2]], value)
    if "anyOf" in schema and not any(_fits(each, value) for each in schema["anyOf"]):
        return False
    if "const" in schema or "enum" in schema:
        known = schema["enum"] if "enum" in schema else [schema["const"]]
        return type(value) in {type(each) for each in known}
    types = schema.get("type", "number" if "minimum" in schema else [])
    if types and not any(_is(each, value) for each in ([types] if type(types) is str else types)):
        return False
    if isinstance(value, dict):
        others, own = schema.get("additionalProperties", {}), schema.get("properties", {})
        return all(_fits(own.get(key, others), each) for key, each in value.items())
    if isinstance(value, list):
        return all(_fits(schema.get("items", {}), each) for each in value)
    return True


def _is(name: str, value: Any) -> bool:
    if name in {"number", "integer"}:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return abs(value) < _MOST and isfinite(value) and (name == "number" or value == int(value))
    return isinstance(value, _TYPES[name])
