"""Drift: how far a model's inputs and scores are from the usual.

Measured by the population stability index, the sum over bins of (p - q) ln(p / q), where q is the
usual share of a bin and p the present one: the divergence of H. Jeffreys, "An invariant form for
the prior probability in estimation problems" (1946), as N. Siddiqi, "Credit Risk Scorecards"
(2006), applies it to ten bins of equal share. His rule of thumb: below 0.1 nothing has changed,
above 0.25 much has.

For each result some values of its sample are used: a grid of pixels of a picture, some rows of a
window; neither these values nor the memory for them grow with the sample's size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.files import replace_file
from ..core.types import Array, Findings, Sample
from ..models.drift import DRIFT, MOST_CHANNELS, Distribution, Usual, content

GRID = (12, 16)
"""Rows and columns of the grid of pixels used."""
ROWS = 32
"""Rows of a window that are used."""
COLORS = ("blue", "green", "red")
QUANTILES = np.arange(1, 10) / 10
FLOOR = 1e-3
"""Smaller shares of a bin count as this, so that no index is above 14."""

Floats = NDArray[np.float64]


def values(data: Array, *, picture: bool, seq: int = 0) -> Array:
    """Return a copy of some values of a sample.

    Args:
        data: the data of a `core.types.Sample`.
        picture: whether it is a picture.
        seq: the sample's sequence number: each window gives other rows, so that they do not
            coincide with a period in what the sensor measures.

    Returns:
        (n, channels). More than 64 channels, and ready inputs of more than two dimensions, count as
        one channel.
    """
    if picture:
        height, width = data.shape[:2]
        down, right = max(1, height // GRID[0]), max(1, width // GRID[1])
        grid = data[down // 2 :: down, right // 2 :: right][: GRID[0], : GRID[1]]
        return grid.reshape(-1, grid.shape[2])
    rows = data[None] if data.ndim == 1 else data
    if rows.ndim != 2 or rows.shape[1] > MOST_CHANNELS:
        rows = rows.reshape(-1, 1)
    step = -(-len(rows) // ROWS)
    return np.array(rows[seq * 7 % step :: step])


def channel_names(count: int, *, picture: bool, known: Sequence[int | str] = ()) -> tuple[str, ...]:
    """Return the names of the columns of `values`."""
    if picture:
        return COLORS
    if len(known) == count:
        return tuple(map(str, known))
    return tuple(map(str, range(count))) if count > 1 else ("all",)


def distribution(column: Array) -> Distribution:
    """Return the distribution of values, in up to eleven bins by their deciles.

    Args:
        column: (n,), not empty.
    """
    column = np.asarray(column, np.float64)
    edges = np.unique(np.quantile(column, QUANTILES, method="inverted_cdf"))
    if edges[0] == column.min():
        # The lowest value is frequent: it gets a bin for values below it.
        edges = np.concatenate([[np.nextafter(edges[0], -np.inf)], edges])
    counts = np.bincount(np.searchsorted(edges, column), minlength=len(edges) + 1)
    shares = counts / len(column)
    return Distribution(tuple(edges.tolist()), tuple(shares.tolist()))


class Learner:
    """Learns the usual values from results."""

    def __init__(self) -> None:
        self._values: list[Array] = []
        self._scores: list[float] = []

    def __len__(self) -> int:
        """Return the number of results added."""
        return len(self._values)

    def add(self, some: Array, score: float | None) -> None:
        """Add the values (n, channels) of a sample and the score of its result."""
        self._values.append(np.array(some))
        if score is not None:
            self._scores.append(score)

    def usual(self, names: Sequence[str], floor: float = 0.0) -> Usual:
        """Return the usual values learned."""
        columns = np.concatenate(self._values).T
        return Usual(
            len(self),
            {name: distribution(column) for name, column in zip(names, columns, strict=True)},
            distribution(np.array(self._scores)) if self._scores else None,
            floor,
        )


def usual_of(
    results: Iterable[tuple[Sample, Findings]],
    channels: Sequence[int | str] = (),
    floor: float = 0.0,
) -> Usual:
    """Return the usual values of a model, from calibration samples and the findings in them.

    Args:
        results: each sample, as the agent would capture it, with its result.
        channels: the manifest's channels, for signals.
        floor: the threshold with which the results were computed, if the task is detection or
            classification.

    Raises:
        ValueError: there are no results.
    """
    learner = Learner()
    names: tuple[str, ...] = ()
    for sample, found in results:
        some = values(sample.data, picture=sample.picture, seq=sample.seq)
        names = names or channel_names(some.shape[1], picture=sample.picture, known=channels)
        learner.add(some, found.best_score)
    if not names:
        raise ValueError("no results to learn from")
    return learner.usual(names, floor)


def save(usual: Usual, folder: Path) -> None:
    """Write `drift.json` into a model folder."""
    replace_file(folder / DRIFT, json.dumps(content(usual)).encode())


class Histogram:
    """Recent values in the bins of the usual ones; older values count less and less."""

    def __init__(self, usual: Sequence[Distribution]) -> None:
        """Start without values, given the usual distribution of each row (channel)."""
        most = max(len(one.edges) for one in usual)
        # Rows are padded with bins that stay empty.
        self._edges = np.full((len(usual), most), np.inf)
        self._usual = np.zeros((len(usual), most + 1))
        for row, one in enumerate(usual):
            self._edges[row, : len(one.edges)] = one.edges
            self._usual[row, : len(one.shares)] = one.shares
        self._counts = np.zeros_like(self._usual)
        self._bins = most + 1

    def add(self, columns: Array, keep: float) -> None:
        """Add values (n, rows) to the present ones, whose weight is multiplied by *keep* (0..1)."""
        self._counts *= keep
        for row, (edges, column) in enumerate(zip(self._edges, columns.T, strict=True)):
            bins = np.searchsorted(edges, column)
            self._counts[row] += np.bincount(bins, minlength=self._bins)

    def indices(self, floor: float | None = None) -> Floats:
        """Return the population stability index of each row, (rows,).

        Args:
            floor: present values below it count as 0: all bins that reach below it are merged.
        """
        present = self._counts / self._counts.sum(axis=1, keepdims=True)
        usual = self._usual
        if floor is not None:
            low = np.arange(self._bins) <= (self._edges < floor).sum(axis=1)[:, None]
            present, usual = _merged(present, low), _merged(usual, low)
        p, q = np.maximum(present, FLOOR), np.maximum(usual, FLOOR)
        found: Floats = ((p - q) * np.log(p / q)).sum(axis=1)
        return found


def _merged(shares: Floats, low: NDArray[np.bool_]) -> Floats:
    merged = np.where(low, 0.0, shares)
    merged[:, 0] += np.where(low, shares, 0.0).sum(axis=1)
    return merged
