"""Drafts for detectors exported with finished boxes, with heads, or with cells."""

from __future__ import annotations

from math import prod
from typing import Any

from ...core.types import TensorSpec
from . import infer_layout
from .facts import Draft
from .guess_picture import CHANCES, COLORS, DENSE, LABELS, RESIZE, Picture, detector
from .guess_signals import NO_CHAIN, WAKE_WORDS

_CUSTOM_VISION = [0.573, 0.677, 1.87, 2.06, 3.34, 5.47, 7.88, 3.53, 9.77, 9.17]
_FASTEST = [12.64, 19.39, 37.88, 51.48, 55.71, 138.31, 126.91, 78.23, 131.57, 214.55]
_FASTEST += [279.92, 258.87]  # for YOLO-FastestV2's COCO weights
_MOST = 100
"""Classes of a detector with one head."""
_FACES = {
    (2, 4, 10): "RetinaFace",
    (1, 2, 2, 10): "CenterFace",
    (1, 4, 10): "DBFace",
}
"""Detectors of faces that no decoder reads, by the numbers for a box or a cell."""
BINS = 4 * 8
"""Bins of NanoDet's and PicoDet's distances, for four sides."""
_MOST_BOXES = 300
"""Boxes that Ultralytics' exports with suppression, or without need of one, give at most."""
_LETTERBOX = {"color": "rgb", "resize": "letterbox", "pad": 114, "scale": 255}


def finished(picture: Picture) -> Draft | None:
    """Draft a network whose boxes need no decoding."""
    outputs, names = picture.facts.outputs, picture.outputs.keys()
    output: dict[str, Any] = {"decoder": "ssd", "threshold": 0.25}
    if "scale_factor" in {one.name for one in picture.facts.inputs}:
        return _paddle(picture)
    if picture.facts.detected:
        return _post_processed(picture)
    if len(outputs) == 1 and len(outputs[0].shape) == 2 and outputs[0].shape[1] == 7:
        return None if _classifies(picture) else _rows(picture, output)
    if {"detected_boxes", "detected_classes", "detected_scores"} <= names:
        return _custom_vision(picture, output)
    if {"det_boxes", "det_classes", "det_scores"} <= names:
        how = "input: as in training, if not of YOLOv6 or v7"
        return detector(picture, "YOLOv6's or v7's with --end2end", _LETTERBOX, output, how)
    if {"boxes", "confs"} <= names and picture.outputs["boxes"].shape[2:] == (1, 4):
        input_ = {"color": "rgb", "resize": "stretch", "scale": 255}
        output |= {"threshold": 0.4, "iou": 0.6}
        return detector(picture, "YOLOv4", input_, output, LABELS)
    rows = [one.shape for one in outputs] == [(None, 6)]
    rows = rows and "NonMaxSuppression" in picture.facts.operators
    if rows or picture.only == (1, _MOST_BOXES, 6):
        output = {"decoder": "yolo-e2e", "threshold": 0.25}
        how = (
            "output.decoder: yolo-e2e if each row is a box's corners, its score and its class, as "
            "of Ultralytics' v10, v26 and nms=True, and YOLOv5-Lite's --end2end; else task is raw"
        )
        form = "of the form of Ultralytics' exports without a suppression outside"
        return detector(picture, form, _LETTERBOX, output, how, LABELS)
    return None


def _classifies(picture: Picture) -> bool:
    """Whether the only output is chances or logits, of seven emotions for one."""
    facts, name = picture.facts, picture.facts.outputs[0].name
    return facts.makers[name] in CHANCES or facts.ends.get(name) in DENSE


def _post_processed(picture: Picture) -> Draft:
    """Draft an SSD, EfficientDet-Lite or MobileDet with TensorFlow Lite's post-processing."""
    output = {"decoder": "ssd", "threshold": 0.5, "names": dict(picture.facts.detected)}
    family = "an SSD with TFLite_Detection_PostProcess"
    floats = (
        "input.mean and input.scale: as in training; 127.5 and 127.5 of TensorFlow's own SSDs, "
        "127 and 128 of EfficientDet-Lite"
    )
    input_: dict[str, Any] = {"color": "rgb", "resize": "stretch"}
    left = () if picture.input.dtype == "uint8" else (floats,)
    return detector(picture, family, input_, output, *left, words="stretched, RGB")


