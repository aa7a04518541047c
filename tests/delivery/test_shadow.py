"""How a candidate in shadow is compared with the version that serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.core.types import Sample
from edge_agent.delivery.protocol import agreement_words
from edge_agent.delivery.rollout.shadow import Comparison
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.manifest import load
from tests.helpers.small_models import detector, plain

PERSON = (0, 0.9, 0.1, 0.1, 0.4, 0.9)


@pytest.mark.parametrize(("score", "agreement"), [(0.52, 1.0), (0.7, 0.0)])
def test_a_box_near_the_threshold_is_no_disagreement(
    score: float, agreement: float, tmp_path: Path
) -> None:
    """What a trial does not count, shadow does not count either: the margin is one."""
    rows = [PERSON, (0, score, 0.6, 0.5, 0.9, 0.9)]
    folders = [
        detector(tmp_path / name, rows[:count], ["person"])
        for name, count in (("incumbent", 2), ("candidate", 1))
    ]
    incumbent, candidate = (
        load_model(load(folder), [EngineChoice("onnxruntime")], "picture") for folder in folders
    )
    sample = Sample(plain(40), 0, 0, 0.0)
    shadow = Comparison(candidate, 1)
    shadow.compare(sample, incumbent.infer(sample), None, None)
    assert (shadow.compared, shadow.errors) == (1, 0)
    assert shadow.agreement == agreement
    assert agreement == 1.0 or "[trial] tolerance = 0.05" in str(shadow.disagreement)
    incumbent.close()
    candidate.close()


def test_agreement_on_frames_in_which_nothing_is_found_is_said_to_be_that(tmp_path: Path) -> None:
    """Two networks that find nothing agree on every frame, which shows nothing."""
    weak = [(0, 0.1, 0.1, 0.1, 0.4, 0.9)]
    folders = [detector(tmp_path / name, weak, ["person"]) for name in ("incumbent", "candidate")]
    incumbent, candidate = (
        load_model(load(folder), [EngineChoice("onnxruntime")], "picture") for folder in folders
    )
    sample = Sample(plain(40), 0, 0, 0.0)
    shadow = Comparison(candidate, 1)
    shadow.compare(sample, incumbent.infer(sample), None, None)
    incumbent.close()
    candidate.close()
    assert agreement_words({"shadow": shadow.payload()}) == (
        "agrees with it on 1 of 1 live frames, and nothing was found in any",
        False,
    )
