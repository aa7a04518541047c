"""Weights of eight bits are given a sign where that changes no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from edge_agent.device.resources import adds_bytes_exactly
from edge_agent.inference.prepared.compile.mapped_network import MappedNetwork
from edge_agent.inference.prepared.compile.rewrites import SIGNED_FILE, give_sign
from tests.helpers.tiny_networks import node, save_onnx

WIDTH = 48
SHAPE = (1, 8, 12, 12)


def network(path: Path, **more: Any) -> Path:
    """Save a convolution with weights without a sign, large enough to lie outside the graph."""
    random = np.random.default_rng(3)
    weights: dict[str, Any] = {
        "step": np.array(0.02, np.float32),
        "zero": np.array(121, np.uint8),
        "w": random.integers(0, 256, (WIDTH, 8, 3, 3)).astype(np.uint8),
        "w_step": np.array(0.01, np.float32),
        "w_zero": np.array(131, np.uint8),
        "out_step": np.array(0.3, np.float32),
    }
    steps = [
        node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "step", "zero"], ["f"]),
        node("DequantizeLinear", ["w", "w_step", "w_zero"], ["wf"]),
        node("Conv", ["f", "wf"], ["c"], kernel_shape=[3, 3]),
        node("QuantizeLinear", ["c", "out_step", "zero"], ["cq"]),
        node("DequantizeLinear", ["cq", "out_step", "zero"], ["y"]),
    ]
    outputs = [("y", "float32", (1, WIDTH, 10, 10))]
    extra = more.pop("steps", [])
    return save_onnx(
        path,
        [*steps, *extra],
        [("x", "float32", SHAPE)],
        [*outputs, *more.pop("outputs", [])],
        {**weights, **more.pop("weights", {})},
        **more,
    )


def run(graph: bytes, files: dict[str, Any]) -> list[Any]:
    """Run a network whose weights lie in files."""
    options = ort.SessionOptions()
    if files:
        options.add_external_initializers_from_files_in_memory(
            list(files), list(files.values()), [len(data) for data in files.values()]
        )
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    sample = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    found: list[Any] = session.run(None, {"x": sample})
    return found


@pytest.mark.skipif(not adds_bytes_exactly(), reason="without VNNI they are left as they are")
@pytest.mark.parametrize("outside_file", [False, True])
def test_signed_weights_give_the_same_numbers(tmp_path: Path, outside_file: bool) -> None:
    """Bit for bit, also where the weights lie in a file of their own; the zero point is not 128."""
    how = {"external": "weights.data"} if outside_file else {}
    path = network(tmp_path / "model.onnx", **how)
    outside = MappedNetwork(path)
    changed = give_sign(outside, tmp_path)
    assert changed is not None
    kinds = {tensor.name: tensor.data_type for tensor in changed.graph.initializer}
    assert kinds["signed/w"] == kinds["signed/w_zero"] == 3
    assert "w" not in kinds
    assert kinds["zero"] == 2, "the steps between the layers stay as they are"
    expected = run(outside.model.SerializeToString(), outside.files)
    found = run(changed.SerializeToString(), outside.files)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
    assert np.unique(expected[0]).size > 10


def test_what_is_also_used_as_it_is_stays(tmp_path: Path) -> None:
    """Weights that something else looks at, too, are left alone: an addition, say."""
    path = network(
        tmp_path / "model.onnx",
        steps=[node("ReduceMean", ["wf"], ["mean"], keepdims=0)],
        outputs=[("mean", "float32", ())],
    )
    assert give_sign(MappedNetwork(path), tmp_path) is None
    assert not (tmp_path / SIGNED_FILE).exists()
