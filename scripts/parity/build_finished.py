"""Parity cases of networks that end in finished boxes or in a few numbers.

    python build_finished.py FOLDER

Runs in the exporters' environment. Networks with random weights that end as the families' exporters
end them; what is expected is computed here by the steps that the families publish, from what ONNX
Runtime gives: PaddleDetection's deploy/python/infer.py, YOLOv7's tools/YOLOv7onnx.ipynb,
SuperGradients' flat predictions, pytorch-YOLOv4's tool/utils.py, Keras' binary classifier,
anomalib's inferencer, the code in Custom Vision's zip. What cannot be run is here to be refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from workshop import Workshop, write_manifest

SIZE, STRIDE, CLASSES = 320, 16, 3
CELLS = (SIZE // STRIDE) ** 2
LABELS = [f"class{number}" for number in range(CLASSES)]
THRESHOLD = 0.3
Node = Callable[..., Any]


class Graph:
    """A network that is being put together; all weights are random, from one seed."""

    def __init__(self, name: str = "x", *, batch: int = 1, bytes_: bool = False) -> None:
        self.random = np.random.default_rng(31)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        kind = TensorProto.UINT8 if bytes_ else TensorProto.FLOAT
        self.inputs = [helper.make_tensor_value_info(name, kind, (batch, 3, SIZE, SIZE))]
        self.picture = self.add("Cast", name, to=1) if bytes_ else name

    def constant(self, value: Any) -> str:
        """Add a constant; return its name."""
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, *given: str, name: str = "", **how: Any) -> str:
        """Add a node; return its output."""
        name = name or f"tensor{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(given), [name], **how))
        return name

    def cells(self, channels: int, divisor: float = 1.0, shift: float = 0.0) -> str:
        """Add a convolution of both signs alike; return [1, channels, cells]."""
        weight = self.random.normal(0, 3, (channels, 3, STRIDE, STRIDE)) / STRIDE / divisor
        weight -= weight.mean(axis=(1, 2, 3), keepdims=True)
        bias = self.random.normal(shift, 0.5, channels)
        given = [self.constant(each.astype(np.float32)) for each in (weight, bias)]
        found = self.add("Conv", self.picture, *given, strides=[STRIDE, STRIDE])
        return self.add("Reshape", found, self.constant(np.array([0, channels, -1])))

    def boxes(self, divisor: float = 1.0) -> tuple[str, str, str]:
        """Add boxes [N, 4] as corners in pixels, and their best scores and classes [N, 1]."""
        y, x = np.divmod(np.arange(CELLS), SIZE // STRIDE)
        middle = self.constant((np.stack((x, y), 1) * STRIDE + STRIDE / 2).astype(np.float32))
        sides = self.add("Tanh", self.cells(2, divisor))
        rows = self.add("Transpose", sides, perm=[0, 2, 1])
        rows = self.add("Reshape", rows, self.constant(np.array([-1, 2])))
        rows = self.add("Mul", rows, self.constant(np.float32(15)))
        half = self.add("Add", rows, self.constant(np.float32(20)))
        corners = self.add(
            "Concat", self.add("Sub", middle, half), self.add("Add", middle, half), axis=1
        )
        scores = self.add("Sigmoid", self.cells(CLASSES, divisor, -3))
        scores = self.add("Transpose", scores, perm=[0, 2, 1])
        scores = self.add("Reshape", scores, self.constant(np.array([-1, CLASSES])))
        best, which = (f"best{len(self.nodes)}", f"which{len(self.nodes)}")
        one = self.constant(np.array([1]))
        self.nodes.append(helper.make_node("TopK", [scores, one], [best, which], axis=1))
        return corners, best, self.add("Cast", which, to=1)

    def save(self, path: Path, outputs: dict[str, Sequence[Any]], **metadata: str) -> Path:
        """Save it with these outputs."""
        path.parent.mkdir(exist_ok=True)
        made = [helper.make_tensor_value_info(name, 1, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, "finished", self.inputs, made, self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        helper.set_model_props(model, metadata)
        onnx.save(model, path)
        return path


def stretched(picture: Any, how: int = cv2.INTER_LINEAR) -> Any:
    """Return a picture as [1, 3, SIZE, SIZE] in RGB."""
    pixels = cv2.resize(picture, (SIZE, SIZE), interpolation=how)[:, :, ::-1]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32)


def letterboxed(picture: Any) -> tuple[Any, float, tuple[float, float]]:
    """Return a picture as [1, 3, SIZE, SIZE] in BGR, its ratio, and its place."""
    high, wide = picture.shape[:2]
    ratio = min(SIZE / high, SIZE / wide)
    size = round(wide * ratio), round(high * ratio)
    left, top = (SIZE - size[0]) / 2, (SIZE - size[1]) / 2
    small = cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR)
    sides = [round(top - 0.1), round(top + 0.1), round(left - 0.1), round(left + 0.1)]
    whole = cv2.copyMakeBorder(small, *sides, cv2.BORDER_CONSTANT, value=(114, 114, 114))
    return whole.transpose(2, 0, 1)[None].astype(np.float32), ratio, (left, top)


def placed(kind: float, score: float, box: Any) -> dict[str, Any]:
    """Return a finding."""
    return {"label": LABELS[int(kind)], "score": float(score), "box": [float(at) for at in box]}


def paddle(shop: Workshop, *, with_shape: bool) -> None:
    """Rows of class, score and box in pixels of the picture, by the factors it is given."""
    name = f"paddle{'-im-shape' if with_shape else ''}"
    graph = Graph("image")
    corners, best, which = graph.boxes()
    graph.inputs.append(helper.make_tensor_value_info("scale_factor", 1, (1, 2)))
    if with_shape:
        graph.inputs.append(helper.make_tensor_value_info("im_shape", 1, (1, 2)))
        turned = graph.add("Gather", "im_shape", graph.constant(np.array([1, 0])), axis=1)
        limits = graph.add("Concat", turned, turned, axis=1)
        corners = graph.add("Max", corners, graph.constant(np.float32(0)))
        corners = graph.add("Min", corners, limits)
    factors = graph.add("Gather", "scale_factor", graph.constant(np.array([1, 0, 1, 0])), axis=1)
    corners = graph.add("Div", corners, factors)
    graph.add("Concat", which, best, corners, axis=1, name="multiclass_nms3_0.tmp_0")
    path = graph.save(shop.scrap / name / "model.onnx", {"multiclass_nms3_0.tmp_0": (None, 6)})
    session = onnxruntime.InferenceSession(path)
    mean, scale = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    expected = {}
    for file, picture in shop.read().items():
        high, wide = picture.shape[:2]
        pixels = stretched(picture, cv2.INTER_CUBIC) / 255
        pixels = (pixels - mean[:, None, None]) / scale[:, None, None]
        given = {"image": pixels, "scale_factor": np.float32([[SIZE / high, SIZE / wide]])}
        if with_shape:
            given["im_shape"] = np.float32([[SIZE, SIZE]])
        rows = session.run(None, given)[0]
        expected[file] = [
            placed(row[0], row[1], row[2:]) for row in rows if row[1] > THRESHOLD and row[0] > -1
        ]
    fixed = ", im_shape = [[320, 320]]" if with_shape else ""
    build(
        shop,
        name,
        f"""\
