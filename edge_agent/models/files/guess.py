"""A manifest for a bare network without metadata, from its shapes and names.

Anything that only one family's exporter writes is enough: then the family's own code determines how
pictures are given to it, which is stated as an assumption. If shapes fit several families, or do
not show how a network was trained, the known part becomes a draft with the open questions. Only
detectors of COCO's 80 classes count as certain: 80 + 5 or + 4 numbers are hardly anything else,
while 16 may be 11 classes, or a face with its five points.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...core.errors import ModelError
from ...core.text import printable
from ...core.types import TensorSpec
from ..decoders import POINTS_FIRST, SIGMOID
from . import infer_layout
from .facts import FRAMEWORK, Draft, NetworkFacts
from .first_layer import FOR_DIVIDED, FOR_NORMALIZED, FOR_PIXELS, first_gain
from .guess_exports import BINS, finished, heads, scrfd, unread
from .guess_picture import CHANCES, COLORS, LABELS, RESIZE, Picture, detector, inside_of
from .guess_signals import (
    ROWS,
    SOUND,
    in_values,
    output_words,
    row_draft,
    signal_draft,
    sounds_like,
    unusual_draft,
)

COCO = 80
_VECTOR = 64
"""Least length of an embedding."""
_FEWEST_POINTS = 4
"""Least number of key points that a detector of faces or plates has."""
_NARROW = 16
"""Pixels of the least side of a picture."""
_ANCHORS = {8: 3, 16: 2, 32: 2, 64: 3}
"""UltraFace's boxes per cell, by stride."""
_BARE = frozenset({"Conv", "Convolution", "QLinearConv", "Gemm", "MatMul"})
"""Operators at an output that show that decoding, or a sigmoid, is still missing."""
_MEANS = frozenset({"Mean", "ReduceMean", "AveragePool", "AvgPool", "GlobalAveragePool"})
_SCORES = _BARE | _MEANS | {"FullyConnected", "LogSoftmax"}
"""Operators, others than those of chances, that classifiers end in."""
_LOGITS = (
    "export: its scores are logits, and the decoders of such rows read chances; export it with "
    "the sigmoid, as YOLOX's own tools/export_onnx.py does"
)
_ZOO = re.compile(r"detect(ion|or)\b.*-[0-2]\d{3}\b")
"""How Intel names the detectors of the Open Model Zoo."""
_CAFFE = (
    "input.mean and input.scale: as in training, since its converter was told none; 127.5 and "
    "127.5 of MobileNet-SSD, [104, 117, 123] and 1 of VGG's SSD"
)
_PIXEL = 255
_IMAGENET = {"mean": [123.675, 116.28, 103.53], "scale": [58.395, 57.12, 57.375]}
_YOLOX_COLORS = (
    'color = "bgr", anchor = "top-left" (of its 0.1.0 color = "rgb", mean = [123.675, 116.28, '
    "103.53] and scale = [58.395, 57.12, 57.375] besides)"
)
_SIGMOIDS = (
    "output.layout: sigmoid, as a pixel in which no class is above 0.5 is none of them; left out, "
    "the best class counts"
)
_SIZE = "input.width and input.height: the network leaves them open"

_NANODET = {"color": "bgr", "mean": [103.53, 116.28, 123.675], "scale": [57.375, 57.12, 58.395]}
_RELU6 = frozenset({"Clip", "Clamp"})
"""What EfficientNet-Lite has, and NanoDet's other backbones have not."""
_PADDLE: dict[str, Any] = {"color": "bgr", "resize": "letterbox", "anchor": "top-left"}
_PADDLE |= dict.fromkeys(["pad", "mean", "scale"], 127.5)
"""How PaddleOCR's recognition takes a line."""
_PADDLE_INPUT = "x"
"""What paddle2onnx exports have in common."""
_CHARACTERS = "character"
"""Where RapidOCR's exports have their labels, one a line."""


def draft_of(facts: NetworkFacts) -> Draft:
    """Guess the family of a network, and its manifest.

    Returns:
        The draft, which is complete if it has no questions.
    """
    draft, inside = in_values(_draft_of(facts), facts), inside_of(facts)
    if not inside:
        return draft if draft.questions else _doubted(draft, facts)
    if COLORS not in draft.questions:
        return draft
    asked = (
        f"input.color, input.mean and input.scale: its converter has put {' and '.join(inside)} "
        "inside, which is not to be done again; of the rest what it was trained with"
    )
    return replace(draft, questions=tuple(asked if q == COLORS else q for q in draft.questions))


