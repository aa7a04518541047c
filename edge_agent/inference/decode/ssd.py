"""SSD and other detectors that return finished boxes, scores, and classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.types import Detections, Tensors
from ...models.decoders import ROWS
from .boxes import IOU, NORMALIZED_AT_MOST, Hits, best_classes, detections, selection_of
from .classification import ROUNDING
from .decoder import (
    Decoder,
    Floats,
    Labels,
    Network,
    Output,
    Pattern,
    check_classes,
    check_rows,
    ensure_finite,
    fits,
    is_called,
    labels_of,
)

ROLES = ("detections", "boxes", "boxes_yxyx", "scores", "classes")
BOXES = ("boxes", "bboxes", "detection_boxes", "det_boxes", "detected_boxes")
SCORES = ("scores", "detection_scores", "confidences", "confs", "det_scores", "detected_scores")
CLASSES = ("labels", "classes", "class_ids", "detection_classes", "det_classes", "detected_classes")
INDEX_TYPES = ("int32", "int64")
_COLUMNS = {
    "": (1, 2, 3),
    "paddle": (0, 1, 2),
    "yolov7": (5, 6, 1),
    "yolo-nas": (6, 5, 1),
    "pinto": (1, 2, 3),
}
"""By layout: the columns of the class, the score, and the first of the box's four numbers."""
_LAYOUTS = ", ".join(ROWS)


def ssd(network: Network) -> Decoder:
    """Boxes as exported with DetectionOutput layers, by Model API, torchvision, and TensorFlow.

    Either role `detections`: [1, 1, N, 7] rows of image, class, score, x1, y1, x2, y2 in 0..1 of
    the input, ended by an image below 0 (OpenVINO's DetectionOutput). Or `boxes`: [N, 5] or
    [1, N, 5] x1, y1, x2, y2 in input pixels and score (Model API), else [N, 4] or [1, N, 4], in
    input pixels if any box that reaches the threshold goes beyond 2, else in 0..1; with
    `scores` [N], [1, N] or [1, N, classes]; and, if there are any, `classes` [N] or [1, N].
    YOLOv4's [1, N, 1, 4] boxes with confs [1, N, classes] are read too. TensorFlow's order y1, x1,
    y2, x2 is only assumed for role `boxes_yxyx`. Boxes whose row width the network leaves open must
    have their role or their usual name; their width is 4 if there are scores beside them, else 5,
    and results must have that width.

    With a `layout`, role `detections` is [N, 6] or [N, 7], boxes as corners in input pixels:
    PaddleDetection's class, score, box; YOLOv7's image, box, class, score; YOLO-NAS' image, box,
    score, class; PINTO's model zoo's image, class, score, box.

    Suppression runs only if the outputs do not show that it has been done (scores for every class,
    or no classes), or if the manifest asks for it with an `iou`.
    """
    network.picture_size()
    network.check_roles(*ROLES)
    if layout := network.manifest.output.layout:
        width = 6 if layout == "paddle" else 7
        given = network.need("detections", [(None, width), (1, None, width)])
        return _rows(network, given, np.ones(4, np.float32))
    if not {"boxes", "boxes_yxyx"} & set(network.manifest.output.names):
        found = network.find("detections", [(1, 1, None, 7)], names=("detection_out",))
        if found is not None:
            return _rows(network, found, _scale(network))
    rows = [one for one in network.outputs if len(one.shape) == 2 and one.shape[1] in {6, 7}]
    if rows and len(network.outputs) <= 2:
        raise ModelError(f"output.layout: is missing; rows as of {rows[0]} differ: {_LAYOUTS}")
    boxes, flipped = _find_boxes(network)
    width = boxes.spec.shape[-1] or _width_by_scores(network, boxes)
    # If the network leaves the row width open, the results must have this one.
    patterns = tuple(pattern for pattern in boxes.patterns if pattern[-1] == width)
    boxes = Output(boxes.spec, patterns, boxes.scale, boxes.zero_point)
    if width == 5:
        return _scored_boxes(network, boxes)
    return _parallel(network, boxes, flipped=flipped)


def _rows(network: Network, output: Output, scale: Floats) -> Decoder:
    layout, labels = network.manifest.output.layout, labels_of(network)
    selection, (kind, score, box) = selection_of(network, iou=None), _COLUMNS[layout]

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = output.read(outputs)
        table = table.reshape(-1, table.shape[-1])
        # DetectionOutput ends with an image below 0, PaddleDetection with classes below 0.
        ends = np.flatnonzero(table[:, 0] < 0)
        table = table[: ends[0]] if len(ends) else table
        ensure_finite(output.spec.name, table[:, [0, kind, score]])
        found, classes = table[:, score], table[:, kind]
        if layout and (
            np.abs(classes - np.rint(classes)).max(initial=0) > ROUNDING
            or found.max(initial=0) > 1 + ROUNDING
        ):
            raise SampleError(
                f"output {output.spec.name}: column {kind} holds no classes, or column {score} no "
                f"scores, as layout {layout!r} has it; name the layout that it is: {_LAYOUTS}"
            )
        rows = np.flatnonzero(found >= threshold)
        hits = Hits(rows, _indices(classes[rows]), found[rows])
        boxes = table[rows, box : box + 4] * scale
        return detections(output.spec.name, boxes, hits, labels, selection)

    return decode


