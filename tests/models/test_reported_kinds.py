"""Three further files of each kind of public report: read rightly, or refused with the way out."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from edge_agent.core.errors import AgentError, ModelError, SampleError
from edge_agent.core.types import Classes, Detections, Findings, RawTensors, Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import load
from tests.helpers.drafts import decided
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx
from tests.helpers.tiny_tflite import Tensor, save_constants, save_teachable, save_tflite
from tests.models.test_reported_models import ENGINES, folder, found

Array = NDArray[Any]
MIDDLE = [[24, 24, 72, 72]]
"""Of a picture of 96 x 96."""


def border(size: tuple[int, int], kind: Any) -> Array:
    """Return logits of anchors, infinite at the border, of a grid of 8 x 8 pixels: (1, N, 4)."""
    columns, rows = size[0] // 8, size[1] // 8
    down, across = np.divmod(np.arange(rows * columns), columns)
    center = np.stack(((across + 0.5) / columns, (down + 0.5) / rows), axis=1)
    anchors = np.concatenate((center, np.full_like(center, 0.5)), axis=1)
    edge = (np.abs(center - 0.5) > 0.45).any(axis=1)
    with np.errstate(divide="ignore"):
        logits = np.log(anchors / (1 - anchors))
    logits[edge] = np.inf
    return logits[None].astype(kind)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("decoder", "size", "kind"),
    [("detr", (640, 320), "float32"), ("rtdetr", (800, 800), "float32"), ("detr", (96, 96), "f2")],
)
def test_d_fine_borders_are_infinite_at_any_size_and_precision(
    tmp_path: Path, decoder: str, size: tuple[int, int], kind: str, engine: str
) -> None:
    """Rectangles, Ultralytics' one tensor, half floats: the middle anchor's box is found."""
    anchors = border(size, kind)
    count = anchors.shape[1]
    best = int(np.abs(anchors[0, :, :2]).sum(axis=1).argmin())
    logits = np.full((1, count, 2), -9, np.float32)
    logits[0, best, 1] = 3
    nodes = [
        node("ReduceMean", ["x"], ["mean"], keepdims=0),
        node("Mul", ["mean", "nought"], ["zero"]),
        node("Cast", ["anchors"], ["wide"], to=1),
        node("Sigmoid", ["wide"], ["placed"]),
        node("Add", ["placed", "zero"], ["pred_boxes"]),
        node("Add", ["scores.value", "zero"], ["logits"]),
    ]
    outputs = [("logits", "float32", logits.shape), ("pred_boxes", "float32", (1, count, 4))]
    if decoder == "rtdetr":
        nodes += [
            node("Sigmoid", ["logits"], ["chances"]),
            node("Concat", ["pred_boxes", "chances"], ["output0"], axis=2),
        ]
        outputs = [("output0", "float32", (1, count, 6))]
    weights = {
        "anchors": anchors,
        "nought": np.zeros((), np.float32),
        "scores.value": logits,
    }
    path = save_onnx(
        tmp_path / "m.onnx", nodes, [("x", "float32", (1, 3, *size[::-1]))], outputs, weights
    )
    made = folder(path, "detection", f'decoder = "{decoder}"\nthreshold = 0.5\nlabels = ["a", "b"]')
    boxes = found(made, engine)
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("b",)
    x, y = 1 / (1 + np.exp(-anchors[0, best, :2].astype(float))) * 96
    assert_allclose(boxes.boxes, [[x - 24, y - 24, x + 24, y + 24]], atol=0.1)


YOLO = {
    "description": "Ultralytics",
    "stride": 32,
    "imgsz": [96, 96],
    "names": {0: "cat", 1: "dog"},
}


@pytest.mark.parametrize("head", ["yolov8", "yolov5", "yolo-e2e"])
def test_ultralytics_heads_of_a_tflite_are_in_0_to_1_whatever_the_family(
    tmp_path: Path, head: str
) -> None:
    """Columns, rows with objectness, and rows with suppression inside."""
    count = 567 if head == "yolov5" else 189
    rows = np.zeros((1, count, {"yolov8": 6, "yolov5": 7, "yolo-e2e": 6}[head]), np.float32)
    rows[0, :, :4] = (0.25, 0.25, 0.75, 0.75) if head == "yolo-e2e" else (0.5, 0.5, 0.5, 0.5)
    rows[0, 7, 4:] = {"yolov8": (0, 0.9), "yolov5": (0.9, 0, 1), "yolo-e2e": (0.9, 1)}[head]
    table = np.ascontiguousarray(rows.transpose(0, 2, 1)) if head == "yolov8" else rows[:, :300]
    table = rows if head == "yolov5" else table
    path = tmp_path / "best_float32.tflite"
    save_constants(path, (1, 96, 96, 3), [Tensor("out", table.shape, values=table)])
    said = {**YOLO, "task": "detect"}
    with zipfile.ZipFile(path, "a") as archive:
        if head == "yolov5":  # as its own repository writes it
            archive.writestr("temp_meta.txt", str({"stride": 32, "names": YOLO["names"]}))
        else:  # as Ultralytics 8.4 does
            archive.writestr("metadata.json", json.dumps(said | {"end2end": True}, indent=2))
    boxes = found(path, "openvino")
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("dog",)
    assert_allclose(boxes.boxes, MIDDLE, atol=0.5)


@pytest.mark.parametrize("numbers", ["halves", "noise", "p6"])
def test_yolov5_numbers_without_a_grid_are_refused_of_any_form(
    tmp_path: Path, numbers: str
) -> None:
    """Boxes that are 0..1 of their cells; with four levels, too."""
    size = 128 if numbers == "p6" else 96
    strides = (8, 16, 32, 64) if numbers == "p6" else (8, 16, 32)
    count = 3 * sum((size // stride) ** 2 for stride in strides)
    table = np.full((1, count, 7), 0.5, np.float32)
    if numbers == "noise":
        table = np.random.default_rng(3).random((1, count, 7), np.float32)
    table[..., 4:] = 0
    table[0, count // 2, 4:6] = 0.95
    network = constant_outputs(tmp_path / "m.onnx", {"output": table}, picture=(1, 3, size, size))
    made = folder(network, "detection", 'decoder = "yolov5"\nlabels = ["a", "b"]', "scale = 255")
    with pytest.raises(SampleError, match=r"anchors and grid are outside .* --grid"):
        found(made, "onnxruntime")


@pytest.mark.parametrize(
    ("kind", "scale", "zero", "value"),
    [("uint8", 1 / 256, 0, 255), ("int8", 1 / 256, -128, 127), ("uint8", 1 / 255, 0, 254)],
)
def test_edge_impulse_chances_of_integers_have_the_steps_of_their_file(
    tmp_path: Path, kind: str, scale: float, zero: int, value: int
) -> None:
    """uint8 and int8, in 256ths and 255ths: a manifest says none of that."""
    held = np.array([[zero, value]], kind)
    tensor = Tensor("y", (1, 2), {"uint8": 3, "int8": 9}[kind], (scale,), zero=zero, values=held)
    path = save_constants(tmp_path / "trained.tflite", (1, 96, 96, 3), [tensor])
    made = folder(
        path, "classification", 'decoder = "softmax"\nlabels = ["a", "b"]', 'layout = "nhwc"'
    )
    classes = found(made, "openvino")
    assert isinstance(classes, Classes)
    assert classes.labels == ("b", "a")
    assert_allclose(classes.scores, [(value - zero) * scale, 0], atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", [(1, 2), (1, 2, 1, 1), (2,)])
def test_torchkan_9_logarithms_of_any_shape_are_chances(
    tmp_path: Path, shape: tuple[int, ...], engine: str
) -> None:
    """LogSoftmax over the classes, wherever these are."""
    chances = np.log(np.array([0.2, 0.8], np.float32)).reshape(shape)
    made = constant_outputs(tmp_path / "m.onnx", {"out": chances})
    classes = found(
        folder(made, "classification", 'decoder = "softmax"\nlabels = ["a", "b"]'), engine
    )
    assert isinstance(classes, Classes)
    assert_allclose(classes.scores, (0.8, 0.2), atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        ("yolov7", [[0, 24, 24, 72, 72, 1, 0.9], [0, 1, 1, 9, 9, 0, 0.3]]),
        ("yolo-nas", [[0, 24, 24, 72, 72, 0.9, 1]]),
        ("pinto", [[0, 1, 0.9, 24, 24, 72, 72], [0, 0, 0.3, 1, 1, 9, 9]]),
        ("paddle", [[1, 0.9, 24, 24, 72, 72], [-1, 0, 0, 0, 0, 0], [1, 0.9, 5, 5, 9, 9]]),
    ],
)
def test_yolov7_1419_rows_of_other_lengths_are_read(
    tmp_path: Path, layout: str, rows: list[list[float]], engine: str
) -> None:
    """What is behind the end of PaddleDetection's rows is none."""
    network = constant_outputs(
        tmp_path / "m.onnx", {"output": np.array(rows, np.float32)}, picture=(1, 3, 96, 96)
    )
    output = f'decoder = "ssd"\nthreshold = 0.5\nlabels = ["cat", "dog"]\nlayout = "{layout}"'
    boxes = found(folder(network, "detection", output), engine)
    assert isinstance(boxes, Detections)
    assert boxes.labels == ("dog",)
    assert_allclose(boxes.boxes, MIDDLE, atol=0.1)


