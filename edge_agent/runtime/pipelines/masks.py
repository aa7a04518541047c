"""Privacy masks: areas of a picture made black before anything looks at it."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from ...config.bounds import Polygon
from ...core.types import Array
from ...sources.frame_pool import FRAME_POOL


class Masks:
    """Blackens areas; of pictures of any size, in turn."""

    def __init__(self, polygons: Sequence[Polygon]) -> None:
        self._polygons = [np.array(polygon, np.float64) for polygon in polygons]
        self._size = (0, 0)
        self._corners: list[Array] = []

    def apply(self, picture: Array) -> Array:
        """Blacken areas of a picture (height, width, 3), in place if it is writable; return it."""
        height, width = picture.shape[:2]
        if (height, width) != self._size:
            self._size = (height, width)
            # The picture's far edge is at 1; OpenCV fills the corners' own pixels too, so that
            # no part of a pixel that an area touches is left.
            self._corners = [
                np.round(polygon * (width, height)).astype(np.int32) for polygon in self._polygons
            ]
        if not (picture.flags.writeable and picture.flags.c_contiguous):
            whole, picture = picture, FRAME_POOL.lend(picture.shape)
            np.copyto(picture, whole)
        for corners in self._corners:
            # Each by itself: where two in one call overlap, OpenCV leaves the overlap out.
            cv2.fillPoly(picture, [corners], (0, 0, 0))
        return picture
