"""Parity cases of detectors whose exports end in heads, by level, in rows or in cells.

    python build_formulas.py FOLDER

Networks with random weights that end as the families' exporters end them; what is expected is
computed here by the formulas that the families publish, from what ONNX Runtime gives:
YOLOv2 (arXiv 1612.08242), YOLOv3 (arXiv 1804.02767), YOLOv5's documentation of its box, the sample
code of Custom Vision's exports, YOLO-FastestV2's and InsightFace's Python, Edge Impulse's C++.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from workshop import Workshop

SIZE = 320
CLASSES = 3
LABELS = [f"class{number}" for number in range(CLASSES)]
YOLO = (10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326)
CELLS = (0.573, 0.677, 1.87, 2.06, 3.34, 5.47, 7.88, 3.53, 9.77, 9.17)
FAST = (12.64, 19.39, 37.88, 51.48, 55.71, 138.31, 126.91, 78.23, 131.57, 214.55, 279.92, 258.87)
THRESHOLD, IOU = 0.3, 0.45
Boxes = list[tuple[int, float, tuple[float, float, float, float]]]
"""Class, score, x1, y1, x2, y2 in pixels of the input."""


def ends_so(name: str) -> list[Any]:
    """Make what is behind a head that ends as it is."""
    return [helper.make_node("Identity", [f"{name}.c"], [name])]


def network(
    path: Path,
    heads: Mapping[str, tuple[int, int, Collection[int]]],
    ends: Callable[[str], list[Any]] = ends_so,
    shapes: Mapping[str, Sequence[int]] | None = None,
    extra: Sequence[Any] = (),
) -> Path:
    """Save a network of randomly mixed pixels, a head for each stride.

    Args:
        path: the .onnx file.
        heads: by name of an output: stride, channels, and those that are seldom large.
        ends: makes the nodes behind a head, from "name.c" [1, channels, H, W] on.
        shapes: of the outputs, where *ends* changes them.
        extra: constants of *ends*.

    """
    random = np.random.default_rng(11)
    nodes, weights, outputs = [], list(extra), []
    for name, (stride, channels, rare) in heads.items():
        weight = random.normal(0, 3, (channels, 3, stride, stride)) / stride
        # Of both signs alike, so that flat parts of a picture give nothing.
        weight -= weight.mean(axis=(1, 2, 3), keepdims=True)
        bias = random.normal(0, 0.5, channels)
        bias[list(rare)] -= 4
        for part, array in (("w", weight), ("b", bias)):
            weights.append(numpy_helper.from_array(array.astype(np.float32), f"{name}.{part}"))
        given, sides = ["x", f"{name}.w", f"{name}.b"], [stride, stride]
        nodes += [helper.make_node("Conv", given, [f"{name}.c"], strides=sides), *ends(name)]
        shape = (shapes or {}).get(name, (1, channels, SIZE // stride, SIZE // stride))
        outputs.append(helper.make_tensor_value_info(name, 1, shape))
    picture = helper.make_tensor_value_info("x", 1, (1, 3, SIZE, SIZE))
    graph = helper.make_graph(nodes, "formula", [picture], outputs, weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def sigmoid(values: Any) -> Any:
    """Return 1 / (1 + e**-values)."""
    return 1 / (1 + np.exp(-values))


def yolo(outputs: Sequence[Any], layout: str, anchors: Sequence[float]) -> Boxes:
    """Decode heads [1, A * (5 + C), H, W], finest first, cell by cell."""
    count = len(anchors) // 2 // len(outputs)
    found: Boxes = []
    for level, output in enumerate(outputs):
        _, _, rows, columns = output.shape
        stride = SIZE // columns
        head = output[0].reshape(count, -1, rows, columns)
        for anchor, row, column in np.ndindex(count, rows, columns):
            numbers = head[anchor, :, row, column].astype(float)
            place = 2 * (level * count + anchor)
            box, chances = one_of(numbers, layout, anchors[place : place + 2], stride)
            best = int(chances.argmax())
            x, y = (box[0] + column) * stride, (box[1] + row) * stride
            found.append(
                (best, float(sigmoid(numbers[4]) * chances[best]), cornered(x, y, *box[2:]))
            )
    return found


def one_of(
    numbers: Any, layout: str, anchor: Sequence[float], stride: int
) -> tuple[tuple[float, float, float, float], Any]:
    """Decode one box: center from its cell in cells, width and height in pixels; class chances."""
    x, y, w, h = numbers[:4]
    if layout == "yolov5-heads":
        center = 2 * sigmoid(x) - 0.5, 2 * sigmoid(y) - 0.5
        size = (2 * sigmoid(w)) ** 2 * anchor[0], (2 * sigmoid(h)) ** 2 * anchor[1]
    else:
        center = (x, y) if layout == "custom-vision" else (sigmoid(x), sigmoid(y))
        size = np.exp(w) * anchor[0], np.exp(h) * anchor[1]
    if layout not in {"yolov2", "custom-vision"}:
        return (*center, *size), sigmoid(numbers[5:])
    weights = np.exp(numbers[5:] - numbers[5:].max())
    return (*center, size[0] * stride, size[1] * stride), weights / weights.sum()


def cornered(x: float, y: float, wide: float, high: float) -> tuple[float, float, float, float]:
    """Turn middle and size into corners."""
    return (x - wide / 2, y - high / 2, x + wide / 2, y + high / 2)


def fastest(outputs: Sequence[Any]) -> Boxes:
    """Decode YOLO-FastestV2's [1, H, W, 12 + 3 + C], behind its sigmoids and softmax."""
    found: Boxes = []
    for level, output in enumerate(outputs):
        _, rows, columns, _ = output.shape
        stride = SIZE // columns
        for row, column, anchor in np.ndindex(rows, columns, 3):
            numbers = output[0, row, column].astype(float)
            x, y, w, h = numbers[4 * anchor : 4 * anchor + 4]
            wide, high = FAST[6 * level + 2 * anchor :][:2]
            best = int(numbers[15:].argmax())
            x, y = (2 * x - 0.5 + column) * stride, (2 * y - 0.5 + row) * stride
            box = cornered(x, y, (2 * w) ** 2 * wide, (2 * h) ** 2 * high)
            found.append((best, float(numbers[12 + anchor] * numbers[15 + best]), box))
    return found


