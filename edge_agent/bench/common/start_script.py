"""The script that anyone would write first, up to its first result: the reference for starts.

One step after another: import, open the model, open the clip, read a frame, infer, connect,
publish. Run by its path, without the agent's code: `start_script.py ENGINE SETTINGS.json`, where
ENGINE is none, ort, best or openvino. It publishes when each step was done, by the clock shared by
all processes on a machine.
"""

# ruff: noqa: E402 - the clock is read before the imports, which are part of what it measures

import time

marks = {"python": time.monotonic()}

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

METHODS = {
    "linear": cv2.INTER_LINEAR,
    "area": cv2.INTER_AREA,
    "cubic": cv2.INTER_CUBIC,
    "nearest": cv2.INTER_NEAREST,
}
CLASSIFIERS = ("softmax", "logits")
DETECTORS = ("ultraface", "yolov8", "yolox", "ssd")


Way = tuple[float, float, float, float]
"""Scale x and y, and offset x and y, from the frame to the network's input, pixels."""


def prepare(frame: Any, how: dict[str, Any]) -> tuple[Any, Way]:
    """Resize, convert, normalize, and transpose with the usual lines.

    Returns:
        The input tensor, and how the frame is mapped to it.
    """
    width, height = how["width"], how["height"]
    rows, columns = frame.shape[:2]
    method = METHODS[how["interpolation"]]
    left = top = 0
    if how["resize"] == "letterbox":
        ratio = min(width / columns, height / rows)
        half = 0.5 if how["anchor"] == "center" else 0.0
        size = int(columns * ratio + half), int(rows * ratio + half)
        if how["anchor"] == "center":
            left, top = (width - size[0]) // 2, (height - size[1]) // 2
        small = cv2.resize(frame, size, interpolation=method)
        frame = np.full((height, width, 3), how["pad"], np.uint8)
        frame[top : top + size[1], left : left + size[0]] = small
        way = (size[0] / columns, size[1] / rows, float(left), float(top))
    elif how["resize"] == "crop":
        part = how["crop_ratio"] * min(columns / width, rows / height)
        size = round(width * part), round(height * part)
        left, top = (columns - size[0]) // 2, (rows - size[1]) // 2
        cut = frame[top : top + size[1], left : left + size[0]]
        frame = cv2.resize(cut, (width, height), interpolation=method)
        way = (width / size[0], height / size[1], -left * width / size[0], -top * height / size[1])
    else:
        frame = cv2.resize(frame, (width, height), interpolation=method)
        way = (width / columns, height / rows, 0.0, 0.0)
    if how["color"] == "rgb":
        frame = cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
    elif how["color"] == "gray":
        frame = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY)[..., None]
    planes = how["layout"] == "nchw"
    if planes:
        frame = frame.transpose(2, 0, 1)
    if how["type"] == "uint8":
        return np.ascontiguousarray(frame[None]), way
    # The fastest of the usual ways: planes first, and floats changed in place. Interleaved colors,
    # with a mean for each, take three times as long.
    tensor = frame.astype(np.float32, order="C")
    tensor -= _for_each(how["mean"], planes)
    tensor *= 1 / _for_each(how["scale"], planes)
    return tensor[None].astype(how["type"], copy=False), way


def _for_each(values: list[float], planes: bool) -> Any:
    """Shape numbers per color to fit the picture; one number is enough if all are equal."""
    numbers = np.array(values, np.float32)
    if (numbers == numbers[0]).all():
        return numbers[0]
    return numbers[:, None, None] if planes else numbers


def classify(outputs: list[Any], how: dict[str, Any]) -> tuple[int, float]:
    """Return the class with the highest score, and the score."""
    scores = outputs[0].reshape(-1).astype(np.float32)
    if how["decoder"] == "logits":
        scores = np.exp(scores - scores.max())
        scores /= scores.sum()
    return int(scores.argmax()), float(scores.max())


def detect(
    outputs: list[Any], how: dict[str, Any], way: Way
) -> list[tuple[int, float, list[float]]]:
    """Find boxes: class, score, x1, y1, x2, y2 in pixels of the frame."""
    boxes, scores, classes = CANDIDATES[how["decoder"]](outputs, how)
    likely = scores >= how["threshold"]
    boxes, scores, classes = boxes[likely], scores[likely], classes[likely]
    if len(boxes) and how["decoder"] != "ssd":
        sizes = np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1)
        kept = cv2.dnn.NMSBoxesBatched(
            sizes.tolist(), scores.tolist(), classes.tolist(), how["threshold"], how["iou"]
        )
        boxes, scores, classes = boxes[kept], scores[kept], classes[kept]
    boxes = (boxes - np.array(way[2:] * 2, np.float32)) / np.array(way[:2] * 2, np.float32)
    return list(zip(classes.tolist(), scores.tolist(), boxes.tolist(), strict=True))


