"""Arrays with a row for each slot of the tracker: what each of its users knows of a track."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def grow(owner: object, names: Iterable[str], room: int) -> None:
    """Extend arrays of *owner* by rows of zeros.

    Args:
        owner: has the arrays as attributes.
        names: of these attributes.
        room: rows from now on.

    """
    for name in names:
        old = getattr(owner, name)
        new = np.zeros((room, *old.shape[1:]), old.dtype)
        new[: len(old)] = old
        setattr(owner, name, new)