def save_maps(path: Path, *, trees: bool, texts: bool) -> Path:
    """Save a classifier of 4 columns that ends in a ZipMap."""
    from onnx import TensorProto, helper, save

    keys: dict[str, Any] = (
        {"classlabels_strings": ["ok", "worn"]} if texts else {"classlabels_int64s": [0, 1]}
    )
    if trees:
        given: dict[str, Any] = {
            "nodes_treeids": [0, 0, 0],
            "nodes_nodeids": [0, 1, 2],
            "nodes_featureids": [0, 0, 0],
            "nodes_values": [0.5, 0.0, 0.0],
            "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
            "nodes_truenodeids": [1, 0, 0],
            "nodes_falsenodeids": [2, 0, 0],
            "class_treeids": [0, 0, 0, 0],
            "class_nodeids": [1, 1, 2, 2],
            "class_ids": [0, 1, 0, 1],
            "class_weights": [0.9, 0.1, 0.2, 0.8],
        }
        kind = "TreeEnsembleClassifier"
    else:
        kind = "LinearClassifier"
        given = {"coefficients": [0.1] * 8, "intercepts": [0.3, 0.7], "multi_class": 0}
    ml = "ai.onnx.ml"
    nodes = [
        node(kind, ["X"], ["label", "chances"], domain=ml, **given, **keys),
        node("ZipMap", ["chances"], ["maps"], domain=ml, **keys),
    ]
    key = TensorProto.STRING if texts else TensorProto.INT64
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    graph = helper.make_graph(
        nodes,
        "maps",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 4])],
        [
            helper.make_tensor_value_info("label", key, [None]),
            helper.make_value_info("maps", maps),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ml, 3)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def enter(path: Path) -> None:
    """Import a bare file."""
    with import_model(path):
        pass


