"""Weights about a zero point are put about zero where that changes no number."""

from __future__ import annotations

import random
from collections.abc import Container
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.numpy_helper import to_array

from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.ort_session import session_config
from edge_agent.inference.prepared.compile.mapped_network import MappedNetwork
from edge_agent.inference.prepared.compile.zero_point import FILE, rewrite
from tests.helpers.tiny_networks import node, save_onnx

CHANNELS = 16
SHAPE = (1, 4, 9, 9)
ZERO = 124


def steps(rows: int, columns: int, size: int, *ends: tuple[int, int]) -> Any:
    """Make weights that are small about the zero point, but for one at the range's end for each.

    Args:
        rows: channels that are given.
        columns: channels that are taken.
        size: of the kernel.
        ends: row and column of each large weight.

    """
    made = (
        np.random.default_rng(rows * columns)
        .integers(90, 160, (rows, columns, size, size))
        .astype(np.uint8)
    )
    for row, column in ends:
        made[row, column, 0, 0] = 255
    return made


def layer(name: str, given: str, weights: Any, **more: Any) -> tuple[list[Any], dict[str, Any]]:
    """Make a layer of eight bits, its result requantized: *name*.

    Args:
        name: of what it gives.
        given: what it takes.
        weights: its steps.
        more: `zero` of the weights; `bias`: "steps" or "numbers"; attributes.

    """
    rows = weights.shape[0]
    noise = np.random.default_rng(rows)
    zero = np.asarray(more.pop("zero", np.uint8(ZERO)))
    constants: dict[str, Any] = {
        f"{name}.w": weights,
        # So that results neither fade nor saturate.
        f"{name}.step": np.full(zero.shape, 0.04 / weights[0].size ** 0.5, np.float32),
        f"{name}.zero": zero,
    }
    made = [
        node(
            "DequantizeLinear",
            [f"{name}.w", f"{name}.step", f"{name}.zero"],
            [f"{name}.wf"],
            **({"axis": 0} if zero.ndim else {}),
        )
    ]
    taken = [given, f"{name}.wf"]
    bias = more.pop("bias", None)
    if bias == "numbers":
        constants[f"{name}.b"] = noise.standard_normal(rows).astype(np.float32)
        taken.append(f"{name}.b")
    elif bias == "steps":
        constants[f"{name}.b"] = noise.integers(-500, 500, rows).astype(np.int32)
        constants[f"{name}.b_step"] = np.array(0.0002, np.float32)
        made.append(node("DequantizeLinear", [f"{name}.b", f"{name}.b_step"], [f"{name}.bf"]))
        taken.append(f"{name}.bf")
    size = weights.shape[-1]
    made.append(node("Conv", taken, [f"{name}.c"], kernel_shape=[size, size], **more))
    return [*made, *requantized(name, f"{name}.c")], constants


def requantized(name: str, given: str) -> list[Any]:
    """Make steps of something, and numbers of the steps."""
    return [
        node("Relu", [given], [f"{name}.r"]),
        node("QuantizeLinear", [f"{name}.r", "step", "none"], [f"{name}.q"]),
        node("DequantizeLinear", [f"{name}.q", "step", "none"], [name]),
    ]


def save(path: Path, *parts: tuple[list[Any], dict[str, Any]], given: str, **more: Any) -> Path:
    """Save a network that begins with steps of "x" and ends with *given*."""
    nodes = [
        node("QuantizeLinear", ["x", "step", "none"], ["xq"]),
        node("DequantizeLinear", ["xq", "step", "none"], ["xf"]),
    ]
    constants: dict[str, Any] = {"step": np.array(0.02, np.float32), "none": np.array(0, np.uint8)}
    for some, theirs in parts:
        nodes += some
        constants |= theirs
    nodes.append(node("Identity", [given], ["y"]))
    outputs = [("y", "float32", (1, None, None, None)), *more.pop("outputs", [])]
    return save_onnx(path, nodes, [("x", "float32", SHAPE)], outputs, constants, **more)


