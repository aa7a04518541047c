"""Edge Impulse's MFE and spectral features against what its own blocks give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import ModelError
from edge_agent.core.types import TensorSpec
from edge_agent.inference.preprocess.signal import signal_preprocessor
from edge_agent.models.manifest import parse

ORACLES = np.load(Path(__file__).parent / "edge_impulse_oracles.npz")
"""Windows, and what `generate_features` of edgeimpulse/processing-blocks makes of them."""
MFE = {"frame_ms": 25, "step_ms": 12.5, "fft": 256, "bins": 20, "noise_floor_db": -40}
LOW = {"filter": "low", "cutoff_hz": 3, "order": 6, "fft": 16}
CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "mfe_3": ("mfe", 8000, {**MFE, "version": 3, "high_hz": 4000}),
    "mfe_4": ("mfe", 8000, {**MFE, "high_hz": 4000}),
    "spectral_2_low": ("spectral", 62.5, {**LOW, "version": 2}),
    "spectral_4_low": ("spectral", 62.5, LOW),
    "spectral_4_none": ("spectral", 100, {"fft": 64, "overlap": False, "scale_axes": 0.5}),
    "spectral_4_high": (
        "spectral",
        1000,
        {"filter": "high", "cutoff_hz": 60, "order": 4, "fft": 128, "log": False},
    ),
}


def prepared(transform: str, window: int, numbers: int, **given: Any) -> Any:
    """Make what turns windows into the input of a network that takes so many numbers."""
    keys = {"transform": transform, "window": window, "layout": "flat-tc", **given}
    head = {"name": "m", "version": "1", "task": "regression", "file": "m.onnx"}
    spec = parse({**head, "input": keys}, "m").input
    return signal_preprocessor(spec, (TensorSpec("x", (1, numbers), "float32"),))


@pytest.mark.parametrize("name", CASES)
def test_features_are_those_of_edge_impulse(name: str) -> None:
    """MFE is the same to the bit, whose steps are 1/256; spectra to a float's rounding."""
    transform, rate, block = CASES[name]
    window, expected = ORACLES[f"{name}_in"], ORACLES[name]
    if transform == "mfe":
        window = (window / 2**15).astype(np.float32)[:, None]
    channels = list(range(window.shape[1]))
    given: dict[str, Any] = {"rate_hz": rate, "channels": channels, transform: block}
    prepare = prepared(transform, len(window), len(expected), **given)
    found = prepare(window)[0]["x"][0]
    if transform == "mfe":
        assert np.array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_of_a_window_in_which_nothing_changes_all_features_are_finite() -> None:
    """Silence and a sensor that stands still give numbers."""
    for transform, numbers in (("mfe", 4 * 40), ("spectral", 5 + 8)):
        prepare = prepared(transform, 800, numbers, rate_hz=16000, channels=[0])
        for level in (0.0, 9.81):
            found = prepare(np.full((800, 1), level, np.float32))[0]["x"]
            assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("transform", "given", "message"),
    [
        ("mfe", {"mfe": {"fft": 300}}, "input.mfe.fft: expected a power of two, found 300"),
        ("mfe", {"mfe": {"high_hz": 9000}}, "input.mfe: expected low_hz < high_hz ≤ 8000"),
        ("mfe", {"rate_hz": None}, "input.rate_hz: is missing; transform 'mfe' needs"),
        ("mfe", {"mfe": {"bins": 200}}, "of 200 mel bands hold no bin of a transform of 256"),
        ("mfe", {"mfe": {"frame_ms": 600}}, "holds 0 frames of 9600"),
        ("mfe", {"channels": [0, 1]}, "transform 'mfe' takes 1 channel, found 2"),
        ("spectral", {"spectral": {"order": 3}}, "input.spectral.order"),
        (
            "spectral",
            {"spectral": {"filter": "low", "cutoff_hz": 8000}},
            "input.spectral.cutoff_hz: expected less than 8000",
        ),
        ("spectral", {"spectral": {"wavelet": "db4"}}, "wavelet"),
        ("spectral", {}, "makes 13 features of 1 channel of a window of 1600 samples"),
    ],
)
def test_what_cannot_be_is_refused(transform: str, given: dict[str, Any], message: str) -> None:
    """Parameters that contradict each other or the network are named by key."""
    keys = {"rate_hz": 16000, "channels": [0], **given}
    with pytest.raises(ModelError) as refused:
        prepared(transform, 1600, 7, **{k: v for k, v in keys.items() if v is not None})
    assert message in str(refused.value)
