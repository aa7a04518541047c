"""What is written into OpenVINO's convolutions: the definition's numbers, in fewer passes."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import openvino as ov
import pytest
from openvino import opset13

from edge_agent.core.types import Array
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.ov import core, open_network
from edge_agent.inference.engines.ov_graph import FEW, PLACES, join
from tests.helpers.support import ASSETS, needs_assets
from tests.helpers.tiny_networks import node, save_onnx

ON_X86 = platform.machine() == "x86_64"
CHOICE = EngineChoice("openvino", threads=1)
PLAIN = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
WIDTH = 32
SIZE = 24
LAST_STEP = np.float32(0.06)

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Relu": {},
    "LeakyRelu": {"alpha": 0.1},
    "Elu": {"alpha": 1.0},
    "HardSwish": {},
    "Sigmoid": {},
    "Tanh": {},
}


def quantized(
    path: Path,
    activation: str = "Relu",
    *,
    zero: Any = np.uint8(100),  # noqa: B008
    step: Any = np.float32(0.031),  # noqa: B008
    bias: bool = True,
    group: int = 1,
    shown: str | None = None,
    added: str | None = None,
) -> Path:
    """Save a network with a rounding before an activation, and one behind it.

    Args:
        path: the .onnx file.
        activation: between the two.
        zero: zero point of the first, of the type of its steps.
        step: of the first.
        bias: of the first convolution.
        group: of the first convolution.
        shown: a tensor that is an output, too.
        added: a tensor that is added to what the second convolution takes.

    """
    random = np.random.default_rng(3)
    kind = np.asarray(zero).dtype
    weights: dict[str, Any] = {
        "in_step": np.array(1 / 32, np.float32),
        "in_zero": np.array(128, np.uint8),
        "w": random.integers(-127, 128, (WIDTH, WIDTH // group, 3, 3)).astype(np.int8),
        "w_step": random.uniform(0.001, 0.004, WIDTH).astype(np.float32),
        "w_zero": np.zeros(WIDTH, np.int8),
        "b": random.integers(-4000, 4000, WIDTH).astype(np.int32),
        "b_zero": np.zeros(WIDTH, np.int32),
        "step": np.asarray(step),
        "zero": np.asarray(zero),
        "a_step": np.array(0.017 if kind == np.uint8 else 0.029, np.float32),
        "a_zero": np.array(7, kind),
        "v": random.integers(-127, 128, (WIDTH, WIDTH, 1, 1)).astype(np.int8),
        "v_step": np.array(0.004, np.float32),
        "v_zero": np.array(0, np.int8),
        "y_step": np.array(LAST_STEP),
        "y_zero": np.array(128, np.uint8),
    }
    weights["b_step"] = (weights["w_step"] * weights["in_step"]).astype(np.float32)
    if group > 1:
        weights["w_step"] = weights["w_step"] * np.float32(4)
    nodes = [
        node("QuantizeLinear", ["x", "in_step", "in_zero"], ["xq"]),
        node("DequantizeLinear", ["xq", "in_step", "in_zero"], ["xf"]),
        node("DequantizeLinear", ["w", "w_step", "w_zero"], ["wf"], axis=0),
        node("DequantizeLinear", ["b", "b_step", "b_zero"], ["bf"], axis=0),
        node("Conv", ["xf", "wf", *(["bf"] if bias else [])], ["conv"], group=group),
        node("QuantizeLinear", ["conv", "step", "zero"], ["cq"]),
        node("DequantizeLinear", ["cq", "step", "zero"], ["c"]),
        node(activation, ["c"], ["a"], **ACTIVATIONS[activation]),
        node("QuantizeLinear", ["a", "a_step", "a_zero"], ["aq"]),
        node("DequantizeLinear", ["aq", "a_step", "a_zero"], ["af"]),
        node("DequantizeLinear", ["v", "v_step", "v_zero"], ["vf"]),
        *([] if added is None else [node("Add", ["af", added], ["sum"])]),
        node("Conv", ["af" if added is None else "sum", "vf"], ["conv2"]),
        node("QuantizeLinear", ["conv2", "y_step", "y_zero"], ["yq"]),
        node("DequantizeLinear", ["yq", "y_step", "y_zero"], ["y"]),
    ]
    inner = (1, WIDTH, SIZE - 2, SIZE - 2)
    outputs = [("y", "float32", inner), *([] if shown is None else [(shown, "float32", inner)])]
    return save_onnx(path, nodes, [("x", "float32", (1, WIDTH, SIZE, SIZE))], outputs, weights)


def noise(number: int, shape: tuple[int, ...] = (1, WIDTH, SIZE, SIZE)) -> Array:
    """Make an input."""
    return np.random.default_rng(number).normal(size=shape).astype(np.float32)


def definition(path: Path, given: dict[str, Array]) -> list[Array]:
    """Compute as ONNX defines it: nothing fused, in floats."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    results: list[Array] = ort.InferenceSession(str(path), options).run(None, given)
    return results


