"""A manifest for a bare network of which no metadata tells, by its shapes and names.

What a family's own exporter always writes, and nobody else, is enough: then the family's own code
says how pictures go in, and that is assumed in so many words. Where shapes fit several families, or
do not tell how a network was trained, what is known becomes a draft with the questions that are
left. Of detectors only those of COCO's 80 classes are taken for sure: 80 + 5 or + 4 numbers are
hardly anything else, while 16 may be 11 classes, or a face with its five points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import ModelError
from ...core.text import printable
from ...core.types import TensorSpec
from . import infer_layout
from .facts import CONVERSION, PUT_INSIDE, Draft, NetworkFacts
from .guess_signals import output_words, signal_draft, unusual_draft

COCO = 80
_VECTOR = 64
"""Numbers that an embedding has at least."""
_BINS = 4 * 8
"""Of NanoDet's distances."""
_ANCHORS = {8: 3, 16: 2, 32: 2, 64: 3}
"""Boxes that UltraFace has in each cell of a stride."""
_CHANCES = frozenset({"Softmax", "SoftMax", "Sigmoid"})

# How an option that was not given is written down.
_NOT_PUT = frozenset({"", "()", "[]", "{}", "None", "False"})

_COLORS = (
    'input.color, input.mean and input.scale: as in training; usual are "rgb" with mean '
    "[123.675, 116.28, 103.53] and scale [58.395, 57.12, 57.375] (PyTorch), with 0 and 255, with "
    '127.5 and 127.5 (TensorFlow), and "bgr" with 0 and 1'
)
_RESIZE = "input.resize: stretch, letterbox or crop, as in training"
_PADDLE: dict[str, Any] = {
    "color": "bgr",
    "resize": "letterbox",
    "anchor": "top-left",
    "pad": 127.5,
    "mean": 127.5,
    "scale": 127.5,
}
"""How PaddleOCR's recognition is given a line."""
_LABELS = "output.labels: the names of the classes, in the order of training"


