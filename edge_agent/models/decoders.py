"""The decoders: the tasks each is for, and where it is.

To add a decoder, write a function in `inference/decode` and a line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
"""Tasks whose findings are labels, with scores, of the whole picture or window."""
SCORED: frozenset[Task] = BOXED | LABELED
"""Tasks whose findings have scores from 0 to 1; those of other tasks may be any number."""
WITHOUT_THRESHOLD: frozenset[Task] = frozenset({"regression", "raw"})
"""Tasks whose results are numbers, all of which are published."""


class DecoderSpec(NamedTuple):
    """One decoder."""

    function: str
    """Module, relative to `inference.decode`, and function; imported when a model needs it."""
    tasks: tuple[Task, ...]
    compares_input: bool = False
    """Whether it compares outputs with the input, and so needs the input's numbers."""
    most: int = 0
    """Most boxes that the family's own postprocessing keeps; 0: it has no limit."""
    rounding: Literal["half-even", "half-up", "down", "up"] | None = None
    """How the family rounds a letterboxed size, if not as usual for its anchor."""
    layouts: tuple[str, ...] = ()
    """Other layouts that it reads if a manifest's `layout` says so."""


ULTRALYTICS = 300
"""Most boxes that its predictor keeps (`max_det`)."""
_YOLO: tuple[Task, ...] = ("detection", "instance-segmentation", "keypoints", "obb")
HEADS = ("yolov5-heads", "yolov3", "yolov2", "custom-vision", "yolo-fastestv2")
"""Layouts of boxes that are not decoded, with anchors outside the network."""
POINTS_FIRST = "points-first"
"""Layout of key points that come before the classes."""
ROWS = ("paddle", "yolov7", "yolo-nas", "pinto")
"""Layouts of finished boxes, one per row."""
BLANK_LAST, LPRNET = "blank-last", "lprnet"
"""Layouts of text whose last class, not its first, is the blank."""

SIGMOID = "sigmoid"
"""Layout of classes of pixels each of which has its own chance, so that all may be absent."""
_ONLY: Mapping[str, Task] = {POINTS_FIRST: "keypoints", SIGMOID: "segmentation"}
"""Layouts of a single task, which has no others."""

DECODERS: Mapping[str, DecoderSpec] = {
    "ultraface": DecoderSpec(".faces.ultraface", ("detection",)),
    "yunet": DecoderSpec(".faces.yunet", ("detection",), rounding="half-even"),
    "yolox": DecoderSpec(".yolo.yolox", ("detection",)),
    "yolov8": DecoderSpec(".yolo.yolov8", _YOLO, most=ULTRALYTICS),
    "yolo-e2e": DecoderSpec(".yolo.end_to_end", _YOLO, most=ULTRALYTICS),
    "rtdetr": DecoderSpec(".detr.ultralytics_rtdetr", ("detection",), most=ULTRALYTICS),
    "yolov5": DecoderSpec(
        ".yolo.yolov5", _YOLO[:3], most=ULTRALYTICS, layouts=(*HEADS, POINTS_FIRST)
    ),
    "fastestdet": DecoderSpec(".nanodet.fastestdet", ("detection",)),
    "nanodet": DecoderSpec(".nanodet.nanodet", ("detection",)),
    "ssd": DecoderSpec(".ssd.ssd", ("detection",), layouts=ROWS),
    "detr": DecoderSpec(".detr.detr", ("detection",)),
    "softmax": DecoderSpec(".classification.softmax", ("classification",)),
    "logits": DecoderSpec(".classification.logits", ("classification",)),
    "reconstruction": DecoderSpec(".values.reconstruction", ("anomaly",), compares_input=True),
    "raw": DecoderSpec(".values.raw", ("regression", "raw", "generate")),
    "score": DecoderSpec(".values.score", ("anomaly", "regression")),
    "ctc": DecoderSpec(".text.ctc", ("text",), rounding="up", layouts=(BLANK_LAST, LPRNET)),
    "db": DecoderSpec(".text.db", ("detection", "obb")),
    "semantic": DecoderSpec(
        ".semantic.semantic", ("segmentation", "detection"), layouts=(SIGMOID,)
    ),
    "pooled": DecoderSpec(".embedding.pooled", ("embedding",)),
}
DEFAULT = "raw"
"""The decoder if a manifest names none, for tasks that allow it."""

if TYPE_CHECKING:
    DecoderName = str
else:
    DecoderName = Literal[tuple(DECODERS)]
    """A decoder's name; checked when a manifest is read."""


def decoders_of(task: Task) -> list[str]:
    """Return the names of the decoders for a task."""
    return [name for name, decoder in DECODERS.items() if task in decoder.tasks]


def layout_problems(
    decoder: str, task: Task, layout: str, anchors: Sequence[float]
) -> Iterator[tuple[str, str]]:
    """Yield the problems of a manifest's `layout` and `anchors`: key, and text."""
    own = task if task in {*_ONLY.values()} else None
    known = DECODERS[decoder].layouts if own or task in {"detection", "text"} else ()
    known = tuple(each for each in known if _ONLY.get(each) == own)
    if layout and layout not in known:
        text = f"decoder {decoder!r} of task {task} has {', '.join(known) or 'none'}"
        yield "output.layout", f"{text}; found {layout!r}"
    if layout in HEADS and (not anchors or len(anchors) % 2 or min(anchors) <= 0):
        text = f"width and height of each anchor of layout {layout!r}, from the finest level on"
        yield "output.anchors", f"expected {text}, found {len(anchors)} numbers"
    if anchors and layout not in HEADS:
        yield "output.anchors", f"is for layouts {', '.join(HEADS)}; found {layout or 'none'}"


Thresholds = tuple[float | None, Mapping[str, float]]
"""The threshold of a pipeline or stage, and those by label."""


def threshold_troubles(
    task: Task, threshold: float | None, by_label: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Yield which of a pipeline's thresholds make no sense for a model's task: key, and why."""
    given = [(f"thresholds.{label}", each) for label, each in by_label.items()]
    for key, each in [*given, ("threshold", threshold)]:
        if each is not None and (trouble := threshold_trouble(task, each)):
            yield key, trouble


def threshold_trouble(task: Task, threshold: float) -> str | None:
    """Return why a threshold makes no sense for a task, or None if it does."""
    if task not in SCORED or 0 <= threshold <= 1:
        return None
    return f"expected a number from 0 to 1, as the scores of task {task} are, found {threshold:g}"
