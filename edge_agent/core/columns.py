"""The optional columns of detections: how each is written as JSON and mapped to the frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .frozen import record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .masks import Mask

    Array = NDArray[Any]
else:
    Array = Any


class WayBack(Protocol):
    """Maps coordinates of a network's input to the frame that the input was made from."""

    def back(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return boxes (n, 4) x1, y1, x2, y2 in pixels of the frame, clipped there."""

    def back_points(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return points (..., 2) x, y in pixels of the frame."""

    @property
    def frame(self) -> tuple[int, int]:
        """Width and height of the whole frame, whichever part of it the input was made from."""


class Masks(Protocol):
    """One mask for each box."""

    def __iter__(self) -> Iterator[Mask]: ...

    def __getitem__(self, index: Any) -> Any:
        """Return the mask at an index, or the masks at several indices (m,)."""

    def moved(self, way: WayBack) -> Masks:
        """Map the masks to pixels of the frame."""


@record
class Column:
    """An optional column of detections, with one entry per box."""

    key: str
    """The key in a detection's JSON."""
    entries: Callable[[Any, int], Iterable[Any]]
    """Returns each entry as JSON, given the decimals of coordinates; empty or 0: left out."""
    moved: Callable[[Any, WayBack], Any] = lambda column, _: column
    """Maps the column to the frame."""
    numeric: bool = False
    """Whether it holds floats, which must be finite."""


def _points_json(points: Array, digits: int) -> Iterable[Any]:
    return (
        [
            [round(x, digits), round(y, digits), *(round(s, 4) for s in score)]
            for x, y, *score in each
        ]
        for each in points.tolist()
    )


def _points_moved(points: Array, way: WayBack) -> Array:
    import numpy as np

    return np.concatenate((way.back_points(points[..., :2]), points[..., 2:]), axis=-1)


COLUMNS: Mapping[str, Column] = {
    "points": Column("points", _points_json, _points_moved, numeric=True),
    "corners": Column("corners", _points_json, _points_moved, numeric=True),
    "masks": Column(
        "mask",
        lambda masks, _: (mask.as_json() for mask in masks),
        lambda masks, way: masks.moved(way),
    ),
    "texts": Column("text", lambda texts, _: texts),
    "tracks": Column("track", lambda tracks, _: tracks.tolist()),
    "zones": Column("zones", lambda zones, _: map(list, zones)),
}
"""The columns by field of `Detections`, in the order of the JSON keys."""
