"""What is done to a network that NNCF made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import ENGINES, open_engine
from edge_agent.tools.quantizers import TARGETS, has_nncf, make_unsigned, quantize_nncf
from tests.helpers.tiny_networks import node, save_onnx

PICTURE = (1, 3, 8, 8)


def signed_network(path: Path) -> Path:
    """Save a network with signed activations, as NNCF writes them; two share a zero point."""
    rng = np.random.default_rng(3)
    quantized = [("x", "s2", "z2"), ("a", "s1", "z1"), ("c", "s1", "z1"), ("j", "s0", "z0")]
    nodes = [
        step
        for name, scale, zero in quantized
        for step in (
            node("QuantizeLinear", [name, scale, zero], [f"{name}q"], axis=1),
            node("DequantizeLinear", [f"{name}q", scale, zero], [f"{name}d"], axis=1),
        )
    ]
    nodes[2:2] = [node("Conv", ["xd", "wd"], ["a"], pads=[1, 1, 1, 1])]
    nodes[5:5] = [node("Sigmoid", ["ad"], ["b"]), node("Mul", ["ad", "b"], ["c"])]
    nodes[9:9] = [node("Concat", ["cd", "ad"], ["j"], axis=1)]
    nodes += [node("Conv", ["jd", "v"], ["y"])]
    nodes.insert(0, node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0))
    return save_onnx(
        path,
        nodes,
        [("x", "float32", PICTURE)],
        [("y", "float32", (1, 2, 8, 8))],
        {
            "w": rng.integers(-127, 128, (3, 3, 3, 3)).astype(np.int8),
            "ws": np.full(3, 0.003, np.float32),
            "wz": np.zeros(3, np.int8),
            "s0": np.array(0.01, np.float32),
            "z0": np.array(-80, np.int8),
            "s1": np.array(0.012, np.float32),
            "z1": np.array(-90, np.int8),
            "s2": np.array(0.004, np.float32),
            "z2": np.array(-128, np.int8),
            "v": rng.normal(size=(2, 6, 1, 1)).astype(np.float32),
        },
    )


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_unsigned_activations_are_the_same_network(tmp_path: Path, engine: str) -> None:
    """Zero points are 128 higher, weights stay signed, and the exact results are the same."""
    before = signed_network(tmp_path / "signed.onnx")
    model = onnx.shape_inference.infer_shapes(onnx.load(before))
    make_unsigned(model)
    after = tmp_path / "unsigned.onnx"
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, after)
    types = {
        tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type)
        for tensor in model.graph.initializer
    }
    taken = {types[each.input[2]] for each in model.graph.node if each.op_type == "QuantizeLinear"}
    assert taken == {"UINT8"}
    assert types["w"] == "INT8"
    exact = EngineChoice("onnxruntime", options={"graph_optimization_level": "none"})
    x = np.random.default_rng(4).random(PICTURE, np.float32)
    results = []
    for network, choice in ((before, exact), (after, exact), (after, EngineChoice(engine))):
        opened = open_engine(choice, network, lambda _: {})
        results.append(opened.infer({"x": x})["y"])
        opened.close()
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_allclose(results[2], results[0], atol=0.05)


@pytest.mark.skipif(not has_nncf(), reason="NNCF is not installed")
def test_biases_corrected_stepwise_bring_the_network_nearer(tmp_path: Path) -> None:
    """What eight bits shift in one layer is made up for in the next: the mean error is smaller."""
    rng = np.random.default_rng(5)
    depth, layers = 8, 6
    weights = {"w0": rng.normal(size=(depth, 3, 3, 3)).astype(np.float32)}
    weights |= {
        f"w{n}": (rng.standard_t(2, (depth, depth, 3, 3)) / depth).astype(np.float32)
        for n in range(1, layers)
    }
    weights |= {f"b{n}": rng.normal(size=depth).astype(np.float32) for n in range(layers)}
    nodes = [
        step
        for n in range(layers)
        for step in (
            node("Conv", [f"x{n}", f"w{n}", f"b{n}"], [f"c{n}"], name=f"c{n}", pads=[1, 1, 1, 1]),
            node("Relu", [f"c{n}"], [f"x{n + 1}"], name=f"r{n}"),
        )
    ]
    network = save_onnx(
        tmp_path / "float.onnx",
        nodes,
        [("x0", "float32", PICTURE)],
        [(f"x{layers}", "float32", (1, depth, 8, 8))],
        weights,
    )
    samples = [{"x0": rng.random(PICTURE, np.float32)} for _ in range(40)]

    def results(path: Path) -> NDArray[np.float32]:
        exact = EngineChoice("onnxruntime", options={"graph_optimization_level": "none"})
        opened = open_engine(exact, path, lambda _: {})
        found = [opened.infer(each)[f"x{layers}"].copy() for each in samples]
        opened.close()
        return np.concatenate(found)

    errors = []
    for stepwise in (False, True):
        out = tmp_path / f"{stepwise}.onnx"
        quantize_nncf(network, out, samples, TARGETS["x86-vnni"], stepwise=stepwise)
        shift = (results(out) - results(network)).mean(axis=(0, 2, 3))
        errors.append(float(np.abs(shift).mean()))
    assert errors[1] < errors[0]
