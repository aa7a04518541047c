"""Detectors whose exports end in heads, in rows, by level or in cells.

What is expected is computed here from each family's published formulas, box by box; networks give
random numbers, through both engines, from a model folder on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from edge_agent.core.errors import AgentError, ModelError, SampleError
from edge_agent.core.types import Detections, Findings, Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.manifest import load
from tests.helpers.decoder_models import HEIGHT, WIDTH, write_constant_model
from tests.helpers.drafts import decided
from tests.helpers.tiny_networks import node, save_onnx
from tests.helpers.tiny_tflite import save_fomo

Floats = NDArray[np.float32]
Box = tuple[float, float, float, float]
Found = tuple[str, float, Box]
ENGINES = ("onnxruntime", "openvino")
LABELS = ("cat", "dog", "bird")
STRIDES = (8, 16, 32)
YOLO = (10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326)
CELLS = (0.573, 0.677, 1.87, 2.06, 3.34, 5.47, 7.88, 3.53, 9.77, 9.17)
FAST = (12.64, 19.39, 37.88, 51.48, 55.71, 138.31, 126.91, 78.23, 131.57, 214.55, 279.92, 258.87)


def findings(
    folder: Path,
    outputs: Mapping[str, NDArray[Any]],
    output: Mapping[str, Any],
    engine: str,
    task: str = "detection",
) -> Findings:
    """Run a model folder, whose network gives *outputs*, on one picture of its size."""
    write_constant_model(folder / "model.onnx", outputs)
    about = {"name": "m", "version": "1", "task": task, "file": "model.onnx"}
    (folder / "model.toml").write_text(tomli_w.dumps({**about, "output": dict(output)}))
    model = load_model(load(folder), [EngineChoice(engine)], "picture")
    try:
        picture = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
        return model.infer(Sample(picture, 0, 0, 0.0)).findings
    finally:
        model.engine.close()


def check(found: Findings, expected: Sequence[Found]) -> None:
    """Compare with what the formulas give, clipped to the picture as results are."""
    assert isinstance(found, Detections)
    inside = [
        (label, score, np.clip(box, 0, [WIDTH, HEIGHT] * 2))
        for label, score, box in sorted(expected, key=lambda one: -one[1])
    ]
    inside = [one for one in inside if (one[2][2:] > one[2][:2]).all()]
    assert len(found) == len(inside) > 0
    assert found.labels == tuple(label for label, _, _ in inside)
    assert_allclose(found.scores, [score for _, score, _ in inside], atol=2e-5)
    assert_allclose(found.boxes, [box for _, _, box in inside], atol=2e-2)


def sigmoid(value: float) -> float:
    """Return 1 / (1 + e**-value)."""
    return 1 / (1 + exp(-value))


def boxed(x: float, y: float, width: float, height: float) -> Box:
    """Turn middle and size into corners."""
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def cells_of(heads: Sequence[Floats]) -> Iterator[tuple[int, int, int, int, int, list[float]]]:
    """Yield level, stride, row, column, anchor and the numbers of heads (A, H, W, 5 + classes)."""
    for level, head in enumerate(heads):
        stride = WIDTH // head.shape[2]
        for anchor, row, column in np.ndindex(*head.shape[:3]):
            yield level, stride, row, column, anchor, head[anchor, row, column].tolist()


def by_formula(
    heads: Sequence[Floats], anchors: Sequence[float], layout: str, threshold: float
) -> list[Found]:
    """Decode heads as YOLOv2, v3 and v5 are published, one box after the other."""
    found = []
    for level, stride, row, column, anchor, numbers in cells_of(heads):
        place = 2 * (level * len(heads[0]) + anchor)
        wide, high = anchors[place : place + 2]
        x, y, w, h, objectness, *classes = numbers
        if layout in {"yolov2", "custom-vision"}:
            wide, high = wide * stride, high * stride
            total = sum(exp(each) for each in classes)
            scores = [exp(each) / total for each in classes]
        else:
            scores = [sigmoid(each) for each in classes]
        if layout == "yolov5-heads":
            center = [2 * sigmoid(x) - 0.5, 2 * sigmoid(y) - 0.5]
            size = [(2 * sigmoid(w)) ** 2 * wide, (2 * sigmoid(h)) ** 2 * high]
        else:
            linear = layout == "custom-vision"
            center = [x, y] if linear else [sigmoid(x), sigmoid(y)]
            size = [exp(w) * wide, exp(h) * high]
        score = sigmoid(objectness) * max(scores)
        if score >= threshold:
            box = boxed((center[0] + column) * stride, (center[1] + row) * stride, *size)
            found.append((LABELS[scores.index(max(scores))], score, box))
    return found


def random_heads(strides: Sequence[int], anchors: int, seed: int) -> list[Floats]:
    """Make heads (A, H, W, 8) of which few boxes are likely."""
    random = np.random.default_rng(seed)
    heads = []
    for stride in strides:
        head = random.normal(0, 1.5, (anchors, HEIGHT // stride, WIDTH // stride, 8))
        head[..., 4] -= 2
        head[..., 2:4] /= 3
        heads.append(head.astype(np.float32))
    return heads


ARRANGED = {
    "anchors-first": lambda head: head[None],
    "anchors-third": lambda head: head.transpose(1, 2, 0, 3)[None],
    "channels-first": lambda head: head.transpose(0, 3, 1, 2).reshape(1, -1, *head.shape[1:3]),
    "channels-last": lambda head: head.transpose(1, 2, 0, 3).reshape(1, *head.shape[1:3], -1),
}
"""How exporters write a head (A, H, W, n)."""
SETTINGS = {"decoder": "yolov5", "threshold": 0.3, "labels": LABELS, "iou": 1.0}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize("layout", ["yolov5-heads", "yolov3"])
def test_heads_are_decoded_as_their_formulas_have_it(
    layout: str, arranged: str, engine: str, tmp_path: Path
) -> None:
    """Three levels in any order: the finest has the first anchors."""
    heads = random_heads(STRIDES, 3, 1)
    outputs = {f"out{at}": ARRANGED[arranged](heads[at]) for at in (2, 0, 1)}
    output = {**SETTINGS, "layout": layout, "anchors": YOLO}
    check(findings(tmp_path, outputs, output, engine), by_formula(heads, YOLO, layout, 0.3))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", ["yolov2", "custom-vision"])
def test_one_head_of_five_anchors_in_cells(layout: str, engine: str, tmp_path: Path) -> None:
    """YOLOv2 has a softmax; Custom Vision's newer exports no sigmoid of the middle besides."""
    heads = random_heads([16], 5, 2)
    outputs = {"model_outputs0": ARRANGED["channels-first"](heads[0])}
    output = {**SETTINGS, "layout": layout, "anchors": CELLS}
    check(findings(tmp_path, outputs, output, engine), by_formula(heads, CELLS, layout, 0.3))


