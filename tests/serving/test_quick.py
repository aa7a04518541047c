"""A network loaded the quick way computes what it says, whatever becomes of its file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import EngineError, ModelError
from edge_agent.device.resources import adds_bytes_exactly
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import check_quick, quick_engines
from edge_agent.models.manifest import load
from edge_agent.serving.open import begin_quick, open_quick
from tests.helpers import quantized_models
from tests.helpers.prepared_models import chain
from tests.helpers.tiny_networks import node, save_onnx

CHOICE = EngineChoice("onnxruntime", threads=2)


def as_written(network: Path, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run a network as it is, nothing optimized."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(network), options)
    (found,) = session.run(None, {session.get_inputs()[0].name: tensor})
    return np.asarray(found)


def quick(network: Path, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    engine = begin_quick(check_quick(CHOICE, network)).engine(lambda _: {})
    (found,) = engine.infer({engine.inputs[0].name: tensor}).values()
    return np.asarray(found)


def test_an_eight_bit_network_whose_products_may_saturate(tmp_path: Path) -> None:
    """With weights over the whole range the numbers are those of the network, on any processor."""
    network = quantized_models.save(tmp_path / "n.onnx")
    tensor = np.full((1, 3, 16, 16), 2.4, np.float32)
    expected = as_written(network, tensor)
    # A step of its output, which integers may round to the other side.
    assert np.allclose(quick(network, tensor), expected, atol=0.25)
    assert np.ptp(expected) > 10


def multiplying(path: Path, weights: int) -> Path:
    """Save a network that is written as a product of bytes."""
    table = np.full((64, 64), weights, np.int8)
    return save_onnx(
        path,
        [
            node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
            node("MatMulInteger", ["q", "w", "zero"], ["p"]),
            node("Cast", ["p"], ["y"], to=1),
        ],
        [("x", "float32", (1, 64))],
        [("y", "float32", (1, 64))],
        {"step": np.array(1, np.float32), "zero": np.array(0, np.uint8), "w": table},
    )


def test_a_network_that_leaves_no_choice(tmp_path: Path) -> None:
    """One that multiplies bytes itself is refused where these may saturate, and only there."""
    tensor = np.full((1, 64), 255, np.float32)
    assert (quick(multiplying(tmp_path / "small.onnx", 64), tensor) == 64 * 64 * 255).all()
    large = multiplying(tmp_path / "large.onnx", 127)
    if adds_bytes_exactly():
        assert (quick(large, tensor) == 64 * 127 * 255).all()
    else:
        with pytest.raises(EngineError, match="may saturate"):
            check_quick(CHOICE, large)


def cut(path: Path) -> None:
    os.truncate(path, 100)


def garble(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [cut, garble, remove], ids=lambda harm: harm.__name__)
def test_what_becomes_of_the_file_changes_nothing(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """What serves is what was read and checked, in memory of its own."""
    folder = load(chain(tmp_path / "chain"))
    model = open_quick(folder, CHOICE, "signal")
    (spec,) = model.engine.inputs
    tensors = {spec.name: np.full((4, 128), 0.25, np.float32)}
    expected = as_written(folder.network, tensors[spec.name])
    harm(folder.network)
    (found,) = model.run(tensors).values()
    assert np.allclose(found, expected, atol=1e-5)
    assert model.loaded_quickly
    model.close()
    with pytest.raises(EngineError, match="closed"):
        model.run(tensors)


def test_weights_in_another_file(tmp_path: Path) -> None:
    """They are loaded in the usual way."""
    folder = chain(tmp_path / "chain", external="weights.bin")
    with pytest.raises(EngineError, match="other files"):
        check_quick(CHOICE, folder / "model.onnx")


def test_no_engine_sees_what_the_checks_refuse(tmp_path: Path) -> None:
    """A file that is damaged or computes with NaN ends with the checks' own words."""
    network = chain(tmp_path / "chain") / "model.onnx"
    data = network.read_bytes()
    network.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="not a valid ONNX file"):
        check_quick(CHOICE, network)
    network.write_bytes(data[:-4000] + b"\xff" * 3000 + data[-1000:])
    with pytest.raises(ModelError):
        check_quick(CHOICE, network)


def test_who_has_a_quick_way() -> None:
    """Only for the files that it reads."""
    assert quick_engines(Path("model.onnx")) == ["onnxruntime"]
    assert quick_engines(Path("model.xml")) == []
