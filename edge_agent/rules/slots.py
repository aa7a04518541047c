"""Arrays over the slots of the tracker: what each of its users knows of a track."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.intp]


def grown(room: int, *arrays: NDArray[Any], axis: int = 0) -> Iterator[NDArray[Any]]:
    """Yield arrays extended by zeros to *room* slots along one axis."""
    for array in arrays:
        more = [(0, 0)] * array.ndim
        more[axis] = (0, room - array.shape[axis])
        yield np.pad(array, more)
