"""Where tracked boxes go: Kalman filters of constant velocity, of all tracks at once.

The noise of each coordinate is its own, so that the filter of a box is four filters of position and
velocity; the update of all boxes is then a few operations on arrays. Lengths of noise are shares of
a box's sides, as ByteTrack has them; its unit of time, a frame, is a thirtieth of a second here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .slots import grow

Floats = NDArray[np.float64]

POSITION = 1 / 20
"""Noise of a measured position, and of where a box goes in a frame, as a share of its side."""
VELOCITY = 1 / 80
"""Change of its velocity in a frame, likewise."""


class Motion:
    """States of up to `room` boxes, each in a slot of its own; grows."""

    def __init__(self, room: int = 64) -> None:
        self.place = np.zeros((room, 4))
        """(slots, 4) center x, y, width, height in pixels."""
        self.speed = np.zeros((room, 4))
        """The same, a frame."""
        self._pp = np.zeros((room, 4))
        self._pv = np.zeros((room, 4))
        self._vv = np.zeros((room, 4))
        """Variances of place and speed, and what they have in common."""

    def grow(self, room: int) -> None:
        """Make room for more slots."""
        grow(self, ("place", "speed", "_pp", "_pv", "_vv"), room)

    def begin(self, slots: NDArray[np.intp], places: Floats) -> None:
        """Put new boxes into slots."""
        sides = places[:, [2, 3, 2, 3]]
        self.place[slots] = places
        self.speed[slots] = 0.0
        self._pp[slots] = (2 * POSITION * sides) ** 2
        self._pv[slots] = 0.0
        self._vv[slots] = (10 * VELOCITY * sides) ** 2

    def predict(self, slots: NDArray[np.intp], frames: float) -> None:
        """Move boxes on by a time."""
        place, speed = self.place[slots], self.speed[slots]
        pp, pv, vv = self._pp[slots], self._pv[slots], self._vv[slots]
        sides = np.maximum(place[:, [2, 3, 2, 3]], 1.0)
        place = place + speed * frames
        # What shrinks is not extrapolated into nothing.
        place[:, 2:] = np.maximum(place[:, 2:], 0.5 * sides[:, :2])
        self.place[slots] = place
        self._pp[slots] = pp + frames * (2 * pv + frames * vv + (POSITION * sides) ** 2)
        self._pv[slots] = pv + frames * vv
        self._vv[slots] = vv + frames * (VELOCITY * sides) ** 2

    def update(self, slots: NDArray[np.intp], seen: Floats) -> None:
        """Correct boxes by where they were seen."""
        place = self.place[slots]
        pp, pv = self._pp[slots], self._pv[slots]
        sides = np.maximum(place[:, [2, 3, 2, 3]], 1.0)
        spread = pp + (POSITION * sides) ** 2
        gain, push = pp / spread, pv / spread
        off = seen - place
        self.place[slots] = place + gain * off
        self.speed[slots] += push * off
        self._pp[slots] = pp - gain * pp
        self._vv[slots] -= push * pv
        self._pv[slots] = pv - gain * pv

    def distance(self, slots: NDArray[np.intp], seen: Floats) -> Floats:
        """Return how far each seen center is from each predicted one: squared, in its spread."""
        place = self.place[slots][:, None, :2]
        sides = self.place[slots][:, None, 2:]
        spread = self._pp[slots][:, None, :2] + (POSITION * sides) ** 2
        off = seen[None, :, :2] - place
        result: Floats = (off * off / spread).sum(axis=2)
        return result

    def boxes(self, slots: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return where boxes are: (n, 4) x1, y1, x2, y2."""
        place = self.place[slots]
        half = place[:, 2:] / 2
        return np.concatenate([place[:, :2] - half, place[:, :2] + half], axis=1).astype(np.float32)


def places(boxes: NDArray[np.float32]) -> Floats:
    """Return boxes x1, y1, x2, y2 as center, width and height."""
    sides = (boxes[:, 2:] - boxes[:, :2]).astype(np.float64)
    return np.concatenate([boxes[:, :2] + sides / 2, sides], axis=1)


def overlaps(
    one: NDArray[np.float32], other: NDArray[np.float32]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Return which of *one* overlap which of *other*, and their intersection over union.

    Returns:
        The index in each, and the overlap, of the pairs that have one.

    """
    # Most pairs have none: only comparisons are made of all.
    meets = one[:, 0, None] < other[:, 2]
    meets &= one[:, 2, None] > other[:, 0]
    meets &= one[:, 1, None] < other[:, 3]
    meets &= one[:, 3, None] > other[:, 1]
    rows, columns = np.divmod(np.flatnonzero(meets), max(1, len(other)))
    a, b = one[rows].T, other[columns].T
    shared = (np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])) * (
        np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    )
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return rows, columns, shared / np.maximum(union, 1e-9)