def _doubted(draft: Draft, facts: NetworkFacts) -> Draft:
    """Ask for the scale of a family that divides pixels, if this network does so by its weights."""
    if draft.keys["input"].get("scale") != _PIXEL:
        return draft
    gain = first_gain(facts)
    if gain is None or gain > FOR_DIVIDED:
        return draft
    asked = (
        "input.scale: 255, as its own code has it, or 1 where an exporter has put that inside: its "
        "first weights are as small as those for pixels of 0 to 255"
    )
    return replace(draft, questions=(asked,))


def _draft_of(facts: NetworkFacts) -> Draft:
    unusual = unusual_draft(facts) or row_draft(facts) if facts.outputs else signal_draft(facts)
    if unusual is not None:
        return unusual
    try:
        spec, said = infer_layout.picture_input(facts, "")
    except ModelError:
        return signal_draft(facts)
    picture = Picture(facts, spec, said)
    for guess in _FAMILIES:
        draft = guess(picture)
        if draft is not None:
            words = infer_layout.batch_words(spec)
            draft = draft if words is None else replace(draft, assumed=(*draft.assumed, words))
            return _with_size(draft, picture)
    made = {"task": "raw", "input": picture.said, "output": {"decoder": "raw"}}
    how = f"task and output.decoder: raw gives the tensors as they are; {output_words(facts)}"
    if [one.shape[1:] for one in facts.outputs] in ([(None,)], [()]):
        how += "; embedding with pooled, if it is a vector; classification with softmax or logits"
    only = facts.outputs[0].shape if len(facts.outputs) == 1 else ()
    if len(only) == 3 or (len(only) == 2 and only[0] not in {None, 1}):
        how += (
            "; text with ctc, if each step is scores of characters and a blank (layout: "
            "blank-last, if that is the last class; lprnet, if characters come before steps); a "
            "character for each place, as fast-plate-ocr has them, is none of ctc: raw"
        )
    unknown = "a network of pictures that is of no known family"
    return Draft(unknown, made, questions=(how, COLORS, RESIZE))


def _with_size(draft: Draft, picture: Picture) -> Draft:
    """Ask for the picture's size if the network leaves it open and nothing else asks."""
    size = infer_layout.picture_size(picture.input, picture.given["layout"])
    given = (draft.keys["input"].get(key) for key in ("width", "height"))
    known = all(one or other for one, other in zip(size, given, strict=True))
    if known or any("input.width" in one for one in draft.questions):
        return draft
    return replace(draft, questions=(*draft.questions, _SIZE))


def _ultraface(picture: Picture) -> Draft | None:
    scores, boxes = (picture.outputs.get(name) for name in ("scores", "boxes"))
    count = picture.cells(*_ANCHORS, anchors=_ANCHORS)
    if scores is None or boxes is None or len(picture.outputs) != 2 or count is None:
        return None
    if scores.shape[1:] != (count, 2) or boxes.shape[1:] != (count, 4):
        return None
    input_ = {"color": "rgb", "resize": "stretch", "mean": 127, "scale": 128}
    output = {"decoder": "ultraface", "threshold": 0.7, "iou": 0.3, "labels": ["face"]}
    how = (
        "export: its boxes are offsets from anchors, which no decoder here reads; take the "
        "export with post-processing (version-slim-320.onnx, version-RFB-320.onnx)"
    )
    left = [how] if picture.facts.ends.get("boxes") in _BARE else []
    return detector(picture, "UltraFace", input_, output, *left)


def _yunet(picture: Picture) -> Draft | None:
    names = {f"{part}_{s}" for part in ("cls", "obj", "bbox", "kps") for s in (8, 16, 32)}
    if set(picture.outputs) != names:
        return None
    size = () if picture.cells(8) is not None else ("input.width and input.height: both × 32",)
    input_ = {"color": "bgr", "resize": "letterbox", "anchor": "top-left", "pad": 0}
    output = {"decoder": "yunet", "threshold": 0.9, "iou": 0.3, "labels": ["face"]}
    return detector(picture, "YuNet", input_, output, *size)


def _model_zoo(picture: Picture) -> Draft | None:
    rows = len(picture.only) == 4 and picture.only[1] == 1 and picture.only[3] == 7
    boxes, labels = picture.outputs.get("boxes"), picture.outputs.get("labels")
    pair = boxes is not None and labels is not None and len(picture.outputs) == 2
    if not rows and not (pair and boxes is not None and boxes.shape[-1] == 5):
        return None
    output = {"decoder": "ssd", "threshold": 0.5}
    if picture.facts.kind != "ir":
        return detector(picture, "an SSD", {}, output, COLORS, RESIZE)
    return _converted_ssd(picture, output)


