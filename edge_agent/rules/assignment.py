"""The assignment of detections to tracks: most of it is obvious, the rest is solved.

The home of `lap`, a solver of the linear assignment problem by Jonker and Volgenant's method.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Floats = NDArray[np.float32]


def assign(rows: Indices, columns: Indices, gain: Floats) -> NDArray[np.bool_]:
    """Choose pairs so that their gain is the greatest, each row and column in one at most.

    Args:
        rows: of each pair that is possible …
        columns: … and its column.
        gain: what it gains, above 0.

    Returns:
        Which pairs are chosen.

    """
    if not rows.size:
        return np.zeros(0, bool)
    # Where a row and a column have nobody else, there is nothing to choose.
    alone = (np.bincount(rows)[rows] == 1) & (np.bincount(columns)[columns] == 1)
    if alone.all():
        return np.asarray(alone, bool)
    import lap

    left = np.flatnonzero(~alone)
    row_of, row_count = _renumbered(rows[left])
    column_of, column_count = _renumbered(columns[left])
    most = float(gain[left].max())
    # What is not possible costs more than leaving both alone, which is what the limit says.
    cost = np.full((row_count, column_count), 10 * most + 10)
    cost[row_of, column_of] = most - gain[left]
    _, chosen, _ = lap.lapjv(cost, extend_cost=True, cost_limit=most + 1e-6)
    picked = np.array(alone, bool)
    picked[left] = chosen[row_of] == column_of
    return picked


def _renumbered(indices: Indices) -> tuple[Indices, int]:
    """Return indices without gaps between them, and how many there are."""
    there = np.zeros(int(indices.max()) + 1, bool)
    there[indices] = True
    return (np.cumsum(there) - 1)[indices], int(there.sum())
