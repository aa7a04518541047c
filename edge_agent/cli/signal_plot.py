"""The plot for a model tried on a sensor: readings by channel, and scores over time."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ..core.types import Array
from .signal_trace import SignalTrace

Floats = NDArray[np.float64]

WIDTH, STRIP, EDGE = 900, 110, 110
"""Pixels: the plot's width, a channel's height, and the width of the left margin with names."""
Color = tuple[int, int, int]
PAPER: Color = (255, 255, 255)
INK: Color = (60, 60, 60)
LINE: Color = (180, 120, 30)
RED: Color = (40, 40, 220)


def plot(trace: SignalTrace, title: str) -> Array:
    """Return a picture (height, width, 3): the channels, and below them score and threshold."""
    strips = len(trace.names) + 1
    canvas: Any = np.full((30 + strips * STRIP + 10, WIDTH, 3), PAPER, np.uint8)
    _text(canvas, title, (10, 20))
    pieces = np.array(trace.pieces) if trace.pieces else np.zeros((0, 2, len(trace.names)))
    for channel, name in enumerate(trace.names):
        top = 30 + channel * STRIP
        band = pieces[:, :, channel].astype(np.float64)
        _strip(canvas, top, name, _span(band))
        _band(canvas, top, band, trace.pieces.maxlen or 1)
    top = 30 + (strips - 1) * STRIP
    scores = np.array(trace.scores, np.float64)
    known = [] if trace.threshold is None else [trace.threshold]
    low, high = _span(np.concatenate([scores, [0.0], known]))
    _strip(canvas, top, trace.label, (low, high))
    across, down = _across(len(scores), trace.scores.maxlen or 1), _down(scores, low, high, top)
    points = np.stack([across, down], axis=1).astype(np.int32)
    cv2.polylines(canvas, [points], False, LINE, 1, cv2.LINE_AA)
    for point, flagged in zip(points.tolist(), trace.flags, strict=True):
        if flagged:
            cv2.circle(canvas, (point[0], point[1]), 3, RED, -1, cv2.LINE_AA)
    if trace.threshold is not None:
        level = int(_down(np.array([trace.threshold]), low, high, top)[0])
        cv2.line(canvas, (EDGE, level), (WIDTH - 10, level), RED, 1)
        _text(canvas, f"threshold {trace.threshold:.4g}", (EDGE + 4, level - 3), RED)
    drawn: Array = canvas
    return drawn


def png(picture: Array) -> bytes:
    """Encode a picture (height, width, 3) as PNG."""
    done, data = cv2.imencode(".png", picture)
    if not done:
        raise ValueError(f"a picture of shape {picture.shape} cannot be encoded as PNG")
    return bytes(data.tobytes())


def _span(values: Floats) -> tuple[float, float]:
    """Return the range of an axis."""
    if not np.isfinite(values).any():
        return 0.0, 1.0
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return (low - 0.5, high + 0.5) if high - low < 1e-9 else (low, high)


def _across(count: int, most: int) -> Floats:
    """Return the x positions of *count* points, the last at the right edge."""
    step = (WIDTH - 10 - EDGE) / max(1, most - 1)
    return WIDTH - 10 - step * np.arange(count - 1, -1, -1, dtype=np.float64)


def _down(values: Floats, low: float, high: float, top: int) -> Floats:
    found: Floats = top + STRIP - 12 - (values - low) / (high - low) * (STRIP - 24)
    return found


def _strip(canvas: Array, top: int, name: str, span: tuple[float, float]) -> None:
    cv2.rectangle(canvas, (EDGE, top + 8), (WIDTH - 10, top + STRIP - 8), (225, 225, 225), 1)
    _text(canvas, name[:12], (10, top + STRIP // 2))
    _text(canvas, f"{span[1]:.3g}", (EDGE - 50, top + 18))
    _text(canvas, f"{span[0]:.3g}", (EDGE - 50, top + STRIP - 10))


def _band(canvas: Array, top: int, band: Floats, most: int) -> None:
    """Draw from the lowest to the highest value of each piece that is not NaN."""
    low, high = _span(band)
    across = _across(len(band), most)
    upper, lower = _down(band[:, 1], low, high, top), _down(band[:, 0], low, high, top)
    for x, y1, y2 in zip(across, upper, lower, strict=True):
        if not np.isnan(y1):
            cv2.line(canvas, (int(x), int(y1)), (int(x), int(y2)), LINE, 1)


def _text(canvas: Array, text: str, at: tuple[int, int], color: Color = INK) -> None:
    # OpenCV only draws ASCII letters.
    plain = text.replace("·", "-").encode("ascii", "replace").decode()
    cv2.putText(canvas, plain, at, cv2.FONT_HERSHEY_SIMPLEX, 0.42, color, 1, cv2.LINE_AA)
