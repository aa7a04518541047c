"""Masks: which pixels of a picture belong to an object, and their COCO run lengths."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .frozen import record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bits = NDArray[np.bool_]


@record(quick=True, eq=False)
class Mask:
    """The pixels of an object, as the part of a picture that contains them all."""

    left: int
    """Column of the picture where the part begins."""
    top: int
    """Row of the picture where the part begins."""
    bits: Bits
    """(h, w)"""
    size: tuple[int, int]
    """Height and width of the whole picture."""

    def as_json(self) -> dict[str, Any]:
        """Return the mask of the whole picture in the compressed form of COCO and pycocotools."""
        return {"size": list(self.size), "counts": compressed(self.runs())}

    def runs(self) -> list[int]:
        """Return how many pixels are off, on, off … in turn, column by column."""
        import numpy as np

        height, width = self.size
        columns = np.pad(self.bits.T.astype(np.int8), ((0, 0), (1, 1)))
        column, row = np.nonzero(np.diff(columns, axis=1))
        turns = ((self.left + column) * height + self.top + row).tolist()
        # A run to the lower edge continues in the next column: it ends where the next one begins.
        edges = [0]
        for turn in turns:
            if turn == edges[-1] and len(edges) > 1:
                edges.pop()
            else:
                edges.append(turn)
        if edges[-1] != height * width or len(edges) == 1:
            edges.append(height * width)
        return [after - before for before, after in pairwise(edges)]

    def overlap(self, other: Mask) -> float:
        """Return the intersection over union with another mask of the same picture."""
        left, top = max(self.left, other.left), max(self.top, other.top)
        mine, theirs = (
            one.bits[max(top - one.top, 0) :, max(left - one.left, 0) :] for one in (self, other)
        )
        height, width = (min(sizes) for sizes in zip(mine.shape, theirs.shape, strict=True))
        common = int((mine[:height, :width] & theirs[:height, :width]).sum())
        whole = int(self.bits.sum()) + int(other.bits.sum()) - common
        return common / whole if whole else 1.0


def compressed(runs: list[int]) -> str:
    """Encode run lengths as pycocotools does: differences to the length two before, 5 bits each."""
    text = []
    for place, run in enumerate(runs):
        rest = run - runs[place - 2] if place > 2 else run
        while True:
            five, rest = rest & 0x1F, rest >> 5
            last = rest == (-1 if five & 0x10 else 0)
            text.append(chr(48 + (five if last else five | 0x20)))
            if last:
                break
    return "".join(text)
