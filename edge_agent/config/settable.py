"""What of a pipeline can be set while it runs: `set`, `in/set/...` and what `set` has kept."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.errors import RequestError
from ..core.json_text import HalfLetterError, read_json
from ..core.parameters import FLAG, LABEL, Items, Kind, Number, Table, Whole, shown
from .bounds import THRESHOLDS
from .settings import RATES
from .shapes import MOST_POINTS, MOST_SHAPES, polygon_trouble

MOST_BYTES = 64 * 1024
"""Of a bare value."""


class _Polygons(Items):
    """A list of areas, in 0..1 of the frame."""

    def __init__(self) -> None:
        super().__init__(Items(Items(Number(0, 1), 2, 2), 3, MOST_POINTS), 0, MOST_SHAPES)

    def parse(self, value: object) -> tuple[object, ...]:
        polygons = super().parse(value)
        for number, polygon in enumerate(polygons, 1):
            trouble = polygon_trouble(polygon)  # type: ignore[arg-type]
            if trouble is not None:
                raise ValueError(f"polygon {number}: {trouble}")
        return polygons


SETTABLE: Mapping[str, Kind] = {
    "enabled": FLAG,
    "threshold": Number(*THRESHOLDS),
    "rate": Number(*RATES),
    "labels": Items(LABEL),
    "thresholds": Table(Number(*THRESHOLDS), keys=LABEL),
    "min_box": Items(Whole(0, 1_000_000), 2, 2),
    "masks": _Polygons(),
}
"""By key of a pipeline: what it may be set to; as the settings have it."""

_SWITCH = {"ON": True, "TRUE": True, "OFF": False, "FALSE": False}


def read_bare(key: str, payload: bytes) -> object:
    """Read a bare value of `in/set/<pipeline>/<key>`, as phones and switches send it.

    Raises:
        RequestError: there is no such key, or the value is none of its.
    """
    if key not in SETTABLE:
        raise RequestError(f"{shown(key)} cannot be set; what can: {', '.join(SETTABLE)}")
    if len(payload) > MOST_BYTES:
        raise RequestError(f"{key}: larger than {MOST_BYTES} bytes")
    try:
        text = payload.decode().strip()
    except UnicodeDecodeError:
        raise RequestError(f"{key}: is not UTF-8 text") from None
    if text == "null":  # takes back what was set
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
        raise RequestError(f"{key}: cannot be read: {shown(text)}") from None
