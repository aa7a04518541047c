"""Public files that were guessed wrongly, each as a small one of its kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from edge_agent.core.errors import ModelError
from edge_agent.core.types import Detections, RawTensors, Sample, TensorSpec
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.files.first_layer import first_gain
from edge_agent.models.files.guess import draft_of
from edge_agent.models.files.metadata import manifest_of
from edge_agent.models.importing import draft_text
from edge_agent.models.manifest import load
from tests.helpers.drafts import decided
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx, to_ir
from tests.helpers.tiny_tflite import Tensor, save_tflite
from tests.models.test_guess import converted, draft, network, taken, yolox
from tests.models.test_reported_kinds import row_found

MODELS = Path(__file__).parents[3] / "shared" / "assets" / "models"
PIXELS, NORMALIZED, BETWEEN = 0.08, 4.5, 0.6
"""Weights of a first convolution of three channels, by what it takes."""


@pytest.mark.parametrize("ir", [False, True])
def test_yolox_for_cann_its_first_release_is_told_by_its_weights(ir: bool, tmp_path: Path) -> None:
    """0.1.0 has the names and shapes of those that follow, but normalizes: no box was found."""
    for weight in (PIXELS, NORMALIZED, BETWEEN):
        path = yolox(tmp_path / f"{weight}.onnx", "Sigmoid", "output", weight)
        path = to_ir(path, path.with_suffix(".xml"), half=True) if ir else path
        if weight == BETWEEN:
            (asked,) = draft(path).questions
            assert asked.startswith("input.color, input.mean and input.scale: ")
            continue
        picture = taken(path).input
        first = weight == NORMALIZED
        assert picture.color == ("rgb" if first else "bgr")
        mean, scale = picture.per_channel("mean", 3), picture.per_channel("scale", 3)
        assert mean == ((123.675, 116.28, 103.53) if first else (0, 0, 0))
        assert scale == ((58.395, 57.12, 57.375) if first else (1, 1, 1))


def test_yolox_whose_pixels_are_changed_inside_is_asked_about(tmp_path: Path) -> None:
    """What computes before the weights makes their size say nothing."""
    path = save_onnx(
        tmp_path / "x.onnx",
        [
            node("Div", ["images", "many"], ["small"]),
            node("Conv", ["small", "kernel"], ["first"]),
            node("ReduceSum", ["first"], ["sum"], keepdims=0),
            node("Mul", ["sum", "zeros"], ["output"]),
        ],
        [("images", "float32", (1, 3, 64, 96))],
        [("output", "float32", (1, 126, 85))],
        {
            "many": np.array(255, np.float32),
            "kernel": np.full((4, 3, 1, 1), NORMALIZED, np.float32),
            "zeros": np.zeros((1, 126, 85), np.float32),
        },
    )
    assert first_gain(inspect(path)) is None
    assert draft(path).questions[0].startswith("input.color")


@pytest.mark.parametrize("weight", [2.0, 2.0 / 255])
def test_a_yolo_that_divides_by_its_weights_is_asked_about(weight: float, tmp_path: Path) -> None:
    """Exporters for accelerators fold the division into them; done twice it found nothing."""
    path = save_onnx(
        tmp_path / "y.onnx",
        [
            node("Conv", ["images", "kernel"], ["first"]),
            node("ReduceSum", ["first"], ["sum"], keepdims=0),
            node("Mul", ["sum", "zeros"], ["output0"]),
        ],
        [("images", "float32", (1, 3, 64, 96))],
        [("output0", "float32", (1, 84, 126))],
        {
            "kernel": np.full((4, 3, 1, 1), weight, np.float32),
            "zeros": np.zeros((1, 84, 126), np.float32),
        },
    )
    if weight == 2:
        assert taken(path).input.per_channel("scale", 3) == (255, 255, 255)
    else:
        (asked,) = draft(path).questions
        assert asked.startswith("input.scale: 255")


KERNEL = np.linspace(-3, 3, 2 * 3 * 3 * 3).reshape(2, 3, 3, 3).astype(np.float32)
KINDS = ("Transpose", "Convert")
STEPS = np.array([0.5, 0.25], np.float32)


def _floats() -> tuple[list[Any], str, dict[str, Any]]:
    return [], "kernel", {"kernel": KERNEL}


def _cast() -> tuple[list[Any], str, dict[str, Any]]:
    return [node("Cast", ["half"], ["kernel"], to=1)], "kernel", {"half": KERNEL.astype("float16")}


def _constant() -> tuple[list[Any], str, dict[str, Any]]:
    from onnx import numpy_helper

    return [node("Constant", [], ["kernel"], value=numpy_helper.from_array(KERNEL))], "kernel", {}


def _dequantized() -> tuple[list[Any], str, dict[str, Any]]:
    integers = np.rint(KERNEL / STEPS[:, None, None, None]).astype(np.int8)
    weights = {"integers": integers + np.int8(7), "steps": STEPS, "zero": np.full(2, 7, np.int8)}
    made = node("DequantizeLinear", ["integers", "steps", "zero"], ["kernel"], axis=0)
    return [made], "kernel", weights


@pytest.mark.parametrize("ir", [False, True])
@pytest.mark.parametrize("external", [None, "weights.bin"])
@pytest.mark.parametrize(
    "stored", [_floats, _cast, _constant, _dequantized], ids=lambda made: made.__name__
)
def test_the_first_weights_are_read_however_they_are_stored(
    stored: Callable[[], Any], external: str | None, ir: bool, tmp_path: Path
) -> None:
    """As floats, half floats or integers, inside or beside the file; in an IR, too."""
    nodes, name, weights = stored()
    path = save_onnx(
        tmp_path / "m.onnx",
        [*nodes, node("Conv", ["images", name], ["out"])],
        [("images", "float32", (1, 3, 8, 8))],
        [("out", "float32", (1, 2, 6, 6))],
        weights,
        external=external,
    )
    path = to_ir(path, tmp_path / "m.xml") if ir else path
    gain = first_gain(inspect(path))
    assert gain is not None
    assert_allclose(gain, np.sqrt((KERNEL**2).sum() / 2), rtol=0.02)


def test_an_ir_whose_edges_go_in_a_circle_tells_nothing(tmp_path: Path) -> None:
    """Neither before the first convolution nor behind its weights."""
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("Transpose", ["x"], ["t"]), node("Conv", ["t", "k"], ["y"])],
        [("x", "float32", (8, 8, 3, 1))],
        [("y", "float32", (1, 2, 6, 6))],
        {"k": KERNEL.astype(np.float16).astype(np.float32)},
    )
    xml = to_ir(path, tmp_path / "m.xml", half=True)
    assert first_gain(inspect(xml)) is not None
    text = xml.read_text()
    ids = {kind: re.findall(rf'id="(\d+)" name="[^"]*" type="{kind}"', text) for kind in KINDS}
    for kind in KINDS:
        to = f'to-layer="{ids[kind][0]}" to-port="0"'
        circle = re.sub(
            rf'from-layer="\d+" (from-port="\d") {to}',
            rf'from-layer="{ids[kind][0]}" \1 {to}',
            text,
        )
        assert circle != text
        xml.write_text(circle)
        assert first_gain(inspect(xml)) is None


@pytest.mark.parametrize("file", ["coco_yolox_nano_fp32", "coco_yolox_nano_int8_degraded"])
def test_yolox_of_now_is_taken_without_a_question(file: str) -> None:
    """Its weights, of floats or integers, are those for pixels of 0 to 255."""
    path = MODELS / f"{file}.onnx"
    if not path.exists():
        pytest.skip(f"{file} is not in ../shared/assets")
    made = draft_of(inspect(path))
    assert not made.questions
    assert made.keys["input"]["color"] == "bgr"


def record(framework: str, *inside: str) -> dict[str, str]:
    """Write a converter's record: of mean or scale, and of turned channels, if named."""
    values = {"mean_values": "()", "scale_values": "()", "reverse_input_channels": "False"}
    given = dict.fromkeys(inside, "[127.5,127.5,127.5]")
    return {"framework": framework, **values, **given}