def scrfd(outputs: Sequence[Any]) -> Boxes:
    """Decode SCRFD's scores, then its distances of three strides."""
    found: Boxes = []
    for level, stride in enumerate((8, 16, 32)):
        for row, (score, sides) in enumerate(zip(outputs[level], outputs[3 + level], strict=True)):
            y, x = divmod(row // 2, SIZE // stride)
            left, top, right, bottom = (float(side) * stride for side in sides)
            x, y = x * stride, y * stride
            found.append((0, float(score[0]), (x - left, y - top, x + right, y + bottom)))
    return found


def cells(outputs: Sequence[Any]) -> Boxes:
    """Merge FOMO's cells [1, H, W, 1 + C] that touch; each has 8 pixels."""
    found: list[list[Any]] = []
    grid = outputs[0][0]
    for row, column, kind in np.ndindex(*grid.shape):
        score = float(grid[row, column, kind])
        if kind and score >= THRESHOLD:
            found.append([kind - 1, score, column, row, column + 1, row + 1])
    while pair := touching(found):
        one, other = pair
        found.remove(other)
        one[1] = max(one[1], other[1])
        one[2:] = [*map(min, one[2:4], other[2:4]), *map(max, one[4:], other[4:])]
    return [(kind, score, tuple(8.0 * at for at in box)) for kind, score, *box in found]


def touching(found: Sequence[list[Any]]) -> tuple[list[Any], list[Any]] | None:
    """Find two groups of a class that overlap, or meet at a side or corner."""
    for one, other in itertools.combinations(found, 2):
        apart = any(
            one[2 + axis] > other[4 + axis] or other[2 + axis] > one[4 + axis] for axis in (0, 1)
        )
        if one[0] == other[0] and not apart:
            return one, other
    return None


def kept(boxes: Boxes, iou: float | None) -> Boxes:
    """Return what reaches the threshold and survives suppression within its class, best first."""
    sure = sorted((one for one in boxes if one[1] >= THRESHOLD), key=lambda one: -one[1])
    if iou is None or not sure:
        return sure
    sides = [[x1, y1, x2 - x1, y2 - y1] for _, _, (x1, y1, x2, y2) in sure]
    kinds = [kind for kind, _, _ in sure]
    ranks = [float(len(sure) - place) for place in range(len(sure))]
    places = cv2.dnn.NMSBoxesBatched(sides, ranks, kinds, 0.0, iou)
    return [sure[place] for place in sorted(np.array(places).ravel().tolist())]


def build(
    shop: Workshop,
    name: str,
    path: Path,
    output: str,
    decode: Callable[[list[Any]], Boxes],
    *,
    iou: float | None = IOU,
    labels: Sequence[str] = LABELS,
) -> None:
    """Write a case: pictures stretched, RGB in 0..1."""
    session = onnxruntime.InferenceSession(path)
    expected = {}
    for file, picture in shop.read().items():
        high, wide = picture.shape[:2]
        pixels = cv2.resize(picture, (SIZE, SIZE))[:, :, ::-1].transpose(2, 0, 1)[None]
        outputs = session.run(None, {"x": np.ascontiguousarray(pixels, np.float32) / 255})
        expected[file] = [
            {
                "label": labels[kind],
                "score": score,
                "box": [x1 * wide / SIZE, y1 * high / SIZE, x2 * wide / SIZE, y2 * high / SIZE],
            }
            for kind, score, (x1, y1, x2, y2) in kept(decode(outputs), iou)
        ]
    suppression = "" if iou is None else f"iou = {iou}\n"
    (path.parent / "model.toml").write_text(f"""\
name = "{name}"
version = "1"
task = "detection"
file = "model.onnx"
[input]
scale = 255
[output]
threshold = {THRESHOLD}
labels = {list(labels)}
{suppression}{output}
""")
    shop.add(
        name,
        [path.parent],
        path.parent.name,
        expected,
        family=name,
        exporter="by formula",
        precision="FP32",
        threshold=THRESHOLD,
        iou=iou,
        most=3000,
        note="",
    )


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))

    def place(name: str) -> Path:
        folder = shop.scrap / name
        folder.mkdir(exist_ok=True)
        return folder / "model.onnx"

    wide = 5 + CLASSES
    three = {f"p{at}": (8 * 2**at, 3 * wide, range(4, 3 * wide, wide)) for at in range(3)}
    one = {"model_outputs0": (32, 5 * wide, range(4, 5 * wide, wide))}
    for layout, anchors, heads in (
        ("yolov5-heads", YOLO, three),
        ("yolov3", YOLO, three),
        ("yolov2", CELLS, one),
        ("custom-vision", CELLS, one),
    ):
        output = f'decoder = "yolov5"\nlayout = "{layout}"\nanchors = {list(anchors)}'
        decode = functools.partial(yolo, layout=layout, anchors=anchors)
        build(shop, layout, network(place(layout), heads), output, decode)
    path = network(
        place("yolo-fastestv2"),
        {
            name: (stride, 15 + CLASSES, range(12, 15))
            for name, stride in (("794", 16), ("796", 32))
        },
        lambda name: [
            helper.make_node("Split", [f"{name}.c", "parts"], [f"{name}.r", f"{name}.k"], axis=1),
            helper.make_node("Sigmoid", [f"{name}.r"], [f"{name}.rs"]),
            helper.make_node("Softmax", [f"{name}.k"], [f"{name}.ks"], axis=1),
            helper.make_node("Concat", [f"{name}.rs", f"{name}.ks"], [f"{name}.a"], axis=1),
            helper.make_node("Transpose", [f"{name}.a"], [name], perm=[0, 2, 3, 1]),
        ],
        {"794": (1, 20, 20, 15 + CLASSES), "796": (1, 10, 10, 15 + CLASSES)},
        [numpy_helper.from_array(np.array([15, CLASSES], np.int64), "parts")],
    )
    output = f'decoder = "yolov5"\nlayout = "yolo-fastestv2"\nanchors = {list(FAST)}'
    build(shop, "yolo-fastestv2", path, output, fastest)
    faces = {f"1_{s}": (s, 2, range(2)) for s in (8, 16, 32)}
    faces |= {f"4_{s}": (s, 8, range(0)) for s in (8, 16, 32)}
    path = network(
        place("scrfd"),
        faces,
        lambda name: [
            helper.make_node("Sigmoid" if name[0] == "1" else "Exp", [f"{name}.c"], [f"{name}.s"]),
            helper.make_node("Transpose", [f"{name}.s"], [f"{name}.t"], perm=[0, 2, 3, 1]),
            helper.make_node("Reshape", [f"{name}.t", f"rows{name[0]}"], [name]),
        ],
        {name: (2 * (SIZE // stride) ** 2, n // 2) for name, (stride, n, _) in faces.items()},
        [numpy_helper.from_array(np.array([-1, n]), f"rows{n}") for n in (1, 4)],
    )
    build(shop, "scrfd", path, 'decoder = "yunet"', scrfd, labels=["face"])
    path = network(
        place("fomo"),
        {"grid": (8, 1 + CLASSES, range(1, 1 + CLASSES))},
        lambda name: [
            helper.make_node("Transpose", [f"{name}.c"], [f"{name}.t"], perm=[0, 2, 3, 1]),
            helper.make_node("Softmax", [f"{name}.t"], [name], axis=3),
        ],
        {"grid": (1, 40, 40, 1 + CLASSES)},
    )
    build(shop, "fomo", path, 'decoder = "semantic"\nfirst_label = 1', cells, iou=None)


if __name__ == "__main__":
    main()