def run(model: bytes, files: dict[str, Any]) -> list[Any]:
    """Run a network, its large constants in files."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if files:
        options.add_external_initializers_from_files_in_memory(
            list(files), list(files.values()), [len(data) for data in files.values()]
        )
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    sample = np.random.default_rng(1).uniform(0, 5, SHAPE).astype(np.float32)
    found: list[Any] = session.run(None, {"x": sample})
    return found


def change(
    path: Path, folder: Path, in_floats: Container[str] = (), variety: int = 10
) -> tuple[onnx.ModelProto | None, dict[str, Any]]:
    """Change a network, see that its numbers are the same, give it and its zero points by layer."""
    outside = MappedNetwork(path)
    changed = rewrite(outside, folder, lambda: in_floats)
    if changed is None:
        assert not (folder / FILE).exists()
        return None, {}
    expected = run(outside.model.SerializeToString(), outside.files)
    found = run(changed.SerializeToString(), outside.files)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
    assert all(np.unique(array).size > variety for array in expected)
    constants = {tensor.name: tensor for tensor in changed.graph.initializer}
    zeros = {
        each.output[0].removesuffix(".wf"): to_array(constants[each.input[2]])
        for each in changed.graph.node
        if each.output[0].endswith(".wf")
    }
    return changed, zeros


def shape(model: onnx.ModelProto, weights: str) -> tuple[int, ...]:
    """Give the shape of a layer's weights."""
    maker = next(each for each in model.graph.node if each.output[0] == f"{weights}.wf")
    return next(tuple(t.dims) for t in model.graph.initializer if t.name == maker.input[0])


@pytest.mark.parametrize("bias", [None, "numbers", "steps"])
@pytest.mark.parametrize("external", [False, True])
def test_a_large_weight_is_shared_out(tmp_path: Path, bias: str | None, external: bool) -> None:
    """Its channel is given twice by the layer before; there are then as many as kernels like."""
    how = {"external": "weights.data"} if external else {}
    path = save(
        tmp_path / "model.onnx",
        layer("a", "xf", steps(CHANNELS, 4, 3, (0, 0)), bias=bias),
        layer("b", "a", steps(32, CHANNELS, 1, (3, 7), (9, 7), (9, 2)), bias=bias),
        given="b",
        **how,
    )
    changed, zeros = change(path, tmp_path)
    assert changed is not None
    assert zeros["b"] == 0
    assert zeros["b"].dtype == np.int8
    assert shape(changed, "b") == (32, CHANNELS + 4, 1, 1), "two, and two more to be four"
    assert shape(changed, "a") == (CHANNELS + 4, 4, 3, 3)
    assert zeros["a"] == ZERO, "the network's own input has each channel once"
    assert zeros["a"].dtype == np.uint8


def test_channels_that_are_added_up_are_repeated_in_all_that_is_added(tmp_path: Path) -> None:
    """As around a residual block, whoever else takes them takes nothing of the second ones."""
    sum_of = [node("Add", ["a", "c"], ["sum"]), *requantized("s", "sum")]
    path = save(
        tmp_path / "model.onnx",
        layer("a", "xf", steps(CHANNELS, 4, 1)),
        layer("b", "a", steps(24, CHANNELS, 1, (0, 5))),
        layer("c", "b", steps(CHANNELS, 24, 1, (1, 1))),
        (sum_of, {}),
        layer("d", "s", steps(8, CHANNELS, 3, (2, 11))),
        given="d",
    )
    changed, zeros = change(path, tmp_path)
    assert changed is not None
    assert all(zero == 0 and zero.dtype == np.int8 for zero in zeros.values())
    assert shape(changed, "a") == (CHANNELS + 4, 4, 1, 1)
    assert shape(changed, "c") == (CHANNELS + 4, 28, 1, 1)
    assert shape(changed, "d") == (8, CHANNELS + 4, 3, 3)


def test_a_zero_point_for_each_row(tmp_path: Path) -> None:
    """Rows are repeated with theirs, where the layer keeps them."""
    each = np.arange(120, 120 + CHANNELS).astype(np.uint8)
    path = save(
        tmp_path / "model.onnx",
        layer("a", "xf", steps(CHANNELS, 4, 1, (0, 0)), zero=each, bias="steps"),
        layer("b", "a", steps(CHANNELS, CHANNELS, 1, (15, 7)), zero=each[::-1].copy()),
        given="b",
    )
    changed, zeros = change(path, tmp_path)
    assert changed is not None
    assert zeros["b"].shape == (CHANNELS,)
    assert not zeros["b"].any()
    assert zeros["a"].tolist() == [*each, each[7], each[0], each[0], each[0]]


def test_weights_that_fit_need_no_second_channel(tmp_path: Path) -> None:
    """Depthwise layers, too."""
    path = save(
        tmp_path / "model.onnx",
        layer("a", "xf", steps(4, 1, 3), group=4),
        given="a",
    )
    changed, zeros = change(path, tmp_path)
    assert changed is not None
    assert zeros["a"] == 0
    assert shape(changed, "a") == (4, 1, 3, 3)