TURNED = "reverse_input_channels"


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(
    ("said", "color", "asked"),
    [
        (record("tf"), "rgb", None),
        (record("tf", TURNED), "bgr", None),
        (record("caffe", "mean_values", "scale_values"), "bgr", None),
        (record("caffe"), "bgr", "input.mean and input.scale"),
        (record("caffe", TURNED), None, "input.color"),
        (record("onnx", "scale_values", TURNED), "bgr", None),
        (record("onnx", "scale_values"), None, "input.color"),
        (record("onnx"), None, "input.color"),
        ({}, None, "input.color"),
    ],
)
def test_two_stage_image_classifier_an_ssd_has_the_colors_of_its_record(
    said: dict[str, str], color: str | None, asked: str | None, version: int, tmp_path: Path
) -> None:
    """One of TensorFlow's object detection, not turned, was taken for the zoo's: red was blue."""
    path = network(tmp_path, {"detection_out": (1, 1, 20, 7)})
    made = draft_of(inspect(converted(tmp_path, path, said, version)))
    assert made.keys["input"].get("color") == color
    assert [words.partition(":")[0].partition(", ")[0] for words in made.questions[:1]] == (
        [asked] if asked else []
    )


def test_the_zoo_s_own_need_no_record(tmp_path: Path) -> None:
    """person-detection-retail-0013 was trained on pixels as they come."""
    path = network(tmp_path, {"detection_out": (1, 1, 20, 7)})
    path = converted(tmp_path, path, record("caffe"), 10)
    path.with_suffix(".bin").rename(tmp_path / "person-detection-retail-0013.bin")
    manifest = taken(path.rename(tmp_path / "person-detection-retail-0013.xml"))
    assert manifest.input.color == "bgr"
    assert manifest.input.per_channel("scale", 3) == (1, 1, 1)


