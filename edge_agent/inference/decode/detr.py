"""DETR and its descendants: a set of boxes and one row of logits for each."""

from __future__ import annotations

import numpy as np

from ...core.errors import ModelError
from ...core.types import Detections, Tensors
from .activations import sigmoid, softmax
from .boxes import best_classes, corners, detections, single_scores
from .decoder import Decoder, Network, check_rows, ensure_finite
from .labels import labels_of

# What RT-DETR, RF-DETR, D-FINE and DEIM keep of a picture (`num_top_queries`, `num_select`).
MOST_OF_SIGMOID = 300


def detr(network: Network) -> Decoder:
    """DETR (softmax with "no object" last) and RT-DETR, RF-DETR, D-FINE and the like (sigmoid).

    Roles `boxes`: [1, N, 4] center x, center y, width, height in 0..1 of the input; `logits`:
    [1, N, C]. The labels tell which kind it is: as many as C, sigmoid; one less, softmax whose last
    class is "no object" (DETR's own 92 logits go with the 91 of COCO's numbering). Without labels
    it cannot be told. Softmax gives a query its best class; sigmoid gives it each class that
    reaches the threshold, the best 300 of all, as the published post-processings have it. Nothing
    is suppressed: these networks need no suppression.
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
            f"output.labels: missing; decoder 'detr' tells sigmoid from softmax by their count, "
            f"found {', '.join(map(str, others)) or 'no'} logits"
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
    scale = np.array([width, height] * 2, np.float32)

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
        return detections(boxes.spec.name, placed, hits, labels, None)

    return decode
