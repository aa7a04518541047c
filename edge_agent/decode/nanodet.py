"""NanoDet and NanoDet-Plus."""

from __future__ import annotations

import numpy as np

from ..errors import ModelError, SampleError
from ..records import Detections, Tensors
from .boxes import best_classes, detections
from .grids import check_grid, grid_for
from .labels import labels_of
from .network import Decoder, Network, ensure_finite, ensure_finite_columns

# NanoDet has three levels, NanoDet-Plus four; the count of boxes tells which it is.
STRIDES = ((8, 16, 32), (8, 16, 32, 64))
USUAL_BINS = 8


def nanodet(network: Network) -> Decoder:
    """NanoDet and -Plus as their own exporter writes them, boxes not yet decoded.

    Role `predictions`: [1, N, classes + 4 * bins]: class scores after their sigmoid, then for each
    side a distribution over 0..bins-1 strides whose mean is the distance (Generalized Focal Loss,
    Li et al. 2020, arXiv 2006.04388). Distances are measured from the middle of a cell in NanoDet
    and from its upper left corner in NanoDet-Plus, as the two heads' center priors have it.
    Without labels, 8 bins are assumed.
    """
    size, labels = network.picture_size(), labels_of(network)
    network.check_roles("predictions")
    output = network.need("predictions", [(1, None, None)], names=("output",))
    _, count, width = output.spec.shape
    classes = labels.classes
    if classes is None and width is not None:
        classes = width - 4 * USUAL_BINS
    if width is not None and (classes is None or classes < 1 or not _bins(width, classes)):
        raise ModelError(
            f"output.labels: output {output.spec} has rows of {width}, expected classes + 4 * "
            f"(at least 2) numbers, found {classes} classes"
        )
    if classes is None:
        raise ModelError(f"output.labels: missing; output {output.spec} leaves the classes open")
    check_grid(output, size, count, STRIDES)
    iou = network.manifest.output.iou

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = output.read(outputs)[0]
        bins = _bins(table.shape[1], classes)
        if not bins:
            raise SampleError(
                f"output {output.spec.name}: expected rows of {classes} + 4 * (at least 2) "
                f"numbers, found {table.shape[1]}"
            )
        grid = grid_for(output, size, len(table), STRIDES)
        ensure_finite_columns(output.spec.name, table, slice(classes))
        hits = best_classes(table[:, :classes], threshold)
        weights = table[hits.rows, classes:].reshape(-1, 4, bins)
        ensure_finite(output.spec.name, weights)
        weights = np.exp(weights - weights.max(axis=2, keepdims=True, initial=-np.inf))
        distances = weights @ np.arange(bins, dtype=np.float32) / weights.sum(axis=2)
        strides = grid.strides[hits.rows]
        middle = np.float32(0.5 if grid.levels == len(STRIDES[0]) else 0.0)
        origin = (grid.cells[hits.rows] + middle) * strides
        distances *= strides
        boxes = np.concatenate((origin - distances[:, :2], origin + distances[:, 2:]), axis=1)
        return detections(output.spec.name, boxes, hits, labels, iou)

    return decode


def _bins(width: int, classes: int) -> int:
    """Count the bins a side; 0 where the numbers do not add up."""
    bins, left = divmod(width - classes, 4)
    return bins if bins >= 2 and not left else 0