@pytest.mark.parametrize("places", [126, 128])
def test_nanodet_with_efficientnet_lite_is_asked_for_its_mean(places: int, tmp_path: Path) -> None:
    """Its .yml divides by 128, where all others of the family divide by 57: told by its ReLU6."""
    path = constant_outputs(
        tmp_path / "n.onnx",
        {"output": np.zeros((1, places, 112), np.float32)},
        picture=(1, 3, 64, 96),
        end="Clip",
    )
    made = draft(path)
    (asked,) = (words for words in made.questions if words.startswith("input.mean"))
    assert "127, 128 with EfficientNet-Lite" in asked
    assert not {"mean", "scale"} & made.keys["input"].keys()
    assert made.keys["input"]["color"] == "bgr"


@pytest.mark.parametrize(
    ("shape", "size", "decoder"),
    [((24, 85), (64, 96), "fastestdet"), ((68, 18), (24, 94), "raw"), ((68,), (24, 94), "raw")],
)
def test_fastestdet_opencv_rows_without_a_batch_are_no_classes(
    shape: tuple[int, ...], size: tuple[int, int], decoder: str, tmp_path: Path
) -> None:
    """Of 24 cells, and of 68 characters: both were taken for classes of one picture."""
    path = network(tmp_path, {"761": shape}, (1, 3, *size))
    made = draft_of(inspect(path))
    assert made.keys["output"]["decoder"] == decoder
    assert made.keys["task"] == ("detection" if decoder == "fastestdet" else "raw")
    assert any("text with ctc" in words for words in made.questions) == (shape == (68, 18))


def test_bisenet_a_class_for_each_pixel_is_no_row_for_each_cell(tmp_path: Path) -> None:
    """Of 256 x 256 pixels there are as many cells of 16 as rows."""
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("ArgMax", ["x"], ["best"], axis=1, keepdims=0), node("Squeeze", ["best"], ["out"])],
        [("x", "float32", (1, 3, 256, 256))],
        [("out", "int64", (256, 256))],
    )
    assert "no axis for the batch" in draft(path).family


@pytest.mark.parametrize(
    ("size", "task", "decoder"),
    [
        ((None, None), "detection", "db"),
        ((48, None), "text", "ctc"),
        ((80, 160), "raw", "raw"),
    ],
)
def test_ocrspine_is_told_though_its_outputs_have_no_shape(
    size: tuple[int | None, ...], task: str, decoder: str, tmp_path: Path
) -> None:
    """paddle2onnx 2 declares a single number where it knows no shape."""
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("ReduceMax", ["x"], ["fetch_name_0"], axes=[1])],
        [("x", "float32", (None, 3, *size))],
        [("fetch_name_0", "float32", ())],
    )
    made = draft(path)
    assert (made.keys["task"], made.keys["output"]["decoder"]) == (task, decoder)