def _converted_ssd(picture: Picture, output: dict[str, Any]) -> Draft:
    """Draft an SSD's IR: of the Open Model Zoo by its name, else as its record says."""
    facts, inside = picture.facts, inside_of(picture.facts)
    framework, turned = facts.metadata.get(FRAMEWORK, ""), "reverse_input_channels" in inside
    family, how = f"an SSD, converted from {framework or 'an unknown framework'}", ", by its record"
    left: tuple[str, ...] = ()
    color: str | None = "bgr"
    if _ZOO.search(facts.files[0].stem):
        family, how = (
            "a detector of the Open Model Zoo",
            ": what else a network needs, its IR has inside",
        )
    elif framework in {"tf", "tensorflow"}:
        # TensorFlow's own take RGB, and have mean and scale in the network.
        color = "bgr" if turned else "rgb"
    elif framework == "caffe" and not inside:
        how = ", as Caffe reads pictures"
        left = (_CAFFE,)
    elif len(inside) == turned or (framework == "caffe") == turned:
        # Neither mean nor scale inside, or colors in an order that its framework does not tell.
        color, how, left = None, "", (COLORS, RESIZE)
    input_ = {"color": color, "resize": "stretch"} if color else {"resize": "stretch"}
    words = f"stretched, {color.upper()} in 0..255{how}" if color else "stretched"
    return detector(picture, family, input_, output, *left, words=words)


def _nanodet(picture: Picture) -> Draft | None:
    output = {"decoder": "nanodet", "threshold": 0.35, "iou": 0.6}
    input_, left = (
        _NANODET,
        ["input.resize: letterbox with pad 0, anchor center (keep_ratio: True), or stretch"],
    )
    if picture.facts.operators & _RELU6:
        input_ = {"color": "bgr"}
        left.append(
            "input.mean and input.scale: normalize in its .yml; 127, 128 with EfficientNet-Lite, "
            f"{_NANODET['mean']} and {_NANODET['scale']} with others"
        )
    # Before -Plus: scores and distances of three levels, each an output.
    widths = [one.shape[-1] for one in picture.facts.outputs if len(one.shape) in {2, 3}]
    if len(widths) == 6 and widths.count(BINS) == 3 and len({*widths}) == 2:
        return detector(picture, "NanoDet, before -Plus", input_, output, *left)
    if len(picture.only) != 3 or picture.only[2] != COCO + BINS:
        return None
    if picture.only[1] == picture.cells(8, 16, 32, 64):
        return detector(picture, "NanoDet-Plus", {**input_, "resize": "stretch"}, output, *left[1:])
    if picture.only[1] == picture.cells(8, 16, 32):
        return detector(picture, "NanoDet", input_, output, *left)
    return None


def _behind_objectness(count: int) -> str:
    """Ask what *count* numbers behind the objectness are: classes, or key points as well."""
    question = f"output.decoder: yolov5 if its {count} are classes"
    if count <= 2 * _FEWEST_POINTS:
        return question
    return (
        f'{question}; with key points among them task = "keypoints", points, labels and, where the '
        f'points come first (YOLOv5-face, plates), layout = "{POINTS_FIRST}"'
    )


def _rows(picture: Picture) -> Draft | None:
    """YOLOX, v5, v6 and v7: a row of box, objectness, and classes for each cell."""
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
        questions = () if sure else (_behind_objectness(width - 5),)
        return detector(
            picture,
            "YOLOv5 or YOLOv7",
            {"color": "rgb", "resize": "letterbox", "pad": 114, "scale": 255},
            {"decoder": "yolov5", "threshold": 0.25, "iou": 0.45},
            *questions,
        )
    name = picture.facts.outputs[0].name
    logits = [_LOGITS] if picture.facts.ends.get(name) in _BARE else []
    # Its exporter can decode boxes in the network, which is the only use of an Exp there.
    decoder = "yolov5" if "Exp" in picture.facts.operators else "yolox"
    if sure and (picture.input.name, name) == ("images", "output"):
        return _yolox(picture, {"decoder": decoder, "threshold": 0.3, "iou": 0.45}, *logits)
    return detector(
        picture,
        "YOLOX, YOLOv6 or another",
        {"resize": "letterbox", "pad": 114},
        {"threshold": 0.3, "iou": 0.45},
        *logits,
        "output.decoder: yolox (boxes not decoded) or yolov5 (decoded: also YOLOv6's)",
        f'input: of YOLOX {_YOLOX_COLORS}; of YOLOv6 color = "rgb", scale = 255',
        LABELS,
    )


