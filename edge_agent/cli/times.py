"""Times as a person reads them: when payloads were made, and how long ago."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def moment(says: Mapping[str, Any]) -> float | None:
    """Return the time of a payload in seconds since 1970; None where it has none."""
    from datetime import datetime

    text = says.get("time")
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def span(seconds: float) -> str:
    """Write a span of time in its two largest units: "2 d 3 h"."""
    whole = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (unit, size), (smaller, part) in pairwise(units):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"
