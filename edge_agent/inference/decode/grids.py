"""The cells that anchor-free detectors predict from, strung together level by level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...core.errors import ModelError, SampleError
from .decoder import Floats, Output


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """One row for each cell, in the order that all of these exporters write: level, row, column."""

    cells: Floats
    """(n, 2) column, row."""
    strides: Floats
    """(n, 1) input pixels a cell."""
    levels: int


@lru_cache(maxsize=32)
def lay_grid(size: tuple[int, int], strides: tuple[int, ...]) -> Grid:
    """Lay the cells of a picture (width, height); a level that does not divide it rounds up."""
    cells, steps = [], []
    for stride in strides:
        columns, rows = -(-size[0] // stride), -(-size[1] // stride)
        across, down = np.meshgrid(np.arange(columns), np.arange(rows))
        cells.append(np.stack((across.ravel(), down.ravel()), axis=1))
        steps.append(np.full((columns * rows, 1), stride))
    return Grid(
        np.concatenate(cells).astype(np.float32),
        np.concatenate(steps).astype(np.float32),
        len(strides),
    )


def grid_of(size: tuple[int, int], count: int, choices: tuple[tuple[int, ...], ...]) -> Grid | None:
    """Choose the strides whose cells add up to *count*; None where none do."""
    for strides in choices:
        grid = lay_grid(size, strides)
        if len(grid.cells) == count:
            return grid
    return None


def check_grid(
    output: Output, size: tuple[int, int], count: int | None, choices: tuple[tuple[int, ...], ...]
) -> None:
    """Check at load that an output has one row for each cell of the input's picture.

    Raises:
        ModelError: expected and found.
    """
    if count is not None and grid_of(size, count, choices) is None:
        raise ModelError(_misfit(output, size, count, choices))


def grid_for(
    output: Output, size: tuple[int, int], count: int, choices: tuple[tuple[int, ...], ...]
) -> Grid:
    """Return the grid of a tensor that an inference gave.

    Raises:
        SampleError: a size that the network left open turned out not to fit.
    """
    grid = grid_of(size, count, choices)
    if grid is None:
        raise SampleError(_misfit(output, size, count, choices))
    return grid


def _misfit(
    output: Output, size: tuple[int, int], count: int, choices: tuple[tuple[int, ...], ...]
) -> str:
    expected = " or ".join(
        f"{len(lay_grid(size, strides).cells)} (strides {', '.join(map(str, strides))})"
        for strides in choices
    )
    return (
        f"output {output.spec.name}: expected {expected} boxes for an input of "
        f"{size[0]}x{size[1]}, found {count}"
    )