def draft_of(facts: NetworkFacts) -> Draft:
    """Guess what a network is, and what its manifest says.

    Returns:
        The draft; complete where it has no questions.
    """
    try:
        spec, said = infer_layout.picture_input(facts, "")
    except ModelError:
        return unusual_draft(facts) or signal_draft(facts)
    picture = _Picture(facts, spec, said)
    for guess in _FAMILIES:
        draft = guess(picture)
        if draft is not None:
            return draft
    return Draft(
        "a network of pictures that is of no known family",
        {"task": "raw", "input": picture.said, "output": {"decoder": "raw"}},
        questions=(
            "task and output.decoder: raw gives the tensors as they are; " + output_words(facts),
            _COLORS,
            _RESIZE,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Picture:
    """A network that takes one picture."""

    facts: NetworkFacts
    input: TensorSpec
    given: dict[str, Any]
    """Keys of [input] that follow from the shape."""
    outputs: Mapping[str, TensorSpec] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", {one.name: one for one in self.facts.outputs})

    @property
    def said(self) -> dict[str, Any]:
        return dict(self.given)

    @property
    def only(self) -> tuple[int, ...]:
        """The shape of the only output; () where there are several, or it leaves a size open.

        An open batch is 1.
        """
        if len(self.facts.outputs) != 1:
            return ()
        batch, *sizes = self.facts.outputs[0].shape or (0,)
        known = [size for size in sizes if size is not None]
        return (batch or 1, *known) if len(known) == len(sizes) else ()

    def cells(self, *strides: int, anchors: Mapping[int, int] | None = None) -> int | None:
        """Count the places of a picture at these strides; None where its size is open."""
        width, height = infer_layout.picture_size(self.input, self.given["layout"])
        if width is None or height is None:
            return None
        return sum(
            -(-width // stride) * -(-height // stride) * (1 if anchors is None else anchors[stride])
            for stride in strides
        )


def _detector(
    picture: _Picture,
    family: str,
    input_: Mapping[str, Any],
    output: Mapping[str, Any],
    *left: str,
    words: str = "",
) -> Draft:
    """Make a detector's draft; its assumptions are the values of what is said.

    Where *words* say how pictures go in, they count whatever an IR has inside.
    """
    inside = [] if words else _inside(picture.facts)
    assumed = [f"family: {family}, by the output {', '.join(map(str, picture.facts.outputs))}"]
    if inside:
        names = " and ".join(inside)
        before = _before(input_, inside)
        if before is None:
            question = (
                f"input.color, input.mean and input.scale: its converter has put {names} inside, "
                f"which does not tell what {family} is given before that"
            )
            left = (question, *left)
        else:
            input_ = before
            assumed.append(f"input: {names} inside already, as its converter has written into it")
    made = {"task": "detection", "input": {**picture.said, **input_}, "output": dict(output)}
    if input_:
        assumed.append(f"input: {words or _in_words(input_)}, as its own code has it")
    if "threshold" in output:
        iou = f", iou: {output['iou']}" if "iou" in output else ""
        assumed.append(f"threshold: {output['threshold']}{iou}, as its own demo has it")
    if "labels" not in output:
        assumed.append("labels: none are known, so classes are called by their numbers")
    return Draft(family, made, tuple(assumed), left)


def _inside(facts: NetworkFacts) -> list[str]:
    """Name what an IR's converter has put into it of what is done to pixels."""
    return [key for key in PUT_INSIDE if _said_of(facts, key) not in _NOT_PUT]


def _said_of(facts: NetworkFacts, key: str) -> str:
    return facts.metadata.get(f"{CONVERSION} {key}", "").strip()


def _before(input_: Mapping[str, Any], inside: list[str]) -> dict[str, Any] | None:
    """Return what is left to be done before the network; None where that cannot be told.

    What is inside is taken to be the family's own: each is one of its keys, or nothing can be told.
    """
    made = dict(input_)
    turned, mean = "reverse_input_channels" in inside, "mean_values" in inside
    scale = "scale_values" in inside or "scale" in inside
    if not {"mean", "scale"} & made.keys():
        # Pixels as they are: such a network was trained otherwise, and all of that is inside.
        return made if turned and (mean or scale) else None
    for key, put in (("mean", mean), ("scale", scale)):
        if put and made.pop(key, None) is None:
            return None
    if mean and "scale" in made:
        return None  # it is subtracted first
    if turned:
        if any(isinstance(made.get(key), list) for key in ("mean", "scale")):
            return None
        made["color"] = {"rgb": "bgr", "bgr": "rgb"}[made["color"]]
    return made


def _in_words(input_: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in input_.items())


def _ultraface(picture: _Picture) -> Draft | None:
    scores, boxes = (picture.outputs.get(name) for name in ("scores", "boxes"))
    count = picture.cells(*_ANCHORS, anchors=_ANCHORS)
    if scores is None or boxes is None or len(picture.outputs) != 2 or count is None:
        return None
    if scores.shape[1:] != (count, 2) or boxes.shape[1:] != (count, 4):
        return None
    return _detector(
        picture,
        "UltraFace",
        {"color": "rgb", "resize": "stretch", "mean": 127, "scale": 128},
        {"decoder": "ultraface", "threshold": 0.7, "iou": 0.3, "labels": ["face"]},
    )


def _yunet(picture: _Picture) -> Draft | None:
    names = {f"{part}_{s}" for part in ("cls", "obj", "bbox", "kps") for s in (8, 16, 32)}
    if set(picture.outputs) != names:
        return None
    size = () if picture.cells(8) is not None else ("input.width and input.height: both × 32",)
    return _detector(
        picture,
        "YuNet",
        {"color": "bgr", "resize": "letterbox", "anchor": "top-left", "pad": 0},
        {"decoder": "yunet", "threshold": 0.9, "iou": 0.3, "labels": ["face"]},
        *size,
    )


def _model_zoo(picture: _Picture) -> Draft | None:
    rows = len(picture.only) == 4 and picture.only[1] == 1 and picture.only[3] == 7
    boxes, labels = picture.outputs.get("boxes"), picture.outputs.get("labels")
    pair = boxes is not None and labels is not None and len(picture.outputs) == 2
    if not rows and not (pair and boxes is not None and boxes.shape[-1] == 5):
        return None
    output = {"decoder": "ssd", "threshold": 0.5}
    if picture.facts.kind != "ir":
        return _detector(picture, "an SSD", {}, output, _COLORS, _RESIZE)
    return _detector(
        picture,
        "a detector of the Open Model Zoo",
        {"color": "bgr", "resize": "stretch"},
        output,
        words="stretched, BGR in 0..255: what else a network needs, its IR has inside",
    )


def _nanodet(picture: _Picture) -> Draft | None:
    if len(picture.only) != 3 or picture.only[2] != COCO + _BINS:
        return None
    input_ = {
        "color": "bgr",
        "mean": [103.53, 116.28, 123.675],
        "scale": [57.375, 57.12, 58.395],
    }
    output = {"decoder": "nanodet", "threshold": 0.35, "iou": 0.6}
    if picture.only[1] == picture.cells(8, 16, 32, 64):
        return _detector(picture, "NanoDet-Plus", {**input_, "resize": "stretch"}, output)
    if picture.only[1] == picture.cells(8, 16, 32):
        question = "input.resize: letterbox with anchor center (keep_ratio: True), or stretch"
        return _detector(picture, "NanoDet", input_, output, question)
    return None


def _rows(picture: _Picture) -> Draft | None:
    """YOLOX, v5, v6 and v7: a row of box, objectness and classes for each place."""
    if len(picture.only) != 3:
        return None
    _, count, width = picture.only
    places = {picture.cells(8, 16, 32), picture.cells(8, 16, 32, 64)} - {None}
    if width < 6 or not places:
        return None
    yolov5 = count in {3 * (each or 0) for each in places}
    if not yolov5 and count not in places:
        return None
    sure = width == COCO + 5
    if yolov5:
        questions = () if sure else (f"output.decoder: yolov5 if its {width - 5} are classes",)
        return _detector(
            picture,
            "YOLOv5 or YOLOv7",
            {"color": "rgb", "resize": "letterbox", "pad": 114, "scale": 255},
            {"decoder": "yolov5", "threshold": 0.25, "iou": 0.45},
            *questions,
        )
    names = (picture.input.name, picture.facts.outputs[0].name)
    yolox = {"color": "bgr", "resize": "letterbox", "anchor": "top-left", "pad": 114}
    # Its exporter can decode boxes inside, for which nothing else in the network needs an Exp.
    decoder = "yolov5" if "Exp" in picture.facts.operators else "yolox"
    output = {"decoder": decoder, "threshold": 0.3, "iou": 0.45}
    if sure and names == ("images", "output"):
        return _detector(picture, "YOLOX", yolox, output)
    return _detector(
        picture,
        "YOLOX, YOLOv6 or another",
        {"resize": "letterbox", "pad": 114},
        {"threshold": 0.3, "iou": 0.45},
        "output.decoder: yolox (boxes not decoded) or yolov5 (decoded: also YOLOv6's)",
        'input: of YOLOX color = "bgr", anchor = "top-left"; of YOLOv6 color = "rgb", scale = 255',
        _LABELS,
    )


def _columns(picture: _Picture) -> Draft | None:
    """YOLOv8 and its like: a column of box and classes for each place."""
    if len(picture.only) != 3:
        return None
    _, width, count = picture.only
    if not 4 < width < count:
        return None
    classes = width - 4
    input_ = {"color": "rgb", "resize": "letterbox", "pad": 114, "scale": 255}
    output = {"decoder": "yolov8", "threshold": 0.25, "iou": 0.7}
    if classes == COCO and count == picture.cells(8, 16, 32):
        return _detector(picture, "YOLOv8, 9, 11 or 12", input_, output)
    return _detector(
        picture,
        "of the form of YOLOv8, 9, 11 or 12",
        input_,
        output,
        f"output.labels: the names of its {classes} classes; if it has one less, task is obb; if "
        "less by its points, keypoints with output.points; else it is of another family",
        "input: as in training, if not by Ultralytics",
    )


def _instances(picture: _Picture) -> Draft | None:
    """YOLOv8's and v5's segmentation: rows, and prototypes of masks."""
    rows = [one for one in picture.facts.outputs if len(one.shape) == 3]
    maps = [one for one in picture.facts.outputs if len(one.shape) == 4]
    if len(rows) != 1 or len(maps) != 1 or len(picture.outputs) != 2:
        return None
    behind = maps[0].shape[3 if picture.given["layout"] == "nhwc" else 1]
    _, first, second = rows[0].shape
    if behind is None or first is None or second is None or min(first, second) <= behind:
        return None
    if first < second:
        decoder, iou, classes = "yolov8", 0.7, first - 4 - behind
    elif second == 6 + behind:
        decoder, iou, classes = "yolo-e2e", None, 0
    else:
        decoder, iou, classes = "yolov5", 0.45, second - 5 - behind
    if classes < (decoder != "yolo-e2e"):
        return None
    output = {"decoder": decoder, "threshold": 0.25} | ({"iou": iou} if iou else {})
    draft = _detector(
        picture,
        f"of the form of a YOLO's segmentation, with {behind} prototypes of masks",
        {"color": "rgb", "resize": "letterbox", "pad": 114, "scale": 255},
        output,
        f"output.labels: the names of its {classes or ''} classes".replace("  ", " "),
        "input: as in training, if not by Ultralytics",
    )
    return replace(draft, keys={**draft.keys, "task": "instance-segmentation"})


def _areas(picture: _Picture) -> Draft | None:
    """Segmentation: as many cells as pixels across and down, or a half or a quarter of them."""
    size = infer_layout.picture_size(picture.input, picture.given["layout"])
    shape = picture.facts.outputs[0].shape
    if len(picture.facts.outputs) != 1 or None in size or len(shape) not in {3, 4}:
        return None
    numbers = len(shape) == 3 or 1 in shape[1:2]
    last = len(shape) == 4 and picture.given["layout"] == "nhwc" and not numbers
    found = (shape[2], shape[1]) if last else (shape[-1], shape[-2])
    if not any(found == tuple((side or 0) // part for side in size) for part in (1, 2, 4)):
        return None
    floats = "int" not in picture.facts.outputs[0].dtype
    if len(shape) == 4 and numbers and floats and "map" not in picture.facts.outputs[0].name:
        question = (
            "task and output.decoder: detection with db, where these are PP-OCR's lines of text; "
            "of segmentation export it with an ArgMax, or a channel for each class; else raw"
        )
        made = {"task": "raw", "input": picture.said, "output": {"decoder": "raw"}}
        return Draft("a number for each pixel", made, questions=(question, _COLORS, _RESIZE))
    if numbers and floats:
        return None
    return Draft(
        "what each pixel is: segmentation",
        {"task": "segmentation", "input": picture.said, "output": {"decoder": "semantic"}},
        questions=(_LABELS, _COLORS, _RESIZE),
    )


def _line(picture: _Picture) -> Draft | None:
    """Characters of a line, as PP-OCR reads them: a class for each few columns of pixels."""
    width, height = infer_layout.picture_size(picture.input, picture.given["layout"])
    shape = picture.facts.outputs[0].shape
    if len(picture.facts.outputs) != 1 or len(shape) != 3 or height not in {32, 48}:
        return None
    steps, classes = shape[1:]
    if classes is None or (width and steps not in {None, width // 8, width // 4}):
        return None
    size = {} if width else {"width": 320}
    return Draft(
        f"characters of one line, {classes} classes with the blank, as PP-OCR's recognition",
        {"task": "text", "input": picture.said | size | _PADDLE, "output": {"decoder": "ctc"}},
        questions=(
            f"output.labels: its dictionary, {classes - 2} characters or one more, in labels.txt",
            "input: as in training, if not by PaddleOCR",
        ),
    )


def _fastestdet(picture: _Picture) -> Draft | None:
    width, height = infer_layout.picture_size(picture.input, picture.given["layout"])
    if len(picture.only) != 4 or None in {width, height} or picture.only[1] != COCO + 5:
        return None
    if picture.only[2:] != ((height or 0) // 16, (width or 0) // 16):
        return None
    return _detector(
        picture,
        "FastestDet",
        {"color": "bgr", "resize": "stretch", "scale": 255},
        {"decoder": "fastestdet", "threshold": 0.65, "iou": 0.45},
    )


def _queries(picture: _Picture) -> Draft | None:
    """DETR's descendants, with their suppression-free sets of boxes."""
    width, height = infer_layout.picture_size(picture.input, picture.given["layout"])
    if {"labels", "boxes", "scores"} <= set(picture.outputs) and any(
        one.name == "orig_target_sizes" for one in picture.facts.inputs
    ):
        size = [[width, height]] if width and height else [["width", "height"]]
        input_: dict[str, Any] = {"color": "rgb", "resize": "stretch"}
        left = ["input.scale: 255 for RT-DETR, D-FINE and DEIM; ImageNet's mean and scale for DINO"]
        if width and height:
            input_["fixed"] = {"orig_target_sizes": size}
        else:
            left.insert(0, "input.width, input.height and input.fixed: the size of the picture")
        output = {"decoder": "ssd", "threshold": 0.6}
        return _detector(picture, "RT-DETR, D-FINE or DEIM", input_, output, *left)
    boxes = [one for one in picture.facts.outputs if len(one.shape) == 3 and one.shape[2] == 4]
    others = [one for one in picture.facts.outputs if len(one.shape) == 3 and one not in boxes]
    if len(boxes) != 1 or len(others) != 1 or len(picture.outputs) != 2:
        return None
    if boxes[0].shape[1] != others[0].shape[1]:
        return None
    return _detector(
        picture,
        "a set of boxes with scores (DETR and its like, or UltraFace's and SSD's)",
        {},
        {"threshold": 0.5},
        f"output.decoder: detr where {printable(boxes[0].name)} are middles and "
        f"sizes and {printable(others[0].name)} logits; "
        "ultraface or ssd where they are corners and scores",
        _LABELS,
        _COLORS,
        _RESIZE,
    )


def _anomalib(picture: _Picture) -> Draft | None:
    if not {"pred_score", "anomaly_map"} <= set(picture.outputs):
        return None
    opened = picture.cells(1) is None
    size = ("input.width and input.height: as in training, often 256",) if opened else ()
    input_ = {"color": "rgb", "resize": "stretch", "scale": 255}
    output = {"decoder": "score", "threshold": 0.5, "names": {"score": "pred_score"}}
    return Draft(
        "anomalib's",
        {"task": "anomaly", "input": {**picture.said, **input_}, "output": output},
        (
            "family: anomalib, by the outputs pred_score and anomaly_map",
            "input: stretched, RGB in 0..1, as its own inferencer gives it; the rest is inside",
            "threshold: 0.5, that of scores normalized by its exporter",
        ),
        size,
    )


def _yolov4(picture: _Picture) -> Draft | None:
    boxes, confs = (picture.outputs.get(name) for name in ("boxes", "confs"))
    if boxes is None or confs is None or boxes.shape[2:] != (1, 4):
        return None
    return _detector(
        picture,
        "YOLOv4",
        {"color": "rgb", "resize": "stretch", "scale": 255},
        {"decoder": "ssd", "threshold": 0.4, "iou": 0.6},
        _LABELS,
    )


def _unread(picture: _Picture) -> Draft | None:
    """Return what a family is that no decoder reads, and what to export instead."""
    outputs = picture.facts.outputs
    names = {one.name for one in outputs}
    shape = outputs[0].shape
    rows = len(outputs) == 1 and len(shape) in {2, 3} and shape[-1] == 7
    if rows and (len(shape) == 2 or shape[1] != 1):
        family = "rows of seven numbers for each box, image and class among them"
        mend = (
            "YOLOv7: export it without --end2end, for decoder yolov5; YOLO-NAS: with "
            "output_predictions_format=BATCH, for ssd; EfficientDet: with separate boxes, scores "
            "and classes, for ssd; Ultralytics' obb with suppression inside is read by yolo-e2e"
        )
    elif len(outputs) in {6, 9} and {one.shape[-1] for one in outputs} in ({1, 4}, {1, 4, 10}):
        family = "scores, boxes and points by level, as SCRFD gives them"
        mend = "take a face detector of decoder yunet or ultraface, or one with boxes inside"
    elif any(one.name == "scale_factor" for one in picture.facts.inputs):
        family = "PaddleDetection's, with its post-processing inside"
        mend = "export it with -o export.exclude_nms=True, whose boxes and scores decoder ssd reads"
    elif (
        len(outputs) == 1
        and len(shape) == 4
        and shape[1] in {1, None}
        and "map" in outputs[0].name.lower()
    ):
        family = "a map of anomalies without a score"
        mend = "export it with its score: anomalib's has pred_score beside anomaly_map"
    elif len(outputs) == 1 and len(shape) == 4 and picture.given["layout"] == "nhwc":
        family = "classes in each cell of a grid, as Edge Impulse's FOMO gives them"
        mend = "deploy a detector with boxes (SSD, YOLO), or read its cells from task raw"
    else:
        return None
    found = ", ".join(sorted(names))
    return Draft(
        f"{family} ({found})",
        {"task": "raw", "input": picture.said, "output": {"decoder": "raw"}},
        questions=(f"export: no decoder reads this. {mend}",),
    )


def _classifier(picture: _Picture) -> Draft | None:
    vectors = [one for one in picture.facts.outputs if _length(one) is not None]
    if len(picture.facts.outputs) != 1 or len(vectors) != 1 or _length(vectors[0]) == 1:
        return None
    maker = picture.facts.makers[vectors[0].name]
    decoder = "softmax" if maker in _CHANCES else "logits"
    how = " (scores as they come)" if decoder == "softmax" else ""
    output: dict[str, Any] = {"decoder": decoder}
    left = [_LABELS, _COLORS, _RESIZE]
    if (_length(vectors[0]) or 0) >= _VECTOR and decoder == "logits":
        left.insert(
            0, "task: embedding with decoder pooled, if its numbers are a vector, no classes"
        )
    if "int" in vectors[0].dtype and vectors[0].name not in picture.facts.steps:
        left.append("output.scale and output.zero_point: of its integers, as its exporter has them")
    return Draft(
        f"a classifier of {_length(vectors[0])} classes, or as many numbers",
        {"task": "classification", "input": picture.said, "output": output},
        (f"decoder: {decoder}{how}, as the network ends in {maker or 'its input'}",),
        tuple(left),
    )


def _length(spec: TensorSpec) -> int | None:
    """Return the length of a vector; None where it is something else."""
    sizes = [size for size in spec.shape[1:] if size != 1] if spec.shape else []
    if not 1 < len(spec.shape) <= 4 or len(sizes) > 1 or None in sizes:
        return None
    return sizes[0] if sizes else 1


_FAMILIES: tuple[Callable[[_Picture], Draft | None], ...] = (
    _ultraface,
    _yunet,
    _model_zoo,
    _nanodet,
    _line,
    _areas,
    _instances,
    _rows,
    _columns,
    _fastestdet,
    _queries,
    _anomalib,
    _yolov4,
    _unread,
    _classifier,
)