@pytest.mark.parametrize("leaf", [2.0, np.inf])
def test_atspm_detector_trees_split_at_infinity(leaf: float, tmp_path: Path) -> None:
    """LightGBM splits there what is missing from all else; what a tree gives is finite."""
    import onnx
    from onnx import numpy_helper

    def numbers(values: list[float], kind: Any = np.float32) -> Any:
        return numpy_helper.from_array(np.array(values, kind), "n")

    tree = node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        aggregate_function=1,
        tree_roots=[0],
        nodes_modes=numbers([0, 0], np.uint8),
        nodes_featureids=[0, 1],
        nodes_splits=numbers([np.inf, 0.5]),
        nodes_truenodeids=[1, 0],
        nodes_trueleafs=[0, 1],
        nodes_falsenodeids=[2, 1],
        nodes_falseleafs=[1, 1],
        leaf_targetids=[0, 0, 0],
        leaf_weights=numbers([1, leaf, 3]),
    )
    path = save_onnx(
        tmp_path / "m.onnx",
        [tree],
        [("x", "float32", (None, 2))],
        [("y", "float32", (None, 1))],
        domains=["ai.onnx.ml"],
    )
    network = onnx.load(path)
    network.opset_import[1].version = 5
    onnx.save(network, path)
    if leaf == np.inf:
        with pytest.raises(ModelError, match="infinities"):
            inspect(path)
        return
    inspect(path)
    manifest = 'name = "m"\nversion = "1"\ntask = "raw"\nfile = "m.onnx"\n[input]\n'
    manifest += 'channels = [0, 1]\nwindow = 1\nlayout = "flat-tc"\n[output]\ndecoder = "raw"\n'
    (tmp_path / "model.toml").write_text(manifest)
    model = load_model(load(tmp_path), [EngineChoice("onnxruntime")], "signal")
    found = model.infer(Sample(np.array([[1, 1]], np.float32), 0, 0, 0.0)).findings
    model.engine.close()
    assert isinstance(found, RawTensors)
    assert_allclose(found.tensors["y"], [[2]])


@pytest.mark.parametrize("code", [118, 119])
def test_pyopen_wakeword_branches_in_a_tflite_are_told_of_the_onnx(
    code: int, tmp_path: Path
) -> None:
    """Its hey_jarvis has an IF; `convert` advised itself, which it is not for."""
    tensors = [Tensor("x", (1, 4)), Tensor("y", (1, 4))]
    path = save_tflite(tmp_path / "hey_jarvis.tflite", tensors, [(code, 0, (0,), (1,))])
    with pytest.raises(ModelError, match=r"is refused.*openWakeWord's come as \.onnx") as caught:
        inspect(path)
    assert "-o FOLDER" not in str(caught.value)


def test_segmentation_openvino_an_early_metadata_yaml_needs_no_task(tmp_path: Path) -> None:
    """Ultralytics 8.0.43 wrote names and stride beside an IR, and inside an ONNX file."""
    path = network(tmp_path, {"output0": (1, 38, 126), "output1": (1, 32, 16, 24)})
    path = to_ir(path, tmp_path / "best.xml")
    fields = "version: 8.0.43\nstride: 32\nnames:\n  0: chute\n  1: ore\n"
    (tmp_path / "metadata.yaml").write_text(f"description: Ultralytics best model\n{fields}")
    manifest, assumed = manifest_of(path, None, "1")
    assert (manifest.task, manifest.decoder) == ("instance-segmentation", "yolov8")
    assert manifest.output.labels == ("chute", "ore")
    assert any(words.startswith("task: segment") for words in assumed)


def test_brilliantsole_features_of_edge_impulse_s_mfcc_are_no_transform(tmp_path: Path) -> None:
    """The draft offered "mfcc", whose features are others: the network heard something else."""
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("MatMul", ["x", "many"], ["sum"]), node("Softmax", ["sum"], ["y"])],
        [("x", "float32", (1, 637))],
        [("y", "float32", (1, 3))],
        {"many": np.zeros((637, 3), np.float32)},
    )
    (asked,) = (words for words in draft(path).questions if "Edge Impulse flattens" in words)
    assert '"mfcc"' not in asked
    assert "MFCC is none: choose MFE there" in asked


def test_gesture_model_a_row_of_many_samples_may_be_of_several_channels(tmp_path: Path) -> None:
    """With its channels named, Arduino's gestures were fed channel by channel, unasked."""
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("MatMul", ["x", "many"], ["sum"]), node("Softmax", ["sum"], ["y"])],
        [("x", "float32", (1, 714))],
        [("y", "float32", (1, 2))],
        {"many": np.zeros((714, 2), np.float32)},
    )
    made = draft(path)
    assert made.keys["input"] == {"channels": [0], "window": 714, "layout": "flat-tc"}
    (asked,) = (words for words in made.questions if words.startswith("input.layout"))
    assert '"flat-tc" (sample by sample' in asked


