"""What of a float network is quantized, and what stays float with what."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_agent.tools.float_model import make_ready
from tests.helpers.tiny_networks import node, save_onnx


def test_followers_and_tail(tmp_path: Path) -> None:
    """An activation goes with the operator that it is all made of; a sum of two goes with none.

    Behind the last heavy operator is the tail, which makes the result.
    """
    weight = np.ones((3, 3, 1, 1), np.float32)
    network = save_onnx(
        tmp_path / "net.onnx",
        [
            node("Conv", ["x", "w"], ["a"], name="one"),
            node("Sigmoid", ["a"], ["s"], name="gate"),
            node("Mul", ["a", "s"], ["silu"], name="silu"),
            node("Conv", ["silu", "w"], ["b"], name="two"),
            node("Add", ["silu", "b"], ["sum"], name="sum"),
            node("Conv", ["sum", "w"], ["c"], name="three"),
            node("Exp", ["c"], ["e"], name="decode"),
            node("Reshape", ["e", "flat"], ["y"], name="shape"),
        ],
        [("x", "float32", (1, 3, 8, 8))],
        [("y", "float32", (1, 192))],
        {"w": weight, "flat": np.array([1, -1], np.int64)},
    )
    place = tmp_path / "place"
    place.mkdir()
    ready = make_ready(network, place)
    assert ready.heavy == ("one", "two", "three")
    assert ready.tail == ("decode", "shape")
    assert ready.followers["one"] == ("gate", "silu")
    assert ready.followers["two"] == ()


def test_the_opset_is_raised(tmp_path: Path) -> None:
    """Weights by channel need opset 13; weights that are listed as inputs are none."""
    network = save_onnx(
        tmp_path / "old.onnx",
        [node("Conv", ["x", "w"], ["y"])],
        [("x", "float32", (1, 3, 8, 8))],
        [("y", "float32", (1, 3, 8, 8))],
        {"w": np.ones((3, 3, 1, 1), np.float32)},
        weights_are_inputs=True,
    )
    import onnx

    model = onnx.load(network)
    model.opset_import[0].version = 11
    model.ir_version = 3
    onnx.save(model, network)
    ready = onnx.load(make_ready(network, tmp_path).path)
    assert ready.opset_import[0].version >= 13
    assert [value.name for value in ready.graph.input] == ["x"]