def _yolox(picture: Picture, output: dict[str, Any], *left: str) -> Draft:
    """Tell YOLOX's first release, which normalized its pixels, by the weights that take them."""
    input_ = {"color": "bgr", "resize": "letterbox", "anchor": "top-left", "pad": 114}
    # What a converter has put inside comes before the weights, and is the first release's.
    gain = 0 if inside_of(picture.facts) else first_gain(picture.facts)
    if gain is not None and gain < FOR_PIXELS:
        return detector(picture, "YOLOX", input_, output, *left)
    if gain is not None and gain > FOR_NORMALIZED:
        first = input_ | {"color": "rgb"} | _IMAGENET
        return detector(picture, "YOLOX of 0.1.0 (by its first weights)", first, output, *left)
    del input_["color"]
    asked = f"input.color, input.mean and input.scale: {_YOLOX_COLORS}"
    return detector(picture, "YOLOX", input_, output, *left, asked)


def _columns(picture: Picture) -> Draft | None:
    """YOLOv8 and similar ones: a column of box and classes for each cell."""
    if len(picture.only) != 3:
        return None
    _, width, count = picture.only
    if not 4 < width < count:
        return None
    classes = width - 4
    input_ = {"color": "rgb", "resize": "letterbox", "pad": 114, "scale": 255}
    output = {"decoder": "yolov8", "threshold": 0.25, "iou": 0.7}
    if classes == COCO and count == picture.cells(8, 16, 32):
        return detector(picture, "YOLOv8, 9, 11 or 12", input_, output)
    return detector(
        picture,
        "of the form of YOLOv8, 9, 11 or 12",
        input_,
        output,
        f"output.labels: the names of its {classes} classes; if it has one less, task is obb; if "
        "less by its points, keypoints with output.points; else it is of another family",
        "input: as in training, if not by Ultralytics",
    )


def _instances(picture: Picture) -> Draft | None:
    """Segmentation by YOLOv8 and v5: rows, and prototypes of masks."""
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
    draft = detector(
        picture,
        f"of the form of a YOLO's segmentation, with {behind} prototypes of masks",
        {"color": "rgb", "resize": "letterbox", "pad": 114, "scale": 255},
        output,
        f"output.labels: the names of its {classes or ''} classes".replace("  ", " "),
        "input: as in training, if not by Ultralytics",
    )
    return replace(draft, keys={**draft.keys, "task": "instance-segmentation"})


