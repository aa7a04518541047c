"""The YOLO families: X, v5, v8 and similar ones, and end-to-end ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.types import Detections, Tensors
from ...models.decoders import POINTS_FIRST
from .boxes import (
    Hits,
    best_classes,
    check_grid,
    corners,
    detections,
    ensure_decoded,
    grid_for,
    grid_of,
    selection_of,
)
from .decoder import (
    Decoder,
    Floats,
    Labels,
    Network,
    Output,
    Pattern,
    check_classes,
    ensure_finite,
    ensure_finite_columns,
    labels_of,
)
from .heads import heads
from .tails import Tail, finder, roles_of, tail_of

YOLOX_STRIDES = ((8, 16, 32), (8, 16, 32, 64))


def yolox(network: Network) -> Decoder:
    """YOLOX as its own exporter writes it, boxes not yet decoded.

    Role `predictions`: [1, N, 5 + classes], one row per cell of strides 8, 16, 32 (and 64): center
    and log size in cells, objectness and class scores after their sigmoid (Ge et al. 2021,
    arXiv 2107.08430). Score = objectness * class.
    """
    size, labels = network.picture_size(), labels_of(network)
    output, _ = _rows(network, labels, lambda rows: grid_of(size, rows, YOLOX_STRIDES) is not None)
    check_grid(output, size, output.spec.shape[1], YOLOX_STRIDES)
    selection = selection_of(network)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = output.read(outputs)[0]
        grid = grid_for(output, size, len(table), YOLOX_STRIDES)
        hits = _objects(output, table, threshold)
        raw, strides = table[hits.rows, :4], grid.strides[hits.rows]
        with np.errstate(over="ignore"):  # an absurd size becomes infinite and is refused below
            raw = np.concatenate((raw[:, :2] + grid.cells[hits.rows], np.exp(raw[:, 2:])), axis=1)
        return detections(output.spec.name, corners(raw * strides), hits, labels, selection)

    return decode


def yolov5(network: Network) -> Decoder:
    """YOLOv5 and v7: [1, N, 5 + classes], boxes decoded.

    Role `predictions`: center x, center y, width, height in input pixels or, in TensorFlow
    exports, in 0..1 of the input; objectness, class scores, and the task's columns. Score =
    objectness * class. With layout "points-first" key points come before the classes, with any
    other one these are heads that are not decoded.
    """
    layout = network.manifest.output.layout
    if layout and layout != POINTS_FIRST:
        return heads(network)
    network.picture_size()
    labels = labels_of(network)
    output, tail = _rows(network, labels)
    found = finder(network, output, labels, tail, centered=True)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = output.read(outputs)[0]
        width = table.shape[1] - tail.width
        if layout == POINTS_FIRST:
            table = np.concatenate(
                (table[:, :5], table[:, 5 + tail.width :], table[:, 5 : 5 + tail.width]), axis=1
            )
        hits = _objects(output, table[:, :width], threshold)
        ensure_decoded(network, output, table, hits.rows)
        return found(table[hits.rows, :4], table[hits.rows, width:], hits, outputs)

    return decode


def yolov8(network: Network) -> Decoder:
    """YOLOv8, v9, v11: one tensor without objectness, boxes decoded.

    Role `predictions`: [1, 4 + classes, N] center x, center y, width, height in input pixels or,
    in TensorFlow exports, in 0..1 of the input; class scores. Also its transpose
    [1, N, 4 + classes], if the number of labels, or without labels the shorter axis, shows it.
    """
    network.picture_size()
    network.check_roles(*roles_of(network))
    labels = labels_of(network)
    output = network.need("predictions", [(1, None, None)], names=("output0",))
    before = None if labels.classes is None else 4 + labels.classes
    # With columns after the classes, no exporter transposes it.
    transposed = network.manifest.task == "detection" and _is_transposed(output, labels)
    tail = tail_of(network, output, output.spec.shape[1], before)
    if before is not None:
        width = before + tail.width
        output = replace(output, patterns=((1, None, width) if transposed else (1, width, None),))
    found = finder(network, output, labels, tail, centered=True)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        tensor, classes = output.read(outputs)[0], tail.classes
        if transposed:
            ensure_finite_columns(output.spec.name, tensor, classes)
            hits = best_classes(tensor[:, classes], threshold)
            rows = tensor[hits.rows]
        else:
            ensure_finite(output.spec.name, tensor[classes])
            best = tensor[classes].max(axis=0)
            places = np.flatnonzero(best >= threshold)
            hits = Hits(places, tensor[classes, places].argmax(axis=0), best[places])
            rows = tensor[:, places].T
        return found(rows[:, :4], rows[:, rows.shape[1] - tail.width :], hits, outputs)

    return decode


def end_to_end(network: Network) -> Decoder:
    """YOLOv10, 26, and exports with suppression inside: [1, N, 6 + the task's columns], or [N, 6].

    Role `predictions`: x1, y1, x2, y2 in input pixels or, in TensorFlow exports, in 0..1 of the
    input (for task obb: center x, center y, width, height); score, class. Nothing is suppressed
    here.
    """
    network.picture_size()
    network.check_roles(*roles_of(network))
    labels = labels_of(network)
    width, bare = (6, [(None, 6)]) if network.manifest.task == "detection" else (None, [])
    patterns: list[Pattern] = [(1, None, width)]
    output = network.find("predictions", patterns, names=("output0",))
    output = output or network.need("predictions", [*patterns, *bare], names=("output0",))
    tail = tail_of(network, output, output.spec.shape[-1], 6)
    output = replace(output, patterns=((1, None, 6 + tail.width), *bare))
    found = finder(network, output, labels, tail, centered=False, suppressible=False)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = output.read(outputs)
        table = table[0] if table.ndim > 2 else table
        ensure_finite(output.spec.name, table[:, 4:6])
        rows = np.flatnonzero(table[:, 4] >= threshold)
        hits = Hits(rows, np.rint(table[rows, 5]).astype(np.intp), table[rows, 4])
        return found(table[rows, :4], table[rows, 6:], hits, outputs)

    return decode


def _rows(
    network: Network, labels: Labels, may_be: Callable[[int], bool] | None = None
) -> tuple[Output, Tail]:
    """Find the tensor of rows: box, objectness, classes, and the task's columns.

    Args:
        network: the network, with its manifest.
        labels: names of the classes.
        may_be: tells whether a number of rows is possible; None: any is.
    """
    network.check_roles(*roles_of(network))
    output = network.need("predictions", [(1, None, None)], names=("output", "output0"))
    _, rows, width = output.spec.shape
    known = None if labels.classes is None else 5 + labels.classes
    tail = tail_of(network, output, width, known)
    if tail.width:
        whole = None if known is None else known + tail.width
        return replace(output, patterns=((1, None, whole),)), tail
    turned = rows is not None and width is not None and rows < width and width != known
    odd = labels.classes is not None if may_be is None else not may_be(rows or 0)
    if turned and odd:
        # Classes are few and boxes many: these are columns, and no number of labels would fit.
        hint = "; decoder 'yolov8' takes such" if (rows or 0) > 4 else ""
        raise ModelError(
            f"output.decoder: {network.manifest.decoder!r} expects predictions of shape "
            f"[1, N, {known or '5 + classes'}], a row for each box, found {output.spec}{hint}"
        )
    if width is not None and width < 6:
        raise ModelError(
            f"output {output.spec}: expected rows of 5 numbers and at least 1 class, found {width}"
        )
    if width is not None and labels.classes == width - 4:
        raise ModelError(_two_readings(output, labels, labels.classes))
    check_classes(labels, None if width is None else width - 5, f"output {output.spec}")
    return replace(output, patterns=((1, None, known),)), tail


def _two_readings(output: Output, labels: Labels, classes: int) -> str:
    """Describe the two ways to read rows of 4 + *classes* numbers, and their label counts."""
    return (
        f"output {output.spec}: a row is read as a box and {classes} classes by decoder 'yolov8' "
        f"({classes - labels.first} labels), or as a box, an objectness and {classes - 1} classes "
        f"by decoders 'yolov5' and 'yolox' ({classes - 1 - labels.first} labels); "
        f"found {len(labels.names)} labels"
    )


def _objects(output: Output, table: Floats, threshold: float) -> Hits:
    """Find rows (box, objectness, classes) whose objectness * best class reaches the threshold."""
    if table.shape[1] < 6:
        raise SampleError(
            f"output {output.spec.name}: expected rows of 5 numbers and at least 1 class, "
            f"found {table.shape[1]}"
        )
    ensure_finite_columns(output.spec.name, table, slice(4, None))
    # No class score is above 1, so the objectness alone rules out nearly every row.
    rows = np.flatnonzero(table[:, 4] >= threshold)
    scores = table[rows, 5:]
    classes = scores.argmax(axis=1)
    best = scores[np.arange(len(rows)), classes] * table[rows, 4]
    kept = np.flatnonzero(best >= threshold)
    return Hits(rows[kept], classes[kept], best[kept])


def _is_transposed(output: Output, labels: Labels) -> bool:
    """Whether the output is [1, N, 4 + classes] and not the usual [1, 4 + classes, N]."""
    _, first, second = output.spec.shape
    sizes = sorted(size for size in (first, second) if size is not None)
    if labels.classes is not None:
        width = 4 + labels.classes
        # A known size counts for more than an open one.
        if first == width or (first is None and second != width):
            return False
        if second in {width, None}:
            return True
        if sizes[0] == width + 1 == second:
            raise ModelError(_two_readings(output, labels, width - 3))
        if sizes[0] > 4:
            check_classes(labels, sizes[0] - 4, f"output {output.spec}")
    elif len(sizes) == 2 and 4 < sizes[0] < sizes[1]:
        return second == sizes[0]
    raise ModelError(
        f"output {output.spec}: expected [1, 4 + classes, N] with at least 1 class; "
        "output.labels must say how many classes there are"
    )
