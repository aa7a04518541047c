"""YOLO heads as the network returns them: numbers for each cell and anchor, not yet boxes."""

from __future__ import annotations

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.types import Detections, Tensors
from .boxes import Hits, corners, detections, selection_of
from .classification import ROUNDING
from .decoder import (
    Decoder,
    Floats,
    Network,
    Output,
    check_classes,
    ensure_finite,
    labels_of,
    sigmoid,
    softmax,
)

_SQUARED = frozenset({"yolov5-heads", "yolo-fastestv2"})
"""Size is (2 * sigmoid(t))² * anchor, center 2 * sigmoid(t) - 0.5; else exp(t) and sigmoid(t)."""
_EXCLUSIVE = frozenset({"yolov2", "custom-vision"})
"""Layouts with a softmax over classes, and anchors in cells."""


def heads(network: Network) -> Decoder:
    """YOLOv5 and v7 without their last step, v3, v2, Custom Vision, and YOLO-FastestV2.

    No roles: each output of 4 or 5 dimensions is a head, [1, A, H, W, 5 + classes] or
    [1, A * (5 + classes), H, W], or with these last; the finest has the first anchors. If all
    numbers lie in 0..1, the sigmoid has been applied. Score = objectness * class.
    """
    network.check_roles()
    given, labels, selection = network.manifest.output, labels_of(network), selection_of(network)
    layout, size = given.layout, network.picture_size()
    specs = [one for one in network.outputs if len(one.shape) in {4, 5}]
    # Several integer tensors differ in their quantization steps.
    whole = len(specs) > 1 and any("int" in one.dtype for one in specs)
    if not specs or whole or len(given.anchors) % (2 * len(specs)):
        raise ModelError(
            "output.anchors: expected as many for each head, and floats where there are several, "
            f"found {len(given.anchors) // 2} for {', '.join(map(str, specs or network.outputs))}"
        )
    anchors = np.array(given.anchors, np.float32).reshape(len(specs), -1, 2)
    readers = [Output(one, (one.shape,), given.scale, given.zero_point) for one in specs]

    def levels(outputs: Tensors) -> list[Floats]:
        found = []
        for one in readers:
            array = one.read(outputs)[0]
            ensure_finite(one.spec.name, array)
            cells = _cells(array, layout, anchors.shape[1], size)
            if cells is None:
                raise SampleError(
                    f"output {one.spec.name}: expected cells of a picture of {size[0]}x{size[1]} "
                    f"with 5 numbers and at least 1 class for each of {anchors.shape[1]} anchors, "
                    f"found {list(array.shape)}; output.layout or output.anchors does not fit"
                )
            found.append(cells)
        return sorted(found, key=len, reverse=True)

    if not any(None in one.shape[1:] for one in specs):
        try:
            zeros = {one.name: np.zeros([size or 1 for size in one.shape]) for one in specs}
            for cells in levels(zeros):
                check_classes(labels, cells.shape[3] - 5, f"output {specs[0]}")
        except SampleError as problem:
            raise ModelError(str(problem)) from None

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Detections:
        pairs = zip(levels(outputs), anchors, strict=True)
        read = [_read(cells, own, layout, size, threshold) for cells, own in pairs]
        boxes, classes, scores = map(np.concatenate, zip(*read, strict=True))
        hits = Hits(np.arange(len(boxes)), classes, scores)
        return detections("of heads", corners(boxes), hits, labels, selection)

    return decode


def _cells(array: Floats, layout: str, count: int, size: tuple[int, int]) -> Floats | None:
    """Return a head of *count* anchors as (H, W, A, 5 + classes), or None if it is not one.

    The array is [A, H, W, n] or [A * n, H, W], or has these last.
    """
    for axes in ((1, 2, 0, 3), (0, 1, 2, 3)) if array.ndim == 4 else ((1, 2, 0), (0, 1, 2)):
        rows, columns = (array.shape[axis] for axis in axes[:2])
        if not array.size or size[0] % columns or size[1] % rows:
            continue
        if size[0] // columns != size[1] // rows or (axes[3:] and array.shape[axes[2]] != count):
            continue
        cells = array.transpose(axes).reshape(rows, columns, -1)
        numbers = cells.shape[2]
        if layout != "yolo-fastestv2" and numbers % count == 0 and numbers // count > 5:
            return cells.reshape(rows, columns, count, -1)
        if layout == "yolo-fastestv2" and numbers > 5 * count:
            # Boxes of all anchors, then their objectness, then the classes they share.
            boxes, certain, classes = np.split(cells, (4 * count, 5 * count), axis=2)
            boxes, each = boxes.reshape(rows, columns, count, 4), classes[:, :, None]
            parts = (boxes, certain[..., None], np.repeat(each, count, axis=2))
            return np.concatenate(parts, axis=3)
    return None


def _read(
    cells: Floats, anchors: Floats, layout: str, size: tuple[int, int], threshold: float
) -> tuple[Floats, Floats, Floats]:
    """Return the hits: boxes (n, 4) as center and size, class scores, and scores (n,)."""
    columns, table = cells.shape[1], cells.reshape(-1, cells.shape[3])
    stride = np.float32(size[0] / columns)
    done = _is_chance(table[:, 4])
    certain = table[:, 4] if done else sigmoid(table[:, 4])
    rows = np.flatnonzero(certain >= threshold)
    scores = table[rows, 5:]
    if not done:
        scores = softmax(scores) if layout in _EXCLUSIVE else sigmoid(scores)
    best = scores.max(axis=1) * certain[rows]
    kept = best >= threshold
    rows, classes = rows[kept], scores.argmax(axis=1)[kept]
    places, anchor = np.divmod(rows, len(anchors))
    corner = np.stack((places % columns, places // columns), axis=1).astype(np.float32)
    center, sides = table[rows, :2], table[rows, 2:4]
    if layout != "custom-vision" and not _is_chance(table[:, :2]):
        center = sigmoid(center)
    if layout in _SQUARED:
        sides = sides if _is_chance(table[:, 2:4]) else sigmoid(sides)
        center, sides = center * 2 - np.float32(0.5), (sides * 2) ** 2
    else:
        with np.errstate(over="ignore"):  # an absurd size becomes infinite and is refused
            sides = np.exp(sides)
    sides = sides * anchors[anchor] * (stride if layout in _EXCLUSIVE else 1)
    return np.concatenate(((center + corner) * stride, sides), axis=1), classes, best[kept]


def _is_chance(numbers: Floats) -> bool:
    """Whether the sigmoid has already been applied to the numbers of all cells."""
    return bool(numbers.min() >= -ROUNDING and numbers.max() <= 1 + ROUNDING)
