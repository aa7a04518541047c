"""Areas as a finding: each pixel's label, the labels' shares, and masks on request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from .columns import WayBack
from .frozen import record
from .masks import Mask
from .types import Array, Classes, Tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FAR = 1e9
"""A coordinate outside of every picture, in pixels."""


@record(quick=True, eq=False)
class Areas(Classes):
    """Labels of a picture's pixels, largest area first; scores are shares of the picture."""

    numbers_of: tuple[int, ...]
    """Each label's number in `grid`."""
    grid: Array
    """(h, w) integers; each cell covers some pixels."""
    ends: NDArray[np.float32]
    """(2, 2) x, y of the grid's corners in the picture."""
    size: tuple[int, int]
    """Width and height of the picture; of the network's input before `moved`."""
    asked: bool
    """Whether masks are published."""

    def select(self, index: NDArray[np.intp]) -> Self:
        kept = [self.numbers_of[place] for place in index.tolist()]
        return replace(Classes.select(self, index), numbers_of=tuple(kept))

    def above(self, threshold: float) -> Self:
        import numpy as np

        return self.select(
            np.flatnonzero(np.array(self.scores, np.float32) >= np.float32(threshold))
        )

    def moved(self, way: WayBack) -> Areas:
        """Map the areas to the inferred part of the frame, without a letterbox border."""
        import numpy as np

        ends = way.back_points(self.ends)
        looked_at = way.back(np.array([[-FAR, -FAR, FAR, FAR]], np.float32)).reshape(2, 2)
        cells = np.array(self.grid.shape[::-1])
        low, high = np.rint((looked_at - ends[0]) / (ends[1] - ends[0]) * cells).astype(int)
        low = low.clip(0, cells - 1)
        high = high.clip(low + 1, cells)
        grid = self.grid[low[1] : high[1], low[0] : high[0]]
        return replace(self, grid=grid, ends=looked_at, size=way.frame).counted()

    def counted(self) -> Areas:
        """Return the areas with the shares of all labels present, largest first."""
        import numpy as np

        counts = np.bincount(self.grid.ravel(), minlength=max(self.numbers_of, default=0) + 1)
        each = counts[list(self.numbers_of)]
        order = [int(place) for place in np.argsort(-each, kind="stable") if each[place]]
        shares = tuple((each / self.grid.size).tolist())
        return replace(self, scores=shares).select(np.array(order, np.intp))

    def masks(self) -> dict[str, Mask]:
        """Return the mask of each label."""
        import numpy as np

        (left, top), (right, bottom) = np.rint(self.ends).astype(int).tolist()
        rows, columns = self.grid.shape
        across = np.arange(right - left) * columns // max(right - left, 1)
        down = np.arange(bottom - top) * rows // max(bottom - top, 1)
        large = self.grid[down][:, across]
        size = self.size[::-1]
        each = zip(self.labels, self.numbers_of, strict=True)
        return {label: Mask(left, top, large == number, size) for label, number in each}

    def as_json(self, digits: int = 1) -> dict[str, Any]:
        del digits
        shares = zip(self.labels, self.scores, strict=True)
        made: dict[str, Any] = {"areas": {label: round(share, 4) for label, share in shares}}
        if self.asked:
            made["mask"] = {label: mask.as_json() for label, mask in self.masks().items()}
        return made

    def words(self) -> list[str]:
        each = zip(self.labels[:8], self.scores[:8], strict=True)
        return [f"{label} {share:.0%}" for label, share in each]

    def numbers(self) -> Tensors:
        return {"map": self.grid}
