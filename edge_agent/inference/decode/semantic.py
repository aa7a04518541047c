"""Classes per pixel or per cell: class numbers, or a score for each class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core.areas import Areas
from ...core.errors import ModelError, SampleError
from ...core.types import Array, Detections, Tensors
from ...models.decoders import SIGMOID
from .boxes import Hits, detections, selection_of, touching
from .classification import ROUNDING, as_given
from .decoder import Decoder, Labels, Network, Output, check_classes, ensure_finite, labels_of

MOST_CLASSES = 65536
_TWO, _HALF = 2, 0.5


def semantic(network: Network) -> Decoder:
    """Semantic segmentation, as Ultralytics, torchvision, PaddleSeg and others export it.

    Role `map`: class numbers [1, H, W] or [1, 1, H, W], or scores [1, C, H, W] or [1, H, W, C], of
    which the best counts; with a single one, and two labels, the chance of the second. With layout
    "sigmoid" a pixel in which none is above one half has no label. For task detection: cells that
    contain the centers of objects.
    """
    network.check_roles("map")
    size, labels = network.picture_size(), labels_of(network)
    output = network.need(
        "map",
        [(1, None, None), (1, None, None, None)],
        names=("output0", "output", "out", "logits"),
    )
    axis = _class_axis(network, output, labels)
    if axis is not None and output.spec.shape[axis] != 1:
        check_classes(labels, output.spec.shape[axis], f"output {output.spec}")
    if network.manifest.task == "detection":
        return _middles(network, output, labels, axis)
    if alone := network.manifest.output.layout == SIGMOID:
        labels = replace(labels, first=labels.first + 1)  # 0: none of them
    ends = np.array([(0, 0), size], np.float32)
    asked = bool(network.manifest.output.mask)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Areas:
        grid = _numbers(output, outputs, axis, alone=alone)
        present = np.unique(grid)
        present = present[labels.is_named(present)]
        names, each = labels.of(present), tuple(present.tolist())
        found = Areas(names, (0.0,) * len(names), each, grid, ends, size, asked)
        return found.counted().above(threshold)

    return decode


def _middles(network: Network, output: Output, labels: Labels, axis: int | None) -> Decoder:
    """Edge Impulse's FOMO: touching cells of a class, diagonally too, make one object.

    Scores have had their softmax, with the background first; an object has its best cell's score.
    """
    if axis is None:
        raise ModelError(f"output {output.spec}: expected a score for each class of a cell")
    size, selection = network.picture_size(), selection_of(network, iou=None)

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        cells = np.moveaxis(output.read(outputs)[0], axis - 1, 0)
        ensure_finite(output.spec.name, cells)
        as_given(cells.reshape(-1))
        step = np.array(size, np.float32) / cells.shape[:0:-1]
        groups = [touching(each, threshold) for each in cells[1:]]
        boxes = np.concatenate([placed for placed, _ in groups]) * np.tile(step, 2)
        scores = np.concatenate([best for _, best in groups])
        classes = np.repeat(np.arange(len(groups)) + 1, [len(best) for _, best in groups])
        hits = Hits(np.arange(len(boxes)), classes, scores)
        return detections(output.spec.name, boxes, hits, labels, selection)

    return decode


def _class_axis(network: Network, output: Output, labels: Labels) -> int | None:
    """Return the axis of the classes; None: the output holds class numbers.

    Raises:
        ModelError: it holds a single score for each pixel, and there are not two labels; or class
            numbers, or classes without a name, in layout "sigmoid".
    """
    alone = network.manifest.output.layout == SIGMOID
    if alone and (len(output.spec.shape) == 3 or not labels.names):
        raise ModelError(
            f"output.layout: {SIGMOID!r} expects output.labels, and for each pixel a chance of "
            f"each; found {len(labels.names)} and {output.spec}"
        )
    shape = output.spec.shape
    if len(shape) == 3:
        return None
    axis = 3 if network.manifest.input.layout == "nhwc" else 1
    others = [place for place in (1, 3) if shape[place] == labels.classes is not None]
    axis = others[0] if len(others) == 1 else axis
    if shape[axis] != 1:
        return axis
    # Chances in bytes have steps, class numbers have none.
    if "int" in output.spec.dtype and output.scale == 1:
        return None
    if alone or (labels.classes == _TWO and network.manifest.task == "segmentation"):
        return axis
    raise ModelError(
        f"output {output.spec}: a single score for each pixel: expected 2 labels, the background's "
        f"first, found {len(labels.names)}"
    )


def _numbers(output: Output, outputs: Tensors, axis: int | None, *, alone: bool) -> Array:
    """Return the class of each cell (h, w); of chances that stand *alone* 1 more, 0 for none.

    Raises:
        SampleError: the output holds numbers that are not class numbers.
    """
    array = output.array(outputs)
    if array.dtype.kind == "f":
        ensure_finite(output.spec.name, array)
    if axis is not None and (alone or array.shape[axis] == 1):
        chances = output.read(outputs)
        if chances.min(initial=0) < -ROUNDING or chances.max(initial=0) > 1 + ROUNDING:
            raise SampleError(
                f"output {output.spec.name}: holds numbers beyond 0 and 1, which are no chances; "
                "export the network with its sigmoid"
            )
        found = chances.max(axis=axis) > _HALF
        return np.asarray(np.where(found, chances.argmax(axis=axis) + 1, 0)[0], np.int64)
    if axis is not None:
        return np.asarray(array.argmax(axis=axis)[0], np.int64)
    grid = np.rint(array).astype(np.int64).reshape(array.shape[-2:] if array.ndim == 3 else -1)
    if array.ndim == 4:
        sizes = [size for size in array.shape[1:] if size != 1]
        grid = grid.reshape(sizes if len(sizes) == 2 else array.shape[2:])
    if grid.min(initial=0) < 0 or grid.max(initial=0) >= MOST_CLASSES:
        raise SampleError(f"output {output.spec.name}: contains numbers that are not class numbers")
    return grid
