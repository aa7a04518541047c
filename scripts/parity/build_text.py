"""Parity cases of PP-OCR: lines, and what is read in one, by PaddleOCR's own steps.

    python build_text.py FOLDER

Runs in the exporters' environment. Networks with random weights that end as PP-OCR's do; what is
expected is computed here by the steps that PaddleOCR publishes, from what ONNX Runtime gives:
ppocr/postprocess/db_postprocess.py and rec_postprocess.py, tools/infer/predict_rec.py. Spaces at
both ends of a text are left out, as the agent does.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pyclipper
from build_finished import Graph
from onnx import helper
from shapely.geometry import Polygon
from workshop import Workshop, write_manifest

SIZE, WIDTH, HEIGHT = 320, 320, 48
LETTERS = [*"AB1-ü", "字"]
MEAN, SCALE = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
THRESHOLD, WITHIN, GROWTH, LEAST = 0.6, 0.3, 1.5, 3


def lines(shop: Workshop, task: str) -> None:
    """Build a map of smooth random patches, the chance of each pixel to be text."""
    graph = Graph()
    weight = cv2.GaussianBlur(graph.random.normal(0, 1, (31, 31, 3)), (31, 31), 7)
    weight -= weight.mean(axis=(0, 1))
    weight *= 3 / np.abs(weight).sum()
    given = graph.constant(weight.transpose(2, 0, 1)[None].astype(np.float32))
    seen = graph.add("Conv", "x", given, pads=[15] * 4)
    graph.add("Sigmoid", graph.add("Mul", seen, graph.constant(np.float32(6))), name="maps")
    name = f"pp-ocr-lines-{task}"
    path = graph.save(shop.scrap / name / "model.onnx", {"maps": (1, 1, SIZE, SIZE)})
    session = onnxruntime.InferenceSession(path)
    expected = {}
    for file, picture in shop.read().items():
        pixels = cv2.resize(picture, (SIZE, SIZE)).astype(np.float32) / 255
        pixels = ((pixels - MEAN) / SCALE).transpose(2, 0, 1)[None]
        (made,) = session.run(None, {"x": pixels})
        high, wide = picture.shape[:2]
        expected[file] = found_lines(made[0, 0], wide, high)
    build(
        shop,
        name,
        task,
        """\
color = "bgr"
mean = [123.675, 116.28, 103.53]
scale = [58.395, 57.12, 57.375]""",
        f'decoder = "db"\nthreshold = {THRESHOLD}\nlabels = ["text"]',
        expected,
    )


def found_lines(chances: Any, wide: int, high: int) -> list[dict[str, Any]]:
    """Return the boxes around lines, whose corners are in whole pixels, best first."""
    found = []
    sure = (chances > WITHIN).astype(np.uint8) * 255
    for contour in cv2.findContours(sure, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0][:1000]:
        rectangle = cv2.minAreaRect(contour)
        if min(rectangle[1]) < LEAST:
            continue
        corners = cv2.boxPoints(rectangle)
        low = np.clip(np.floor(corners.min(axis=0)), 0, SIZE - 1).astype(int)
        top = np.clip(np.ceil(corners.max(axis=0)), 0, SIZE - 1).astype(int)
        mask = np.zeros((top - low + 1)[::-1], np.uint8)
        cv2.fillPoly(mask, [(corners - low).astype(np.int32)], 1)
        score = cv2.mean(chances[low[1] : top[1] + 1, low[0] : top[0] + 1], mask)[0]
        if score < THRESHOLD:
            continue
        shape = Polygon(corners)
        grown = pyclipper.PyclipperOffset()
        grown.AddPath(corners, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        outer = np.array(grown.Execute(shape.area * GROWTH / shape.length)[0])
        rectangle = cv2.minAreaRect(outer.reshape(-1, 1, 2))
        if min(rectangle[1]) < LEAST + 2:
            continue
        sides = np.array([wide, high])
        quad = np.clip(np.round(cv2.boxPoints(rectangle) / SIZE * sides), 0, sides)
        box = [*quad.min(axis=0).tolist(), *quad.max(axis=0).tolist()]
        found.append({"label": "text", "score": float(score), "box": box})
    return sorted(found, key=lambda one: -one["score"])


def letters(shop: Workshop) -> None:
    """Build a reader: a class for each 8 columns of pixels, of which 0 is the blank."""
    name, count = "pp-ocr-letters", len(LETTERS) + 2
    graph = Graph()
    graph.inputs = [helper.make_tensor_value_info("x", 1, (1, 3, HEIGHT, WIDTH))]
    weight = graph.random.normal(0, 0.3, (count, 3, HEIGHT, 8))
    weight -= weight.mean(axis=(1, 2, 3), keepdims=True)
    given = graph.constant(weight.astype(np.float32))
    # Nothing is nothing: the blank.
    bias = graph.constant(np.float32([2, *[0] * (count - 1)]))
    seen = graph.add("Conv", "x", given, bias, strides=[HEIGHT, 8])
    rows = graph.add("Reshape", seen, graph.constant(np.array([1, count, -1])))
    graph.add("Softmax", graph.add("Transpose", rows, perm=[0, 2, 1]), axis=2, name="steps")
    path = graph.save(shop.scrap / name / "model.onnx", {"steps": (1, WIDTH // 8, count)})
    session = onnxruntime.InferenceSession(path)
    expected = {}
    for file, picture in shop.read().items():
        (steps,) = session.run(None, {"x": line_of(picture)})
        expected[file] = read(steps[0], picture)
    (path.parent / "labels.txt").write_text("\n".join(LETTERS), encoding="utf-8")
    given = """\
color = "bgr"
resize = "letterbox"
anchor = "top-left"
pad = 127.5
mean = 127.5
scale = 127.5"""
    output = 'decoder = "ctc"\nthreshold = 0.0\nlabels = "labels.txt"'
    build(shop, name, "text", given, output, expected)


def line_of(picture: Any) -> Any:
    """Return a picture as a line [1, 3, HEIGHT, WIDTH], on gray."""
    high, wide = picture.shape[:2]
    width = min(WIDTH, math.ceil(HEIGHT * wide / high))
    small = cv2.resize(picture, (width, HEIGHT)).transpose(2, 0, 1).astype(np.float32)
    pixels = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    pixels[0, :, :, :width] = (small / 255 - 0.5) / 0.5
    return pixels


def read(steps: Any, picture: Any) -> list[dict[str, Any]]:
    """Return the text of chances [T, C] as a finding; of no letters there is none."""
    best, sure = steps.argmax(axis=1), steps.max(axis=1)
    kept = best != 0
    kept[1:] &= best[1:] != best[:-1]
    text = "".join([*LETTERS, " "][at - 1] for at in best[kept]).strip()
    high, wide = picture.shape[:2]
    score = float(sure[kept].mean()) if kept.any() else 0.0
    return [{"label": text, "score": score, "box": [0, 0, wide, high]}] if text else []


def build(
    shop: Workshop,
    name: str,
    task: str,
    input_: str,
    output: str,
    expected: dict[str, list[dict[str, Any]]],
) -> None:
    """Write a case with its manifest."""
    write_manifest(shop.scrap / name, task, "model.onnx", input_, output)
    facts = {"family": name, "exporter": "by formula", "precision": "FP32", "note": ""}
    facts |= {"threshold": 0.0 if task == "text" else THRESHOLD, "iou": None, "most": 1000}
    shop.add(name, [shop.scrap / name], name, expected, whole_pixels=task != "text", **facts)


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))
    for task in ("detection", "obb"):
        lines(shop, task)
    letters(shop)


if __name__ == "__main__":
    main()
