"""TensorFlow Lite's detection post-processing, with OpenVINO's own operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
from openvino.frontend import ConversionExtension

from ...models.files.tflite_ssd import POST_PROCESS

if TYPE_CHECKING:
    from pathlib import Path

    from ...models.files.tflite_ssd import PostProcess


def read_with(said: PostProcess, network: Path) -> ov.Model:
    """Read a .tflite that ends in the operator, of which the file says this."""

    def convert(node: Any) -> list[Any]:
        # Of steps, the frontend puts floats in place of them afterwards.
        boxes, scores, anchors = (
            op.convert(node.get_input(place), "f32").output(0) for place in range(3)
        )
        return _post_process(boxes, scores, anchors, said)

    # A core of its own: the conversion is that of one file.
    core = ov.Core()
    core.add_extension(ConversionExtension(POST_PROCESS, convert))
    return core.read_model(str(network))


def _post_process(raw: Any, chances: Any, anchors: Any, said: PostProcess) -> list[Any]:
    """Return boxes [1, n, 4], classes [1, n], scores [1, n] and their number [1]."""
    corners = _corners(raw, anchors, said)
    # What comes before the classes is the background.
    background = op.subtract(_size(chances, 2), [said.classes])
    own = op.slice(chances, background, _size(chances, 2), [1], [2])
    best = op.topk(own, np.int64(1), axis=2, mode="max", sort="value")
    scores = own if said.most_of_class else best.output(0)
    found = op.non_max_suppression(
        corners,
        op.transpose(scores, [0, 2, 1]),
        np.int64(said.most_of_class or said.most),
        np.float32(said.iou),
        np.float32(said.threshold),
        box_encoding="corner",
        sort_result_descending=True,
        output_type="i64",
    )
    picks = _first(found.output(0), said.most, np.int64)
    sure = _first(found.output(1), said.most, np.float32)
    kinds = op.gather(picks, [1], np.int64(1))
    rows = op.reshape(op.gather(picks, [2], np.int64(1)), [-1], False)
    if not said.most_of_class:
        kinds = op.gather(best.output(1), rows, np.int64(1))
    score = op.reshape(op.gather(sure, [2], np.int64(1)), [1, said.most], False)
    # Rows behind the last one found are 0.
    real = op.convert(op.greater(score, np.float32(0)), "f32")
    boxes = op.multiply(op.gather(corners, rows, np.int64(1)), op.unsqueeze(real, np.int64(2)))
    kinds = op.convert(op.reshape(kinds, [1, said.most], False), "f32")
    return [
        op.reshape(boxes, [1, said.most, 4], False).output(0),
        op.multiply(kinds, real).output(0),
        score.output(0),
        op.reduce_sum(real, np.int64(1)).output(0),
    ]


def _corners(raw: Any, anchors: Any, said: PostProcess) -> Any:
    """Return corners y1, x1, y2, x2 [1, N, 4] of boxes that are given relative to anchors."""
    raw = op.divide(raw, np.array(said.scales, np.float32))
    offset, size = op.split(raw, np.int64(2), 2).outputs()
    middle, sides = op.split(op.unsqueeze(anchors, np.int64(0)), np.int64(2), 2).outputs()
    middle = op.add(op.multiply(offset, sides), middle)
    half = op.multiply(op.multiply(op.exp(size), sides), np.float32(0.5))
    return op.concat([op.subtract(middle, half), op.add(middle, half)], 2)


def _first(table: Any, most: int, kind: Any) -> Any:
    """Return the first rows of a table of three columns; zeros where it has fewer."""
    longer = op.concat([table, np.zeros((most, 3), kind)], 0)
    return op.slice(longer, [0], [most], [1], [0])


def _size(tensor: Any, axis: int) -> Any:
    return op.gather(op.shape_of(tensor), [axis], np.int64(0))