def row_found(path: Path, row: list[float], engine: str) -> Findings:
    """Infer one row of a table by a model folder."""
    model = load_model(load(path), [EngineChoice(engine)], "signal")
    try:
        return model.infer(Sample(np.array([row], np.float32), 0, 0, 0.0)).findings
    finally:
        model.engine.close()


@pytest.mark.parametrize(("trees", "texts"), [(False, True), (True, False), (True, True)])
def test_skl2onnx_8007_maps_of_texts_or_trees_are_read(
    tmp_path: Path, *, trees: bool, texts: bool
) -> None:
    """Forests, as LightGBM's and XGBoost's, and classes that have names."""
    path = save_maps(tmp_path / "m.onnx", trees=trees, texts=texts)
    with pytest.raises(ModelError, match=r"leaves to decide: input\.channels") as caught:
        enter(path)
    assert "\n" not in str(caught.value)
    (tmp_path / "model.toml").write_text(decided(describe(path).draft))
    classes = row_found(tmp_path, [0, 0, 0, 0], "onnxruntime")
    assert isinstance(classes, Classes)
    best = 0 if trees else 1
    assert classes.labels[0] == (("ok", "worn") if texts else ("0", "1"))[best]
    assert_allclose(classes.scores, (0.9, 0.1) if trees else (0.7, 0.3), atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "read"),
    [
        ("\ufeff0 Good\r\n1 Defective\r\n", ("Good", "Defective")),
        ("0 Good part\n1  Größe 2", ("Good part", "Größe 2")),
        ("Good\nDefective\n", ("Good", "Defective")),
    ],
)
def test_teachable_machine_labels_may_be_marked(
    tmp_path: Path, labels: str, read: tuple[str, ...]
) -> None:
    """A byte order mark, CRLF, spaces, no numbers."""
    save_teachable(tmp_path / "model_unquant.tflite", 2)
    (tmp_path / "labels.txt").write_bytes(labels.encode())
    classes = found(tmp_path, "openvino")
    assert isinstance(classes, Classes)
    assert classes.labels == read