def kept(_inputs: object) -> dict[str, tuple[int, ...]]:
    """Leave open what is open."""
    return {}


def layers(path: Path, *, joined: bool) -> Counter[str]:
    """Count what OpenVINO computes, by kind."""
    model = core.read_model(str(path))
    if joined:
        join(model)
    compiled = core.compile_model(model, "CPU", PLAIN)
    nodes = compiled.get_runtime_model().get_ops()
    return Counter(str(each.get_rt_info()["layerType"].astype(str)) for each in nodes)


def places_joined(path: Path) -> int:
    """Say in how many places a network is changed."""
    return join(core.read_model(str(path)))


# --- roundings


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("zero", [np.uint8(100), np.uint8(0), np.int8(-20)])
@pytest.mark.parametrize(("bias", "group"), [(True, 1), (False, 1), (True, WIDTH)])
def test_numbers_are_the_definitions(
    activation: str, zero: Any, bias: bool, group: int, tmp_path: Path
) -> None:
    """A step more or less where a sum lies between two, and that hardly ever."""
    path = quantized(tmp_path / "n.onnx", activation, zero=zero, bias=bias, group=group)
    assert places_joined(path) == 1
    engine = open_network(CHOICE, path, kept)
    other = 0
    for number in range(4):
        given = noise(number)
        (wanted,) = definition(path, {"x": given})
        found = engine.infer({"x": given})["y"]
        assert wanted.std() > LAST_STEP  # it is about something
        steps = np.rint((found - wanted) / LAST_STEP)
        assert abs(steps).max() <= 1
        other += int(np.count_nonzero(steps))
    assert other <= 4 * wanted.size / 1000


@pytest.mark.skipif(not ON_X86, reason="only there roundings are joined")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_lay_between_two_convolutions_is_gone(activation: str, tmp_path: Path) -> None:
    """Beside the quantization of the input no pass over numbers is left."""
    path = quantized(tmp_path / "n.onnx", activation)
    before, after = layers(path, joined=False), layers(path, joined=True)
    passes = {"Subgraph", "Eltwise", "FakeQuantize", "Convert", "Relu"}
    assert sum(before[kind] for kind in passes) > sum(after[kind] for kind in passes)
    assert before["Convolution"] == after["Convolution"] == 2


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"shown": "c"}, id="steps that are shown"),
        pytest.param({"shown": "a"}, id="floats that are shown"),
        pytest.param({"added": "c"}, id="steps that something else takes"),
    ],
)
def test_what_others_look_at_stays(how: dict[str, Any], tmp_path: Path) -> None:
    """Numbers that are needed between the two roundings are not joined away."""
    path = quantized(tmp_path / "n.onnx", **how)
    assert places_joined(path) == 0
    given = noise(1)
    wanted = definition(path, {"x": given})[0]
    found = open_network(CHOICE, path, kept).infer({"x": given})["y"]
    assert abs(found - wanted).max() <= LAST_STEP * 1.01


def test_a_step_for_each_channel_stays(tmp_path: Path) -> None:
    """Only one number can be written into a convolution."""
    path = quantized(
        tmp_path / "n.onnx",
        zero=np.full(WIDTH, 100, np.uint8),
        step=np.linspace(0.02, 0.04, WIDTH, dtype=np.float32),
    )
    assert places_joined(path) == 0