tensor = "image"
interpolation = "cubic"
mean = [123.675, 116.28, 103.53]
scale = [58.395, 57.12, 57.375]
fixed = {{ scale_factor = [[1, 1]]{fixed} }}""",
        'decoder = "ssd"\nlayout = "paddle"',
        expected,
    )


def rows_of_seven(shop: Workshop, name: str) -> None:
    """YOLOv7 --end2end (RGB in 0..1) and YOLO-NAS' flat format (bytes in BGR)."""
    seventh = name == "yolov7-end2end"
    graph = Graph(bytes_=not seventh)
    corners, best, which = graph.boxes(1 if seventh else 255)
    image = graph.add("Mul", best, graph.constant(np.float32(0)))
    parts = [image, corners, which, best] if seventh else [image, corners, best, which]
    out = "output" if seventh else "graph2_flat_predictions"
    graph.add("Concat", *parts, axis=1, name=out)
    session = onnxruntime.InferenceSession(
        graph.save(shop.scrap / name / "model.onnx", {out: (None, 7)})
    )
    expected = {}
    for file, picture in shop.read().items():
        pixels, ratio, corner = letterboxed(picture)
        given = pixels[:, ::-1] / 255 if seventh else pixels.astype(np.uint8)
        expected[file] = []
        for row in session.run(None, {"x": np.ascontiguousarray(given)})[0]:
            box = (row[1:5] - corner * 2) / ratio
            kind, score = row[5:] if seventh else row[:4:-1]
            if score >= THRESHOLD:
                expected[file].append(placed(kind, score, box))
    input_ = 'resize = "letterbox"\n' + ("scale = 255" if seventh else 'color = "bgr"')
    layout = "yolov7" if seventh else "yolo-nas"
    build(shop, name, input_, f'decoder = "ssd"\nlayout = "{layout}"', expected)


