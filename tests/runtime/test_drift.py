"""Drift of a pipeline's inputs and scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.types import Sample
from edge_agent.inference.drift import save, usual_of
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.manifest import load
from edge_agent.runtime.pipelines.drift import Drift
from edge_agent.runtime.pipelines.learned import LearnedValues
from tests.helpers.small_models import loudness

LEARN = 320


def opened(folder: Path) -> Model:
    """Load a model of one channel in windows of four."""
    return load_model(load(folder), [EngineChoice("onnxruntime")], "signal")


def model(tmp_path: Path, version: str = "1") -> Model:
    """Make one that learns from 320 windows."""
    return opened(loudness(tmp_path / f"loud-{version}", 4, version, learn=LEARN))


class Source:
    """Windows of noise, with what the model makes of them."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.seq = 0

    def sample(self, mean: float) -> Sample:
        """Return the next window."""
        self.seq += 1
        data = self._rng.normal(mean, 1, (4, 1)).astype(np.float32)
        return Sample(data, self.seq, 0, 0.0, picture=False)

    def give(self, drift: Drift, model: Model, count: int, mean: float = 0.0) -> None:
        """Give a pipeline so many results."""
        for _ in range(count):
            sample = self.sample(mean)
            drift.follow(model, sample, model.infer(sample).findings, model.threshold)


def made(learned: LearnedValues | None, source: str = "csv:x") -> Drift:
    return Drift("p", None if learned is None else learned.usual, source, None)


def report(drift: Drift) -> dict[str, Any]:
    found = drift.report()
    assert found is not None
    return found


def test_what_is_usual_is_learned_and_kept(tmp_path: Path) -> None:
    """The first results are usual; others than these are told from them, after a restart too."""
    loud, source = model(tmp_path), Source()
    drift = made(LearnedValues(tmp_path))
    source.give(drift, loud, 1 + LEARN // 2)
    assert report(drift) == {"against": "learned", "learning": 0.5}
    assert drift.indices == {}
    source.give(drift, loud, LEARN // 2)
    assert report(drift) == {"against": "learned"}
    source.give(drift, loud, 3 * LEARN)
    usual = report(drift)
    assert usual["largest"] == max(usual["inputs"]["all"], usual["score"]) < 0.25
    again = made(LearnedValues(tmp_path))
    source.give(again, loud, 1 + 2 * LEARN, mean=2.0)
    assert report(again)["inputs"]["all"] > 1
    assert report(again)["score"] > 1
    assert again.indices["all"] == pytest.approx(report(again)["inputs"]["all"], abs=1e-4)


def test_another_version_or_source_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was usual of one says nothing of another; that a version begins anew is logged.

    One that comes back in the same run knows what it had learned.
    """
    caplog.set_level("INFO")
    kept, source = LearnedValues(tmp_path), Source()
    first, second = model(tmp_path), model(tmp_path, "2")
    drift = made(kept)
    source.give(drift, first, 1 + LEARN)
    assert "learning" not in report(drift)
    source.give(drift, second, 160, mean=9.0)
    assert report(drift) == {"against": "learned", "learning": 0.5}
    assert "p: drift is measured again, for loud@2" in caplog.text
    source.give(drift, first, 160)
    assert "learning" not in report(drift)
    other = made(kept, "csv:y")
    source.give(other, first, 161)
    assert report(other)["learning"] == 0.5


def test_calibration_goes_before_what_is_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the folder says is usual holds from the first result; of other inputs it does not."""
    folder = loudness(tmp_path / "loud", 4, learn=LEARN)
    plain, source = opened(folder), Source()
    given = [source.sample(0.0) for _ in range(300)]
    usual = usual_of([(sample, plain.infer(sample).findings) for sample in given])
    save(usual, folder)
    drift = made(LearnedValues(tmp_path))
    source.give(drift, opened(folder), 1 + LEARN, mean=3.0)
    assert report(drift)["against"] == "calibration"
    assert report(drift)["largest"] > 1
    assert not (tmp_path / "drift.json").exists()

    two = [np.zeros((4, 2), np.float32)] * 2
    samples = [Sample(data, n, 0, 0.0, picture=False) for n, data in enumerate(two)]
    save(usual_of([(one, plain.infer(given[0]).findings) for one in samples]), folder)
    drift = made(None)
    source.give(drift, opened(folder), 17)
    assert report(drift) == {"against": "learned", "learning": 0.05}
    assert "drift.json of loud@1 is for inputs 0, 1, not all" in caplog.text


def test_a_damaged_file_is_learned_anew(tmp_path: Path) -> None:
    """It costs what it held, and nothing else."""
    (tmp_path / "drift.json").write_text('{"p": {"model": "loud@1", "rule": "x", "usual": 3}}')
    drift = made(LearnedValues(tmp_path))
    Source().give(drift, model(tmp_path), 17)
    assert report(drift)["learning"] == 0.05


def test_other_masks_or_files_begin_anew(tmp_path: Path) -> None:
    """What is black is no drift, and a version may be pushed again with other files."""
    kept, source = LearnedValues(tmp_path), Source()
    loud = model(tmp_path)

    def drift(content: str) -> Drift:
        return Drift("p", kept.usual, "csv:x", None, lambda _model: content)

    first = drift("a")
    source.give(first, loud, 1 + LEARN)
    assert "learning" not in report(first)
    first.look_at("[]")
    source.give(first, loud, 160)
    assert report(first)["learning"] == 0.5
    for content, known in (("a", True), ("b", False)):
        again = drift(content)
        source.give(again, loud, 161)
        assert ("learning" not in report(again)) == known


def test_what_an_earlier_release_has_learned_with_masks_is_taken_over(tmp_path: Path) -> None:
    """It knew nothing of masks; what it has learned is of those that are there."""
    kept, source = LearnedValues(tmp_path), Source()
    loud, masks = model(tmp_path), "[[(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]]"
    source.give(made(kept), loud, 1 + LEARN)
    path = tmp_path / "drift.json"
    entry = json.loads(path.read_text())["p"]
    earlier = {key: entry[key] for key in ("model", "rule", "usual")}
    path.write_text(json.dumps({"p": earlier}))
    drift = made(LearnedValues(tmp_path))
    drift.look_at(masks)
    source.give(drift, loud, 161)
    assert "learning" not in report(drift)
    drift.look_at("")
    source.give(drift, loud, 160)
    assert report(drift)["learning"] == 0.5, "now it is known to be of the masks"
    drift.look_at(masks)
    source.give(drift, loud, 160)
    assert "learning" not in report(drift)


def test_other_files_of_a_version_begin_anew_in_the_same_run(tmp_path: Path) -> None:
    """Pushed again under its number, a model was measured by what had been usual of the other."""
    first, source = model(tmp_path), Source()
    second = opened(tmp_path / "loud-1")
    contents = {first: "a", second: "b"}
    drift = Drift("p", LearnedValues(tmp_path).usual, "csv:x", None, contents.__getitem__)
    source.give(drift, first, 1 + LEARN)
    assert "learning" not in report(drift)
    source.give(drift, second, 160, mean=9.0)
    assert report(drift)["learning"] == 0.5
