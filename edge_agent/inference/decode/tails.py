"""The end of a YOLO row, after box and classes: mask weights, key points, or an angle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...core.errors import ModelError
from ...core.frozen import record
from ...core.types import Detections, Tensors
from .boxes import Hits, corners, detections, pixels_of_unit, selection_of
from .decoder import Floats, Labels, Network, Output, ensure_finite
from .masks import PrototypeMasks

Columns = Mapping[str, Any]
Read = Callable[[Floats, Floats, Floats, Tensors], Columns]
"""Makes columns from tails (n, width), boxes (n, 4) as corners in pixels of the input, the pixels
per unit (2,), and all outputs."""


@record
class Tail:
    """The last numbers of each row, which depend on the task; a detector has none."""

    width: int
    read: Read | None = None
    rotated: bool = False
    """Whether boxes have a center, a width and a height along their own axes, and an angle."""

    @property
    def classes(self) -> slice:
        """The columns of the classes in a row that begins with the box."""
        return slice(4, -self.width or None)


ROLES: Mapping[str, tuple[str, ...]] = {"instance-segmentation": ("predictions", "prototypes")}
"""Roles of a YOLO's outputs by task; other tasks have one."""


def roles_of(network: Network) -> tuple[str, ...]:
    """Return the roles of the outputs for the task."""
    return ROLES.get(network.manifest.task, ("predictions",))


def tail_of(network: Network, output: Output, width: int | None, before: int | None) -> Tail:
    """Determine the tail after the classes.

    Args:
        network: the network, with its manifest.
        output: the output that has the rows.
        width: numbers in a row; None if that is open.
        before: numbers before the tail; None if unknown.

    Raises:
        ModelError: the row is too short or too long for the task.
    """
    task = network.manifest.task
    if task == "detection":
        return Tail(0)
    rest = None if width is None or before is None else width - before
    if task == "obb":
        tail, expected = Tail(1, rotated=True), "an angle"
    elif task == "keypoints":
        count, each = _points(network, output, before, rest)
        tail, expected = Tail(count * each, _points_reader(each)), f"{count} points of {each}"
    else:
        prototypes = network.need("prototypes", [(1, None, None, None)], names=("output1",))
        last = network.manifest.input.layout == "nhwc"
        if "int" in prototypes.spec.dtype + output.spec.dtype:
            raise ModelError(
                f"output {prototypes.spec}: integers, whose steps differ from those of "
                f"{output.spec.name}; export the model with floats at its ends (not full_integer)"
            )
        many = prototypes.spec.shape[3 if last else 1]
        if many is None:
            raise ModelError(f"output {prototypes.spec}: its number of prototypes is open")
        tail = Tail(many, _mask_reader(network, output, prototypes, last=last))
        expected = f"{many} weights, as {prototypes.spec.name} has prototypes"
    if rest is not None and rest != tail.width:
        raise ModelError(
            f"output {output.spec}: for task {task} expected rows of {before} numbers of box and "
            f"classes and {expected}, found {width} numbers; labels, or the task, do not fit"
        )
    return tail


def _points(
    network: Network, output: Output, before: int | None, rest: int | None
) -> tuple[int, int]:
    """Return the number of key points, and how many numbers each has: x, y, and often a score.

    *before* and *rest*: as for `tail_of`, and the numbers after them; None if unknown.

    Raises:
        ModelError: they cannot be determined.
    """
    count = network.manifest.output.points
    if count and before is not None and rest is None:
        raise ModelError(
            f"output {output.spec}: how many numbers a row has is open, and so whether a point has "
            "a score; export the network for one size (dynamic=False)"
        )
    if not count or rest is None:
        missing = "output.labels" if count else "output.points"
        raise ModelError(
            f"{missing}: is missing; which numbers of output {output.spec} are classes and which "
            "are key points follows from the number of points and of labels"
        )
    if rest in {2 * count, 3 * count}:
        return count, rest // count
    raise ModelError(
        f"output.points: expected {2 * count} or {3 * count} numbers for {count} points of x, y or "
        f"of x, y, score behind the classes of output {output.spec}, found {rest}; points or "
        "labels do not fit"
    )


def _points_reader(each: int) -> Read:
    def read(rest: Floats, _boxes: Floats, unit: Floats, _outputs: Tensors) -> Columns:
        points = rest.reshape(len(rest), rest.shape[1] // each, each).copy()
        points[..., :2] *= unit
        return {"points": points}

    return read


def _mask_reader(network: Network, output: Output, prototypes: Output, *, last: bool) -> Read:
    if network.manifest.output.mask is False:
        return lambda _rest, _boxes, _unit, _outputs: {}
    size = network.picture_size()
    ends = np.array([(0, 0), size], np.float32)

    def read(rest: Floats, boxes: Floats, _unit: Floats, outputs: Tensors) -> Columns:
        sums = prototypes.read(outputs)[0]
        ensure_finite(output.spec.name, rest)
        ensure_finite(prototypes.spec.name, sums)
        # A copy: an engine may reuse the memory before masks are asked for.
        kept = np.array(np.moveaxis(sums, -1, 0) if last else sums) if len(rest) else sums
        return {"masks": PrototypeMasks(rest, kept, boxes, ends, size)}

    return read


Found = Callable[[Floats, Floats, Hits, Tensors], Detections]
"""Makes detections from the boxes (n, 4) of hits as the network returns them, their tails
(n, width), the hits, and all outputs."""


def finder(
    network: Network,
    output: Output,
    labels: Labels,
    tail: Tail,
    *,
    centered: bool,
    suppressible: bool = True,
) -> Found:
    """Return a function that makes detections from YOLO rows that reach the threshold.

    Args:
        network: the network, with its manifest.
        output: the output that has the rows.
        labels: names of the classes.
        tail: the numbers after box and classes.
        centered: whether a box is given by its center and size, or by two corners.
        suppressible: whether to suppress at all.
    """
    selection, source = selection_of(network, suppressible=suppressible), output.spec.name

    def found(boxes: Floats, rest: Floats, hits: Hits, outputs: Tensors) -> Detections:
        unit = pixels_of_unit(network, boxes)
        boxes = boxes * np.tile(unit, 2)
        if tail.rotated:
            turned = np.concatenate((boxes, rest), axis=1)
            quads = quads_of(turned)
            around = np.concatenate((quads.min(axis=1), quads.max(axis=1)), axis=1)
            columns = {"corners": quads}
            return detections(source, around, hits, labels, selection, columns, turned)
        boxes = corners(boxes) if centered else boxes
        columns = {} if tail.read is None else {**tail.read(rest, boxes, unit, outputs)}
        return detections(source, boxes, hits, labels, selection, columns)

    return found


def quads_of(turned: Floats) -> Floats:
    """Return the corners (n, 4, 2) of boxes (n, 5) center x, y, width, height, angle in radians.

    They are in the order of Ultralytics' `xyxyxyxy`.
    """
    cosine, sine = np.cos(turned[:, 4:]), np.sin(turned[:, 4:])
    center, half = turned[:, :2], turned[:, 2:4] / 2
    across = half[:, :1] * np.concatenate((cosine, sine), axis=1)
    down = half[:, 1:] * np.concatenate((-sine, cosine), axis=1)
    ways = (across + down, across - down, -across - down, -across + down)
    return np.stack([center + way for way in ways], axis=1)
