"""Parameters of `[input] transform`: for spectra, and for the statistics of a window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from ..core.codec import storable
from ..core.constraints import Ge, Gt, Le, Plain
from ..core.frozen import record

_STRICT: Any = {"extra": "forbid"}
STATISTICS = ("rms", "peak", "kurtosis", "crest")
_BAND = re.compile(r"band:(\d{1,9}(?:\.\d{1,6})?)-(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)
MOST = 64
"""Most statistics per channel."""


@storable
@record(kw_only=True)
class LogMel:
    """Parameters of `transform = "logmel"` and `"mfcc"`: those of the training code."""

    __pydantic_config__ = _STRICT
    frame_ms: Annotated[float, Gt(0), Le(60_000)] = 30.0
    step_ms: Annotated[float, Gt(0), Le(60_000)] = 20.0
    fft: Annotated[int, Ge(0), Le(65536)] = 0
    """Samples per transform; 0: the next power of two."""
    window: Literal["hann", "hamming", "povey"] = "hann"
    center: Annotated[bool, Plain()] = False
    """Whether frames are centered on their time."""
    edges: Literal["reflect", "zeros"] = "reflect"
    """What centered frames find before the first sample and behind the last."""
    power: Annotated[int, Ge(1), Le(2)] = 1
    mel: Literal["htk", "slaney"] = "htk"
    bins: Annotated[int, Gt(0), Le(1024)] = 40
    low_hz: Annotated[float, Ge(0), Le(1e9)] = 20.0
    high_hz: Annotated[float, Ge(0), Le(1e9)] = 0.0
    """Upper limit, Hz; 0: half the rate."""
    log: Literal["log", "log10", "log1p", "db"] = "log"
    floor: Annotated[float, Gt(0), Le(1e9)] = 1e-6
    """Added before the logarithm; the least value of decibels."""
    reference: Literal["one", "max"] = "one"
    """What 0 dB is: a value of 1, or the window's largest value."""
    top_db: Annotated[float, Ge(0), Le(1000)] = 0.0
    """How far below the window's largest value decibels are cut; 0: not at all."""
    coefficients: Annotated[int, Gt(0), Le(1024)] = 10
    """Number of coefficients of an MFCC."""
    preemphasis: Annotated[float, Ge(0), Le(1)] = 0.0
    normalize: Literal["none", "peak", "max"] = "none"
    """How a window's samples are divided first: by the largest absolute value (peak), or by the
    largest value (max)."""


@storable
@record(kw_only=True)
class Stats:
    """The statistics of each channel that `transform = "stats"` computes from a window."""

    __pydantic_config__ = _STRICT
    of: tuple[str, ...]
    """Each is one of STATISTICS, or "band:LOW-HIGH" in hertz."""


def window_rate(resample_hz: float, rate_hz: float | None, every: int) -> float | None:
    """Return the samples a second of a window: `rate_hz` is what the model knows, after `every`."""
    return resample_hz / every if resample_hz else rate_hz


def band_of(name: str) -> tuple[float, float] | None:
    """Return the bounds of a band in Hz, or None if the name is not a band's."""
    found = _BAND.fullmatch(name)
    return (float(found[1]), float(found[2])) if found else None


def stats_problems(
    of: tuple[str, ...], window: int | None, rate: float | None
) -> Iterator[tuple[str, str]]:
    """Yield the problems of the statistics of a window: key below `[input]`, and text."""
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