@pytest.mark.parametrize("case", ["output", "depthwise", "weights", "many", "other", "float"])
def test_what_cannot_be_changed_stays(tmp_path: Path, case: str) -> None:
    """Where somebody else looks at the channels, or at the weights, or too many would be needed."""
    ends = [(3, 7)] if case != "many" else [(3, column) for column in range(9)]
    first = layer("a", "xf", steps(CHANNELS, 4, 3, (0, 0)))
    second = layer("b", "a", steps(32, CHANNELS, 1, *ends))
    parts = [first, second]
    outputs: list[Any] = []
    if case == "output":
        outputs = [("a", "float32", (1, None, None, None))]
    elif case == "depthwise":
        parts.append(layer("d", "a", steps(CHANNELS, 1, 3, (0, 0)), group=CHANNELS))
        outputs = [("d", "float32", (1, None, None, None))]
    elif case == "weights":
        parts.append(([node("ReduceMean", ["b.wf"], ["mean"], keepdims=0)], {}))
        outputs = [("mean", "float32", ())]
    elif case == "other":
        parts.append(([node("ReduceMean", ["a"], ["mean"], axes=[1])], {}))
        outputs = [("mean", "float32", (1, None, None, None))]
    elif case == "float":
        weights = np.ones((2, CHANNELS, 1, 1), np.float32)
        parts.append(([node("Conv", ["a", "plain"], ["p"])], {"plain": weights}))
        outputs = [("p", "float32", (1, None, None, None))]
    path = save(tmp_path / "model.onnx", *parts, given="b", outputs=outputs)
    changed, _ = change(path, tmp_path)
    assert changed is None


@pytest.mark.parametrize("layers", [{"a.w"}, {"b.w"}])
def test_layers_that_are_computed_in_floats_stay(tmp_path: Path, layers: set[str]) -> None:
    """Nor is a channel repeated for the next one by such a layer: sums of floats would round."""
    path = save(
        tmp_path / "model.onnx",
        layer("a", "xf", steps(CHANNELS, 4, 3, (0, 0))),
        layer("b", "a", steps(32, CHANNELS, 1, (3, 7))),
        given="b",
    )
    changed, _ = change(path, tmp_path, layers)
    assert changed is None


def grown(path: Path, seed: int) -> Path:
    """Save a network of layers and blocks drawn by lot, weights with zero points of all kinds."""
    lot = random.Random(seed)  # noqa: S311 - no secret
    parts: list[tuple[list[Any], dict[str, Any]]] = []
    names = (f"n{number}" for number in count())

    def add(given: str, rows: int, columns: int, size: int, **more: Any) -> str:
        ends = [(lot.randrange(rows), lot.randrange(columns)) for _ in range(lot.randrange(3))]
        zero: Any = np.uint8(lot.randrange(122, 128))
        if lot.random() < 0.3:
            zero = np.array([lot.randrange(118, 132) for _ in range(rows)], np.uint8)
        bias = lot.choice([None, "numbers", "steps"])
        name = next(names)
        weights = steps(rows, columns, size, *ends)
        pads = [size // 2] * 4
        parts.append(layer(name, given, weights, zero=zero, bias=bias, pads=pads, **more))
        return name

    def join(operator: str, *given: str, **more: Any) -> str:
        name = next(names)
        made = node(operator, list(given), [f"{name}.o"], **more)
        parts.append(([made, *requantized(name, f"{name}.o")], {}))
        return name

    given, width = add("xf", 16, 4, 3), 16
    outputs: list[Any] = []
    for _ in range(lot.randrange(1, 6)):
        kind = lot.choice(["layer", "depthwise", "block", "pool", "both", "output"])
        if kind == "layer":
            columns, width = width, lot.choice([8, 17, 30, 32])
            given = add(given, width, columns, lot.choice([1, 3]))
        elif kind == "depthwise":
            given = add(given, width, 1, 3, group=width)
        elif kind == "block":
            wide = add(given, 2 * width, width, 1)
            filtered = add(wide, 2 * width, 1, 3, group=2 * width)
            given = join("Add", given, add(filtered, width, 2 * width, 1))
        elif kind == "both":
            given, width = join("Add", *(add(given, 24, width, size) for size in (1, 3))), 24
        elif kind == "pool":
            operator = lot.choice(["AveragePool", "MaxPool"])
            given = join(operator, given, kernel_shape=[3, 3], pads=[1] * 4)
        else:
            outputs = [(given, "float32", (1, None, None, None))]
    return save(path, *parts, given=given, outputs=outputs)


@pytest.mark.parametrize("seed", range(40))
def test_no_network_gives_other_numbers(tmp_path: Path, seed: int) -> None:
    """Whatever its layers are, as long as those that the engine computes in floats are left out."""
    path = grown(tmp_path / "model.onnx", seed)
    outside = MappedNetwork(path)
    words, _ = session_config(EngineChoice("onnxruntime", threads=1, lanes=1))
    (tmp_path / "aside").mkdir()
    graph = outside.optimize(words, tmp_path / "aside").graph
    floats = {each.input[0] for each in graph.node if each.op_type == "DequantizeLinear"}
    changed, zeros = change(path, tmp_path, floats, variety=3)
    assert changed is None or any(not zero.any() for zero in zeros.values())
