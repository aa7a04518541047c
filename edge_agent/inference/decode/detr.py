"""DETR and its descendants: a set of boxes and one row of logits for each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core.errors import ModelError
from ...core.types import Detections, Tensors
from .boxes import Hits, best_classes, corners, detections, selection_of, single_scores
from .decoder import Decoder, Network, check_rows, ensure_finite, labels_of, sigmoid, softmax

# Boxes per picture that RT-DETR, RF-DETR, D-FINE and DEIM keep (`num_top_queries`, `num_select`).
MOST_OF_SIGMOID = 300
RF_DETR = ("dets", "labels")
"""Its exporter's names for boxes and logits; there is one more logit than trained classes."""


def detr(network: Network) -> Decoder:
    """DETR (softmax with "no object" last) and RT-DETR, RF-DETR, D-FINE and the like (sigmoid).

    Roles `boxes`: [1, N, 4] center x, center y, width, height in 0..1 of the input; `logits`:
    [1, N, C]. The number of labels decides: C means sigmoid; C - 1 means softmax, whose last class
    is "no object" (DETR's own 92 logits go with the 91 of COCO's numbering). Labels are required;
    RF-DETR uses a sigmoid, however many labels there are. Softmax gives a query its best class;
    sigmoid gives it each class that reaches the threshold, the best 300 of all, as the published
    postprocessing does. These networks need no suppression.
    """
    width, height = network.picture_size()
    labels = labels_of(network)
    network.check_roles("boxes", "logits")
    boxes = network.need("boxes", [(1, None, 4)], names=("pred_boxes", "boxes", "dets"))
    count = boxes.spec.shape[1]
    others = [
        o.shape[2] for o in network.outputs if o.name != boxes.spec.name and len(o.shape) == 3
    ]
    classes = labels.classes
    if classes is None:
        raise ModelError(
            f"output.labels: missing; decoder 'detr' needs their number to know whether "
            f"scores are sigmoid or softmax, found {', '.join(map(str, others)) or 'no'} logits"
        )
    logits = network.find(
        "logits",
        [(1, count, classes), (1, count, classes + 1)],
        names=("pred_logits", "logits", "labels", "scores"),
        without=(boxes.spec,),
    )
    if logits is None:
        found = ", ".join(map(str, network.outputs))
        raise ModelError(
            f"output.labels: {len(labels.names)} labels (first_label {labels.first}) expect "
            f"logits of {classes} classes (sigmoid) or {classes + 1} (softmax, the last is no "
            f"object), found {found}"
        )
    if (boxes.spec.name, logits.spec.name) == RF_DETR and logits.spec.shape[2] == classes + 1:
        raise ModelError(
            f"output.labels: {logits.spec} are RF-DETR's, {classes + 1} classes after a sigmoid of "
            f"which none is no object, found {len(labels.names)} labels; name all of them, or say "
            "first_label = 1 where the first has no name"
        )
    scale = np.array([width, height] * 2, np.float32)
    selection = selection_of(network, suppressible=False)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = logits.read(outputs)[0]
        ensure_finite(logits.spec.name, table)
        if table.shape[1] == classes:
            hits = single_scores(sigmoid(table), threshold, MOST_OF_SIGMOID)
        else:
            hits = best_classes(softmax(table)[:, :-1], threshold)
        placed = boxes.read(outputs)[0]
        check_rows(boxes, len(placed), logits, len(table))
        placed = corners(placed[hits.rows]) * scale
        return detections(boxes.spec.name, placed, hits, labels, selection)

    return decode


def ultralytics_rtdetr(network: Network) -> Decoder:
    """RT-DETR as Ultralytics exports it, in one tensor.

    Role `predictions`: [1, N, 6] center x, center y, width, height in 0..1 of the input, score,
    class (since 8.4), or [1, N, 4 + classes] with each class's score (before). With two classes
    both are 6 wide: only in the former is the last number an integer in every row. Nothing is
    suppressed.
    """
    width, height = network.picture_size()
    network.check_roles("predictions")
    labels = labels_of(network)
    output = network.need("predictions", [(1, None, None)], names=("output0",))
    scale = np.array([width, height] * 2, np.float32)
    selection = selection_of(network, suppressible=False)
    wide = None if labels.classes is None else 4 + labels.classes
    found = output.spec.shape[2]
    if found not in {None, 6, wide} or (found is None and wide is None):
        raise ModelError(
            f"output.decoder: 'rtdetr' expects predictions of shape [1, N, 6] or "
            f"[1, N, {wide or '4 + classes'}], found {output.spec}"
        )
    output = replace(output, patterns=((1, None, 6), (1, None, wide or 6)))

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        table = output.read(outputs)[0]
        ensure_finite(output.spec.name, table[:, 4:])
        if table.shape[1] == 6 and (wide != 6 or not (table[:, 5] % 1).any()):
            rows = np.flatnonzero(table[:, 4] >= threshold)
            hits = Hits(rows, table[rows, 5].astype(np.intp), table[rows, 4])
        else:
            hits = best_classes(table[:, 4:], threshold)
        placed = corners(table[hits.rows, :4]) * scale
        return detections(output.spec.name, placed, hits, labels, selection)

    return decode
