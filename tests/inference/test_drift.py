"""The index of drift, and what a model folder says is usual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import ModelError
from edge_agent.core.types import Anomaly, Sample
from edge_agent.inference import drift
from edge_agent.models.drift import DRIFT, MOST_INDEX, Distribution, Usual
from edge_agent.models.manifest import load
from tests.helpers.small_models import brightness, loudness


def index(usual: Distribution, column: Any, floor: float | None = None) -> float:
    """Return the index of some values."""
    histogram = drift.Histogram([usual])
    histogram.add(np.array(column)[:, None], 1.0)
    return float(histogram.indices(floor)[0])


def test_the_index_is_the_sum_over_bins() -> None:
    """(p - q) ln(p / q), as worked out by hand; a bin that was empty counts as 0.001."""
    usual = Distribution((0.0, 1.0), (0.5, 0.3, 0.2))
    found = index(usual, [-1] * 2 + [0.5] * 3 + [1.5] * 5)
    by_hand = 0.3 * np.log(0.5 / 0.2) + 0.3 * np.log(0.5 / 0.2)
    assert found == pytest.approx(by_hand)
    assert index(usual, [0.0] * 5 + [1.0] * 3 + [9.0] * 2) == pytest.approx(0.0)
    gone = index(usual, [0.5] * 10)
    expected = 0.499 * np.log(500) + 0.7 * np.log(1 / 0.3) + 0.199 * np.log(200)
    assert gone == pytest.approx(expected)


def test_no_index_is_above_the_most() -> None:
    """All values lie in a bin that was empty; a rule with more never acts, as `check` says."""
    found = index(Distribution((0.0,), (1.0, 0.0)), [1.0] * 10)
    assert MOST_INDEX - 0.5 < found < MOST_INDEX


def test_the_same_is_near_nought_and_another_is_far() -> None:
    """As the rule of thumb has it: the same below 0.1, a shift by a deviation far above 0.25."""
    rng = np.random.default_rng(0)
    usual = drift.distribution(rng.normal(0, 1, 5000))
    assert index(usual, rng.normal(0, 1, 2000)) < 0.02
    assert 0.25 < index(usual, rng.normal(1, 1, 2000)) < index(usual, rng.normal(9, 1, 2000)) < 14


@pytest.mark.parametrize("other", [4.0, 6.0])
def test_what_was_always_the_same_is_seen_to_change_either_way(other: float) -> None:
    """Where one value was all there was, it has a bin of its own."""
    usual = drift.distribution(np.full(100, 5.0))
    assert index(usual, [5.0] * 9) == pytest.approx(0.0, abs=1e-9)
    assert index(usual, [other] * 9) > 10


def test_scores_below_a_higher_threshold_are_none_on_both_sides() -> None:
    """What a higher threshold leaves out has not drifted away."""
    rng = np.random.default_rng(1)
    scores = np.where(rng.random(4000) < 0.3, 0.0, rng.uniform(0.5, 1.0, 4000))
    usual = drift.distribution(scores)
    now = np.where(scores < 0.8, 0.0, scores)
    assert index(usual, now) > 1
    assert index(usual, now, floor=0.8) < 0.02


def test_histograms_fade() -> None:
    """What came long ago counts no more."""
    histogram = drift.Histogram([Distribution((0.5,), (1.0, 0.0))])
    for value in [1.0] * 50 + [0.0] * 200:
        histogram.add(np.array([[value]]), 0.9)
    assert histogram.indices()[0] == pytest.approx(0.0, abs=1e-6)


def test_few_values_are_taken_of_a_sample_however_large() -> None:
    """A grid of pixels by color, some rows by channel; ready inputs are one."""
    picture = np.zeros((1080, 1920, 3), np.uint8)
    picture[:, :, 2] = 9
    found = drift.values(picture, picture=True)
    assert found.shape == (192, 3)
    assert found.max(axis=0).tolist() == [0, 0, 9]
    assert drift.values(np.zeros((4, 5, 3), np.uint8), picture=True).shape == (20, 3)
    window = np.arange(3000.0).reshape(1000, 3)
    assert drift.values(window, picture=False, seq=1).shape == (32, 3)
    assert drift.values(window[:5], picture=False).shape == (5, 3)
    assert drift.values(np.zeros(7), picture=False).shape == (1, 7)
    assert drift.values(np.zeros((2, 640)), picture=False).shape == (32, 1)
    assert drift.values(np.zeros((3, 4, 5)), picture=False).shape == (30, 1)


def test_a_folder_says_what_is_usual(tmp_path: Path) -> None:
    """What calibration has given is written, and read with the folder, the same."""
    folder = loudness(tmp_path / "m", 4)
    samples = [
        (Sample(np.full((4, 1), n, np.float32), n, 0, 0.0, picture=False), Anomaly(float(n), 1.0))
        for n in range(100)
    ]
    usual = drift.usual_of(samples)
    drift.save(usual, folder)
    found = load(folder).usual
    assert found == usual
    assert found is not None
    assert (found.results, list(found.inputs), found.floor) == (100, ["all"], 0.0)
    assert found.score is not None
    assert len(found.score.edges) == 9
    assert sum(found.score.shares) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no results"):
        drift.usual_of([])


ONE = {"edges": [0.0], "shares": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "drift.json: "),
        ([], "expected an object of schema 1"),
        ({"schema": 2}, "expected an object of schema 1"),
        ({"schema": 1, "inputs": {"x": ONE}}, "results: expected a whole number"),
        ({"schema": 1, "results": 9, "inputs": {}}, "inputs: expected an object of 1 to 64"),
        ({"schema": 1, "results": 9, "inputs": {"x": ONE}, "floor": "x"}, "floor: expected"),
        ({"schema": 1, "results": 9, "inputs": {"x": 3}}, "inputs.x: expected an object"),
        (
            {"schema": 1, "results": 9, "inputs": {"x": {"edges": [1, 1], "shares": [1, 0, 0]}}},
            "inputs.x.edges: expected 1 to 63 numbers that rise",
        ),
        (
            {"schema": 1, "results": 9, "inputs": {"x": {"edges": [1], "shares": [1]}}},
            "inputs.x.shares: expected 2 for 1 edges, found 1",
        ),
        (
            {"schema": 1, "results": 9, "inputs": {"x": ONE}, "score": {**ONE, "shares": [1, 1]}},
            "score.shares: expected numbers from 0 on whose sum is 1",
        ),
        (
            '{"schema": 1, "results": 9, "inputs": {"x": {"edges": [NaN], "shares": [1, 0]}}}',
            "inputs.x.edges: expected a list of finite numbers",
        ),
        (
            {"schema": 1, "results": 9, "inputs": {"x": {**ONE, "edges": [10**400]}}},
            "inputs.x.edges: expected a list of finite numbers",
        ),
        ("[" * 100_000, "drift.json: "),
    ],
)
def test_what_is_damaged_is_said(tmp_path: Path, content: Any, words: str) -> None:
    """One line with file and place; the model is refused as for any other damaged file."""
    folder = brightness(tmp_path / "m")
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / DRIFT).write_text(text)
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_must_be_of_the_manifests_channels(tmp_path: Path) -> None:
    """A file of another model is not taken for this one's."""
    folder = loudness(tmp_path / "m", 4)
    manifest = (folder / "model.toml").read_text().replace("[input]", '[input]\nchannels = ["ax"]')
    (folder / "model.toml").write_text(manifest)
    one = Distribution((0.0,), (0.5, 0.5))
    drift.save(Usual(9, {"ay": one}, None, 0.0), folder)
    with pytest.raises(ModelError, match="expected the manifest's channels ax, found ay"):
        load(folder)
