"""Features of sound against what the libraries give that models are trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError
from edge_agent.inference.preprocess.features import features_of
from edge_agent.models.manifest import InputSpec
from edge_agent.models.transforms import LogMel

RATE = 16000
ORACLES = np.load(Path(__file__).parent / "feature_oracles.npz")
KALDI = {"frame_ms": 25, "step_ms": 10, "window": "povey", "power": 2, "preemphasis": 0.97}
LIBROSA = {"frame_ms": 32, "step_ms": 10, "center": True, "power": 2, "mel": "slaney", "low_hz": 0}
# name: transform, parameters
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "kaldi_fbank": ("logmel", {**KALDI, "floor": 1e-15}),
    "kaldi_mfcc": ("mfcc", {**KALDI, "floor": 1e-15, "coefficients": 13}),
    "librosa_db": ("logmel", {**LIBROSA, "log": "db", "floor": 1e-10}),
    "librosa_mfcc": ("mfcc", {**LIBROSA, "log": "db", "floor": 1e-10, "coefficients": 13}),
    "librosa_emphasis": ("logmel", {**LIBROSA, "log": "log1p", "preemphasis": 0.97}),
    "librosa_short_log": (
        "logmel",
        {**LIBROSA, "frame_ms": 25, "fft": 512, "bins": 64, "power": 1, "low_hz": 60},
    ),
    "librosa_hamming_log10": (
        "logmel",
        {**LIBROSA, "center": False, "window": "hamming", "log": "log10"},
    ),
}


# As librosa's functions compute by themselves, of a sound that begins as silence.
DEFAULTS = {**LIBROSA, "edges": "zeros", "log": "db", "floor": 1e-10, "top_db": 80}
QUIET: dict[str, tuple[str, dict[str, Any]]] = {
    "librosa_max": ("logmel", {**DEFAULTS, "reference": "max"}),
    "librosa_default_mfcc": ("mfcc", {**DEFAULTS, "coefficients": 13}),
}


def make(transform: Any, count: int, **parameters: Any) -> Any:
    spec = InputSpec(
        window=count, rate_hz=RATE, transform=transform, logmel=LogMel(**parameters), channels=(0,)
    )
    return features_of(spec)


@pytest.mark.parametrize("name", [*CASES, *QUIET])
def test_features_are_those_of_the_training_code(name: str) -> None:
    """Of the same parameters come the features of librosa and Kaldi, to rounding."""
    transform, parameters = (CASES | QUIET)[name]
    samples: NDArray[np.float32] = ORACLES["samples"]
    if name in QUIET:
        samples = samples * np.linspace(0, 1, len(samples), dtype=np.float32) ** 8
    features = make(transform, len(samples), **parameters)
    found, expected = features(samples), ORACLES[name]
    assert found.shape == expected.shape == features.shape
    # In decibels and for sums over 40 bins the numbers are up to a hundred.
    assert np.abs(found - expected).max() <= 2e-5 * max(1.0, np.abs(expected).max())


def test_peak_and_max_normalize_a_window() -> None:
    """`peak` divides by the largest of either sign, `max` by the largest as it is."""
    samples = np.array([0.1, -0.5, 0.25] * 400, np.float32)
    plain = make("logmel", len(samples))
    assert np.array_equal(make("logmel", 1200, normalize="peak")(samples), plain(samples / 0.5))
    assert np.array_equal(make("logmel", 1200, normalize="max")(samples), plain(samples / 0.25))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"fft": 256}, "input.logmel.fft: 256 is shorter than a frame of 480"),
        ({"high_hz": 9000}, "expected low < high ≤ 8000"),
        ({"low_hz": 4000, "high_hz": 4000}, "expected low < high"),
        ({"frame_ms": 0.01}, "expected 2 and 1 at least"),
        ({"frame_ms": 2000}, "hold no frame of 32000"),
        ({"center": True, "fft": 65536}, "too few to be reflected"),
        ({"top_db": 80}, "reference and top_db are for log = \"db\", found 'log'"),
        ({"coefficients": 41}, "input.logmel.coefficients: 41 of 40 bins"),
    ],
)
def test_parameters_that_contradict_each_other_are_named(
    parameters: dict[str, Any], message: str
) -> None:
    """What cannot be is said with its key."""
    with pytest.raises(ModelError, match=message):
        make("mfcc", 16000, **parameters)


def test_features_need_a_rate() -> None:
    """Milliseconds become samples only by a rate."""
    with pytest.raises(ModelError, match=r"input\.rate_hz: is missing"):
        features_of(InputSpec(window=16000, transform="logmel", channels=(0,)))
