"""Statistics of windows: by formulas, as a model's input, and what a manifest may ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import ModelError
from edge_agent.core.types import TensorSpec
from edge_agent.inference.preprocess.signal import signal_preprocessor
from edge_agent.inference.preprocess.window_stats import WindowStats
from edge_agent.models.manifest import parse

RATE = 1000.0
OF = ("rms", "peak", "kurtosis", "crest", "band:10-100", "band:100-500")


def manifest(**given: Any) -> Mapping[str, Any]:
    head = {"name": "m", "version": "1", "task": "regression", "file": "m.onnx"}
    return {**head, "input": {"transform": "stats", **given}}


def test_statistics_of_a_tone_and_of_what_does_not_change() -> None:
    """A sine has the figures of the textbook, band by band; of silence nothing is infinite."""
    time = np.arange(2000) / RATE
    tone = 3 * np.sin(2 * np.pi * 50 * time)
    window = np.stack([tone, np.zeros(2000), np.full(2000, -2.0)], axis=1).astype(np.float32)
    found = WindowStats(window.shape, OF, RATE)(window)
    wanted = [
        [3 / 2**0.5, 3.0, -1.5, 2**0.5, 3 / 2**0.5, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [2.0, 2.0, 0.0, 1.0, 0.0, 0.0],
    ]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert np.isfinite(WindowStats((1, 3), OF, RATE)(window[:1])).all()


@pytest.mark.parametrize(("layout", "shape"), [("tc", (1, 2, 3)), ("flat-ct", (1, 6))])
def test_a_network_gets_a_value_for_each_channel(layout: str, shape: tuple[int, ...]) -> None:
    """Channels by statistics are its rows and columns; mean and scale count per statistic."""
    spec = parse(
        manifest(
            channels=[0, 1],
            window=4,
            layout=layout,
            stats={"of": ["rms", "peak", "crest"]},
            mean=[1.0, 0.0, 0.0],
            scale=[1.0, 1.0, 2.0],
        ),
        "m",
    ).input
    prepare = signal_preprocessor(spec, (TensorSpec("x", shape, "float32"),))
    window = np.array([[1, 2], [-1, 2], [1, -2], [1, -6]], np.float32)
    made = prepare(window)[0]["x"]
    rms = 12**0.5
    wanted = np.array([[0, 1, 0.5], [rms - 1, 6, 3 / rms]], np.float32)
    if layout == "flat-ct":
        wanted = wanted.T
    np.testing.assert_allclose(made, wanted.reshape(shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stats": {"of": ["rms"]}, "layout": "tc"}, "input.window: is missing"),
        ({"window": 8}, "input.stats.of: expected 1 to 64 of rms, peak"),
        ({"window": 8, "stats": {"of": []}}, "found 0"),
        ({"window": 8, "stats": {"of": ["rms", "rms"]}}, "names 'rms' twice"),
        ({"window": 8, "stats": {"of": ["mean"]}}, "found 'mean'"),
        ({"window": 8, "stats": {"of": ["band:10-100"]}}, "input.rate_hz: is missing"),
        ({"window": 8, "rate_hz": 100, "stats": {"of": ["band:60-20"]}}, "low < high ≤ 50"),
        ({"window": 8, "rate_hz": 100, "stats": {"of": ["band:nan-20"]}}, "found 'band:nan-20'"),
        ({"window": 8, "stats": {"of": "rms"}}, "input.stats.of"),
        ({"window": 8, "stats": {"off": ["rms"]}}, "did you mean"),
    ],
)
def test_what_a_manifest_may_not_ask_for_is_said(given: dict[str, Any], said: str) -> None:
    """Each mistake names its key."""
    with pytest.raises(ModelError, match=re.escape(said)):
        parse(manifest(**given), "m")


def test_statistics_that_do_not_fit_a_network_are_said() -> None:
    """Expected and found, in words."""
    spec = parse(manifest(window=4, channels=[0], stats={"of": ["rms", "peak"]}), "m").input
    with pytest.raises(ModelError, match="stats makes 2 statistics of 1 channel of a window of 4"):
        signal_preprocessor(spec, (TensorSpec("x", (1, 5), "float32"),))