def yolov4(shop: Workshop) -> None:
    """Boxes [1, N, 1, 4] in 0..1 and confidences [1, N, C], suppressed class by class."""
    graph = Graph()
    corners, _, _ = graph.boxes()
    boxes = graph.add("Div", corners, graph.constant(np.float32(SIZE)))
    graph.add("Reshape", boxes, graph.constant(np.array([1, -1, 1, 4])), name="boxes")
    scores = graph.add("Sigmoid", graph.cells(CLASSES, shift=-3))
    graph.add("Transpose", scores, perm=[0, 2, 1], name="confs")
    shapes = {"boxes": (1, CELLS, 1, 4), "confs": (1, CELLS, CLASSES)}
    session = onnxruntime.InferenceSession(graph.save(shop.scrap / "yolov4/model.onnx", shapes))
    expected = {}
    for file, picture in shop.read().items():
        high, wide = picture.shape[:2]
        boxes_, confs = session.run(None, {"x": stretched(picture) / 255})
        best, which = confs[0].max(axis=1), confs[0].argmax(axis=1)
        found = []
        for kind in range(CLASSES):
            own = [at for at in np.argsort(-best) if which[at] == kind and best[at] > THRESHOLD]
            while own:
                first, *rest = own
                found.append(placed(kind, best[first], boxes_[0, first, 0] * ([wide, high] * 2)))
                own = [at for at in rest if iou(boxes_[0, first, 0], boxes_[0, at, 0]) <= 0.6]
        expected[file] = sorted(found, key=lambda one: -one["score"])
    build(shop, "yolov4", "scale = 255", 'decoder = "ssd"\niou = 0.6', expected, iou=0.6)


def iou(one: Any, other: Any) -> float:
    """Return the intersection over union."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    both = float(np.prod(np.maximum(sides, 0)))
    return both / float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - both)


def numbers(graph: Graph, count: int, name: str = "") -> str:
    """Add means of tanh over all cells, [1, count]."""
    seen = graph.add("Tanh", graph.cells(count))
    found = graph.add("ReduceMean", seen, axes=[2], keepdims=0)
    return graph.add("Mul", found, graph.constant(np.float32(40)), name=name)


def classifiers(shop: Workshop) -> None:
    """One sigmoid; two heads, each read by its name; Custom Vision's map of labels."""
    labels = ["cat", "dog"]
    graph = Graph()
    graph.add("Sigmoid", numbers(graph, 1), name="dense")
    path = graph.save(shop.scrap / "one-sigmoid/model.onnx", {"dense": (1, 1)})
    seen = {
        file: (1 - float(made[0][0, 0]), float(made[0][0, 0])) for file, made in run(shop, path)
    }
    ranked(shop, "one-sigmoid", seen, labels, f'decoder = "softmax"\nlabels = {labels}')

    graph = Graph()
    graph.add("Softmax", numbers(graph, 4), axis=1, name="age")
    graph.add("Softmax", numbers(graph, 4), axis=1, name="mood")
    shapes = {"age": (1, 4), "mood": (1, 4)}
    for place, head in enumerate(shapes):
        name = f"two-heads-{head}"
        path = graph.save(shop.scrap / name / "model.onnx", shapes)
        labels = [f"{head}{number}" for number in range(4)]
        seen = {file: tuple(map(float, made[place][0])) for file, made in run(shop, path)}
        output = f'decoder = "softmax"\nlabels = {labels}\nnames = {{ scores = "{head}" }}'
        ranked(shop, name, seen, labels, output)

    graph = Graph("data")
    chances = graph.add("Softmax", numbers(graph, 3), axis=1)
    texts = {"classlabels_strings": [f"part {number}" for number in range(3)]}
    graph.add("ZipMap", chances, name="loss", domain="ai.onnx.ml", **texts)
    path = graph.save(
        shop.scrap / "custom-vision-zipmap/model.onnx",
        {"loss": ()},
        **{"Image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "NominalRange_0_255"},
    )
    model = onnx.load(path)
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_map_type_proto(TensorProto.STRING, value)
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(maps))
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path)
    labels = texts["classlabels_strings"]
    seen = {}
    for file, picture in shop.read().items():
        (made,) = session.run(None, {"data": stretched(picture)[:, ::-1] / 255})
        seen[file] = tuple(made[0][label] for label in labels)
    output = f'decoder = "softmax"\nlabels = {labels}\nnames = {{ scores = "loss" }}'
    ranked(shop, path.parent.name, seen, labels, output, 'color = "bgr"\nscale = 255')


