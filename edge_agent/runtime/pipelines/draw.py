"""Draws findings on a picture, for snapshots and `try`."""

from __future__ import annotations

import colorsys
import hashlib
from collections.abc import Iterator, Sequence

import cv2
import numpy as np

from ...core.areas import Areas
from ...core.errors import SampleError
from ...core.masks import Mask
from ...core.types import Array, Detections, Findings
from ...inference.likeness import SEEN
from ...inference.preprocess.placement import Region
from .sinks import Shape

FONT = cv2.FONT_HERSHEY_SIMPLEX
Color = tuple[int, int, int]
"""Blue, green, red."""
DARK: Color = (0, 0, 0)
LIGHT: Color = (255, 255, 255)
GRAY: Color = (40, 40, 40)
# Of all values tried, the one that keeps the hues of the bundled labels and of the most common COCO
# labels farthest apart.
_SALT = b"18601"


def annotate(
    picture: Array,
    found: Findings | None,
    region: Region | None = None,
    shapes: Sequence[Shape] = (),
) -> Array:
    """Return a copy of *picture*, (height, width, 3) uint8 BGR, with boxes and labels drawn.

    *region* is the inferred part, x1, y1, x2, y2 in pixels; None: all.
    """
    canvas = picture.copy()
    height, width = canvas.shape[:2]
    scale = max(0.4, min(width, height) / 900)
    # JPEG's halved color resolution would turn a line of one pixel gray.
    thick = max(2, round(scale * 2))
    if region is not None:
        # On the picture's last pixels if it extends beyond them.
        x1, y1, x2, y2 = region
        _box(canvas, (x1, y1, min(x2, width - 1), min(y2, height - 1)), LIGHT, 1)
    for shape in shapes:
        _shape(canvas, shape, scale, thick)
    if isinstance(found, Detections):
        _detections(canvas, found, scale, thick)
    elif isinstance(found, Areas):
        for label, mask in found.masks().items():
            _fill(canvas, mask, color_of(label))
        _lines(canvas, found.words(), scale)
    elif found is not None:
        _lines(canvas, found.words(), scale)
    return canvas


def color_of(label: str) -> Color:
    """Return the color of a label: the same on every device, neither pale nor dark."""
    digest = hashlib.blake2b(label.encode(), digest_size=2, salt=_SALT).digest()
    red, green, blue = colorsys.hsv_to_rgb(int.from_bytes(digest, "big") / 65536, 0.85, 1.0)
    return round(blue * 255), round(green * 255), round(red * 255)


def jpeg(picture: Array, quality: int = 80) -> bytes:
    """Encode a picture (height, width, 3) as JPEG."""
    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise SampleError(f"a picture of shape {picture.shape} cannot be encoded as JPEG")
    return data.tobytes()


