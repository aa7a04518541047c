"""NanoDet and NanoDet-Plus."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.frozen import record
from ...core.types import Detections, Tensors
from .boxes import (
    Grid,
    Hits,
    best_classes,
    check_grid,
    corners,
    detections,
    grid_for,
    lay_grid,
    selection_of,
)
from .decoder import (
    Decoder,
    Floats,
    Network,
    Output,
    check_classes,
    ensure_finite,
    ensure_finite_columns,
    fits,
    labels_of,
    sigmoid,
)

# NanoDet has three levels, NanoDet-Plus four; the number of boxes decides which it is.
STRIDES = ((8, 16, 32), (8, 16, 32, 64))
USUAL_BINS = 8
_CELL = 16
"""Pixels of FastestDet's cells."""


def nanodet(network: Network) -> Decoder:
    """NanoDet and -Plus as their own exporters write them, boxes not yet decoded.

    Class scores have had their sigmoid; the distance of each side of a box is a distribution over
    0..bins-1 strides, whose mean is the distance (Generalized Focal Loss, Li et al. 2020, arXiv
    2006.04388). Distances are measured from the middle of a cell in NanoDet and from its upper
    left corner in NanoDet-Plus, as in the two heads' center priors. Without labels, 8 bins are
    assumed.

    Either role `predictions`: [1, N, classes + 4 * bins]. Or, as NanoDet was exported before -Plus,
    for each stride s of 8, 16, 32 and with or without the axis of 1: `cls_s` [1, N, classes] and
    `dis_s` [1, N, 4 * bins].
    """
    parts = [f"{part}_{stride}" for stride in STRIDES[0] for part in ("cls", "dis")]
    network.check_roles("predictions", *parts)
    network.picture_size()
    named = network.manifest.output.names
    whole = network.find("predictions", [(1, None, None)], names=("output",))
    if set(parts) & set(named) or (whole is None and len(network.outputs) >= len(parts)):
        return _by_level(network)
    return _joined(network)


def _joined(network: Network) -> Decoder:
    size, labels = network.picture_size(), labels_of(network)
    output = network.need("predictions", [(1, None, None)], names=("output",))
    _, count, width = output.spec.shape
    classes = labels.classes
    if classes is None and width is not None:
        classes = width - 4 * USUAL_BINS
    if width is not None and (classes is None or classes < 1 or not _bins(width - classes)):
        raise ModelError(
            f"output.labels: output {output.spec} has rows of {width}, expected classes + 4 * "
            f"(at least 2) numbers, found {classes} classes"
        )
    if classes is None:
        raise ModelError(f"output.labels: missing; output {output.spec} leaves the classes open")
    check_grid(output, size, count, STRIDES)
    selection = selection_of(network)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = output.read(outputs)[0]
        if not _bins(table.shape[1] - classes):
            raise SampleError(
                f"output {output.spec.name}: expected rows of {classes} + 4 * (at least 2) "
                f"numbers, found {table.shape[1]}"
            )
        grid = grid_for(output, size, len(table), STRIDES)
        ensure_finite_columns(output.spec.name, table, slice(classes))
        hits = best_classes(table[:, :classes], threshold)
        boxes = _boxes(output, table[hits.rows, classes:], grid, hits)
        return detections(output.spec.name, boxes, hits, labels, selection)

    return decode


@record
class _Level:
    """The two outputs of a stride."""

    grid: Grid
    scores: Output
    sides: Output

    def read(self, outputs: Tensors, threshold: float) -> tuple[Hits, Floats]:
        """Find the cells whose best class reaches the threshold, and their boxes (n, 4)."""
        table = self.scores.read(outputs)
        ensure_finite(self.scores.spec.name, table)
        hits = best_classes(table.reshape(len(self.grid.cells), -1), threshold)
        sides = self.sides.read(outputs)
        if not _bins(sides.shape[-1]):
            raise SampleError(_no_sides(self.sides, sides.shape[-1]))
        rows = sides.reshape(len(self.grid.cells), -1)[hits.rows]
        return hits, _boxes(self.sides, rows, self.grid, hits)


def _by_level(network: Network) -> Decoder:
    labels, selection = labels_of(network), selection_of(network)
    levels = [_find_level(network, stride) for stride in STRIDES[0]]
    widths = {level.scores.spec.shape[-1] for level in levels} - {None}
    if len(widths) > 1:
        raise ModelError(
            f"output.decoder: 'nanodet' expects class scores of one width, found "
            f"{', '.join(str(level.scores.spec) for level in levels)}"
        )
    taken = [output.spec.name for level in levels for output in (level.scores, level.sides)]
    others = [output for output in network.outputs if output.name not in taken]
    if others and not set(taken) <= set(network.manifest.output.names.values()):
        # Not ignored silently: PicoDet and the like have a fourth level.
        raise ModelError(
            f"output.decoder: 'nanodet' expects class scores and distances of the strides 8, 16 "
            f"and 32, found also {', '.join(map(str, others))}; if they do not belong to the "
            "boxes, name the six that do: output.names.cls_8, dis_8 and so on"
        )

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        read = [level.read(outputs, threshold) for level in levels]
        hits = Hits(
            np.concatenate([found.rows for found, _ in read]),
            np.concatenate([found.classes for found, _ in read]),
            np.concatenate([found.scores for found, _ in read]),
        )
        boxes = np.concatenate([boxes for _, boxes in read])
        return detections("dis_*", boxes, hits, labels, selection)

    return decode


