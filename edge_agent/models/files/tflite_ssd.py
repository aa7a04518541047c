"""The last step of TensorFlow's SSDs, as its custom operator TFLite_Detection_PostProcess does it.

It makes boxes of a network's raw ones and of anchors, and suppresses those that overlap a better
one. Engines here have no custom operators; this one is computed with their own, from what the file
says of it. Source: tensorflow/lite/kernels/detection_postprocess.cc.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import ModelError
from ...core.frozen import record
from ...core.text import count_trouble
from ..manifest import MANIFEST, ModelFolder
from .flatbuffer import Table
from .protobuf import DamagedError

POST_PROCESS = "TFLite_Detection_PostProcess"
ROLES = ("boxes_yxyx", "classes", "scores")
"""Its outputs in order, by the roles that they have for decoder ssd; behind them is their count."""
_INPUTS, _OUTPUTS, _CUSTOM_OPTIONS = 3, 4, 5
_MEND = "export it again, or without that step, so that it ends in raw boxes and scores"
_MOST = 10_000
"""Most boxes that it may return."""


@record(kw_only=True)
class PostProcess:
    """What the operator is told."""

    scales: tuple[float, float, float, float]
    """Of y, x, height and width: raw numbers are divided by them."""
    classes: int
    """Without the background."""
    most: int
    """Boxes that it returns."""
    most_of_class: int
    """Boxes of a class that it returns; 0: classes are suppressed together."""
    threshold: float
    iou: float


def post_process_of(network: Path) -> PostProcess | None:
    """Read what a .tflite says of the operator, which has been checked; None: it has none."""
    with network.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find(POST_PROCESS.encode()) < 0:
            return None
        model = Table.root(data)
        custom = [place for place, code in enumerate(model.tables(1)) if code.text(1)]
        for operator in (one for graph in model.tables(2) for one in graph.tables(3)):
            if operator.number(0, "<I") in custom:
                return read_options(operator)
    return None


def check_labels(folder: ModelFolder) -> None:
    """Check that a model, whose network has been, has a label for each class of the operator.

    Raises:
        ModelError: there are more or fewer; begins with the manifest's path.
    """
    labels, first = folder.labels, folder.manifest.output.first_label
    ends = labels and folder.manifest.decoder == "ssd" and folder.network.suffix == ".tflite"
    said = post_process_of(folder.network) if ends else None
    text = None if said is None else count_trouble(len(labels), first, said.classes, POST_PROCESS)
    if said is None or text is None:
        return
    if len(labels) + first == said.classes + 1 and is_background(labels[0]):
        text += f"; the first, {labels[0]!r}, is the background: give first_label = -1, too"
    raise ModelError(f"{folder.path / MANIFEST}: {text}")


def is_background(label: str) -> bool:
    """Whether a label is what TensorFlow's lists begin with, for a class that no object has."""
    return label.strip("_ ").lower() in {"???", "background"}


def check_ends(taken: Sequence[int], made: Sequence[int]) -> None:
    """Check that the operator takes boxes, scores and anchors, and makes its four outputs.

    Raises:
        DamagedError: it does not.
    """
    if len(taken) != _INPUTS or len(made) != _OUTPUTS:
        raise DamagedError(f"{POST_PROCESS} lacks inputs or outputs; {_MEND}")


def read_options(operator: Table) -> PostProcess:
    """Read the operator's options.

    Raises:
        DamagedError: they are missing, or make no sense.
    """
    from flatbuffers import flexbuffers

    place = operator.vector(_CUSTOM_OPTIONS, "<B")
    if place is None:
        raise DamagedError(f"{POST_PROCESS} lacks its options; {_MEND}")
    start, length = place
    try:
        said = flexbuffers.GetRoot(bytes(operator.data[start : start + length])).AsMap
        given = {key.AsKey: said[key.AsKey] for key in said.Keys}

        def number(key: str, usual: float = 0.0) -> float:
            return float(given[key].AsFloat) if key in given else usual

        scales = tuple(number(f"{axis}_scale") for axis in "yxhw")
        regular = "use_regular_nms" in given and bool(given["use_regular_nms"].AsBool)
        made = PostProcess(
            scales=(scales[0], scales[1], scales[2], scales[3]),
            classes=int(number("num_classes")),
            most=int(number("max_detections")),
            most_of_class=int(number("detections_per_class", 100)) if regular else 0,
            threshold=number("nms_score_threshold"),
            iou=number("nms_iou_threshold"),
        )
        each = int(number("max_classes_per_detection", 1))
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error) as problem:
        raise DamagedError(f"{POST_PROCESS} has options that cannot be read") from problem
    if not all(made.scales) or made.classes < 1 or not 0 < made.most <= _MOST:
        raise DamagedError(f"{POST_PROCESS} has options that make no sense")
    if each != 1 and not made.most_of_class:
        raise DamagedError(f"{POST_PROCESS} returns several classes of a box; {_MEND}")
    return made