def _areas(picture: Picture) -> Draft | None:
    """Segmentation: as many cells as pixels on each axis, or a half or a quarter of them."""
    size = infer_layout.picture_size(picture.input, picture.given["layout"])
    shape = picture.facts.outputs[0].shape
    if len(picture.facts.outputs) != 1 or None in size or len(shape) not in {3, 4}:
        return None
    numbers = len(shape) == 3 or 1 in {shape[1], shape[3]}
    last = len(shape) == 4 and picture.given["layout"] == "nhwc" and shape[1] != 1
    found = (shape[2], shape[1]) if last else (shape[-1], shape[-2])
    if not any(found == tuple((side or 0) // part for side in size) for part in (1, 2, 4)):
        return None
    floats = "int" not in picture.facts.outputs[0].dtype
    if len(shape) == 4 and numbers and floats and "map" not in picture.facts.outputs[0].name:
        question = (
            "task and output.decoder: segmentation with semantic and two labels, the background's "
            "first, where these are chances; detection with db, where they are PP-OCR's lines of "
            "text; anomaly with score, whose score is the highest; else raw"
        )
        made = {"task": "raw", "input": picture.said, "output": {"decoder": "raw"}}
        return Draft("a number for each pixel", made, questions=(question, COLORS, RESIZE))
    if numbers and floats:
        return None
    points = "task: raw with decoder raw, if each channel is a map of a point rather than a class"
    quarter = (points,) if floats and found == tuple((side or 0) // 4 for side in size) else ()
    if shape[1:] == picture.input.shape[1:] and 3 in shape[1:]:
        quarter = ("task: raw with decoder raw, if it makes a picture of the picture",)
    output = {"decoder": "semantic"}
    if picture.facts.makers.get(picture.facts.outputs[0].name) == "Sigmoid":
        output["layout"] = SIGMOID
        quarter = (*quarter, _SIGMOIDS)
    return Draft(
        "what each pixel is: segmentation",
        {"task": "segmentation", "input": picture.said, "output": output},
        questions=(*quarter, LABELS, COLORS, RESIZE),
    )


def _lines(picture: Picture) -> Draft | None:
    """PP-OCR's detection of lines, whose size paddle2onnx leaves open."""
    shape = picture.facts.outputs[0].shape
    if len(picture.facts.outputs) != 1 or picture.input.name != _PADDLE_INPUT:
        return None
    opened = infer_layout.picture_size(picture.input, picture.given["layout"]) == (None, None)
    if shape[1:] not in {(1, None, None), (None, None, None)} and (shape or not opened):
        return None
    return detector(
        picture,
        "PP-OCR's detection of lines",
        {"color": "bgr", "resize": "letterbox", "anchor": "top-left", "pad": 0, **_IMAGENET},
        {"decoder": "db", "threshold": 0.6, "labels": ["text"]},
        "input.width and input.height: both × 32, such as 960 and 544",
        "input: as in training, if not by PaddleOCR",
    )


def _line(picture: Picture) -> Draft | None:
    """Characters of a line, as PP-OCR reads them: a class for each few columns of pixels."""
    width, height = infer_layout.picture_size(picture.input, picture.given["layout"])
    shape = picture.facts.outputs[0].shape
    paddle = height is None and picture.input.name == _PADDLE_INPUT
    if len(picture.facts.outputs) != 1 or not (paddle or height in {32, 48}):
        return None
    # paddle2onnx may declare no shape.
    steps, classes = shape[1:] if len(shape) == 3 else (None, None)
    undeclared = not shape and picture.input.name == _PADDLE_INPUT and height is not None
    if not (classes or undeclared) or (width and steps not in {None, width // 8, width // 4}):
        return None
    size = {} if width else {"width": 320}
    of = f", {classes} classes" if classes else ""
    many = f", {classes - 2} characters or one more," if classes else ""
    named = f"its dictionary{many} in labels.txt"
    if _CHARACTERS in picture.facts.metadata:
        named += f", which the file has in its metadata under {_CHARACTERS}"
    wide = "input.width: 320, or as many as the longest line needs at that height"
    how = (f"input.height: 48 of PP-OCRv3 and later, 32 before; {wide}",) if paddle else ()
    return Draft(
        f"characters of one line{of} with the blank, as PP-OCR's recognition",
        {"task": "text", "input": picture.said | size | _PADDLE, "output": {"decoder": "ctc"}},
        questions=(
            *how,
            f"output.labels: {named}",
            "input: as in training, if not by PaddleOCR",
        ),
    )


def _fastestdet(picture: Picture) -> Draft | None:
    width, height = infer_layout.picture_size(picture.input, picture.given["layout"])
    if len(picture.only) not in {2, 4} or None in {width, height} or picture.only[1] <= 5:
        return None
    columns, rows = (width or 0) // 16, (height or 0) // 16
    if picture.only[2:] != (rows, columns) and picture.only[:1] != (rows * columns,):
        return None
    if "int" in picture.facts.outputs[0].dtype or picture.only == (height, width):
        return None  # what each pixel is
    input_ = {"color": "bgr", "resize": "stretch", "scale": 255}
    output = {"decoder": "fastestdet", "threshold": 0.65, "iou": 0.45}
    classes = picture.only[1] - 5
    if classes == COCO:
        return detector(picture, "FastestDet", input_, output)
    if not {"Sigmoid", "Softmax"} <= set(picture.facts.operators):
        return None
    named = f"output.labels: the names of its {classes} classes, if it is FastestDet's"
    return detector(picture, "of the form of FastestDet", input_, output, named)


def _queries(picture: Picture) -> Draft | None:
    """DETR's descendants, whose sets of boxes need no suppression."""
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
        return detector(picture, "RT-DETR, D-FINE or DEIM", input_, output, *left)
    boxes = [one for one in picture.facts.outputs if len(one.shape) == 3 and one.shape[2] == 4]
    others = [one for one in picture.facts.outputs if len(one.shape) == 3 and one not in boxes]
    if len(boxes) != 1 or len(others) != 1 or len(picture.outputs) != 2:
        return None
    if boxes[0].shape[1] != others[0].shape[1]:
        return None
    family = "a set of boxes with scores (DETR and its like, or UltraFace's and SSD's)"
    how = (
        f"output.decoder: detr where {printable(boxes[0].name)} are middles and sizes and "
        f"{printable(others[0].name)} logits; ultraface or ssd where they are corners and scores; "
        "none reads offsets from anchors"
    )
    return detector(picture, family, {}, {"threshold": 0.5}, how, LABELS, COLORS, RESIZE)


def _anomalib(picture: Picture) -> Draft | None:
    if not {"pred_score", "anomaly_map"} <= set(picture.outputs):
        return _anomalies(picture)
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


def _anomalies(picture: Picture) -> Draft | None:
    """Draft a map of anomalies without a score."""
    (name, spec), *others = picture.outputs.items()
    if others or "map" not in name.lower() or len(spec.shape) not in {3, 4}:
        return None
    if len(spec.shape) == 4 and 1 not in {spec.shape[1], spec.shape[3]}:
        return None
    return Draft(
        "a map of numbers, such as of anomalies",
        {"task": "anomaly", "input": picture.said, "output": {"decoder": "score"}},
        ("score: the highest number of the map, as anomalib has it where there is no other",),
        (
            "task: raw, where these are no anomalies",
            'output.threshold: above it a picture is anomalous; "p99" learns it from what it sees',
            COLORS,
            RESIZE,
        ),
    )


def _classifier(picture: Picture) -> Draft | None:
    vectors = [one for one in picture.facts.outputs if _length(one) is not None]
    if len(picture.facts.outputs) != 1 or len(vectors) != 1:
        return None
    if vectors[0].shape[0] not in {None, 1, picture.input.shape[0]}:
        return None  # rows without an axis for the batch
    maker = picture.facts.makers[vectors[0].name]
    decoder = "softmax" if maker in CHANCES else "logits"
    how = " (scores as they come)" if decoder == "softmax" else ""
    output: dict[str, Any] = {"decoder": decoder}
    left = [LABELS, COLORS, RESIZE]
    told = picture.facts.metadata.get(_CHARACTERS, "").split("\n")
    if len(told) == _length(vectors[0]) != 1:
        output["labels"] = list(map(printable, told))
        left.remove(LABELS)
    if picture.given.get("color") == "gray" and sounds_like(picture.input):
        left.insert(0, SOUND)
    elif picture.given.get("color") == "gray" and _is_narrow(picture):
        left.insert(0, ROWS)
    if _length(vectors[0]) == 1:
        left[0] = "output.labels: of one of two classes both names, that of a 0 first; else task "
        left[0] += "anomaly or regression with decoder score"
    if (_length(vectors[0]) or 0) >= _VECTOR and decoder == "logits":
        how_else = "task: embedding with decoder pooled, if its numbers are a vector, no classes"
        left.insert(0, how_else)
    end = picture.facts.ends.get(vectors[0].name) if maker == "Add" else maker
    averaged = end in _MEANS and not CHANCES.isdisjoint(picture.facts.operators)
    if decoder == "logits" and end and (end not in _SCORES or averaged):
        left.append("output.decoder: softmax, where its numbers are chances already")
    if "int" in vectors[0].dtype and vectors[0].name not in picture.facts.steps:
        left.append("output.scale and output.zero_point: of its integers, as its exporter has them")
    return Draft(
        f"a classifier of {_length(vectors[0])} classes, or as many numbers (of task regression)"
        if _length(vectors[0]) != 1
        else "one number: a classifier of two classes, or a value",
        {"task": "classification", "input": picture.said, "output": output},
        (f"decoder: {decoder}{how}, as the network ends in {maker or 'its input'}",),
        tuple(left),
    )


def _is_narrow(picture: Picture) -> bool:
    """Whether a side is so short that these are hardly pixels."""
    sizes = infer_layout.picture_size(picture.input, picture.given["layout"])
    return any(size is not None and size < _NARROW for size in sizes)


def _length(spec: TensorSpec) -> int | None:
    """Return the length of a vector, or None for another shape."""
    sizes = [size for size in spec.shape[1:] if size != 1] if spec.shape else []
    if not 1 < len(spec.shape) <= 4 or len(sizes) > 1 or None in sizes:
        return None
    return sizes[0] if sizes else 1


_FAMILIES: tuple[Callable[[Picture], Draft | None], ...] = (
    finished,
    _ultraface,
    _yunet,
    _model_zoo,
    _nanodet,
    _line,
    _lines,
    _areas,
    _instances,
    _rows,
    _columns,
    _fastestdet,
    scrfd,
    heads,
    _queries,
    _anomalib,
    unread,
    _classifier,
)
