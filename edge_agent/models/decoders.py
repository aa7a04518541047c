"""The decoders: which tasks each is for, and where it is.

A new decoder is one function in `inference/decode` and one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

# fmt: off
Task = Literal[
    "detection", "classification", "anomaly", "regression", "raw",
    "instance-segmentation", "keypoints", "obb", "segmentation", "text", "embedding",
    "generate",
]
# fmt: on
BOXED: frozenset[Task] = frozenset(
    {"detection", "instance-segmentation", "keypoints", "obb", "text"}
)
"""Tasks whose findings are detections."""
LABELED: frozenset[Task] = frozenset({"classification", "segmentation", "embedding"})
"""Tasks whose findings are labels of the whole, with scores."""


class DecoderSpec(NamedTuple):
    """One decoder."""

    function: str
    """Module, relative to `inference.decode`, and function; imported when a model needs it."""
    tasks: tuple[Task, ...]
    compares_input: bool = False
    """Whether it compares outputs with the input, whose numbers it therefore needs."""
    most: int = 0
    """Boxes that the family's own post-processing keeps at most; 0: it has no limit."""
    rounding: Literal["half-even", "half-up", "down"] | None = None
    """Of a letterboxed size, where the family's is not what its anchor usually goes with."""


ULTRALYTICS = 300
"""Boxes that its predictor keeps (`max_det`)."""
_YOLO: tuple[Task, ...] = ("detection", "instance-segmentation", "keypoints", "obb")

DECODERS: Mapping[str, DecoderSpec] = {
    "ultraface": DecoderSpec(".faces.ultraface", ("detection",)),
    "yunet": DecoderSpec(".faces.yunet", ("detection",), rounding="half-even"),
    "yolox": DecoderSpec(".yolo.yolox", ("detection",)),
    "yolov8": DecoderSpec(".yolo.yolov8", _YOLO, most=ULTRALYTICS),
    "yolo-e2e": DecoderSpec(".yolo.end_to_end", _YOLO, most=ULTRALYTICS),
    "rtdetr": DecoderSpec(".detr.ultralytics_rtdetr", ("detection",), most=ULTRALYTICS),
    "yolov5": DecoderSpec(".yolo.yolov5", _YOLO[:2], most=ULTRALYTICS),
    "fastestdet": DecoderSpec(".nanodet.fastestdet", ("detection",)),
    "nanodet": DecoderSpec(".nanodet.nanodet", ("detection",)),
    "ssd": DecoderSpec(".ssd.ssd", ("detection",)),
    "detr": DecoderSpec(".detr.detr", ("detection",)),
    "softmax": DecoderSpec(".classification.softmax", ("classification",)),
    "logits": DecoderSpec(".classification.logits", ("classification",)),
    "reconstruction": DecoderSpec(".values.reconstruction", ("anomaly",), compares_input=True),
    "raw": DecoderSpec(".values.raw", ("regression", "raw", "generate")),
    "score": DecoderSpec(".values.score", ("anomaly", "regression")),
    "ctc": DecoderSpec(".text.ctc", ("text",)),
    "db": DecoderSpec(".text.db", ("detection", "obb")),
    "semantic": DecoderSpec(".semantic.semantic", ("segmentation",)),
    "pooled": DecoderSpec(".embedding.pooled", ("embedding",)),
}
DEFAULT = "raw"
"""The decoder of a manifest that names none, if its task takes it."""

if TYPE_CHECKING:
    DecoderName = str
else:
    DecoderName = Literal[tuple(DECODERS)]
    """One of those names: checked when a manifest is read."""


def decoders_of(task: Task) -> list[str]:
    """Return the names of the decoders that a task can have."""
    return [name for name, decoder in DECODERS.items() if task in decoder.tasks]
