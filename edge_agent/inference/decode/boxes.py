"""From candidates to detections: threshold, non-maximum suppression, labels, best first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError, SampleError
from ...core.frozen import record
from ...core.types import Detections
from ...models.decoders import DECODERS
from .decoder import Floats, Labels, Network, Output, ensure_finite

Indices = NDArray[np.intp]

# Suppression compares pairs: a threshold near 0 must not make it take seconds.
MOST_CANDIDATES = 3000
_BLOCK = 256
"""Oriented boxes compared with all others at a time: 6 MB per array instead of 72."""
NORMALIZED_AT_MOST = 2.0
"""Boxes within this are in 0..1 of the input: no real box is so few pixels wide."""
_ANCHORED_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
_DECODED = 0.9
"""Least share of all rows whose boxes lie where their cells are."""
_ANCHORS = 3
"""Anchors per cell of YOLOv5 and v7."""
IOU = 0.45
"""Overlap for suppression if the manifest gives none."""


@record
class Selection:
    """Which candidates are kept."""

    iou: float | None
    """If two boxes overlap by more, the weaker is dropped; None: all are kept."""
    agnostic: bool
    """Whether boxes of different classes suppress each other."""
    most: int
    """At most this many are kept, the best."""


def selection_of(
    network: Network, *, iou: float | None = IOU, suppressible: bool = True
) -> Selection:
    """Return which boxes are kept according to the manifest.

    Args:
        network: the network, with its manifest.
        iou: the default if the manifest gives none; None: the network suppresses boxes itself.
        suppressible: whether to suppress at all, even if the manifest gives an `iou`.
    """
    spec = network.manifest.output
    given = iou if spec.iou is None else spec.iou
    most = spec.max_detections or DECODERS[network.manifest.decoder].most or MOST_CANDIDATES
    return Selection(given if suppressible else None, spec.agnostic, most)


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows of a score table that reach the threshold, each with a class, usually its best."""

    rows: Indices
    classes: Indices
    scores: Floats


def best_classes(scores: Floats, threshold: float) -> Hits:
    """Find the rows of *scores* (n, classes) whose best class reaches the threshold.

    Looks for the few single scores first: finding the best of every row takes three times as long.
    """
    if scores.shape[1] == 1:
        rows = np.flatnonzero(scores[:, 0] >= threshold)
        return Hits(rows, np.zeros(len(rows), np.intp), scores[rows, 0])
    rows = np.flatnonzero(scores >= threshold) // scores.shape[1]
    # Sorted already, so several hits of one row are adjacent.
    rows = rows[np.flatnonzero(np.diff(rows, prepend=-1))]
    kept = scores[rows]
    classes = kept.argmax(axis=1)
    return Hits(rows, classes, kept[np.arange(len(rows)), classes])


def single_scores(scores: Floats, threshold: float, most: int) -> Hits:
    """Find the single scores of (n, classes) that reach the threshold; a row may have several.

    At most the best *most*; of equal ones the first are kept.
    """
    places = np.flatnonzero(scores >= threshold)
    kept = scores.reshape(-1)[places]
    if len(places) > most:
        best = np.sort(np.argsort(-kept, kind="stable")[:most])
        places, kept = places[best], kept[best]
    rows, classes = np.divmod(places, scores.shape[1])
    return Hits(rows, classes, kept)


def corners(centers: Floats) -> Floats:
    """Convert boxes (n, 4) from center x, center y, width, height to x1, y1, x2, y2."""
    half = centers[:, 2:] * np.float32(0.5)
    return np.concatenate((centers[:, :2] - half, centers[:, :2] + half), axis=1)


def pixels_of_unit(network: Network, boxes: Floats) -> Floats:
    """Return how many input pixels one unit of the boxes is, horizontally and vertically: (2,).

    TensorFlow exports of YOLOv5 and v8 give boxes in 0..1 of the input (ultralytics `tf_model`,
    `saved_model`).

    Args:
        network: the network, with the size of its picture.
        boxes: (n, 4) boxes of the hits: center x, center y, width, height, or two corners.
    """
    if not len(boxes) or (boxes > NORMALIZED_AT_MOST).any():
        return np.ones(2, np.float32)
    return np.array(network.picture_size(), np.float32)