@pytest.mark.parametrize(
    ("custom", "mend"),
    [
        ("TFLite_Detection_PostProcess", "raw boxes and scores"),
        ("PosenetDecoderOp", "built-in operators only"),
        ("edgetpu-custom-op", "that it was compiled from"),
    ],
)
def test_frigate_8621_custom_operators_are_refused_with_the_way_out(
    tmp_path: Path, custom: str, mend: str
) -> None:
    """Each by its name, in one line."""
    tensors = [Tensor("x", (1, 96, 96, 3)), Tensor("y", (1, 10, 4))]
    path = save_tflite(tmp_path / "m.tflite", tensors, [(32, 0, (0,), (1,))], custom=custom)
    with pytest.raises(AgentError, match=f"{custom}.*({mend})") as caught:
        describe(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "shape"),
    [("int64", (1, 32, 32)), ("float32", (None, 1, 32, 32)), ("bool", ("N", 32, 32))],
)
def test_transformers_masks_of_any_type_are_filled_by_one_number(
    tmp_path: Path, kind: str, shape: tuple[Any, ...], engine: str
) -> None:
    """Integers, floats with a channel, and truths."""
    boxes = np.array([[[0.5, 0.5, 0.5, 0.5]]], np.float32)
    nodes = [
        node("Cast", ["pixel_mask"], ["wide"], to=1),
        node("ReduceMin", ["wide"], ["least"], keepdims=0),
        node("ReduceMean", ["pixel_values"], ["mean"], keepdims=0),
        node("Mul", ["mean", "nought"], ["zero"]),
        node("Add", ["boxes.value", "zero"], ["pred_boxes"]),
        node("Mul", ["logits.value", "least"], ["logits"]),
    ]
    path = save_onnx(
        tmp_path / "m.onnx",
        nodes,
        [("pixel_values", "float32", (1, 3, 32, 32)), ("pixel_mask", kind, shape)],
        [("logits", "float32", (1, 1, 3)), ("pred_boxes", "float32", (1, 1, 4))],
        {
            "nought": np.zeros((), np.float32),
            "boxes.value": boxes,
            "logits.value": np.array([[[9, 0, 0]]], np.float32),
        },
    )
    made = folder(
        path,
        "detection",
        'decoder = "detr"\nlabels = ["cat", "dog"]',
        'tensor = "pixel_values"\nfixed = { pixel_mask = 1 }',
    )
    boxes_found = found(made, engine)
    assert isinstance(boxes_found, Detections)
    assert boxes_found.labels == ("cat",)
    assert_allclose(boxes_found.boxes, MIDDLE, atol=0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1, 1), (1,)])
