"""Parameters of `transform = "stats"`: the statistics of a window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..core.codec import storable
from ..core.frozen import record

_STRICT: Any = {"extra": "forbid"}
STATISTICS = ("rms", "peak", "kurtosis", "crest")
_BAND = re.compile(r"band:(\d{1,9}(?:\.\d{1,6})?)-(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)
MOST = 64
"""Statistics of a window."""


@storable
@record(kw_only=True)
class Stats:
    """What of each channel of a window `transform = "stats"` gives."""

    __pydantic_config__ = _STRICT
    of: tuple[str, ...]
    """Each one of STATISTICS, or "band:LOW-HIGH" in hertz."""


def band_of(name: str) -> tuple[float, float] | None:
    """Return the bounds of a band, Hz, or None if the name is none of one."""
    found = _BAND.fullmatch(name)
    return (float(found[1]), float(found[2])) if found else None


def stats_problems(
    of: tuple[str, ...], window: int | None, rate: float | None
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the statistics of a window: key below `[input]`, and text."""
    if window is None:
        yield "window", "is missing; statistics are of windows"
    if not 1 <= len(of) <= MOST:
        known = ", ".join((*STATISTICS, "band:LOW-HIGH"))
        yield "stats.of", f"expected 1 to {MOST} of {known}, found {len(of)}"
    for place, name in enumerate(of):
        band = band_of(name)
        if name in of[:place]:
            yield "stats.of", f"names {name!r} twice"
        if band is None:
            if name not in STATISTICS:
                known = ", ".join(STATISTICS)
                yield (
                    "stats.of",
                    f'expected {known} or a band in Hz as "band:10-100", found {name!r}',
                )
        elif not rate:
            yield "rate_hz", f"is missing; {name} needs the samples a second"
        elif not band[0] < band[1] <= rate / 2:
            yield "stats.of", f"{name}: expected low < high ≤ {rate / 2:g}, half the rate"
