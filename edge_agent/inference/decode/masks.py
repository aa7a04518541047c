"""Masks as networks return them: weighted sums of prototypes smaller than the input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.columns import WayBack
from ...core.frozen import record
from ...core.masks import Mask
from .decoder import Floats


@record(quick=True, eq=False)
class PrototypeMasks:
    """A mask for each of n boxes: where its sum of prototypes is above 0, within the box.

    They are made on demand: masks of boxes that only continue tracks are never needed.
    """

    weights: Floats
    """(n, k)"""
    prototypes: Floats
    """(k, h, w), over the whole input."""
    boxes: Floats
    """(n, 4) x1, y1, x2, y2 in pixels of the picture."""
    ends: Floats
    """(2, 2) x, y of the input's upper left and lower right corners in the picture."""
    size: tuple[int, int]
    """Width and height of the picture, which is the input itself until they are `moved`."""

    def moved(self, way: WayBack) -> PrototypeMasks:
        """Return them in pixels of the frame."""
        boxes, ends = way.back(self.boxes), way.back_points(self.ends)
        return replace(self, boxes=boxes, ends=ends, size=way.frame)

    def __iter__(self) -> Iterator[Mask]:
        return (self[number] for number in range(len(self.weights)))

    def __getitem__(self, index: Any) -> Any:
        """Return the mask with an index, or several masks for indices (m,)."""
        if isinstance(index, np.ndarray):
            return replace(self, weights=self.weights[index], boxes=self.boxes[index])
        width, height = self.size
        # Cropped as in Ultralytics: pixels whose upper left corner lies within the box.
        x1, y1, x2, y2 = (
            np.ceil(self.boxes[index]).clip(0, (width, height) * 2).astype(int).tolist()
        )
        cells = np.array(self.prototypes.shape[:0:-1])
        spans = self.ends[1] - self.ends[0]
        low, high = (np.array([(0, 0), self.size]) - self.ends[0]) / spans * cells
        low, high = low.clip(0, cells), high.clip(0, cells)
        # As in Ultralytics: cells so fine that a letterbox's border ends with one, so that none of
        # the border is used. Without this, IoU was 0.97 on noise (measured).
        ends = np.concatenate((low, high))
        fine = next(
            (f for f in (1, 2, 4) if np.allclose(ends * f, np.rint(ends * f), atol=1e-2)), 1
        )
        low, high = low * fine, high * fine - 1
        across, down = (
            _blend(
                ((pixels + 0.5 - self.ends[0, axis]) / spans[axis] * cells[axis] * fine - 0.5).clip(
                    low[axis], high[axis]
                ),
                int(cells[axis]),
                fine,
            )
            for axis, pixels in enumerate((np.arange(x1, x2), np.arange(y1, y2)))
        )
        sums = np.tensordot(self.weights[index], self.prototypes, 1)
        return Mask(x1, y1, down @ sums @ across.T > 0, (height, width))


def _blend(at: Floats, count: int, fine: int) -> Floats:
    """Return the linear weight of each of *count* cells at positions (n,): (n, count).

    Positions are in finer cells, *fine* to a cell, which are themselves interpolated.
    """
    if fine > 1:
        middles = ((np.arange(count * fine) + 0.5) / fine - 0.5).clip(0, count - 1)
        return _blend(at, count * fine, 1) @ _blend(middles, count, 1)
    low = at.astype(np.intp)
    share = (at - low).astype(np.float32)
    blend = np.zeros((len(at), count), np.float32)
    every = np.arange(len(at))
    blend[every, low] = 1 - share
    blend[every, np.minimum(low + 1, count - 1)] += share
    return blend