@pytest.mark.parametrize("shape", [(20, None, 37), (None, 37, None)])
def test_captcha_crnn_sizes_that_are_open_are_steps_all_the_same(
    shape: tuple[int | None, ...], tmp_path: Path
) -> None:
    """Its draft did not name the decoder that reads it."""
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("ReduceMax", ["x"], ["out"], axes=[1], keepdims=0)],
        [("x", "float32", (None, 3, 50, 180))],
        [("out", "float32", shape)],
    )
    (asked,) = (words for words in draft(path).questions if "text with ctc" in words)
    assert asked.endswith("none of ctc: raw")


def test_single_relu_what_has_the_same_shape_may_be_no_copy(tmp_path: Path) -> None:
    """A filter was an anomaly detector by its draft, and nothing asked whether it is."""
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("Relu", ["x"], ["y"])],
        [("x", "float32", (1, 400))],
        [("y", "float32", (1, 400))],
    )
    first, second, *_ = draft(path).questions
    assert first.startswith("task: raw")
    assert second.startswith("output.threshold: of the mean squared difference")


def test_haarcascade_is_no_network(tmp_path: Path) -> None:
    """OpenCV's cascades are .xml, too, and have no .bin: its lack was all that was said."""
    path = tmp_path / "haarcascade_frontalface.xml"
    path.write_text('<?xml version="1.0"?>\n<opencv_storage>\n<cascade/></opencv_storage>\n')
    with pytest.raises(ModelError, match="not an IR"):
        inspect(path)
    path.write_text('<?xml version="1.0"?>\n<net name="m" version="11"></net>\n')
    with pytest.raises(ModelError, match="is missing beside it"):
        inspect(path)


def test_weather_forecasting_many_integers_are_in_steps(tmp_path: Path) -> None:
    """Degrees of 24 hours as int8: the draft was raw, which gave 19 for 22.6 degrees."""
    steps = {"by": np.array(0.25, "f4"), "at": np.array(-128, "i1")}
    path = save_onnx(
        tmp_path / "m.onnx",
        [
            node("Concat", ["x", "x"], ["twice"], axis=1),
            node("QuantizeLinear", ["twice", "by", "at"], ["y"]),
        ],
        [("x", "float32", (1, 2))],
        [("y", "int8", (1, 4))],
        steps,
    )
    made = draft(path)
    assert made.keys["output"] == {"decoder": "raw", "scale": 0.25, "zero_point": -128}
    text = decided(draft_text(made, "m", "1", "m.onnx"))
    for given, gives in (
        (text, [22.5, 1, 22.5, 1]),
        (text.split("\nscale")[0], [-38, -124, -38, -124]),
    ):
        (tmp_path / "model.toml").write_text(given)
        found = row_found(tmp_path, [22.5, 1], "onnxruntime")
        assert isinstance(found, RawTensors)
        assert_allclose(found.tensors["y"], [gives])


def test_integers_in_steps_of_several_sizes_are_said(tmp_path: Path) -> None:
    """No scale of a manifest counts for all of them."""
    ends = [("a", "int8", (1, 3)), ("b", "int8", (1, 3))]
    path = save_onnx(
        tmp_path / "m.onnx",
        [node("QuantizeLinear", ["x", f"{name}.by", "at"], [name]) for name, *_ in ends],
        [("x", "float32", (1, 3))],
        ends,
        {"a.by": np.array(0.25, "f4"), "b.by": np.array(0.5, "f4"), "at": np.array(3, "i1")},
    )
    made = draft(path)
    assert made.keys["output"] == {"decoder": "raw"}
    assert made.questions[-1].endswith("values are (a - 3) * 0.25; (b - 3) * 0.5")


def test_smp_classes_with_a_sigmoid_each_may_all_be_absent(tmp_path: Path) -> None:
    """The draft took the best of them for each pixel, and asked nothing."""
    for last in ("Sigmoid", "Softmax"):
        path = save_onnx(
            tmp_path / f"{last}.onnx",
            [node(last, ["x"], ["y"], **({"axis": 1} if last == "Softmax" else {}))],
            [("x", "float32", (1, 3, 64, 96))],
            [("y", "float32", (1, 3, 64, 96))],
        )
        made = draft(path)
        alone = last == "Sigmoid"
        assert made.keys["output"] == (
            {"decoder": "semantic", "layout": "sigmoid"} if alone else {"decoder": "semantic"}
        )
        assert any(words.startswith("output.layout: sigmoid") for words in made.questions) == alone