def ensure_decoded(network: Network, output: Output, table: Floats, rows: Indices) -> None:
    """Check that boxes in 0..1 are decoded, not numbers to be combined with anchors.

    A decoded center lies within a cell and a half of its own cell: YOLOv5 and v7 give it as
    `2 * sigmoid - 0.5` cells from there. TensorFlow exports are always decoded.

    Args:
        network: the network, with the size of its picture.
        output: the output that the rows come from.
        table: (n, width) all rows.
        rows: indices of the hits.

    Raises:
        SampleError: they are not decoded.
    """
    boxes = table[rows, :4]
    if not len(boxes) or (boxes > NORMALIZED_AT_MOST).any():
        return
    if network.manifest.file.endswith(".tflite"):
        return
    size = network.picture_size()
    for strides in _ANCHORED_STRIDES:
        levels = [lay_grid(size, (stride,)) for stride in strides]
        cells = np.concatenate([np.tile(level.cells, (_ANCHORS, 1)) for level in levels])
        if len(cells) != len(table):
            continue
        steps = np.concatenate([np.tile(level.strides, (_ANCHORS, 1)) for level in levels])
        away = table[:, :2] * np.array(size, np.float32) / steps - cells
        if bool(((away > -1) & (away < 2)).all(axis=1).mean() > _DECODED):
            return
    raise SampleError(
        f"output {output.spec.name}: all boxes lie within {NORMALIZED_AT_MOST:g} pixels, but not "
        "where their cells are: anchors and grid are outside the network; export it with them "
        "inside (YOLOv5 and v7: `export.py --grid`, YOLOv5-Lite: without `--concat`)"
    )


def detections(
    source: str,
    boxes: Floats,
    hits: Hits,
    labels: Labels,
    selection: Selection,
    columns: Mapping[str, Any] | None = None,
    turned: Floats | None = None,
) -> Detections:
    """Make detections from candidates, best first; boxes without area are dropped.

    Args:
        source: name of the output that the boxes come from.
        boxes: (n, 4) x1, y1, x2, y2 of the hits, input pixels.
        hits: their classes and scores.
        labels: names the classes; candidates of a class without a label are left out.
        selection: which of them are kept.
        columns: optional columns of the hits, by field; arrays, or objects indexed like them.
        turned: (n, 5) center x, center y, width, height, angle, for oriented boxes.

    Raises:
        SampleError: a box, score or point is not finite, or a class has no label.
    """
    columns = columns or {}
    order = np.flatnonzero(labels.is_named(hits.classes))
    order = order[np.argsort(-hits.scores[order], kind="stable")][:MOST_CANDIDATES]
    # Scores too: the product of two finite factors can be infinite.
    marks = [part[order] for part in columns.values() if isinstance(part, np.ndarray)]
    ensure_finite(source, boxes[order], hits.scores[order], *marks)
    order = order[(boxes[order, 2:] > boxes[order, :2]).all(axis=1)]
    if selection.iou is not None and len(order) > 1:
        classes = np.zeros_like(order) if selection.agnostic else hits.classes[order]
        if turned is None:
            order = order[_survivors(boxes[order], classes, selection.iou)]
        else:
            order = order[_turned_survivors(turned[order], classes, selection.iou)]
    order = order[: selection.most]
    return Detections(
        boxes[order].astype(np.float32, copy=False),
        hits.scores[order].astype(np.float32, copy=False),
        labels.of(hits.classes[order]),
        **{name: part[order] for name, part in columns.items()},
    )


MOST_CLASSES = 65535
"""OpenCV offsets the boxes of each class by its number: a larger one would cost them precision, and
does not fit its integers."""


def _survivors(boxes: Floats, classes: Indices, iou: float) -> Indices:
    """Return the indices of boxes kept by suppression within each class; both best first."""
    import cv2

    rectangles = boxes.astype(np.float64)
    rectangles[:, 2:] -= rectangles[:, :2]
    # Suppression only needs the order of scores; ranks also keep a score of 0 and break ties the
    # same way on every machine.
    ranks = np.arange(len(boxes), 0, -1, dtype=np.float64)
    if classes.max(initial=0) > MOST_CLASSES:
        classes = np.unique(classes, return_inverse=True)[1]
    kept = cv2.dnn.NMSBoxesBatched(rectangles.tolist(), ranks.tolist(), classes.tolist(), 0.0, iou)
    return np.sort(np.asarray(kept, np.intp).reshape(-1))


