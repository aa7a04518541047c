"""Keys of a pipeline that can be set while it runs: `set`, `in/set/...` and kept values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.errors import RequestError
from ..core.json_text import HalfLetterError, read_json
from ..core.parameters import FLAG, LABEL, Kind, items, number, shown, table, whole
from .bounds import THRESHOLDS
from .settings import RATES
from .shapes import MOST_POINTS, MOST_SHAPES, polygon_trouble

MOST_BYTES = 64 * 1024
"""Size limit of a bare value."""


_POLYGONS = items(items(items(number(0, 1), 2, 2), 3, MOST_POINTS), 0, MOST_SHAPES)
"""Areas, in 0 to 1 of the frame."""


def _polygons(value: object) -> tuple[Any, ...]:
    polygons: tuple[Any, ...] = _POLYGONS.parse(value)
    for count, polygon in enumerate(polygons, 1):
        trouble = polygon_trouble(polygon)
        if trouble is not None:
            raise ValueError(f"polygon {count}: {trouble}")
    return polygons


SETTABLE: Mapping[str, Kind] = {
    "enabled": FLAG,
    "threshold": number(*THRESHOLDS),
    "rate": number(*RATES),
    "labels": items(LABEL),
    "thresholds": table(number(*THRESHOLDS), keys=LABEL),
    "min_box": items(whole(0, 1_000_000), 2, 2),
    "masks": replace(_POLYGONS, parse=_polygons),
}
"""The type of each settable key of a pipeline, as in the settings."""

_FORMS = {
    "threshold": "0.5",
    "rate": "5",
    "labels": '["person", "car"]',
    "thresholds": '{"car": 0.7}',
    "min_box": "[10, 10]",
    "masks": "[[[0, 0], [1, 0], [1, 0.1]]]",
}
"""A value of each key that is read as JSON."""
_DECIMAL_COMMA = re.compile(r"\d+,\d+", re.ASCII)
_SWITCH = {"ON": True, "TRUE": True, "OFF": False, "FALSE": False}


def read_bare(key: str, payload: bytes) -> object:
    """Read a bare value of `in/set/<pipeline>/<key>`, as phones and switches send it."""
    if key not in SETTABLE:
        from .configured import KEYS

        by = ", but edge-agent configure changes it" if key in KEYS else ""
        raise RequestError(f"{shown(key)} cannot be set{by}; what can: {', '.join(SETTABLE)}")
    if len(payload) > MOST_BYTES:
        raise RequestError(f"{key}: larger than {MOST_BYTES} bytes")
    try:
        text = payload.decode().strip()
    except UnicodeDecodeError:
        raise RequestError(f"{key}: is not UTF-8 text") from None
    if text == "null":  # undoes `set`
        return None
    if key == "enabled":
        if text.upper() not in _SWITCH:
            raise RequestError(f"enabled: expected ON or OFF, found {shown(text)}")
        return _SWITCH[text.upper()]
    if key == "labels" and not text.startswith("["):
        return [label.strip() for label in text.split(",") if label.strip()]
    try:
        return read_json(text)
    except HalfLetterError as problem:
        raise RequestError(f"{key}: {problem}") from None
    except (ValueError, RecursionError):
        form = _FORMS[key]
        if key in {"rate", "threshold"} and _DECIMAL_COMMA.fullmatch(text):
            form = text.replace(",", ".")
        words = f"{key}: cannot be read: {shown(text)}; write it as {form}"
        raise RequestError(words) from None
