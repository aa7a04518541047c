"""Privacy masks: areas of a picture painted black before anything else uses it."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from ...config.bounds import Polygon
from ...core.types import Array
from ...sources.frame_pool import FRAME_POOL


class Masks:
    """Paints areas black in pictures of any size."""

    def __init__(self, polygons: Sequence[Polygon]) -> None:
        self._polygons = [np.array(polygon, np.float64) for polygon in polygons]
        self._size = (0, 0)
        self._corners: list[Array] = []

    def apply(self, picture: Array) -> Array:
        """Paint areas of a picture (height, width, 3) black, in place if writable; return it."""
        height, width = picture.shape[:2]
        if (height, width) != self._size:
            self._size = (height, width)
            # The picture's far edge is at 1; OpenCV also fills the corner pixels, so that every
            # pixel that an area touches is black.
            self._corners = [
                np.round(polygon * (width, height)).astype(np.int32) for polygon in self._polygons
            ]
        if not (picture.flags.writeable and picture.flags.c_contiguous):
            whole, picture = picture, FRAME_POOL.lend(picture.shape)
            np.copyto(picture, whole)
        for corners in self._corners:
            # One at a time: in a single call, OpenCV leaves out the overlap of two areas.
            cv2.fillPoly(picture, [corners], (0, 0, 0))
        return picture
