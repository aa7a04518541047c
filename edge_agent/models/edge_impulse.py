"""Parameters of `transform = "mfe"` and `"spectral"`, Edge Impulse's blocks of these names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from ..core.codec import storable
from ..core.constraints import Ge, Gt, Le, Plain
from ..core.frozen import record

_STRICT: Any = {"extra": "forbid"}
MOST_FRAMES = 500
"""Most frames in a window, as in Edge Impulse."""


@storable
@record(kw_only=True)
class Mfe:
    """Audio (MFE): mel energies above a noise floor, for samples in -1..1."""

    __pydantic_config__ = _STRICT
    version: Literal[3, 4] = 4
    """Version of the block: `ei_dsp_config_mfe_t.implementation_version` in an export."""
    frame_ms: Annotated[float, Plain(), Gt(0), Le(60_000)] = 20.0
    step_ms: Annotated[float, Plain(), Gt(0), Le(60_000)] = 10.0
    fft: Annotated[int, Plain(), Ge(4), Le(65536)] = 256
    """Samples per transform, a power of two; of a longer frame only the first are used."""
    bins: Annotated[int, Plain(), Ge(2), Le(1024)] = 40
    low_hz: Annotated[float, Plain(), Ge(0), Le(1e9)] = 0.0
    high_hz: Annotated[float, Plain(), Ge(0), Le(1e9)] = 0.0
    """Upper limit, Hz; 0: half the rate."""
    noise_floor_db: Annotated[float, Plain(), Ge(-1000), Le(0)] = -52.0


@storable
@record(kw_only=True)
class Spectral:
    """Spectral analysis by FFT: moments and powers of each channel of a window."""

    __pydantic_config__ = _STRICT
    version: Literal[2, 3, 4] = 4
    """Version of the block; from 4 on it returns moments of the spectrum, too."""
    scale_axes: Annotated[float, Plain(), Ge(-1e9), Le(1e9)] = 1.0
    """Factor for readings."""
    filter: Literal["none", "low", "high"] = "none"
    cutoff_hz: Annotated[float, Plain(), Gt(0), Le(1e9)] = 3.0
    order: Literal[2, 4, 6, 8] = 6
    fft: Annotated[int, Plain(), Ge(4), Le(65536)] = 16
    """Samples per transform, a power of two."""
    log: Annotated[bool, Plain()] = True
    overlap: Annotated[bool, Plain()] = True


def block_problems(
    transform: str,
    mfe: Mfe | None,
    spectral: Spectral | None,
    window: int | None,
    rate: float | None,
) -> Iterator[tuple[str, str]]:
    """Yield the problems of the parameters of the transform's block: key, and text."""
    if transform not in {"mfe", "spectral"}:
        return
    block = mfe or Mfe() if transform == "mfe" else spectral or Spectral()
    if window is None:
        yield "input.window", f"is missing; transform {transform!r} takes windows"
    if block.fft & (block.fft - 1):
        yield f"input.{transform}.fft", f"expected a power of two, found {block.fft}"
    if not rate:
        yield "input.rate_hz", f"is missing; transform {transform!r} needs the samples a second"
    elif isinstance(block, Spectral):
        if block.filter != "none" and block.cutoff_hz >= rate / 2:
            yield "input.spectral.cutoff_hz", f"expected less than {rate / 2:g}, half the rate"
    elif not block.low_hz < (block.high_hz or rate / 2) <= rate / 2:
        yield "input.mfe", f"expected low_hz < high_hz ≤ {rate / 2:g}, half the rate"