def run(shop: Workshop, path: Path) -> list[tuple[str, Any]]:
    """Run a network on all pictures, RGB in 0..1."""
    session = onnxruntime.InferenceSession(path)
    return [
        (file, session.run(None, {"x": stretched(picture) / 255}))
        for file, picture in shop.read().items()
    ]


def ranked(
    shop: Workshop,
    name: str,
    seen: dict[str, tuple[float, ...]],
    labels: Sequence[str],
    output: str,
    input_: str = "scale = 255",
) -> None:
    """Write a case of classes, best first."""
    expected = {
        file: sorted(
            (
                {"label": label, "score": score}
                for label, score in zip(labels, chances, strict=True)
            ),
            key=lambda one: -one["score"],
        )
        for file, chances in seen.items()
    }
    build(shop, name, input_, output, expected, task="classification")


def anomalies(shop: Workshop) -> None:
    """Build anomalib's score beside its map, and two heads as numbers by name."""
    graph = Graph()
    graph.add("Sigmoid", numbers(graph, 1), name="pred_score")
    seen = graph.add("Sigmoid", graph.cells(1))
    side = SIZE // STRIDE
    graph.add("Reshape", seen, graph.constant(np.array([1, 1, side, side])), name="anomaly_map")
    shapes = {"pred_score": (1, 1), "anomaly_map": (1, 1, side, side)}
    path = graph.save(shop.scrap / "anomalib/model.onnx", shapes)
    expected = {
        file: [{"label": "anomaly", "score": float(made[0][0, 0])}]
        for file, made in run(shop, path)
    }
    output = 'decoder = "score"\nthreshold = 0.5\nnames = { score = "pred_score" }'
    build(shop, "anomalib", "scale = 255", output, expected, task="anomaly", numbers=True)

    graph = Graph()
    numbers(graph, 1, "yaw")
    numbers(graph, 2, "gaze")
    path = graph.save(shop.scrap / "several-heads/model.onnx", {"yaw": (1, 1), "gaze": (1, 2)})
    names = ("yaw", "gaze[0]", "gaze[1]")
    expected = {
        file: [
            {"label": name, "score": float(one)}
            for name, one in zip(names, np.concatenate(made, axis=1)[0], strict=True)
        ]
        for file, made in run(shop, path)
    }
    name = "several-heads"
    build(shop, name, "scale = 255", 'decoder = "raw"', expected, task="regression", numbers=True)


