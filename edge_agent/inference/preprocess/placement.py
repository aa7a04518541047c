"""Where a picture is in the network's input, and mapping coordinates back."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...core.errors import SampleError
from ...core.frozen import record
from ...core.types import Array, Tensors


@record(quick=True)
class Placement:
    """A picture's place in the network's input: input = source * scale + offset on each axis.

    Coordinates refer to pixel edges: 0 is the left edge of the first pixel, the width the right
    edge of the last, which is how OpenCV's resize maps them.
    """

    width: int
    """Width of the network's input, pixels."""
    height: int
    scale_x: float
    scale_y: float
    offset_x: float
    offset_y: float
    source_width: int
    source_height: int

    def forward(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map boxes (n, 4) x1, y1, x2, y2 from source pixels to input pixels; not clipped."""
        return (boxes * self._scales(2) + self._offsets(2)).astype(np.float32)

    def back(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map boxes (n, 4) x1, y1, x2, y2 from input pixels to source pixels, clipped there."""
        carried = (boxes - self._offsets(2)) / self._scales(2)
        frame = _repeated(self.source_width, self.source_height, 2)
        return np.clip(carried, 0.0, frame).astype(np.float32)

    def back_points(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map points (..., 2) x, y from input pixels to source pixels.

        Not clipped: a landmark outside the frame is an estimate, not an error.
        """
        return ((points - self._offsets(1)) / self._scales(1)).astype(np.float32)

    def _scales(self, times: int) -> NDArray[np.float64]:
        return _repeated(self.scale_x, self.scale_y, times)

    def _offsets(self, times: int) -> NDArray[np.float64]:
        return _repeated(self.offset_x, self.offset_y, times)


@lru_cache(maxsize=64)
def _repeated(x: float, y: float, times: int) -> NDArray[np.float64]:
    """Return x, y, x, y, …; cached, because most frames have the same size."""
    row = np.array([x, y] * times, np.float64)
    row.flags.writeable = False
    return row


Region = tuple[int, int, int, int]
"""x1, y1, x2, y2 in source pixels."""


class ClientInputs(dict[str, Array]):
    """Inputs from a client, who may have sought out those in which engines differ, or hang."""


def like(inputs: Tensors, made: Tensors) -> Tensors:
    """Return inputs made from others, marked as a client's if those are."""
    return ClientInputs(made) if isinstance(inputs, ClientInputs) else made


@record(quick=True, eq=False)
class PreparedSample:
    """A sample as the network takes it."""

    tensors: Tensors
    placement: Placement | None
    dx: int
    dy: int
    """Vertical offset of the region it was cut from, pixels of the frame."""
    took_ms: float
    by: object = None
    """The model whose network it is for."""
    region: Region | None = None
    frame: tuple[int, int] = (0, 0)
    """Width and height of the whole picture, even if a region was cut out."""

    def back(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map boxes (n, 4) x1, y1, x2, y2 in the network's input back to the frame."""
        assert self.placement is not None  # noqa: S101 - of a picture
        carried = self.placement.back(boxes)
        return carried if self._whole else carried + np.array([self.dx, self.dy] * 2, np.float32)

    def back_points(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map points (..., 2) x, y in the network's input back to the frame."""
        assert self.placement is not None  # noqa: S101 - of a picture
        carried = self.placement.back_points(points)
        return carried if self._whole else carried + np.array([self.dx, self.dy], np.float32)

    def thumbnail(self, data: Array) -> NDArray[np.float32]:
        """Return what the network gets of the picture *data*, as 8 by 8 pixels (8, 8, 3)."""
        import cv2

        assert self.placement is not None  # noqa: S101 - of a picture
        everything = np.array([[0, 0, self.placement.width, self.placement.height]], np.float32)
        x1, y1, x2, y2 = (int(side) for side in self.back(everything)[0])
        seen = cut(data, (x1, y1, x2, y2))[0]
        step = max(1, min(seen.shape[:2]) // 128)
        few = np.ascontiguousarray(seen[::step, ::step])
        small = cv2.resize(few, (8, 8), interpolation=cv2.INTER_AREA)
        return small.astype(np.float32, copy=False)

    @property
    def _whole(self) -> bool:
        return not (self.dx or self.dy)


def outside(data: Array, region: Region) -> str | None:
    """Return the error if a region lies outside a picture, or None if part of it is inside."""
    height, width = data.shape[:2]
    x1, y1, x2, y2 = region
    if x1 < width and y1 < height and x2 > 0 and y2 > 0:
        return None
    return (
        f"roi {list(region)} lies wholly outside the picture, which is {width}x{height}"
        " pixels; "
        "nothing can be found there"
    )


def cut(data: Array, region: Region) -> tuple[Array, int, int]:
    """Cut the part of a region that is inside a picture; return it and its corner x, y.

    Raises:
        SampleError: no part of it is inside.
    """
    why = outside(data, region)
    if why is not None:
        raise SampleError(why)
    height, width = data.shape[:2]
    x1, y1 = min(max(region[0], 0), width - 1), min(max(region[1], 0), height - 1)
    x2, y2 = max(min(region[2], width), x1 + 1), max(min(region[3], height), y1 + 1)
    return data[y1:y2, x1:x2], x1, y1