def test_keras_45701_one_sigmoid_may_have_any_shape(
    tmp_path: Path, shape: tuple[int, ...], engine: str
) -> None:
    """The last step is a sigmoid of one number."""
    logit = np.full(shape, np.log(0.2 / 0.8), np.float32)
    made = constant_outputs(tmp_path / "m.onnx", {"dense": logit}, end="Sigmoid")
    classes = found(
        folder(made, "classification", 'decoder = "softmax"\nlabels = ["cat", "dog"]'), engine
    )
    assert isinstance(classes, Classes)
    assert classes.labels == ("cat", "dog")
    assert_allclose(classes.scores, (0.8, 0.2), atol=1e-5)


def shapes(path: Path, outputs: Mapping[str, tuple[int, ...]], batch: int = 1) -> Path:
    """Save a network of pictures whose outputs have these shapes."""
    zeros = {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}
    return constant_outputs(path, zeros, picture=(batch, 3, 64, 64))


@pytest.mark.parametrize(
    ("outputs", "batch", "words"),
    [
        ({"detections": (1, 20, 7)}, 1, "EfficientDet: export it with separate"),
        ({"Identity:0": (1, 200, 7)}, 1, "EfficientDet: export it with separate"),
        ({"output": (1, 40, 7)}, 1, "EfficientDet: export it with separate"),
        ({"heatmap": (1, 1, 32, 32)}, 1, "task: raw, where these are no anomalies"),
        ({"regressors": (1, 896, 16), "classificators": (1, 896, 1)}, 1, "take YuNet"),
        ({"Identity": (1, 2254, 12), "Identity_1": (1, 2254, 1)}, 1, "take YuNet"),
    ],
)
def test_families_that_are_refused_say_what_to_export(
    tmp_path: Path, outputs: dict[str, tuple[int, ...]], batch: int, words: str
) -> None:
    """EfficientDet's rows, MediaPipe's offsets, maps that may be of anomalies."""
    made = describe(shapes(tmp_path / "m.onnx", outputs, batch))
    assert made.manifest is None
    assert any(words in line for line in made.missing)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kinds",
    [{"a": "float32", "b": "float32", "c": "float32"}, {"a": "int64", "b": "float32"}],
)
def test_skl2onnx_a_tensor_a_column_takes_a_row(
    tmp_path: Path, kinds: dict[str, str], engine: str
) -> None:
    """However many columns, of whatever type; they are channels by their names."""
    casts = [node("Cast", [name], [f"{name}.f"], to=1) for name in kinds]
    joined = node("Concat", [f"{name}.f" for name in kinds], ["out"], axis=1)
    path = save_onnx(
        tmp_path / "m.onnx",
        [*casts, joined],
        [(name, kind, (None, 1)) for name, kind in kinds.items()],
        [("out", "float32", (None, len(kinds)))],
    )
    drafted = describe(path)
    assert any("each of which takes a column" in line for line in drafted.guessed)
    (tmp_path / "model.toml").write_text(decided(drafted.draft))
    assert load(tmp_path).manifest.input.channels == tuple(kinds)
    row = [float(place + 1) for place in range(len(kinds))]
    tensors = row_found(tmp_path, row, engine)
    assert isinstance(tensors, RawTensors)
    assert_allclose(tensors.tensors["out"], [row])


def test_skl2onnx_a_column_of_texts_is_refused_by_name(tmp_path: Path) -> None:
    """A row has numbers only."""
    from onnx import TensorProto, helper, save

    given = [helper.make_tensor_value_info("color", TensorProto.STRING, [None, 1])]
    given.append(helper.make_tensor_value_info("size", TensorProto.FLOAT, [None, 1]))
    out = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None, 1])]
    graph = helper.make_graph([node("Identity", ["size"], ["out"])], "texts", given, out)
    opsets = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    assert "columns of texts (color)" in describe(tmp_path / "m.onnx").missing[0]