Candidates = tuple[Any, Any, Any]
"""Boxes (n, 4) in pixels of the input, scores (n,), classes (n,)."""


def _ultraface(outputs: list[Any], how: dict[str, Any]) -> Candidates:
    boxes = next(output[0] for output in outputs if output.shape[2] == 4)
    faces = next(output[0] for output in outputs if output.shape[2] != 4)[:, 1:]
    boxes = boxes * np.array([how["width"], how["height"]] * 2, np.float32)
    return boxes, faces.max(axis=1), faces.argmax(axis=1) + 1


def _yolov8(outputs: list[Any], _how: dict[str, Any]) -> Candidates:
    table = outputs[0][0].T
    return _corners(table[:, :4]), table[:, 4:].max(axis=1), table[:, 4:].argmax(axis=1)


def _yolox(outputs: list[Any], how: dict[str, Any]) -> Candidates:
    table = outputs[0][0]
    cells, strides = [], []
    for stride in (8, 16, 32):
        x, y = np.meshgrid(np.arange(how["width"] // stride), np.arange(how["height"] // stride))
        cells.append(np.stack((x, y), 2).reshape(-1, 2))
        strides.append(np.full((x.size, 1), stride))
    steps = np.concatenate(strides)
    centers = (table[:, :2] + np.concatenate(cells)) * steps
    boxes = _corners(np.concatenate((centers, np.exp(table[:, 2:4]) * steps), axis=1))
    return boxes, table[:, 4] * table[:, 5:].max(axis=1), table[:, 5:].argmax(axis=1)


def _ssd(outputs: list[Any], how: dict[str, Any]) -> Candidates:
    table = outputs[0].reshape(-1, 7)
    table = table[table[:, 0] >= 0]
    boxes = table[:, 3:] * np.array([how["width"], how["height"]] * 2, np.float32)
    return boxes, table[:, 2], table[:, 1].astype(int)


def _corners(boxes: Any) -> Any:
    half = boxes[:, 2:] / 2
    return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)


CANDIDATES: dict[str, Callable[[list[Any], dict[str, Any]], Candidates]] = {
    "ultraface": _ultraface,
    "yolov8": _yolov8,
    "yolox": _yolox,
    "ssd": _ssd,
}


def _onnxruntime(how: dict[str, Any]) -> Callable[[Any], list[Any]]:
    import onnxruntime as ort

    mark("imports")
    options = ort.SessionOptions()
    if how["optimized"]:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(how["model"], options)
    return lambda tensor: session.run(None, {session.get_inputs()[0].name: tensor})


def _openvino(how: dict[str, Any]) -> Callable[[Any], list[Any]]:
    # Otherwise it sends telemetry, in a separate process that would be timed, too.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    import openvino as ov

    mark("imports")
    core = ov.Core()
    if how["cache"]:
        core.set_property({"CACHE_DIR": how["cache"]})
    model = core.compile_model(how["model"], "CPU")
    return lambda tensor: list(model(tensor).values())


def _none(_how: dict[str, Any]) -> Callable[[Any], list[Any]]:
    import onnxruntime  # noqa: F401 - as in a script with a model

    mark("imports")
    return lambda _tensor: []


OPENERS = {"none": _none, "ort": _onnxruntime, "best": _onnxruntime, "openvino": _openvino}


def mark(step: str) -> None:
    """Record that a step is done."""
    marks[step] = time.monotonic()


def main(engine: str, settings: str) -> None:
    """Publish the findings of the clip's first frame."""
    how = json.loads(Path(settings).read_text())
    infer = OPENERS[engine](how)
    if engine != "none":
        mark("model")
    capture = cv2.VideoCapture(how["clip"])
    read, frame = capture.read()
    if not read:
        sys.exit(f"{how['clip']}: gives no frame")
    mark("clip")
    payload: dict[str, Any] = {"seq": 0, "marks": marks}
    if engine != "none":
        tensor, way = prepare(frame, how)
        outputs = infer(tensor)
        if how["decoder"] in CLASSIFIERS:
            payload["class"] = classify(outputs, how)
        else:
            payload["boxes"] = detect(outputs, how, way)
        mark("infer")
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", how["port"])
    client.loop_start()
    client.publish(how["topic"], json.dumps(payload)).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