def shrunk(picture: Array, width: int) -> Array:
    """Shrink a picture to at most *width* pixels, keeping its aspect ratio; 0: unchanged."""
    if not 0 < width < picture.shape[1]:
        return picture
    height = max(1, round(picture.shape[0] * width / picture.shape[1]))
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def _shape(canvas: Array, shape: Shape, scale: float, thick: int) -> None:
    """Draw a zone, or a line with an arrow to its right side, the direction of `in`."""
    height, width = canvas.shape[:2]
    points = np.round(np.array(shape.points, np.float64) * (width - 1, height - 1)).astype(np.int32)
    color = (60, 200, 255) if shape.closed else (255, 160, 60)
    for shade, wide in ((DARK, thick + 2), (color, thick)):
        cv2.polylines(canvas, [points], shape.closed, shade, wide, cv2.LINE_AA)
    if not shape.closed:
        (x1, y1), (x2, y2) = points[0].tolist(), points[1].tolist()
        middle = ((x1 + x2) // 2, (y1 + y2) // 2)
        share = 40 * scale / max(1.0, float(np.hypot(x2 - x1, y2 - y1)))
        tip = (round(middle[0] - (y2 - y1) * share), round(middle[1] + (x2 - x1) * share))
        cv2.arrowedLine(canvas, middle, tip, color, thick, cv2.LINE_AA, tipLength=0.4)
    x, y = points[points[:, 1].argmin()].tolist()
    place = _place(canvas, shape.text, (x, y, x, y), scale, [])
    _tag(canvas, shape.text, place, scale, color)


def _detections(canvas: Array, found: Detections, scale: float, thick: int) -> None:
    boxes = [tuple(round(float(side)) for side in box) for box in found.boxes]
    for label, mask in zip(found.labels, found.masks or (), strict=found.masks is not None):
        _fill(canvas, mask, color_of(label))
    for place, (label, box) in enumerate(zip(found.labels, boxes, strict=True)):
        if found.corners is None:
            _box(canvas, box, color_of(label), thick)
        else:
            _quad(canvas, found.corners[place], color_of(label), thick)
    if found.points is not None:
        for x, y, *score in found.points.reshape(-1, found.points.shape[2]).tolist():
            if not score or score[0] >= SEEN:
                cv2.circle(canvas, (round(x), round(y)), thick + 1, (0, 255, 255), -1)
    # On top of all boxes, the best first, so that it gets the best place.
    taken: list[Rect] = []
    tracks = [0] * len(found) if found.tracks is None else found.tracks.tolist()
    texts = found.texts or ("",) * len(found)
    each = zip(found.labels, found.scores, boxes, tracks, texts, strict=True)
    for label, score, box, track, read in each:
        text = f"{label} {score:.2f}" + (f" #{track}" if track else "") + (read and f" {read}")
        taken.append(_place(canvas, text, box, scale, taken))
        _tag(canvas, text, taken[-1], scale, color_of(label))


def _box(canvas: Array, box: tuple[int, ...], color: Color, thick: int) -> None:
    """Draw a frame with a dark edge, visible on light and dark."""
    corners = (box[0], box[1]), (box[2], box[3])
    cv2.rectangle(canvas, *corners, DARK, thick + 2)
    cv2.rectangle(canvas, *corners, color, thick)


def _quad(canvas: Array, corners: Array, color: Color, thick: int) -> None:
    """Draw an oriented box with corners (4, 2) in the same way."""
    points = [np.round(corners).astype(np.int32)]
    cv2.polylines(canvas, points, True, DARK, thick + 2, cv2.LINE_AA)
    cv2.polylines(canvas, points, True, color, thick, cv2.LINE_AA)


def _fill(canvas: Array, mask: Mask, color: Color) -> None:
    """Tint the pixels of a mask."""
    rows, columns = mask.bits.shape
    part = canvas[mask.top : mask.top + rows, mask.left : mask.left + columns]
    part[mask.bits] = part[mask.bits] // 2 + np.array(color, np.uint8) // 2


def _lines(canvas: Array, lines: list[str], scale: float) -> None:
    y = 4
    for line in lines:
        width, height = _size(line, scale)
        _tag(canvas, line, (4, y, 4 + width, y + height), scale, GRAY)
        y += height


# Labels

Rect = tuple[int, int, int, int]
"""x1, y1, x2, y2; the last two are exclusive."""


def _size(text: str, scale: float) -> tuple[int, int]:
    """Return width and height of the bar behind a text."""
    (width, height), base = cv2.getTextSize(text, FONT, scale, 1)
    return width + 2, height + base + 2


def _place(canvas: Array, text: str, box: tuple[int, ...], scale: float, taken: list[Rect]) -> Rect:
    """Choose the place of a box's label: inside the picture and over no other label."""
    rows, columns = canvas.shape[:2]
    width, height = _size(text, scale)
    tried = []
    for x, y in _corners(box, width, height):
        left = max(0, min(x, columns - width))
        top = max(0, min(y, rows - height))
        tried.append((left, top, left + width, top + height))
        if not any(_overlap(tried[-1], other) for other in taken):
            return tried[-1]
    return tried[0]


def _corners(box: tuple[int, ...], width: int, height: int) -> Iterator[tuple[int, int]]:
    """Yield possible upper left corners of a label, the best place first."""
    x1, y1, x2, y2 = box
    if y1 >= height:
        yield x1, y1 - height
        yield x2 - width, y1 - height
    yield x1, y2
    yield x2 - width, y2
    for y in range(max(0, y1), max(y1 + 1, y2 - height), height):
        yield x1, y
        yield x2 - width, y


def _overlap(one: Rect, other: Rect) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _tag(canvas: Array, text: str, place: Rect, scale: float, color: Color) -> None:
    """Write a text on a filled bar."""
    x1, y1, x2, y2 = place
    cv2.rectangle(canvas, (x1, y1), (x2 - 1, y2 - 1), color, -1)
    base = cv2.getTextSize(text, FONT, scale, 1)[1]
    blue, green, red = color
    bright = 0.114 * blue + 0.587 * green + 0.299 * red > 128
    cv2.putText(
        canvas, text, (x1 + 1, y2 - base), FONT, scale, DARK if bright else LIGHT, 1, cv2.LINE_AA
    )
