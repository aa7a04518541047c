"""The pictures of events."""

from __future__ import annotations

from ..core.types import Array
from ..runtime.pipelines.draw import jpeg
from .event import Event

AROUND = 0.5
"""Widest margin of a crop around a box, as a share of the box's larger side."""
QUALITY = 85


def render(event: Event) -> bytes:
    """Return the JPEG of an event: the frame, or the box with its surroundings.

    The box is in the middle; near the edge of the frame the surroundings are smaller.

    Raises:
        SampleError: it cannot be encoded.
    """
    assert event.picture is not None  # noqa: S101 - the caller's business
    picture = event.picture
    box = event.facts.get("box")
    if event.crop and box is not None:
        picture = crop(picture, box)
    return jpeg(picture, QUALITY)


def crop(picture: Array, box: tuple[float, float, float, float]) -> Array:
    """Crop a picture (height, width, 3) to a box and its surroundings, with the box centered."""
    height, width = picture.shape[:2]
    x1, y1 = min(max(0, round(box[0])), width - 1), min(max(0, round(box[1])), height - 1)
    x2, y2 = max(min(width, round(box[2])), x1 + 1), max(min(height, round(box[3])), y1 + 1)
    around = round(AROUND * max(x2 - x1, y2 - y1))
    left = min(around, x1, width - x2)
    top = min(around, y1, height - y2)
    return picture[y1 - top : y2 + top, x1 - left : x2 + left]