def _paddle(picture: Picture) -> Draft | None:
    given = {one.name for one in picture.facts.inputs} - {picture.input.name}
    rows = [one for one in picture.facts.outputs if len(one.shape) == 2 and one.shape[1] == 6]
    if not given <= {"scale_factor", "im_shape"} or len(rows) != 1:
        return None
    width, height = infer_layout.picture_size(picture.input, picture.given["layout"])
    fixed: dict[str, Any] = {"scale_factor": [[1, 1]]}
    left = ["input.mean and input.scale: NormalizeImage in its infer_cfg.yml, times 255"]
    left += [f"{LABELS} (label_list there)"]
    if width and height and "im_shape" in given:
        fixed["im_shape"] = [[height, width]]
    elif not (width and height):
        left += ["input.width, input.height, and input.fixed.im_shape = [[height, width]]"]
    input_ = {"color": "rgb", "resize": "stretch", "interpolation": "cubic", "fixed": fixed}
    output = {"decoder": "ssd", "layout": "paddle", "threshold": 0.5}
    return detector(picture, "PaddleDetection's", input_, output, *left)


def _rows(picture: Picture, output: dict[str, Any]) -> Draft:
    """Draft rows of image, box, class, and score, from the suppression in YOLOv7 and YOLO-NAS."""
    name = picture.facts.outputs[0].name
    if "flat_predictions" in name:
        output["layout"] = "yolo-nas"
        scale = 1 if "int" in picture.input.dtype else 255
        how = "input: as in training, if not of its own COCO weights"
        input_ = _LETTERBOX | {"color": "bgr", "scale": scale}
        return detector(picture, "YOLO-NAS", input_, output, how)
    if name == "batchno_classid_score_x1y1x2y2":
        output["layout"] = "pinto"
        how = "rows of image, class, score and box, as the post-processing of PINTO's model zoo"
        return detector(picture, how, {}, output, LABELS, COLORS, RESIZE)
    inside = "NonMaxSuppression" in picture.facts.operators
    if inside and (picture.input.name, name) == ("images", "output"):
        output["layout"] = "yolov7"
        return detector(picture, "YOLOv7 or v9 with --end2end", _LETTERBOX, output)
    how = (
        "output.layout: yolov7 (image, box, class, score), yolo-nas (image, box, score, class) or "
        "pinto (image, class, score, box)"
    )
    return detector(picture, "rows of image and box", {}, output, how, LABELS, COLORS, RESIZE)


def _custom_vision(picture: Picture, output: dict[str, Any], *left: str) -> Draft:
    """Make a draft from the pixel settings that Custom Vision writes into an .onnx."""
    said, input_ = picture.facts.metadata, {"resize": "stretch"}
    color = {"Rgb8": "rgb", "Bgr8": "bgr"}.get(said.get("Image.BitmapPixelFormat", ""))
    ranges = {"NominalRange_0_255": 1, "Normalized_0_1": 255}
    scale = ranges.get(said.get("Image.NominalPixelRange", ""))
    made = {**input_, "color": color, "scale": scale} if color and scale else input_
    left = left if color and scale else (*left, COLORS)
    return detector(picture, "Custom Vision's", made, output, *left, f"{LABELS} (labels.txt)")