def _find_level(network: Network, stride: int) -> _Level:
    """Find a stride's outputs by their shapes, which are more reliable than their names.

    In public files, class scores of one stride are named as distances of another; the exporter's
    names only decide where shapes do not.
    """
    size, classes = network.picture_size(), labels_of(network).classes
    grid = lay_grid(size, (stride,))
    count = len(grid.cells)

    def need(part: str, width: int | None, *without: Output) -> Output:
        return network.need(
            f"{part}_{stride}",
            [(1, count, width), (count, width)],
            names=(f"{part}_pred_stride_{stride}", f"{part}_{stride}"),
            without=[output.spec for output in without],
        )

    if classes is None:
        sides = need("dis", 4 * USUAL_BINS)
        scores = need("cls", None, sides)
    else:
        if not any(fits(output.shape[-1:], (classes,)) for output in network.outputs):
            raise ModelError(
                f"output.labels: {classes} labels, background included, expect class scores in "
                f"rows of {classes}, found {', '.join(map(str, network.outputs))}"
            )
        scores = need("cls", classes)
        sides = need("dis", None, scores)
    width = sides.spec.shape[-1]
    if width is not None and not _bins(width):
        raise ModelError(_no_sides(sides, width))
    return _Level(grid, scores, sides)


def _no_sides(output: Output, width: int) -> str:
    return (
        f"output {output.spec.name}: expected rows of 4 * (at least 2) numbers, the distances of "
        f"4 sides, found {width}"
    )


def _boxes(output: Output, sides: Floats, grid: Grid, hits: Hits) -> Floats:
    """Convert the distances (n, 4 * bins) of hits, rows of *grid*, to x1, y1, x2, y2 (n, 4)."""
    bins = sides.shape[1] // 4
    weights = sides.reshape(-1, 4, bins)
    ensure_finite(output.spec.name, weights)
    weights = np.exp(weights - weights.max(axis=2, keepdims=True, initial=-np.inf))
    distances = weights @ np.arange(bins, dtype=np.float32) / weights.sum(axis=2)
    strides = grid.strides[hits.rows]
    middle = np.float32(0.0 if grid.levels == len(STRIDES[1]) else 0.5)
    origin = (grid.cells[hits.rows] + middle) * strides
    distances *= strides
    boxes: Floats = np.concatenate((origin - distances[:, :2], origin + distances[:, 2:]), axis=1)
    return boxes


def _bins(width: int) -> int:
    """Return the number of bins per side; 0 if the width does not fit."""
    bins, left = divmod(width, 4)
    return bins if bins >= 2 and not left else 0


def fastestdet(network: Network) -> Decoder:
    """FastestDet as its own exporter writes it.

    Role `predictions`: [1, 5 + classes, rows, columns], a box for each cell of the picture:
    objectness, then offset x and y and logits of width and height, then class scores after
    their softmax; or [rows * columns, 5 + classes], the same by cells. Center =
    (cell + tanh(offset)) / cells, size = sigmoid, both in 0..1 of the input; score =
    objectness ** 0.6 * class ** 0.4.
    """
    width, height = network.picture_size()
    size = np.array([width, height] * 2, np.float32)
    grid = width // _CELL, height // _CELL
    network.check_roles("predictions")
    labels, selection = labels_of(network), selection_of(network)
    flat = (prod(grid), None)
    output = network.need("predictions", [(1, None, None, None), flat], names=("output",))
    channels = output.spec.shape[1]
    if channels is not None and channels < 6:
        raise ModelError(
            f"output {output.spec}: expected at least 6 channels (5 + classes), found {channels}"
        )
    check_classes(labels, None if channels is None else channels - 5, f"output {output.spec}")
    known = None if labels.classes is None else 5 + labels.classes
    output = replace(output, patterns=((1, known, None, None), (flat[0], known)))

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table: Any = output.read(outputs)
        columns, rows = grid
        if table.ndim > 2:
            rows, columns = table.shape[2:]
            table = table[0].reshape(table.shape[1], -1).T
        cells = np.array([columns, rows] * 2, np.float32)
        ensure_finite(output.spec.name, table)
        certain = np.maximum(table[:, :1], 0) ** np.float32(0.6)
        scores = certain * np.maximum(table[:, 5:], 0) ** np.float32(0.4)
        hits = best_classes(scores, threshold)
        raw = table[hits.rows, 1:5]
        cell = np.stack((hits.rows % columns, hits.rows // columns), axis=1)
        center = (cell + np.tanh(raw[:, :2])) / cells[:2]
        boxes = np.concatenate((center, sigmoid(raw[:, 2:])), axis=1).astype(np.float32)
        return detections(output.spec.name, corners(boxes) * size, hits, labels, selection)

    return decode