@pytest.mark.parametrize("engine", ENGINES)
def test_heads_with_their_sigmoid_inside(engine: str, tmp_path: Path) -> None:
    """As exporters for other chips write YOLOv5: all numbers lie in 0..1."""
    heads = random_heads(STRIDES, 3, 3)
    outputs = {
        f"out{at}": ARRANGED["channels-first"](1 / (1 + np.exp(-head)))
        for at, head in enumerate(heads)
    }
    output = {**SETTINGS, "layout": "yolov5-heads", "anchors": YOLO}
    expected = by_formula(heads, YOLO, "yolov5-heads", 0.3)
    check(findings(tmp_path, outputs, output, engine), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_yolo_fastestv2(engine: str, tmp_path: Path) -> None:
    """Boxes and objectness of three anchors, classes for all of them, sigmoid and softmax done."""
    random, outputs, expected = np.random.default_rng(4), {}, []
    for level, stride in enumerate((16, 32)):
        rows, columns = HEIGHT // stride, WIDTH // stride
        boxes = random.uniform(0.2, 0.8, (rows, columns, 3, 4))
        certain = random.uniform(0, 0.9, (rows, columns, 3))
        classes = random.dirichlet([0.3] * 3, (rows, columns))
        parts = (boxes.reshape(rows, columns, 12), certain, classes)
        outputs[f"79{level}"] = np.concatenate(parts, axis=2)[None].astype(np.float32)
        for row, column, anchor in np.ndindex(rows, columns, 3):
            x, y, w, h = boxes[row, column, anchor]
            wide, high = FAST[6 * level + 2 * anchor :][:2]
            score = certain[row, column, anchor] * classes[row, column].max()
            center = ((2 * x - 0.5 + column) * stride, (2 * y - 0.5 + row) * stride)
            box = boxed(*center, (2 * w) ** 2 * wide, (2 * h) ** 2 * high)
            if score >= 0.3:
                expected.append((LABELS[int(classes[row, column].argmax())], score, box))
    output = {**SETTINGS, "layout": "yolo-fastestv2", "anchors": FAST}
    check(findings(tmp_path, outputs, output, engine), expected)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"layout": "yolov5-heads"}, r"output\.anchors: expected width and height"),
        ({"layout": "yolov5-heads", "anchors": YOLO[:3]}, r"output\.anchors.*found 3 numbers"),
        ({"layout": "yolov5-heads", "anchors": YOLO[:4]}, r"output\.anchors.*found 2 for"),
        (
            {"layout": "yolov5-heads", "anchors": YOLO[:12]},
            "for each of 2 anchors, found",
        ),
        ({"layout": "yolov9", "anchors": YOLO}, r"output\.layout.*yolov5-heads, yolov3"),
        ({"anchors": YOLO}, r"output\.anchors: is for layouts"),
        ({"layout": "yolov3", "anchors": YOLO, "labels": LABELS[:2]}, "expected 3 labels"),
        ({"layout": "yolov3", "anchors": [-1, *YOLO[1:]]}, r"output\.anchors"),
    ],
)
def test_heads_that_do_not_fit_say_what_is_wrong(
    output: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    """Anchors are never guessed; each refusal names the key."""
    heads = random_heads(STRIDES, 3, 5)
    outputs = {f"out{at}": ARRANGED["anchors-first"](head) for at, head in enumerate(heads)}
    with pytest.raises(ModelError, match=message):
        findings(tmp_path, outputs, {**SETTINGS, **output}, "onnxruntime")


def test_heads_of_integers_are_refused_where_there_are_several(tmp_path: Path) -> None:
    """Each has a step of its own, which one manifest cannot say."""
    outputs = {f"out{s}": np.zeros((1, 24, HEIGHT // s, WIDTH // s), np.int8) for s in STRIDES}
    output = {**SETTINGS, "layout": "yolov5-heads", "anchors": YOLO, "scale": 0.1}
    with pytest.raises(ModelError, match="floats where there are several"):
        findings(tmp_path, outputs, output, "onnxruntime")


def rows_of(layout: str) -> Floats:
    """Write two boxes as a family does."""
    boxes = [(8, 4, 16, 24), (20, 10, 30, 60)]
    kinds, scores = (0, 2), (0.9, 0.8)
    rows: list[list[float]] = []
    for box, kind, score in zip(boxes, kinds, scores, strict=True):
        parts = {
            "paddle": [kind, score, *box],
            "yolov7": [0, *box, kind, score],
            "pinto": [0, kind, score, *box],
        }
        rows.append(parts.get(layout, [0, *box, score, kind]))
    return np.array(rows, np.float32)


ROWS = (("cat", 0.9, (8.0, 4.0, 16.0, 24.0)), ("bird", 0.8, (20.0, 10.0, 30.0, 60.0)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", ["paddle", "yolov7", "yolo-nas", "pinto"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_rows_are_read_in_the_order_of_their_layout(
    count: int, layout: str, engine: str, tmp_path: Path
) -> None:
    """None, one or two boxes; PaddleDetection says how many, and fills up with class -1."""
    outputs: dict[str, NDArray[Any]] = {"rows": rows_of(layout)[:count]}
    if layout == "paddle":
        filled = np.full((1, 6), -1, np.float32)
        outputs = {"rows": np.concatenate((outputs["rows"], filled)), "num": np.array([count])}
    elif not count:
        outputs["rows"] = np.zeros((1, 7), np.float32)
    output = {"decoder": "ssd", "layout": layout, "threshold": 0.5, "labels": LABELS}
    found = findings(tmp_path, outputs, output, engine)
    if count:
        check(found, ROWS[:count])
    else:
        assert isinstance(found, Detections)
        assert len(found) == 0


@pytest.mark.parametrize(("wrote", "said"), [("yolov7", "yolo-nas"), ("yolo-nas", "yolov7")])
def test_the_other_order_of_a_row_is_an_error(wrote: str, said: str, tmp_path: Path) -> None:
    """A score where a class should be is no class; nothing is published of it."""
    output = {"decoder": "ssd", "threshold": 0.5, "labels": LABELS}
    with pytest.raises(SampleError, match=f"as layout '{said}' has it"):
        findings(tmp_path, {"rows": rows_of(wrote)}, output | {"layout": said}, "onnxruntime")
    with pytest.raises(ModelError, match=r"output\.layout: is missing.*yolov7, yolo-nas"):
        findings(tmp_path, {"rows": rows_of(wrote)}, output, "onnxruntime")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("with_points", [False, True])
def test_scrfd(with_points: bool, batch: bool, engine: str, tmp_path: Path) -> None:
    """Distances and points of two anchors a cell, measured from its corner in strides."""
    random = np.random.default_rng(6)
    outputs: dict[str, Floats] = {}
    expected: list[tuple[Found, list[tuple[float, float]]]] = []
    for width in (1, 4, 10) if with_points else (1, 4):
        for stride in STRIDES:
            count = 2 * (WIDTH // stride) * (HEIGHT // stride)
            table = random.uniform(0.5, 2, (count, width)).astype(np.float32)
            outputs[str(len(outputs) + 448)] = table / 2.2 if width == 1 else table
    tables = list(outputs.values())
    for level, stride in enumerate(STRIDES):
        for row in range(len(tables[level])):
            y, x = divmod(row // 2, WIDTH // stride)
            score = float(tables[level][row, 0])
            left, top, right, bottom = (tables[3 + level][row] * stride).tolist()
            box = (x * stride - left, y * stride - top, x * stride + right, y * stride + bottom)
            kps = (tables[6 + level][row] * stride).tolist() if with_points else []
            points = [
                (x * stride + kps[at], y * stride + kps[at + 1]) for at in range(0, len(kps), 2)
            ]
            if score >= 0.85:
                expected.append((("face", score, box), points))
    if batch:
        outputs = {name: table[None] for name, table in outputs.items()}
    output = {"decoder": "yunet", "threshold": 0.85, "iou": 1.0, "labels": ["face"]}
    found = findings(tmp_path, outputs, output, engine)
    check(found, [one for one, _ in expected])
    assert isinstance(found, Detections)
    if with_points:
        assert found.points is not None
        best = max(expected, key=lambda one: one[0][1])
        assert_allclose(found.points[0], best[1], atol=1e-2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("first", "each"), [(True, 2), (False, 3)])
def test_points_of_a_yolov5_row(first: bool, each: int, engine: str, tmp_path: Path) -> None:
    """YOLOv5-face and plates have points before the classes, YOLOv7-pose behind them."""
    points = np.arange(4 * each, dtype=np.float32) / (4 * each)
    box, chances = [48.0, 30.0, 20.0, 16.0], [0.25, 0.75]
    rest = [*points, *chances] if first else [*chances, *points]
    rows = np.zeros((1, 6, 5 + len(rest)), np.float32)
    rows[0, 4] = [*box, 0.8, *rest]
    layout = {"layout": "points-first"} if first else {}
    keys = {"decoder": "yolov5", "labels": ["blue", "green"], "points": 4, "threshold": 0.5}
    found = findings(tmp_path, {"output": rows}, {**keys, **layout}, engine, "keypoints")
    check(found, [("green", 0.6, (38, 22, 58, 38))])
    assert isinstance(found, Detections)
    assert found.points is not None
    assert_allclose(found.points[0], points.reshape(4, each), atol=1e-5)


def test_points_come_first_only_of_key_points(tmp_path: Path) -> None:
    """A layout of key points for boxes alone, and the other way round, is an error."""
    for task, layout in (("detection", "points-first"), ("keypoints", "yolov3")):
        keys = {"decoder": "yolov5", "labels": ["face"], "points": 5, "layout": layout}
        with pytest.raises(ModelError, match=r"output\.layout: decoder 'yolov5' of task"):
            findings(tmp_path, {"output": np.zeros((1, 6, 16), np.float32)}, keys, ENGINES[0], task)


def test_scrfd_with_a_level_too_few(tmp_path: Path) -> None:
    """Six outputs that are not three of scores and three of boxes are refused."""
    outputs = {
        str(at): np.zeros((192, width), np.float32) for at, width in enumerate([1] * 4 + [4] * 2)
    }
    with pytest.raises(ModelError, match="of SCRFD three outputs each"):
        findings(tmp_path, outputs, {"decoder": "yunet", "labels": ["face"]}, "onnxruntime")


def merged(cells: Floats, threshold: float) -> list[Found]:
    """Merge cells (rows, columns, 1 + classes) that touch, as Edge Impulse's code does.

    Again and again until nothing touches; its own goes through them once.
    """
    found: list[list[Any]] = []
    for row, column, kind in np.ndindex(*cells.shape):
        if kind and cells[row, column, kind] >= threshold:
            found.append([kind, cells[row, column, kind], column, row, column + 1, row + 1])
    again = True
    while again:
        again = False
        for one in found:
            for other in found:
                apart = (
                    one[2] > other[4] or other[2] > one[4] or one[3] > other[5] or other[3] > one[5]
                )
                if one is not other and one[0] == other[0] and not apart:
                    one[1] = max(one[1], other[1])
                    one[2:] = [*map(min, one[2:4], other[2:4]), *map(max, one[4:], other[4:])]
                    found.remove(other)
                    again = True
                    break
            if again:
                break
    return [(LABELS[one[0] - 1], float(one[1]), tuple(8.0 * at for at in one[2:])) for one in found]


def cells_of_fomo() -> Floats:
    """Make cells of which an L, a pair at a corner, a lone one and two neighbors of two kinds."""
    cells = np.zeros((HEIGHT // 8, WIDTH // 8, 4), np.float32)
    for row, column, kind, chance in (
        *((1, 1, 1, 0.6), (2, 1, 1, 0.95), (2, 2, 1, 0.7), (5, 5, 2, 0.55), (6, 6, 2, 0.8)),
        *((0, 11, 3, 0.9), (7, 0, 1, 0.65), (7, 1, 2, 0.75), (4, 9, 3, 0.3)),
    ):
        cells[row, column, kind] = chance
    cells[..., 0] = 1 - cells.sum(axis=2)
    return cells


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("integers", [False, True])
def test_fomo_cells_that_touch_are_one_object(integers: bool, engine: str, tmp_path: Path) -> None:
    """As floats and in steps of 1/256, whose first class is the background."""
    cells = cells_of_fomo()
    output: dict[str, Any] = {"decoder": "semantic", "threshold": 0.5, "first_label": 1}
    output["labels"] = LABELS
    if integers:
        steps = np.rint(cells * 256 - 128).clip(-128, 127)
        output |= {"scale": 1 / 256, "zero_point": -128}
        cells = ((steps + 128) / 256).astype(np.float32)
        outputs: dict[str, NDArray[Any]] = {"softmax": steps[None].astype(np.int8)}
    else:
        outputs = {"softmax": cells[None]}
    check(findings(tmp_path, outputs, output, engine), merged(cells, 0.5))


def test_fomo_without_its_softmax_is_an_error(tmp_path: Path) -> None:
    """Logits, or steps taken for chances, are none; the keys are named."""
    output = {"decoder": "semantic", "first_label": 1, "labels": LABELS}
    outputs = {"softmax": 9 * cells_of_fomo()[None]}
    with pytest.raises(SampleError, match=r"no chance.*output\.scale"):
        findings(tmp_path, outputs, output, "onnxruntime")
    with pytest.raises(AgentError, match=r"output\.labels: expected"):
        findings(tmp_path, outputs, output | {"first_label": 0}, "onnxruntime")


@pytest.mark.parametrize("integers", [True, False])
def test_fomo_as_edge_impulse_deploys_it(integers: bool, tmp_path: Path) -> None:
    """A .tflite of bytes or of floats: the draft asks for labels and resize, and then it finds."""
    path = save_fomo(tmp_path / "trained.tflite", integers=integers)
    made = describe(path)
    assert made.manifest is None
    table = tomllib.loads(decided(made.draft))
    assert table["output"] == {"decoder": "semantic", "threshold": 0.5, "first_label": 1}
    table["output"]["labels"] = ["green", "blue"]
    (tmp_path / "model.toml").write_text(tomli_w.dumps(table))
    picture = np.zeros((96, 96, 3), np.uint8)
    picture[..., 2] = 255  # red, in the order of BGR
    picture[16:32, 40:48] = (0, 255, 0)
    picture[80:88, 88:96] = (255, 0, 0)
    model = load_model(load(tmp_path), [EngineChoice("openvino")], "picture")
    try:
        found = model.infer(Sample(picture, 0, 0, 0.0)).findings
    finally:
        model.engine.close()
    assert isinstance(found, Detections)
    assert sorted(found.labels) == ["blue", "green"]
    boxes = dict(zip(found.labels, found.boxes.tolist(), strict=True))
    assert boxes == {"green": [40, 16, 48, 32], "blue": [88, 80, 96, 88]}
    assert found.scores.min() > 0.99


@pytest.mark.parametrize("engine", ENGINES)
def test_paddle_detection_gives_boxes_in_pixels_of_its_input(engine: str, tmp_path: Path) -> None:
    """With an open batch, as paddle2onnx leaves it, and the draft's constants."""
    path = save_onnx(
        tmp_path / "model.onnx",
        [
            node("ReduceMean", ["image"], ["mean"], keepdims=0),
            node("Mul", ["mean", "nought"], ["zero"]),
            # Boxes in 0..1 of y, x are brought to the picture's size, and to that before.
            node("Div", ["im_shape", "scale_factor"], ["size"]),
            node("Gather", ["size", "xyxy"], ["sizes"], axis=1),
            node("Mul", ["boxes", "sizes"], ["placed"]),
            node("Concat", ["found", "placed"], ["rows"], axis=1),
            node("Add", ["rows", "zero"], ["multiclass_nms3_0.tmp_0"]),
            node("Add", ["count", "zero"], ["multiclass_nms3_0.tmp_2"]),
        ],
        [
            ("im_shape", "float32", (None, 2)),
            ("image", "float32", (None, 3, HEIGHT, WIDTH)),
            ("scale_factor", "float32", (None, 2)),
        ],
        [
            ("multiclass_nms3_0.tmp_0", "float32", (None, 6)),
            ("multiclass_nms3_0.tmp_2", "float32", (1,)),
        ],
        {
            "nought": np.zeros((), np.float32),
            "xyxy": np.array([1, 0, 1, 0]),
            "boxes": np.array([[0.25, 0.25, 0.5, 0.5]], np.float32),
            "found": np.array([[1, 0.9]], np.float32),
            "count": np.ones(1, np.float32),
        },
    )
    table = tomllib.loads(decided(describe(path).draft))
    table["input"] |= {"mean": 0, "scale": 255}
    table["output"]["labels"] = LABELS
    (tmp_path / "model.toml").write_text(tomli_w.dumps(table))
    model = load_model(load(tmp_path), [EngineChoice(engine)], "picture")
    try:
        picture = np.full((2 * HEIGHT, 2 * WIDTH, 3), 90, np.uint8)
        found = model.infer(Sample(picture, 0, 0, 0.0)).findings
    finally:
        model.engine.close()
    assert isinstance(found, Detections)
    assert found.labels == ("dog",)
    assert_allclose(found.boxes, [[WIDTH / 2, HEIGHT / 2, WIDTH, HEIGHT]], atol=0.01)
