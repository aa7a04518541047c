"""The form of a question to a language model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...core.errors import SampleError
from ...core.json_text import read_json

EXPECTED = '{"messages": [{"role": "user", "content": "…"}]} or {"prompt": "…"}'
SCHEMA_BYTES, SCHEMA_DEPTH = 16 * 1024, 64
"""Of a schema: while the library reads one, no other question is answered."""

LEFT_OUT = {"not", "if", "then", "else", "multipleOf", "uniqueItems"} | {
    *("contains", "minContains", "maxContains"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
}
"""Of a schema: keywords that the library leaves out of the grammar without a word."""


def checked(data: bytes) -> Mapping[str, Any]:
    """Parse a question; a `null` counts as left out.

    Raises:
        SampleError: it is malformed.
    """
    try:
        body = read_json(data)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        body = {key: value for key, value in body.items() if value is not None}
    if not isinstance(body, dict) or ("prompt" in body) == ("messages" in body):
        raise SampleError(f"expected {EXPECTED}")
    for key, value in body.items():
        if key not in CHECKS:
            raise SampleError(f"{key}: unknown key; known: {', '.join(CHECKS)}")
        expected, is_so = CHECKS[key]
        if not is_so(value):
            raise SampleError(f"{key}: expected {expected}")
    if "schema" in body and (left_out := _left_out(body["schema"])) is not None:
        raise SampleError(f"schema: {left_out} is not kept to here; leave it out")
    return body


def _is_text(found: Any) -> bool:
    return isinstance(found, str) and bool(found)


def _is_stop(found: Any) -> bool:
    return _is_text(found) and len(found) <= 200


def _are(found: Any, is_so: Callable[[Any], bool], most: int) -> bool:
    return isinstance(found, list) and 0 < len(found) <= most and all(map(is_so, found))


def _is_message(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and found.keys() == {"role", "content"}
        and all(isinstance(text, str) for text in found.values())
    )


def _is_flat(part: Any, depth: int) -> bool:
    """Whether a schema has no more levels, and its texts, as patterns, few enough repetitions."""
    if isinstance(part, str):
        times = re.findall(r"\{(?:\d+,)?(\d{1,9})", part)  # {n}, {m,n}, {m,}
        return math.prod(map(int, times)) <= 10_000
    inner = [*part, *part.values()] if isinstance(part, dict) else part
    if not isinstance(inner, list):
        return True
    return depth > 0 and all(_is_flat(each, depth - 1) for each in inner)


def _left_out(schema: Any) -> str | None:
    """Return a keyword that the answer would not keep to; None: there is none.

    Names of properties are no keywords.
    """
    if not isinstance(schema, dict):
        return None
    parts: list[Any] = []
    for key, value in schema.items():
        if key in LEFT_OUT or (key == "allOf" and isinstance(value, list) and len(value) > 1):
            return str(key)
        if key in {"properties", "$defs", "definitions"} and isinstance(value, dict):
            parts += value.values()
        elif key not in {"const", "enum", "default", "examples"}:
            parts += value if isinstance(value, list) else [value]
    return next((key for key in map(_left_out, parts) if key is not None), None)


CHECKS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "prompt": ("a text", _is_text),
    "messages": (
        'a list of {"role": "user", "content": "…"}',
        lambda found: _are(found, _is_message, 1000),
    ),
    "max_tokens": (
        "a whole number of 1 or more",
        lambda found: type(found) is int and found > 0,
    ),
    "temperature": (
        "a number from 0 to 2",
        lambda found: type(found) in {int, float} and 0 <= found <= 2,
    ),
    "stop": (
        "a text of up to 200 letters, or up to 16 of them",
        lambda found: _is_stop(found) or _are(found, _is_stop, 16),
    ),
    "schema": (
        f"a JSON schema of up to {SCHEMA_BYTES} bytes, {SCHEMA_DEPTH} levels and 10000 repetitions",
        lambda found: (
            isinstance(found, dict)
            and len(json.dumps(found)) <= SCHEMA_BYTES
            and _is_flat(found, SCHEMA_DEPTH)
        ),
    ),
}