def heads(picture: Picture) -> Draft | None:
    """Draft a network with outputs per grid cell, whose anchors are outside or not needed."""
    levels = [_level(picture, one) for one in picture.facts.outputs]
    found = [level for level in levels if level is not None]
    if len(found) != len(levels) or len({stride for stride, _, _ in found}) != len(found):
        return None
    counts = {count for _, count, _ in found}
    (_, count, last), *others = found
    if not others:
        return _single(picture, count, last=last)
    output: dict[str, Any] = {"decoder": "yolov5", "threshold": 0.3, "iou": 0.45}
    if last and len(found) == 2 and picture.given["layout"] == "nchw" and counts == {count}:
        output |= {"layout": "yolo-fastestv2", "anchors": _FASTEST}
        anchors = "output.anchors: as in its .data file, if not of its own COCO weights"
        left = () if count == 95 else (anchors, LABELS)
        input_ = {"color": "bgr", "resize": "stretch", "scale": 255}
        return detector(picture, "YOLO-FastestV2", input_, output, *left)
    if len(counts) > 1 or count % 3 or count < 18:
        return None
    return detector(
        picture,
        f"{len(found)} heads of a YOLO with 3 anchors a cell and {count // 3 - 5} classes",
        _LETTERBOX,
        output,
        "output.layout: yolov5-heads (also v7) or yolov3; better, export it with its last step "
        "(YOLOv5: without --train, YOLOv7: with --grid); of YOLOv8's heads nothing reads",
        "output.anchors: as in training; those published are in docs/known-models.md, heads",
        f"output.labels: the names of its {count // 3 - 5} classes",
    )


def _single(picture: Picture, count: int, *, last: bool) -> Draft | None:
    """Draft Custom Vision's single head, or Edge Impulse's cells, each with a class."""
    name = picture.facts.outputs[0].name
    if (picture.input.name, name) == ("data", "model_outputs0") and count % 5 == 0:
        output: dict[str, Any] = {"decoder": "yolov5", "layout": "custom-vision"}
        output |= {"anchors": _CUSTOM_VISION, "threshold": 0.1, "iou": 0.45, "agnostic": True}
        how = "output.layout: custom-vision, or yolov2 if its own code has a sigmoid of x and y"
        return _custom_vision(picture, output, how)
    # A YOLO's only head has the same shape, but its numbers are no chances that add up to 1.
    if picture.facts.makers[name] != "Softmax":
        return _one_head(picture, count)
    if not last or picture.given["layout"] != "nhwc":
        return None
    return detector(
        picture,
        "cells with a class each, as Edge Impulse's FOMO gives them",
        {"scale": 255},
        {"decoder": "semantic", "threshold": 0.5, "first_label": 1},
        f"output.labels: {count - 1} names, without the background",
        "input.resize: as its impulse has it: crop (fit shortest), letterbox (longest), stretch",
    )