def maps_and_batches(shop: Workshop) -> None:
    """Build a map of anomalies, whose highest number anomalib takes, and a batch of eight."""
    graph, side = Graph(), SIZE // STRIDE
    graph.add("Sigmoid", graph.cells(1), name="seen")
    given = graph.constant(np.array([1, 1, side, side]))
    graph.add("Reshape", "seen", given, name="anomaly_map")
    shapes: dict[str, Any] = {"anomaly_map": (1, 1, side, side)}
    path = graph.save(shop.scrap / "anomaly-map-alone/model.onnx", shapes)
    expected = {
        file: [{"label": "anomaly", "score": float(made[0].max())}]
        for file, made in run(shop, path)
    }
    output = 'decoder = "score"\nthreshold = 0.5'
    name = "anomaly-map-alone"
    build(shop, name, "scale = 255", output, expected, task="anomaly", numbers=True)

    graph = Graph(batch=8)
    graph.add("Softmax", numbers(graph, 3), axis=1, name="prob")
    path = graph.save(shop.scrap / "batch-of-8/model.onnx", {"prob": (8, 3)})
    session = onnxruntime.InferenceSession(path)
    seen = {}
    for file, picture in shop.read().items():
        # Seven black ones behind it.
        given_ = np.concatenate(
            (stretched(picture) / 255, np.zeros((7, 3, SIZE, SIZE), np.float32))
        )
        seen[file] = tuple(map(float, session.run(None, {"x": given_})[0][0]))
    output = f'decoder = "softmax"\nlabels = {LABELS}'
    ranked(shop, "batch-of-8", seen, LABELS, output)


def refused(shop: Workshop) -> None:
    """Write cases of what is refused with what to do instead."""
    shapes: dict[str, tuple[Graph, dict[str, Any]]] = {}
    for name, taken, made in (
        ("openwakeword-embedding", (1, 76, 32, 1), (1, 1, 1, 96)),
        ("openwakeword-wakeword", (1, 16, 96), (1, 1)),
    ):
        graph = Graph()
        graph.inputs = [helper.make_tensor_value_info("x", 1, taken)]
        total = graph.add("ReduceMean", "x", keepdims=1)
        flat = graph.add("Reshape", total, graph.constant(np.array([1, 1])))
        wide = graph.add("Expand", flat, graph.constant(np.array([1, made[-1]])))
        graph.add("Reshape", wide, graph.constant(np.array(made)), name="y")
        shapes[name] = graph, {"y": made}
    graph = Graph()
    graph.inputs = [helper.make_tensor_value_info("input", 1, (1, None))]
    graph.add("Reshape", "input", graph.constant(np.array([1, 1, -1, 32])), name="output")
    shapes["openwakeword-spectrum"] = graph, {"output": (1, 1, None, 32)}
    for name, (graph, outputs) in shapes.items():
        path = graph.save(shop.scrap / name / "model.onnx", outputs)
        facts = {"family": name, "exporter": "by formula", "precision": "FP32"}
        facts |= {"threshold": 0.0, "iou": None, "most": 5, "refused": True}
        shop.add(name, [path], "model.onnx", {}, note="to be refused", **facts)


def build(
    shop: Workshop,
    name: str,
    input_: str,
    output: str,
    expected: dict[str, list[dict[str, Any]]],
    *,
    task: str = "detection",
    iou: float | None = None,
    **facts: Any,
) -> None:
    """Write a case with its manifest."""
    detects = task == "detection"
    if detects:
        output += f"\nthreshold = {THRESHOLD}\nlabels = {LABELS}"
    write_manifest(shop.scrap / name, task, "model.onnx", input_, output)
    facts |= {"family": name, "exporter": "by formula", "precision": "FP32", "note": ""}
    facts |= {
        "threshold": THRESHOLD if detects else 0.0,
        "iou": iou,
        "most": 3000 if detects else 5,
    }
    if "ZipMap" in (shop.scrap / name / "model.onnx").read_bytes().decode("latin1"):
        facts["engines"] = ["onnxruntime"]
    shop.add(name, [shop.scrap / name], name, expected, **facts)


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))
    for with_shape in (False, True):
        paddle(shop, with_shape=with_shape)
    for name in ("yolov7-end2end", "yolo-nas-flat"):
        rows_of_seven(shop, name)
    yolov4(shop)
    classifiers(shop)
    anomalies(shop)
    maps_and_batches(shop)
    refused(shop)


if __name__ == "__main__":
    main()
