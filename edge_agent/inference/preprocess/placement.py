"""Where a picture lies in the network's input, and the way back."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...core.frozen import record


@record(quick=True)
class Placement:
    """A picture's place in the network's input: input = source * scale + offset, on each axis.

    Coordinates are those of pixel edges: 0 is the left edge of the first pixel, the width the
    right edge of the last, which is how OpenCV's resize maps them.
    """

    width: int
    """Of the network's input, pixels."""
    height: int
    scale_x: float
    scale_y: float
    offset_x: float
    offset_y: float
    source_width: int
    source_height: int

    def forward(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Carry boxes (n, 4) x1, y1, x2, y2 from source pixels to input pixels; not clipped."""
        return (boxes * self._scales(2) + self._offsets(2)).astype(np.float32)

    def back(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Carry boxes (n, 4) x1, y1, x2, y2 from input pixels to source pixels, clipped there."""
        carried = (boxes - self._offsets(2)) / self._scales(2)
        frame = _repeated(self.source_width, self.source_height, 2)
        return np.clip(carried, 0.0, frame).astype(np.float32)

    def back_points(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Carry points (..., 2) x, y from input pixels to source pixels.

        Not clipped: a landmark outside the frame is an estimate, not an error.
        """
        return ((points - self._offsets(1)) / self._scales(1)).astype(np.float32)

    def _scales(self, times: int) -> NDArray[np.float64]:
        return _repeated(self.scale_x, self.scale_y, times)

    def _offsets(self, times: int) -> NDArray[np.float64]:
        return _repeated(self.offset_x, self.offset_y, times)


@lru_cache(maxsize=64)
def _repeated(x: float, y: float, times: int) -> NDArray[np.float64]:
    """Return x, y, x, y, …; cached: most frames have the size of the one before."""
    row = np.array([x, y] * times, np.float64)
    row.flags.writeable = False
    return row
