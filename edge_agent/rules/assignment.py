"""The assignment of detections to tracks: most of it is obvious, the rest is solved.

The home of `lap`, a solver of the linear assignment problem by Jonker and Volgenant's method.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Floats = NDArray[np.float32]


def assign(rows: Indices, columns: Indices, gain: Floats) -> NDArray[np.bool_]:
    """Choose pairs of rows and columns (n,) of greatest total gain, each in one pair at most.

    Args:
        rows: of each pair that is possible …
        columns: … and its column.
        gain: what it gains, above 0.

    Returns:
        Which pairs are chosen.
    """
    if not rows.size:
        return np.zeros(0, bool)
    # A pair that gains more than all others of its row and of its column together is in every best
    # choice: without it, no more than one of each could be had. Usually nearly all are such.
    in_row, in_column = np.bincount(rows, gain)[rows], np.bincount(columns, gain)[columns]
    picked: NDArray[np.bool_] = 3 * gain > in_row + in_column
    if picked.all():
        return picked
    taken = np.bincount(rows, picked)[rows] + np.bincount(columns, picked)[columns]
    left = np.flatnonzero(taken == 0)
    if left.size:
        picked[left] = _solve(rows[left], columns[left], gain[left])
    return picked


def _solve(rows: Indices, columns: Indices, gain: Floats) -> NDArray[np.bool_]:
    """Choose as `assign` does, where nothing is obvious."""
    import lap

    row_of, row_count = _renumbered(rows)
    column_of, column_count = _renumbered(columns)
    most = float(gain.max())
    # What is not possible costs more than leaving both alone, which is what the limit says.
    cost = np.full((row_count, column_count), 10 * most + 10)
    cost[row_of, column_of] = most - gain
    _, chosen, _ = lap.lapjv(cost, extend_cost=True, cost_limit=most + 1e-6)
    picked: NDArray[np.bool_] = chosen[row_of] == column_of
    return picked


def _renumbered(indices: Indices) -> tuple[Indices, int]:
    """Return indices without gaps between them, and how many there are."""
    there = np.zeros(int(indices.max()) + 1, bool)
    there[indices] = True
    return (np.cumsum(there) - 1)[indices], int(there.sum())