def _turned_survivors(turned: Floats, classes: Indices, iou: float) -> Indices:
    """Suppress oriented boxes (n, 5) within each class as Ultralytics does; best first.

    A box is dropped if any better one overlaps it, even one that is dropped itself.
    """
    kept = []
    for kind in np.unique(classes):
        rows = np.flatnonzero(classes == kind)
        own, gone = turned[rows].astype(np.float64), np.zeros(len(rows), bool)
        for start in range(0, len(rows), _BLOCK):
            shared = _turned_overlaps(own[start : start + _BLOCK], own[start:])
            gone[start:] |= np.triu(shared > iou, 1).any(axis=0)
        kept.append(rows[~gone])
    return np.sort(np.concatenate(kept))


def _turned_overlaps(
    turned: NDArray[np.float64], others: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the overlap (n, m) of oriented boxes (n, 5) and (m, 5) as normal distributions.

    This is ProbIoU (Llerena et al. 2021, arXiv 2106.06072).
    """
    mine, theirs = _spreads(turned)[..., None], _spreads(others)[:, None]
    aa, bb, cc = mine + theirs
    dx, dy = turned[:, :2].T[..., None] - others[:, :2].T[:, None]
    area = aa * bb - cc**2
    sizes = [np.sqrt((a * b - c**2).clip(0)) for a, b, c in (mine, theirs)]
    far = (aa * dy**2 + bb * dx**2 - 2 * cc * dx * dy) / (area + 1e-7) / 4
    far += np.log(area / (4 * sizes[0] * sizes[1] + 1e-7) + 1e-7) / 2
    overlaps: NDArray[np.float64] = 1 - np.sqrt(1 - np.exp(-far.clip(1e-7, 100)) + 1e-7)
    return overlaps


def _spreads(turned: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variances of boxes (n, 5) along x and y, and their covariance: (3, n)."""
    width, height, angle = turned[:, 2:].T
    cosine, sine = np.cos(angle), np.sin(angle)
    a = (width * cosine) ** 2 + (height * sine) ** 2
    b = (width * sine) ** 2 + (height * cosine) ** 2
    return np.stack((a, b, (width**2 - height**2) * cosine * sine)) / 12


def touching(scores: Floats, threshold: float) -> tuple[Floats, Floats]:
    """Return boxes (n, 4) around groups of touching cells (h, w), and their best scores.

    Cells that share only a corner touch. Boxes that touch are merged.
    """
    import cv2

    reached, whole = (scores >= threshold).astype(np.uint8), False
    while not whole:
        count, marks, stats, _ = cv2.connectedComponentsWithStats(reached, connectivity=8)
        before = reached.sum()
        for left, top, width, height in stats[1:, :4]:
            reached[top : top + height, left : left + width] = 1
        whole = reached.sum() == before
    best = np.zeros(count, np.float32)
    np.maximum.at(best, np.asarray(marks, np.intp), scores)
    starts = stats[1:, :2]
    return np.concatenate((starts, starts + stats[1:, 2:4]), axis=1).astype(np.float32), best[1:]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """One row for each cell, in the order all of these exporters use: level, row, column."""

    cells: Floats
    """(n, 2) column, row."""
    strides: Floats
    """(n, 1) input pixels per cell."""
    levels: int


@lru_cache(maxsize=32)
def lay_grid(size: tuple[int, int], strides: tuple[int, ...]) -> Grid:
    """Make the grid for a picture (width, height); a stride that does not divide it rounds up."""
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
    """Choose the strides whose cells add up to *count*, or return None if none do."""
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
        ModelError: it does not; says expected and found.
    """
    if count is not None and grid_of(size, count, choices) is None:
        raise ModelError(_misfit(output, size, count, choices))


def grid_for(
    output: Output, size: tuple[int, int], count: int, choices: tuple[tuple[int, ...], ...]
) -> Grid:
    """Return the grid for a tensor that the network returned.

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
