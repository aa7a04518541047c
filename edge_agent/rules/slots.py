"""Arrays over the slots of the tracker: what each of its users knows of a track."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def grow(owner: object, names: Iterable[str], room: int, axis: int = 0) -> None:
    """Extend arrays of *owner* by zeros.

    Args:
        owner: has the arrays as attributes.
        names: of these attributes.
        room: slots from now on.
        axis: along which they are.

    """
    for name in names:
        old = getattr(owner, name)
        more = [(0, 0)] * old.ndim
        more[axis] = (0, room - old.shape[axis])
        setattr(owner, name, np.pad(old, more))
