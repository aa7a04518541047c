"""Small YOLOs of random weights with the ends, names and metadata that Ultralytics exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.helpers.tiny_networks import Value, node, save_onnx

WIDTH, HEIGHT = 96, 64
STRIDE = 8
CLASSES = ("ship", "plane")
Head = Literal["segment", "pose", "obb"]
BEHIND: dict[Head, int] = {"segment": 8, "pose": 5 * 3, "obb": 1}
FAMILY = {"segment": "Segment", "pose": "Pose", "obb": "OBB"}


def save_yolo(path: Path, head: Head, *, inside: bool = False, seed: int = 3) -> Path:
    """Save a network of one stride: boxes and what the task adds, by convolutions of the picture.

    Args:
        path: the .onnx file.
        head: as Ultralytics calls the task.
        inside: rows come as from a network without suppression: the 20 best, with score and class.
        seed: of the weights.
    """
    random = np.random.default_rng(seed)
    behind, count = BEHIND[head], len(CLASSES)
    columns, rows = WIDTH // STRIDE, HEIGHT // STRIDE
    across, down = np.meshgrid(np.arange(columns) + 0.5, np.arange(rows) + 0.5)
    cells = np.stack((across, down)).reshape(1, 2, -1).astype(np.float32)
    weights: dict[str, NDArray[Any]] = {
        "kernel": random.normal(0, 0.5, (16, 3, STRIDE, STRIDE)).astype(np.float32),
        "head": random.normal(0, 0.4, (4 + count + behind, 16, 1, 1)).astype(np.float32),
        "cells": cells,
        "stride": np.array(STRIDE, np.float32),
        "two": np.array(2, np.float32),
        "flat": np.array([1, 4 + count + behind, -1]),
        "parts": np.array([2, 2, count, behind]),
    }
    nodes = [
        node("Conv", ["images", "kernel"], ["seen"], strides=[STRIDE, STRIDE]),
        node("Tanh", ["seen"], ["features"]),
        node("Conv", ["features", "head"], ["grid"]),
        node("Reshape", ["grid", "flat"], ["rows"]),
        node("Split", ["rows", "parts"], ["shift", "log", "logit", "more"], axis=1),
        node("Add", ["shift", "cells"], ["middle"]),
        node("Mul", ["middle", "stride"], ["xy"]),
        node("Exp", ["log"], ["grown"]),
        node("Mul", ["grown", "stride"], ["once"]),
        node("Mul", ["once", "two"], ["wh"]),
        node("Sigmoid", ["logit"], ["chances"]),
    ]
    if head == "pose":
        weights |= {"each": np.array([1, 5, 3, -1]), "lines": np.array([1, 15, -1])}
        weights |= {"xys": np.array([2, 1]), "cell": cells[:, None]}
        nodes += [
            node("Reshape", ["more", "each"], ["apart"]),
            node("Split", ["apart", "xys"], ["away", "sure"], axis=2),
            node("Mul", ["away", "two"], ["far"]),
            node("Add", ["far", "cell"], ["there"]),
            node("Mul", ["there", "stride"], ["place"]),
            node("Sigmoid", ["sure"], ["visible"]),
            node("Concat", ["place", "visible"], ["point"], axis=2),
            node("Reshape", ["point", "lines"], ["last"]),
        ]
    else:
        nodes.append(node("Identity", ["more"], ["last"]))
    name = "columns" if inside else "output0"
    outputs: list[Value] = [("output0", "float32", (1, 4 + count + behind, columns * rows))]
    if not inside:
        nodes.append(node("Concat", ["xy", "wh", "chances", "last"], [name], axis=1))
    else:
        outputs = [("output0", "float32", (1, 20, 6 + behind))]
        weights |= {"best": np.array([20]), "half": np.array(0.5, np.float32)}
        box = ["xy", "wh"]
        if head != "obb":
            box = ["from", "to"]
            nodes += [
                node("Mul", ["wh", "half"], ["reach"]),
                node("Sub", ["xy", "reach"], ["from"]),
                node("Add", ["xy", "reach"], ["to"]),
            ]
        nodes += [
            node("ReduceMax", ["chances"], ["score"], axes=[1], keepdims=1),
            node("ArgMax", ["chances"], ["kind"], axis=1, keepdims=1),
            node("Cast", ["kind"], ["class"], to=1),
            node("Concat", [*box, "score", "class", "last"], [name], axis=1),
            node("Transpose", [name], ["table"], perm=[0, 2, 1]),
            node("TopK", ["score", "best"], ["_", "which"], axis=2),
            node("Squeeze", ["which"], ["row"]),
            node("Gather", ["table", "row"], ["output0"], axis=1),
        ]
    if head == "segment":
        weights["up"] = random.normal(0, 0.5, (16, behind, 4, 4)).astype(np.float32)
        nodes.append(
            node("ConvTranspose", ["features", "up"], ["output1"], strides=[2, 2], pads=[1] * 4)
        )
        outputs.append(("output1", "float32", (1, behind, rows * 2, columns * 2)))
    metadata = {
        "description": "Ultralytics YOLO11n model",
        "version": "8.4.190",
        "task": head,
        "head": FAMILY[head],
        "stride": STRIDE,
        "imgsz": [HEIGHT, WIDTH],
        "names": dict(enumerate(CLASSES)),
        "args": {"nms": inside},
        "end2end": False,
    } | ({"kpt_shape": [5, 3]} if head == "pose" else {})
    return save_onnx(
        path,
        nodes,
        [("images", "float32", (1, 3, HEIGHT, WIDTH))],
        outputs,
        weights,
        metadata=metadata,
    )


def picture(width: int, height: int, seed: int = 1) -> NDArray[np.uint8]:
    """Draw a picture (height, width, 3) of smooth noise."""
    import cv2

    small = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def unpacked(mask: dict[str, Any]) -> NDArray[np.bool_]:
    """Decode COCO's compressed run lengths, as pycocotools' `rleFrString` does: (h, w)."""
    height, width = mask["size"]
    counts: list[int] = []
    text = iter(mask["counts"].encode())
    for first in text:
        five, value, shift = first - 48, (first - 48) & 0x1F, 5
        while five & 0x20:
            five = next(text) - 48
            value |= (five & 0x1F) << shift
            shift += 5
        if five & 0x10:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    bits = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return bits.reshape(width, height).T
