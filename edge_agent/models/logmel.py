"""Parameters of spectra, a part of the manifest."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ..core.codec import storable
from ..core.constraints import Ge, Gt, Le, Plain
from ..core.frozen import record

_STRICT: Any = {"extra": "forbid"}


@storable
@record(kw_only=True)
class LogMel:
    """Parameters of `transform = "logmel"` and `"mfcc"`: those of the training code."""

    __pydantic_config__ = _STRICT
    frame_ms: Annotated[float, Gt(0), Le(60_000)] = 30.0
    step_ms: Annotated[float, Gt(0), Le(60_000)] = 20.0
    fft: Annotated[int, Ge(0), Le(65536)] = 0
    """Samples of a transform; 0: the next power of two."""
    window: Literal["hann", "hamming", "povey"] = "hann"
    center: Annotated[bool, Plain()] = False
    """Whether frames lie around their time, edges reflected."""
    power: Annotated[int, Ge(1), Le(2)] = 1
    mel: Literal["htk", "slaney"] = "htk"
    bins: Annotated[int, Gt(0), Le(1024)] = 40
    low_hz: Annotated[float, Ge(0), Le(1e9)] = 20.0
    high_hz: Annotated[float, Ge(0), Le(1e9)] = 0.0
    """0: half the rate."""
    log: Literal["log", "log10", "log1p", "db"] = "log"
    floor: Annotated[float, Gt(0), Le(1e9)] = 1e-6
    """Added before the logarithm."""
    coefficients: Annotated[int, Gt(0), Le(1024)] = 10
    """Of an MFCC."""
    preemphasis: Annotated[float, Ge(0), Le(1)] = 0.0
    normalize: Literal["none", "peak", "max"] = "none"
    """Of a window's samples before all this: divided by the largest, of either sign or (max) as it
    is."""
