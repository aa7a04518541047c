"""Products of eight bits that a processor without VNNI would cut off: the definition's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.ov_passes import may_saturate
from edge_agent.inference.engines.registry import ENGINES, EngineName, open_engine
from tests.helpers.tiny_networks import node, save_onnx

WIDTH, SIZE = 16, 12
STEP, W_STEP, OUT_STEP = np.float32(0.02), np.float32(0.01), np.float32(2.0)
BRIGHT = np.full((1, WIDTH, SIZE, SIZE), 255, np.int64)
"""Steps of an input at its upper end: every pair of products is at its largest."""


def network(path: Path, weights: Any, *, shared: bool = False) -> Path:
    """Save two convolutions of eight bits with the same weights.

    Args:
        path: the .onnx file.
        weights: of both, steps with a sign.
        shared: the weights have one zero point together.

    """
    zeros = ["w_zero", "w_zero" if shared else "v_zero"]
    nodes = [
        node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "step", "zero"], ["f"]),
    ]
    for name, zero, result in zip(("w", "v"), zeros, ("a", "b"), strict=True):
        nodes += [
            node("DequantizeLinear", [name, "w_step", zero], [f"{name}f"]),
            node("Conv", ["f", f"{name}f"], [f"{result}c"], kernel_shape=[3, 3]),
            node("QuantizeLinear", [f"{result}c", "out_step", "out_zero"], [f"{result}q"]),
            node("DequantizeLinear", [f"{result}q", "out_step", "out_zero"], [result]),
        ]
    shape = (1, WIDTH, SIZE - 2, SIZE - 2)
    return save_onnx(
        path,
        nodes,
        [("x", "float32", (1, WIDTH, SIZE, SIZE))],
        [("a", "float32", shape), ("b", "float32", shape)],
        {
            "step": np.array(STEP),
            "zero": np.array(0, np.uint8),
            "w": weights,
            "v": weights,
            "w_step": np.array(W_STEP),
            "out_step": np.array(OUT_STEP),
            "out_zero": np.array(128, np.uint8),
            **{name: np.array(0, np.int8) for name in zeros},
        },
    )


def definition(steps: Any, weights: Any) -> Any:
    """Compute what ONNX defines, in integers."""
    windows = np.lib.stride_tricks.sliding_window_view(steps[0], (3, 3), axis=(1, 2))
    sums = np.einsum("chwij,ocij->ohw", windows, weights.astype(np.int64))[None]
    scaled = sums * (float(STEP) * float(W_STEP) / float(OUT_STEP))
    return (np.clip(np.rint(scaled) + 128, 0, 255) - 128) * float(OUT_STEP)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_large_weights_do_not_saturate(engine: EngineName, shared: bool, tmp_path: Path) -> None:
    """Within a step, for weights of the whole range and the brightest input."""
    random = np.random.default_rng(7)
    weights = random.choice([127, -127, 127, 3], (WIDTH, WIDTH, 3, 3)).astype(np.int8)
    weights[: WIDTH // 2] = random.integers(-127, 128, (WIDTH // 2, WIDTH, 3, 3))
    path = network(tmp_path / "model.onnx", weights, shared=shared)
    opened = open_engine(EngineChoice(engine, threads=1), path, lambda _: {})
    for steps in (BRIGHT, random.integers(0, 256, BRIGHT.shape)):
        wanted = definition(steps, weights)
        found = opened.infer({"x": steps.astype(np.float32) * STEP})
        for name in ("a", "b"):
            assert wanted.std() > OUT_STEP  # it is about something
            assert np.abs(found[name] - wanted).max() <= OUT_STEP * 1.01


@pytest.mark.parametrize(("largest", "may"), [(64, False), (65, True), (-65, True)])
def test_weights_of_seven_bits_stay_bytes(largest: int, may: bool, tmp_path: Path) -> None:
    """Only what may saturate is computed as floats."""
    weights = np.full((WIDTH, WIDTH, 3, 3), 5, np.int8)
    weights[0, 0, 0, 0] = largest
    model = ov.Core().read_model(str(network(tmp_path / "model.onnx", weights)))
    assert may_saturate(model) is may
