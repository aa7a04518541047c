"""Products of eight bits that a processor without VNNI would cut off: the definition's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.ov_graph import may_saturate
from edge_agent.inference.engines.registry import ENGINES, EngineName, open_engine
from tests.helpers.saturating import OUT_STEP, SIZE, STEP, W_STEP, network

WIDTH = 16
BRIGHT = np.full((1, WIDTH, SIZE, SIZE), 255, np.int64)
"""Steps of an input at its upper end: every pair of products is at its largest."""


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