def _one_head(picture: Picture, count: int) -> Draft | None:
    """Draft a YOLO with a single head, like OpenMV's yolo_lc and LPYOLO."""
    anchors = [each for each in (5, 3) if not count % each and 0 < count // each - 5 <= _MOST]
    if not anchors:
        return None
    ways = " or ".join(f"{each} of {count // each - 5} classes" for each in anchors)
    return detector(
        picture,
        f"of the form of a YOLO's only head, {count} numbers a cell",
        {"scale": 255},
        {"decoder": "yolov5", "threshold": 0.3, "iou": 0.45},
        "output.layout: yolov2 (anchors in cells, one class a box), yolov3 or yolov5-heads",
        f"output.anchors: those of the training, {ways}; if these are no boxes, task is raw",
        LABELS,
        RESIZE,
    )


def _level(picture: Picture, spec: TensorSpec) -> tuple[int, int, bool] | None:
    """Return a head's stride, its numbers per cell, and whether these are the last axis."""
    width, height = infer_layout.picture_size(picture.input, picture.given["layout"])
    sizes = [size for size in spec.shape[1:] if size]
    if not (width and height) or len(sizes) != len(spec.shape) - 1 or len(sizes) not in {3, 4}:
        return None
    for rows, columns in ((1, 2), (0, 1)):
        stride = width // sizes[columns]
        if stride in {8, 16, 32, 64} and height // sizes[rows] == stride:
            return stride, prod(sizes) // (sizes[rows] * sizes[columns]), rows == 0
    return None


def scrfd(picture: Picture) -> Draft | None:
    """Draft SCRFD: scores, boxes, and often points of three levels."""
    widths = sorted(one.shape[-1] or 0 for one in picture.facts.outputs if one.shape)
    if widths not in ([1, 1, 1, 4, 4, 4], [1, 1, 1, 4, 4, 4, 10, 10, 10]):
        return None
    left = () if picture.cells(8) else ("input.width and input.height: both × 32, usually 640",)
    input_ = _LETTERBOX | {"anchor": "top-left", "pad": 0, "mean": 127.5, "scale": 128}
    output = {"decoder": "yunet", "threshold": 0.5, "iou": 0.4, "labels": ["face"]}
    return detector(picture, "SCRFD", input_, output, *left)


def _are_anchored(picture: Picture) -> bool:
    """Whether two outputs are MediaPipe's: a score, and a box with six to eight points, each."""
    shapes = [one.shape for one in picture.facts.outputs if len(one.shape) == 3]
    if len(shapes) != 2:
        return False
    score, box = sorted(shapes, key=lambda one: one[2] or 0)
    return score[2] == 1 and box[1] == score[1] and box[2] in {12, 16, 18}


def _widths(picture: Picture) -> tuple[int, ...]:
    """Return how many numbers each output has for a box or a cell, in order of size."""
    channels = 3 if picture.given["layout"] == "nhwc" else 1
    shapes = [one.shape for one in picture.facts.outputs]
    each = [one[2] if len(one) == 3 else one[channels] for one in shapes if len(one) in {3, 4}]
    return tuple(sorted(size or 0 for size in each))


def unread(picture: Picture) -> Draft | None:
    """Return a draft for a family that no decoder reads, with what to export instead."""
    outputs = picture.facts.outputs
    shape, found = outputs[0].shape, ", ".join(sorted(picture.outputs))
    widths = _widths(picture)
    if len(outputs) == 1 and len(shape) == 3 and shape[-1] == 7 and shape[1] != 1:
        family = "rows of seven numbers for each box, image and class among them"
        mend = (
            "EfficientDet: export it with separate boxes, scores and classes, for ssd; "
            "Ultralytics' obb with suppression inside is read by yolo-e2e"
        )
    elif sorted(one.shape[1] or 0 for one in outputs if len(one.shape) == 4)[:4] == [3, 3, 12, 12]:
        family = "YOLO-FastestV2 in six outputs"
        mend = "export it with its own pytorch2onnx.py, by Detector(…, export_onnx=True)"
    elif len(outputs) == 2 and _are_anchored(picture):
        family = "MediaPipe's detector, whose boxes are offsets from anchors"
        mend = (
            "for faces take YuNet, SCRFD or UltraFace, for the points of persons a YOLO's pose "
            "(docs/known-models.md)"
        )
    elif widths in _FACES:
        family = f"{_FACES[widths]}, faces in a form of their own"
        mend = "for faces take YuNet, SCRFD or UltraFace (docs/known-models.md)"
    elif len(outputs) == 8 and widths.count(BINS) == 4:
        family = "PicoDet's heads"
        mend = "export it with its post-processing, export.post_process=True, for decoder ssd"
    elif len(outputs) == 1 and picture.facts.makers[outputs[0].name].startswith("CTCGreedy"):
        family = "the numbers of a line's characters, as of the Open Model Zoo's plate readers"
        mend = "task raw gives them as they are; -1 is behind the last"
    elif len(outputs) == 1 and "int" in outputs[0].dtype and len(shape) == 2 and None not in shape:
        width, height = infer_layout.picture_size(picture.input, picture.given["layout"])
        if shape != (height, width):
            return None
        family = "what each pixel is, in an output that has no axis for the batch"
        mend = "export it with one ([1, height, width]), or without its last ArgMax"
    elif picture.input.shape[1:] == (76, 32, 1):
        family, mend = WAKE_WORDS, NO_CHAIN
    elif "scale_factor" in {one.name for one in picture.facts.inputs}:
        family = "PaddleDetection's, but for its suppression"
        mend = "export it without export.exclude_nms, for decoder ssd"
    else:
        return None
    return Draft(
        f"{family} ({found})",
        {"task": "raw", "input": picture.said, "output": {"decoder": "raw"}},
        questions=(f"export: no decoder reads this. {mend}",),
    )
