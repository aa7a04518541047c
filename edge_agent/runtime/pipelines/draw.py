"""Draws findings onto a picture, for snapshots and `try`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import cv2
import numpy as np

from ...core.errors import SampleError
from ...core.types import Anomaly, Array, Classes, Detections, Findings, RawTensors, Values
from .overlay import Shape

FONT = cv2.FONT_HERSHEY_SIMPLEX


def annotate(picture: Array, found: Findings, shapes: Sequence[Shape] = ()) -> Array:
    """Return a copy of *picture*, uint8 BGR, with boxes and labels drawn.

    Args:
        picture: the frame.
        found: in it; with tracks, each box has its number.
        shapes: zones and lines.

    """
    canvas = picture.copy()
    height, width = canvas.shape[:2]
    scale = max(0.4, min(width, height) / 900)
    # Of one pixel, JPEG's halved color resolution would leave a gray shade.
    thick = max(2, round(scale * 2))
    for shape in shapes:
        _shape(canvas, shape, scale, thick)
    match found:
        case Detections():
            tracks = [0] * len(found) if found.tracks is None else found.tracks.tolist()
            each = zip(found.labels, found.scores, found.boxes, tracks, strict=True)
            for label, score, box, track in each:
                x1, y1, x2, y2 = (round(float(side)) for side in box)
                color = color_of(label)
                cv2.rectangle(canvas, (x1, y1), (x2, y2), color, thick)
                number = f" #{track}" if track else ""
                _tag(canvas, f"{label} {score:.2f}{number}", (x1, y1), scale, color)
            if found.points is not None:
                for x, y in found.points.reshape(-1, 2):
                    cv2.circle(
                        canvas, (round(float(x)), round(float(y))), thick + 1, (0, 255, 255), -1
                    )
        case Classes():
            lines = [
                f"{n} {s:.2f}" for n, s in zip(found.labels[:5], found.scores[:5], strict=True)
            ]
            _lines(canvas, lines, scale)
        case Anomaly():
            _lines(
                canvas, [f"{'ANOMALY' if found.anomalous else 'normal'} {found.score:.3g}"], scale
            )
        case Values():
            _lines(
                canvas,
                [f"{name} {value:.4g}" for name, value in list(found.values.items())[:12]],
                scale,
            )
        case RawTensors():
            _lines(
                canvas,
                [f"{name} {list(a.shape)}" for name, a in list(found.tensors.items())[:12]],
                scale,
            )
    return canvas


def color_of(label: str) -> tuple[int, int, int]:
    """Return the color of a label, the same on every device."""
    digest = hashlib.blake2b(label.encode(), digest_size=3).digest()
    blue, green, red = (80 + value % 176 for value in digest)
    return blue, green, red


def jpeg(picture: Array, quality: int = 80) -> bytes:
    """Encode as JPEG."""
    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise SampleError(f"a picture of shape {picture.shape} cannot be encoded as JPEG")
    return data.tobytes()


def shrunk(picture: Array, width: int) -> Array:
    """Return a picture no wider than so many pixels, in its proportions; 0: as it is."""
    if not 0 < width < picture.shape[1]:
        return picture
    height = max(1, round(picture.shape[0] * width / picture.shape[1]))
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def _shape(canvas: Array, shape: Shape, scale: float, thick: int) -> None:
    """Draw a zone, or a line with an arrow to its right side: the way that counts as `in`."""
    height, width = canvas.shape[:2]
    points = np.round(np.array(shape.points, np.float64) * (width - 1, height - 1)).astype(np.int32)
    color = (60, 200, 255) if shape.closed else (255, 160, 60)
    cv2.polylines(canvas, [points], shape.closed, color, thick, cv2.LINE_AA)
    if not shape.closed:
        (x1, y1), (x2, y2) = points[0].tolist(), points[1].tolist()
        middle = ((x1 + x2) // 2, (y1 + y2) // 2)
        share = 40 * scale / max(1.0, float(np.hypot(x2 - x1, y2 - y1)))
        tip = (round(middle[0] - (y2 - y1) * share), round(middle[1] + (x2 - x1) * share))
        cv2.arrowedLine(canvas, middle, tip, color, thick, cv2.LINE_AA, tipLength=0.4)
    x, y = points[points[:, 1].argmin()].tolist()
    _tag(canvas, shape.text, (min(x, width * 2 // 3), y), scale, color)


def _lines(canvas: Array, lines: list[str], scale: float) -> None:
    for index, line in enumerate(lines):
        _tag(canvas, line, (4, round((index + 1) * 34 * scale)), scale, (40, 40, 40))


def _tag(
    canvas: Array, text: str, corner: tuple[int, int], scale: float, color: tuple[int, int, int]
) -> None:
    """Write *text* on a filled bar above *corner*, or inside where there is no room above."""
    (width, height), base = cv2.getTextSize(text, FONT, scale, 1)
    x, y = max(0, corner[0]), corner[1]
    if y - height - base < 0:
        y += height + base
    cv2.rectangle(canvas, (x, y - height - base), (x + width, y), color, -1)
    dark = sum(color) > 380
    cv2.putText(
        canvas,
        text,
        (x, y - base + 1),
        FONT,
        scale,
        (0, 0, 0) if dark else (255, 255, 255),
        1,
        cv2.LINE_AA,
    )