def test_a_scale_of_more_dimensions_stays(tmp_path: Path) -> None:
    """It gives the numbers its dimensions, which an output may show."""

    def rounded(value: Any, step: float, shape: tuple[int, ...]) -> Any:
        bounds = [opset13.constant(np.float32(bound)) for bound in (0, 255 * step, 0, 255)]
        levels = opset13.fake_quantize(value, *bounds, 256)
        floats = opset13.convert(opset13.convert(levels, "u8"), "f32")
        return opset13.multiply(floats, opset13.constant(np.full(shape, step, np.float32)))

    given = opset13.parameter([3, 8], np.float32, name="x")
    given.output(0).set_names({"x"})
    summed = opset13.matmul(given, opset13.constant(noise(1, (8, 4))), False, False)
    active = opset13.relu(rounded(summed, 0.05, (1, 1, 1)))
    path = tmp_path / "n.xml"
    turned = opset13.transpose(rounded(active, 0.02, (1,)), opset13.constant([2, 0, 1]))
    ov.save_model(ov.Model([turned], [given], "odd"), path)
    (found,) = open_network(CHOICE, path, kept).infer({"x": noise(2, (3, 8))}).values()
    assert found.shape == (4, 1, 3)


def test_other_precisions_are_left_alone(tmp_path: Path) -> None:
    """What was asked for in bf16 is compiled as it is."""
    path = quantized(tmp_path / "n.onnx")
    engine = open_network(replace(CHOICE, precision="bf16"), path, kept)
    assert np.isfinite(engine.infer({"x": noise(1)})["y"]).all()


@needs_assets
def test_a_real_detector_comes_nearer_to_its_definition() -> None:
    """rfb320 has 36 such places: joined it is no farther from the definition than before."""
    path = ASSETS / "models" / "face_rfb320_int8.onnx"
    assert places_joined(path) == 37  # and a softmax
    plain = core.compile_model(core.read_model(str(path)), "CPU", PLAIN)
    joined = open_network(CHOICE, path, kept)
    before, after = [], []
    for number in range(8):
        given = noise(number, (1, 3, 240, 320)) * np.float32(0.5)
        scores, boxes = definition(path, {"input": given})
        results = plain(given)
        before.append(max(_off(results[0], scores), _off(results[1], boxes)))
        found = joined.infer({"input": given})
        after.append(max(_off(found["scores"], scores), _off(found["boxes"], boxes)))
    assert np.mean(after) <= np.mean(before) * 1.1


def _off(found: Array, wanted: Array) -> float:
    return float(np.sqrt(np.mean((found - wanted) ** 2)))


# --- softmax


def softmax(path: Path, shape: tuple[int | None, ...], axis: int = -1) -> Path:
    """Save a network that is a softmax."""
    value = ("x", "float32", shape)
    return save_onnx(
        path, [node("Softmax", ["x"], ["y"], axis=axis)], [value], [("y", "float32", shape)]
    )


@pytest.mark.parametrize("classes", range(2, FEW + 1))
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_softmax_over_few_classes(classes: int, rank: int, tmp_path: Path) -> None:
    """The same numbers, to the last bit of two classes and to the last but one of more."""
    shape = ((), (1,), (2, 5))[rank - 2] + (300, classes)
    path = softmax(tmp_path / "n.onnx", shape)
    assert places_joined(path) == 1
    given = noise(classes, shape) * np.float32(5)
    plain = core.compile_model(core.read_model(str(path)), "CPU", PLAIN)(given)[0]
    found = open_network(CHOICE, path, kept).infer({"x": given})["y"]
    assert found.shape == shape
    assert abs(found - plain).max() <= (0 if classes == 2 else 1e-6)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        pytest.param((1, 300, FEW + 1), -1, id="many classes"),
        pytest.param((1, PLACES - 1, 2), -1, id="few places"),
        pytest.param((1, 2, 300), 1, id="across the places already"),
        pytest.param((1, None, 2), -1, id="open"),
        pytest.param((2,), -1, id="one place"),
        pytest.param((1, 300, 1), -1, id="one class"),
    ],
)
def test_other_softmaxes_stay(shape: tuple[int | None, ...], axis: int, tmp_path: Path) -> None:
    """What would not become quicker is left alone."""
    assert places_joined(softmax(tmp_path / "n.onnx", shape, axis)) == 0


def test_names_of_outputs_stay(tmp_path: Path) -> None:
    """A softmax that is an output is found under its name."""
    path = softmax(tmp_path / "n.onnx", (1, 300, 2))
    model = core.read_model(str(path))
    join(model)
    assert model.output(0).get_any_name() == "y"
    assert isinstance(model, ov.Model)