@pytest.mark.parametrize("ir", [False, True])
def test_open_closed_eye_a_softmax_may_be_spelled_out(ir: bool, tmp_path: Path) -> None:
    """Its own, of Exp, ReduceSum and Div, was taken for logits: all was 0.73 at most."""
    nodes = [
        node("GlobalAveragePool", ["x"], ["mean"]),
        node("Exp", ["mean"], ["powers"]),
        node("ReduceSum", ["powers", "along"], ["sum"], keepdims=1),
        node("Div", ["powers", "sum"], ["y"]),
    ]
    ends = [("x", "float32", (1, 3, 32, 32))], [("y", "float32", (1, 3, 1, 1))]
    path = save_onnx(tmp_path / "m.onnx", nodes, *ends, {"along": np.array([1])})
    path = to_ir(path, tmp_path / "m.xml") if ir else path
    assert draft(path).keys["output"] == {"decoder": "softmax"}


@pytest.mark.parametrize("last", ["HardSigmoid", "Add", "ReduceMean"])
def test_what_may_be_chances_is_asked_about(last: str, tmp_path: Path) -> None:
    """They may be computed in many ways, and a mean of a softmax's is still one."""
    nodes = [node("GlobalAveragePool", ["x"], ["mean"]), node("Softmax", ["mean"], ["s"], axis=1)]
    keys = {"axes": [2, 3]} if last == "ReduceMean" else {}
    nodes.append(node(last, ["s", "s"] if last == "Add" else ["s"], ["y"], **keys))
    ends = [("x", "float32", (1, 3, 32, 32))], [("y", "float32", (1, 3, 1, 1))]
    made = draft(save_onnx(tmp_path / "m.onnx", nodes, *ends))
    assert made.keys["output"] == {"decoder": "logits"}
    assert made.questions[-1].startswith("output.decoder: softmax")


def test_yolov5_lite_end2end_gives_rows_without_a_batch(tmp_path: Path) -> None:
    """Rows of boxes were "a classifier of 6 classes", and no decoder took them."""
    rows = np.array([[4, 8, 20, 24, 0.9, 1], [0, 0, 9, 9, 0.1, 0]], np.float32)
    path = constant_outputs(tmp_path / "m.onnx", {"outputs": rows})
    facts = replace(
        inspect(path),
        outputs=(TensorSpec("outputs", (None, 6), "float32"),),
        operators=frozenset({"NonMaxSuppression"}),
    )
    made = draft_of(facts)
    assert made.keys["output"] == {"decoder": "yolo-e2e", "threshold": 0.25}
    (tmp_path / "model.toml").write_text(decided(draft_text(made, "m", "1", "m.onnx")))
    for engine in ("onnxruntime", "openvino"):
        model = load_model(load(tmp_path), [EngineChoice(engine)], "picture")
        found = model.infer(Sample(np.zeros((32, 32, 3), np.uint8), 0, 0, 0.0)).findings
        model.engine.close()
        assert isinstance(found, Detections)
        assert (found.labels, found.boxes.tolist()) == (("1",), [[4, 8, 20, 24]])


def test_license_plate_recognition_barrier_gives_places_no_classes(tmp_path: Path) -> None:
    """Numbers of 88 characters were "a classifier of 88 classes", whose best was published."""
    path = constant_outputs(
        tmp_path / "m.onnx", {"y": np.zeros((1, 88), np.float32)}, picture=(1, 3, 24, 94)
    )
    for dtype in ("float16", "int32"):
        outputs = (TensorSpec("y", (1, 88), dtype),)
        facts = replace(inspect(path), outputs=outputs, makers={"y": "CTCGreedyDecoderSeqLen"})
        assert draft_of(facts).keys["task"] == "raw"


def test_ana_cont_numbers_that_are_values_are_no_classes(tmp_path: Path) -> None:
    """A needle's sine and cosine were two classes, and nothing said what else they may be."""
    nodes = [node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0)]
    nodes.append(node("MatMul", ["mean", "by"], ["y"]))
    ends = [("x", "float32", (1, 3, 32, 32))], [("y", "float32", (1, 2))]
    made = draft(save_onnx(tmp_path / "m.onnx", nodes, *ends, {"by": np.ones((3, 2), "f4")}))
    assert made.family.endswith("as many numbers (of task regression)")
