"""Motion of tracked boxes: constant-velocity Kalman filters for all tracks at once.

The coordinates have independent noise, so the filter of a box is four filters of position and
velocity, and the update of all boxes is a few array operations. Noise is relative to a box's sides,
as in ByteTrack; its unit of time, a frame, is a thirtieth of a second here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Slots = NDArray[np.intp]
"""Indices into arrays over the tracks, by which other modules refer to tracks."""

POSITION = 1 / 20
"""Noise of a measured position and of the motion in a frame, as a share of the box's side."""
VELOCITY = 1 / 80
"""Noise of the velocity in a frame, likewise."""


class Motion:
    """States of up to `room` boxes, each in its own slot; the arrays can grow."""

    def __init__(self, room: int = 64) -> None:
        # (4, slots), so that an operation on all slots, even free ones, uses contiguous memory:
        # extracting the used ones takes longer.
        self._place = np.zeros((4, room))
        """Center x, y, width, height in pixels."""
        self._speed = np.zeros((4, room))
        """Change of these per frame."""
        self._pp = np.zeros((4, room))
        self._pv = np.zeros((4, room))
        self._vv = np.zeros((4, room))
        """Variance of place, covariance, and variance of speed."""

    @property
    def room(self) -> int:
        """Number of slots."""
        return self._place.shape[1]

    def grow(self, room: int) -> None:
        """Extend the arrays to more slots."""
        arrays = (self._place, self._speed, self._pp, self._pv, self._vv)
        self._place, self._speed, self._pp, self._pv, self._vv = grown(room, *arrays, axis=1)

    def place(self, slots: NDArray[np.intp]) -> Floats:
        """Return (n, 4): center x, y, width, height in pixels."""
        place: Floats = self._place.take(slots, axis=1).T
        return place

    def begin(self, slots: NDArray[np.intp], places: Floats) -> None:
        """Put new boxes (n, 4) into slots (n,)."""
        sides = places.T[[2, 3, 2, 3]]
        self._place[:, slots] = places.T
        self._speed[:, slots] = 0.0
        self._pp[:, slots] = (2 * POSITION * sides) ** 2
        self._pv[:, slots] = 0.0
        self._vv[:, slots] = (10 * VELOCITY * sides) ** 2

    def scale(self, x: float, y: float) -> None:
        """Convert all boxes to pixels of a frame that is *x* times as wide and *y* as high."""
        factors = np.array([[x], [y], [x], [y]])
        self._place *= factors
        self._speed *= factors
        self._pp *= factors**2
        self._pv *= factors**2
        self._vv *= factors**2

    def predict(self, frames: float) -> None:
        """Predict all boxes after a number of frames."""
        squared = self._squared_sides()
        least = 0.5 * np.maximum(self._place[2:], 1.0)
        self._place += self._speed * frames
        # A shrinking box is not extrapolated to zero size.
        np.maximum(self._place[2:], least, out=self._place[2:])
        self._pp += frames * (2 * self._pv + frames * self._vv + POSITION**2 * squared)
        self._pv += frames * self._vv
        self._vv += frames * VELOCITY**2 * squared

    def update(self, slots: NDArray[np.intp], seen: Floats) -> None:
        """Correct boxes by their observed places (n, 4)."""
        off = np.zeros_like(self._place)
        off[:, slots] = seen.T - self._place.take(slots, axis=1)
        there = np.zeros(self.room)
        there[slots] = 1.0
        # Unseen boxes are neither moved nor more certain.
        share = there / np.maximum(self._pp + POSITION**2 * self._squared_sides(), 1e-12)
        gain, push = self._pp * share, self._pv * share
        self._place += gain * off
        self._speed += push * off
        self._pp -= gain * self._pp
        self._vv -= push * self._pv
        self._pv -= gain * self._pv

    def _squared_sides(self) -> Floats:
        """Return squared width, height, width, height, to which the noise is proportional."""
        sides = np.square(np.maximum(self._place[2:], 1.0))
        return np.concatenate([sides, sides])

    def distance(self, slots: NDArray[np.intp], seen: Floats) -> Floats:
        """Return (n, m): squared distances of seen from predicted centers, in units of variance."""
        x, y, wide, high = self._place[:, slots, None]
        spread_x, spread_y, _, _ = self._pp[:, slots, None]
        spread_x = spread_x + (POSITION * wide) ** 2
        spread_y = spread_y + (POSITION * high) ** 2
        result: Floats = (seen[:, 0] - x) ** 2 / spread_x + (seen[:, 1] - y) ** 2 / spread_y
        return result

    def boxes(self, slots: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the boxes in slots: (n, 4) x1, y1, x2, y2."""
        place = self._place.take(slots, axis=1)
        half = place[2:] / 2
        return np.concatenate([place[:2] - half, place[:2] + half]).T.astype(np.float32)


def places(boxes: NDArray[np.float32]) -> Floats:
    """Return boxes (n, 4) x1, y1, x2, y2 as center, width and height."""
    sides = (boxes[:, 2:] - boxes[:, :2]).astype(np.float64)
    return np.concatenate([boxes[:, :2] + sides / 2, sides], axis=1)


def overlaps(
    one: NDArray[np.float32], other: NDArray[np.float32]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Return which of *one* (n, 4) overlap which of *other* (m, 4): indices (k,) and IoU (k,)."""
    # Most pairs do not overlap: all pairs are only compared, using contiguous arrays of sides.
    x1, y1, x2, y2 = np.ascontiguousarray(other.T)
    left, top, right, bottom = one.T[:, :, None]
    meets = left < x2
    meets &= right > x1
    meets &= top < y2
    meets &= bottom > y1
    rows, columns = np.divmod(np.flatnonzero(meets), max(1, len(other)))
    a, b = one.take(rows, axis=0).T, other.take(columns, axis=0).T
    shared = (np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])) * (
        np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    )
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return rows, columns, shared / np.maximum(union, 1e-9)


def grown(room: int, *arrays: NDArray[Any], axis: int = 0) -> Iterator[NDArray[Any]]:
    """Yield arrays extended by zeros to *room* slots along one axis."""
    for array in arrays:
        more = [(0, 0)] * array.ndim
        more[axis] = (0, room - array.shape[axis])
        yield np.pad(array, more)
