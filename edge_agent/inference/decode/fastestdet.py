"""FastestDet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core.errors import ModelError
from ...core.types import Detections, Tensors
from .activations import sigmoid
from .boxes import best_classes, corners, detections, selection_of
from .decoder import Decoder, Network, ensure_finite
from .labels import check_classes, labels_of


def fastestdet(network: Network) -> Decoder:
    """FastestDet as its own exporter writes it.

    Role `predictions`: [1, 5 + classes, rows, columns], a box for each cell of the picture:
    objectness, then offset x and y and the logarithmic width and height, then class scores after
    their softmax. Center = (cell + tanh(offset)) / cells, size = sigmoid, both in 0..1 of the
    input; score = objectness ** 0.6 * class ** 0.4.
    """
    size = np.array(network.picture_size() * 2, np.float32)
    network.check_roles("predictions")
    labels, selection = labels_of(network), selection_of(network)
    output = network.need("predictions", [(1, None, None, None)], names=("output",))
    channels = output.spec.shape[1]
    if channels is not None and channels < 6:
        raise ModelError(
            f"output {output.spec}: expected at least 6 channels, 5 and 1 a class, found {channels}"
        )
    check_classes(labels, None if channels is None else channels - 5, f"output {output.spec}")
    known = None if labels.classes is None else 5 + labels.classes
    output = replace(output, patterns=((1, known, None, None),))

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        planes = output.read(outputs)[0]
        cells = np.array(planes.shape[:0:-1] * 2, np.float32)
        table = planes.reshape(len(planes), -1).T
        ensure_finite(output.spec.name, table)
        certain = np.maximum(table[:, :1], 0) ** np.float32(0.6)
        scores = certain * np.maximum(table[:, 5:], 0) ** np.float32(0.4)
        hits = best_classes(scores, threshold)
        raw = table[hits.rows, 1:5]
        cell = np.stack((hits.rows % planes.shape[2], hits.rows // planes.shape[2]), axis=1)
        center = (cell + np.tanh(raw[:, :2])) / cells[:2]
        boxes = np.concatenate((center, sigmoid(raw[:, 2:])), axis=1).astype(np.float32)
        return detections(output.spec.name, corners(boxes) * size, hits, labels, selection)

    return decode