def _scored_boxes(network: Network, boxes: Output) -> Decoder:
    labels, classes = labels_of(network), _find_classes(network, boxes, (boxes,))
    selection = selection_of(network, iou=None)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = boxes.read(outputs).reshape(-1, 5)
        ensure_finite(boxes.spec.name, table[:, 4])
        rows = np.flatnonzero(table[:, 4] >= threshold)
        found = _read_classes(classes, outputs, boxes, len(table))
        hits = Hits(rows, found[rows], table[rows, 4])
        return detections(boxes.spec.name, table[rows, :4], hits, labels, selection)

    return decode


@dataclass(frozen=True, slots=True)
class _Scores:
    """How the scores beside [N, 4] boxes are read."""

    output: Output
    first: int
    """First class that counts; 1 if class 0 is the background. Only for [1, N, classes]."""
    classes: Output | None

    def hits(self, outputs: Tensors, boxes: Output, count: int, threshold: float) -> Hits:
        table = self.output.read(outputs)
        ensure_finite(self.output.spec.name, table)
        if table.ndim == 3:
            check_rows(self.output, table.shape[1], boxes, count)
            found = best_classes(table[0, :, self.first :], threshold)
            return Hits(found.rows, found.classes + self.first, found.scores)
        scores = table.reshape(-1)
        check_rows(self.output, len(scores), boxes, count)
        rows = np.flatnonzero(scores >= threshold)
        classes = _read_classes(self.classes, outputs, boxes, count)
        return Hits(rows, classes[rows], scores[rows])


def _parallel(network: Network, boxes: Output, *, flipped: bool) -> Decoder:
    labels, scale = labels_of(network), _scale(network)
    scores = _find_scores(network, boxes, labels)
    selection = selection_of(network, iou=IOU if scores.classes is None else None)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = boxes.read(outputs).reshape(-1, 4)
        hits = scores.hits(outputs, boxes, len(table), threshold)
        placed = table[hits.rows]
        if flipped:
            placed = placed[:, [1, 0, 3, 2]]
        if not (np.abs(placed) > NORMALIZED_AT_MOST).any():
            placed = placed * scale
        return detections(boxes.spec.name, placed, hits, labels, selection)

    return decode


def _find_boxes(network: Network) -> tuple[Output, bool]:
    """Find the boxes, and whether their coordinates are in the order y1, x1, y2, x2."""
    named = network.manifest.output.names
    if "boxes_yxyx" in named:
        return network.need("boxes_yxyx", [(1, None, 4), (None, 4)]), True
    patterns = [(1, None, 1, 4), (1, None, 5), (None, 5), (1, None, 4), (None, 4)]
    boxes = network.need("boxes", patterns, names=BOXES)
    if boxes.spec.name.startswith("detection_boxes") and "boxes" not in named:
        raise ModelError(
            f"output.names: {boxes.spec.name!r} is TensorFlow's name for boxes in the order y1, "
            "x1, y2, x2; say which it is: output.names.boxes_yxyx or output.names.boxes"
        )
    if boxes.spec.shape[-1] is None and "boxes" not in named and not is_called(boxes.spec, BOXES):
        raise ModelError(
            f"output {boxes.spec}: expected rows of 4 or 5 numbers, found an open size; if these "
            "are the boxes, name them: output.names.boxes"
        )
    return boxes, False


def _width_by_scores(network: Network, boxes: Output) -> int:
    """Infer the row width of boxes whose shape is open from the other outputs."""
    if boxes.spec.name == network.manifest.output.names.get("boxes_yxyx"):
        return 4
    patterns = _score_patterns(boxes)
    named_classes = network.manifest.output.names.get("classes")
    for output in network.outputs:
        is_classes = output.name == named_classes or is_called(output, CLASSES)
        if output.name == boxes.spec.name or output.dtype in INDEX_TYPES or is_classes:
            continue
        if any(fits(output.shape, pattern) for pattern in patterns):
            return 4
    return 5


def _score_patterns(boxes: Output) -> list[Pattern]:
    shape = boxes.spec.shape
    count = shape[1] if len(shape) == 4 else shape[-2]
    return [(count,) if len(shape) == 2 else (1, count), (1, count, None)]


def _find_scores(network: Network, boxes: Output, labels: Labels) -> _Scores:
    indices = [output for output in network.outputs if output.dtype in INDEX_TYPES]
    scores = network.need(
        "scores",
        _score_patterns(boxes),
        names=SCORES,
        without=(boxes.spec, *indices),
    )
    if len(scores.spec.shape) < 3:
        classes = _find_classes(network, boxes, (boxes, scores))
        return _Scores(scores, 0, classes)
    check_classes(labels, scores.spec.shape[2], f"output {scores.spec}")
    named = labels.names[0].strip("_ ").lower() if labels.names and not labels.first else ""
    background = labels.first == 1 or named == "background"
    return _Scores(scores, int(background), None)


def _find_classes(network: Network, boxes: Output, without: tuple[Output, ...]) -> Output | None:
    return network.find(
        "classes",
        _score_patterns(boxes)[:1],
        names=CLASSES,
        without=tuple(output.spec for output in without),
    )


def _read_classes(
    classes: Output | None, outputs: Tensors, boxes: Output, count: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """Read class indices, unchanged but for the output's step; without them all are class 0."""
    if classes is None:
        return np.zeros(count, np.intp)
    whole = (classes.scale, classes.zero_point) == (1, 0)
    found = (classes.array(outputs) if whole else classes.read(outputs)).reshape(-1)
    check_rows(classes, len(found), boxes, count)
    if found.dtype.kind == "f":
        ensure_finite(classes.spec.name, found)
    return _indices(found)


def _indices(
    values: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    return np.rint(values.astype(np.float64)).astype(np.intp)


def _scale(network: Network) -> Floats:
    width, height = network.picture_size()
    return np.array([width, height] * 2, np.float32)
