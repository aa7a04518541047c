"""Decisions over several windows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.settings import Pipeline, SecondStage
from edge_agent.core.errors import ModelError
from edge_agent.core.types import Anomaly, Classes, Outcome, Sample, Timing
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.manifest import OutputSpec, load, parse
from edge_agent.runtime.pipelines import learned
from edge_agent.runtime.pipelines.frame_path import FramePath
from edge_agent.runtime.pipelines.learned import KEPT, Decisions, LearnedValues
from tests.helpers.small_models import brightness, detector, loudness, plain, write_manifest


def outcome(findings: Any, model: str = "m@1") -> Outcome:
    return Outcome(model, "none", findings, Timing(0.0, 0.0, 0.0))


def judge(decisions: Decisions, spec: OutputSpec, *scores: float, **more: Any) -> list[Anomaly]:
    """Decide over scores, as a model gives them that knows no threshold."""
    model = more.pop("model", "m@1")
    override = more.pop("override", None)
    found = []
    for score in scores:
        given = float("inf") if isinstance(spec.threshold, str) else spec.threshold
        one = outcome(Anomaly(score, override or given), model)
        made = decisions.decide(one, spec, follows=True, override=override, **more).findings
        assert isinstance(made, Anomaly)
        found.append(made)
    return found


LEARNS = OutputSpec(decoder="score", threshold="p90", learn=10)


def test_a_threshold_is_learned_and_kept(tmp_path: Path) -> None:
    """The quantile of the first windows holds from then on, after a restart too."""
    decisions = Decisions("p", LearnedValues(tmp_path).thresholds)
    first = judge(decisions, LEARNS, *range(1, 10))
    assert [one.anomalous for one in first] == [False] * 9
    assert first[4].as_json()["anomaly"] == {
        "score": 5.0,
        "threshold": None,
        "anomalous": False,
        "learning": 0.5,
    }
    assert [one.threshold for one in judge(decisions, LEARNS, 10, 3)] == [9, 9]
    again = Decisions("p", LearnedValues(tmp_path).thresholds)
    (one,) = judge(again, LEARNS, 9.5)
    assert (one.threshold, one.anomalous) == (9, True)


def test_learning_goes_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was switched off each evening before 500 windows never had an anomaly."""
    monkeypatch.setattr(learned, "KEEP_SECONDS", 0.0)
    for day, begin in enumerate((1, 5, 9)):
        decisions = Decisions("p", LearnedValues(tmp_path).thresholds)
        (one,) = judge(decisions, LEARNS, begin)
        assert one.learning == pytest.approx(0.4 * day + 0.1)
        judge(decisions, LEARNS, *range(begin + 1, min(begin + 4, 11)))
    assert judge(decisions, LEARNS, 9.5)[0].threshold == 9
    again = LearnedValues(tmp_path).thresholds
    assert Decisions("p", again).learned("m@1", LEARNS) == 9
    assert again.so_far.get("p", "m@1", "p90/10") == []


def test_another_version_or_rule_learns_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was learned of a version says nothing of the next one, and that is logged."""
    caplog.set_level("INFO")
    kept = LearnedValues(tmp_path).thresholds
    judge(Decisions("p", kept), LEARNS, *range(20))
    caplog.clear()
    (one,) = judge(Decisions("p", kept), LEARNS, 5, model="m@2")
    assert one.threshold is None
    assert "p: learns the threshold of m@2 as p90 of 10 windows" in caplog.text
    (one,) = judge(Decisions("p", kept), OutputSpec(threshold="p50", learn=10), 5)
    assert one.threshold is None
    (one,) = judge(Decisions("other", kept), LEARNS, 5)
    assert one.threshold is None


def test_the_threshold_of_the_settings_wins() -> None:
    """A pipeline that has a threshold of its own does not learn one."""
    (one,) = judge(Decisions("p", None), LEARNS, 5, override=3.0)
    assert (one.threshold, one.anomalous, one.learning) == (3.0, True, None)


def test_what_is_learned_is_known_beside_the_results(tmp_path: Path) -> None:
    """Nothing until it is learned, then the quantile, also before the first window of a run."""
    kept = LearnedValues(tmp_path).thresholds
    told: list[float | None] = []
    decisions = Decisions("p", kept)
    kept.on_put.add(lambda: told.append(decisions.learned("m@1", LEARNS)))
    assert decisions.learned("m@1", LEARNS) is None
    judge(decisions, LEARNS, *range(1, 11))
    assert told == [9]
    again = Decisions("p", LearnedValues(tmp_path).thresholds)
    assert again.learned("m@1", LEARNS) == 9
    assert again.learned("m@2", LEARNS) is None


def test_a_damaged_file_of_thresholds_is_forgotten(tmp_path: Path) -> None:
    """It learns again."""
    path = tmp_path / "thresholds.json"
    path.write_text('{"p": {"model": "m@1", "rule": "p90/10", "threshold": "high"}}')
    (one,) = judge(Decisions("p", LearnedValues(tmp_path).thresholds), LEARNS, 5)
    assert one.threshold is None


def test_an_anomaly_counts_if_it_stays() -> None:
    """With "2/3" an anomaly is reported if it was one twice in three windows."""
    spec = OutputSpec(decoder="score", threshold=1.0, smooth="2/3")
    found = judge(Decisions("p", None), spec, 5, 0, 5, 5, 0, 0, 5)
    assert [one.anomalous for one in found] == [False, False, True, True, False, False, False]
    assert [one.score for one in found] == [5, 0, 5, 5, 0, 0, 5]


def test_a_class_counts_if_it_stays_and_not_across_a_gap() -> None:
    """A class is reported that was the best in k of the last n windows without a gap."""
    spec = OutputSpec(decoder="softmax", smooth="2/3")
    decisions = Decisions("p", None)
    reported = []
    for label, follows in (("a", False), ("b", True), ("a", True), ("a", True), ("a", False)):
        found = decisions.decide(
            outcome(Classes((label, "c"), (0.9, 0.1))), spec, follows=follows, override=None
        ).findings
        assert isinstance(found, Classes)
        reported.append(found.labels)
    assert reported == [(), (), ("a",), ("a",), ()]


@pytest.mark.parametrize(
    ("task", "output", "message"),
    [
        ("anomaly", {"threshold": "99"}, 'expected a number, or a quantile as "p99", found'),
        ("anomaly", {"threshold": "p100"}, 'quantile as "p99"'),
        ("classification", {"threshold": "p99"}, "is learned for task anomaly only"),
        ("anomaly", {"threshold": 1, "smooth": "5/3"}, 'output.smooth: expected "k/n"'),
        ("anomaly", {"threshold": 1, "smooth": "0/3"}, 'output.smooth: expected "k/n"'),
        ("regression", {"smooth": "1/3"}, "is for tasks anomaly and classification"),
    ],
)
def test_what_cannot_be_decided_is_refused(task: str, output: dict[str, Any], message: str) -> None:
    """A manifest that asks for nonsense is one line."""
    decoder = {"classification": "softmax"}.get(task, "score")
    data = {"name": "m", "version": "1", "task": task, "file": "model.onnx"}
    with pytest.raises(ModelError, match=message):
        parse({**data, "output": {"decoder": decoder, **output}}, "model.toml")


def test_a_class_of_before_does_not_hold_up_an_anomaly() -> None:
    """After a push of a version of another task only its own windows count."""
    decisions, spec = Decisions("p", None), OutputSpec(decoder="softmax", smooth="2/10")
    for _ in range(3):
        one = outcome(Classes(("siren",), (0.9,)))
        decisions.decide(one, spec, follows=True, override=None)
    spec = OutputSpec(decoder="score", threshold=1.0, smooth="2/10")
    one = outcome(Anomaly(5.0, 1.0), "m@2")
    assert not decisions.decide(one, spec, follows=False, override=None).undecided


def test_versions_of_a_split_learn_each_for_itself(tmp_path: Path) -> None:
    """Frames that take turns between two versions did not let either finish learning."""
    kept = LearnedValues(tmp_path).thresholds
    decisions = Decisions("p", kept)
    for score in range(1, 11):
        judge(decisions, LEARNS, score)
        judge(decisions, LEARNS, 10 * score, model="m@2")
    for again in (decisions, Decisions("p", LearnedValues(tmp_path).thresholds)):
        assert [judge(again, LEARNS, 50, model=each)[0].threshold for each in ("m@1", "m@2")] == [
            9,
            90,
        ]


def test_a_split_of_five_versions_learns_the_threshold_of_each(tmp_path: Path) -> None:
    """None was ever learned, and so nothing was anomalous; four took turns well."""
    models = []
    for version in range(1, 6):
        folder = loudness(tmp_path / f"loud-{version}", 1, str(version), threshold="p90", learn=3)
        models.append(load_model(load(folder), [EngineChoice("onnxruntime")], "signal"))
    route = ",".join(f"loud@{version}:20" for version in range(1, 6))
    settings = Pipeline(name="p", source="csv:x", model=route)
    path = FramePath(settings, None, LearnedValues(tmp_path))
    masked = replace(settings, masks=(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)),))
    for view, first in ((settings, 1), (masked, 4)):
        path.apply(view, None)
        for level in range(first, first + 3):
            sample = Sample(np.array([[level]], np.float32), 0, 0, 0.0, picture=False)
            for model in models:
                path.infer(model, sample)
    again = FramePath(settings, None, LearnedValues(tmp_path))
    for view, level in ((settings, 3), (masked, 6)):
        for each in (path, again):
            each.apply(view, None)
            assert [each.lowest(model) for model in models] == [level] * 5


def test_a_version_goes_on_learning_while_others_come_and_go(tmp_path: Path) -> None:
    """What it had gathered went, as it was the first of them, though every second frame was its."""
    decisions = Decisions("p", LearnedValues(tmp_path).thresholds)
    for score in range(1, 10):
        assert judge(decisions, LEARNS, score)[0].learning == score / 10
        judge(decisions, LEARNS, score, model=f"m@{1 + score}")
    assert judge(decisions, LEARNS, 10)[0].threshold == 9


def test_what_is_in_use_is_kept_rather_than_what_was_learned_later(tmp_path: Path) -> None:
    """A pinned version of a split was forgotten after some pushes of the other one."""
    kept = LearnedValues(tmp_path).thresholds
    for version in range(1, KEPT + 2):
        judge(Decisions("p", kept), LEARNS, *range(1, 11), model=f"m@{version}")
        assert judge(Decisions("p", kept), LEARNS, 5)[0].threshold == 9
    again = LearnedValues(tmp_path).thresholds
    assert Decisions("p", again).learned("m@1", LEARNS) == 9


def test_smoothing_goes_on_over_the_versions_of_a_split() -> None:
    """Whichever of them has found it."""
    spec = OutputSpec(decoder="score", threshold=1.0, smooth="4/5")
    decisions = Decisions("p", None)
    found = [judge(decisions, spec, 5, model=f"m@{1 + turn % 2}")[0] for turn in range(6)]
    assert [one.anomalous for one in found] == [False] * 3 + [True] * 3


def test_after_a_rollback_what_was_learned_still_holds(tmp_path: Path) -> None:
    """Of as many versions as may come back; an older file of a single one is read."""
    path = tmp_path / "thresholds.json"
    path.write_text('{"p": {"model": "m@0", "rule": "p90/10", "threshold": 7.0}}')
    kept = LearnedValues(tmp_path).thresholds
    for version in range(1, KEPT):
        judge(Decisions("p", kept), LEARNS, *range(version, version + 10), model=f"m@{version}")
    latest = json.loads(path.read_text())["p"]
    assert (latest["model"], latest["threshold"]) == (f"m@{KEPT - 1}", KEPT + 7), "as before"
    again = LearnedValues(tmp_path).thresholds
    assert [again.get("p", f"m@{each}", "p90/10") for each in range(KEPT)] == [7, 9, 10, 11]
    judge(Decisions("p", again), LEARNS, *range(10), model="m@9")
    assert again.get("p", "m@0", "p90/10") is None


def test_another_source_learns_anew(tmp_path: Path) -> None:
    """Another machine was judged by the threshold of the one before, for ever."""
    kept = LearnedValues(tmp_path).thresholds
    judge(Decisions("p", kept, "mqtt:pump/1"), LEARNS, *range(1, 11))
    assert "pump" not in (tmp_path / "thresholds.json").read_text()
    again = LearnedValues(tmp_path).thresholds
    assert Decisions("p", again, "mqtt:pump/1").learned("m@1", LEARNS) == 9
    assert Decisions("p", again, "mqtt:pump/2").learned("m@1", LEARNS) is None
    (tmp_path / "thresholds.json").write_text(
        '{"p": {"model": "m@1", "rule": "p90/10", "threshold": 7}}'
    )
    older = LearnedValues(tmp_path).thresholds
    assert Decisions("p", older, "mqtt:pump/1").learned("m@1", LEARNS) == 7, "not told"


def test_another_view_or_other_files_of_a_version_learn_anew(tmp_path: Path) -> None:
    """After `roi` or `masks` had changed, or under a number used again, all or nothing was odd."""
    (tmp_path / "thresholds.json").write_text(
        '{"p": {"model": "m@1", "rule": "p90/10", "threshold": 7}}'
    )
    kept = LearnedValues(tmp_path).thresholds
    decisions = Decisions("p", kept, "rtsp://cam", "left")
    assert judge(decisions, LEARNS, 5, content="a")[0].threshold == 7, "of an earlier release"
    again = LearnedValues(tmp_path).thresholds
    for source, view, content, known in (
        ("rtsp://cam", "left", "a", 7),
        ("rtsp://cam", "right", "a", None),
        ("rtsp://cam", "left", "b", None),
        ("rtsp://other", "left", "a", None),
    ):
        other = Decisions("p", again, source, view)
        assert other.learned("m@1", LEARNS, content) == known
    assert judge(decisions, LEARNS, 5, content="b")[0].learning == 0.1
    decisions.look_at("right")
    judge(decisions, LEARNS, *range(1, 11), content="a")
    assert [judge(decisions, LEARNS, 5, content=each)[0].threshold for each in "ab"] == [9, None]


def test_what_was_learned_of_one_view_outlasts_another(tmp_path: Path) -> None:
    """With masks for the day and the night, each threshold was learned anew for ever."""
    decisions = Decisions("p", LearnedValues(tmp_path).thresholds, "rtsp://cam", "day")
    judge(decisions, LEARNS, *range(1, 11), content="a")
    decisions.look_at("night")
    judge(decisions, LEARNS, *range(11, 21), content="a")
    again = Decisions("p", LearnedValues(tmp_path).thresholds, "rtsp://cam", "night")
    for each in (decisions, again):
        for view, known in (("day", 9), ("night", 19)):
            each.look_at(view)
            assert judge(each, LEARNS, 5, content="a")[0].threshold == known


def test_a_pipeline_learns_of_its_masks_and_of_the_files_that_are_there(tmp_path: Path) -> None:
    """A live change of `masks`; a version that was deleted, and pushed again with other files."""
    folder, learned = tmp_path / "loud", LearnedValues(tmp_path)
    settings = Pipeline(name="p", source="csv:x", model="loud")
    path = FramePath(settings, None, learned)

    def model(**more: Any) -> Model:
        shutil.rmtree(folder, ignore_errors=True)
        loudness(folder, 1, threshold="p90", learn=2, **more)
        return load_model(load(folder), [EngineChoice("onnxruntime")], "signal")

    def thresholds(loud: Model, *levels: float) -> list[float | None]:
        found = []
        for level in levels:
            data = np.array([[level]], np.float32)
            made = path.infer(loud, Sample(data, 0, 0, 0.0, picture=False)).findings
            assert isinstance(made, Anomaly)
            found.append(made.threshold)
        return found

    first = model()
    assert thresholds(first, 1, 2, 3) == [None, 2, 2]
    masked = replace(settings, masks=(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)),))
    path.apply(masked, None)
    assert path.lowest(first) is None
    assert thresholds(first, 5, 6, 3) == [None, 6, 6]
    second = model(label_above="loud")
    assert second.id == first.id
    assert path.lowest(second) is None
    assert thresholds(second, 8, 9, 3) == [None, 9, 9]
    path = FramePath(masked, None, LearnedValues(tmp_path))
    assert path.lowest(second) == 9, "kept over a restart"


def test_a_second_stage_learns_its_threshold_of_all_its_crops(tmp_path: Path) -> None:
    """It was never learned, so that nothing was ever anomalous; at any depth."""
    halves = [(0, 0.9, 0.0, 0.0, 0.5, 1.0), (0, 0.8, 0.5, 0.0, 1.0, 1.0)]
    found_by = load(detector(tmp_path / "boxes", halves, ["box"]))
    boxes = load_model(found_by, [EngineChoice("onnxruntime")], "picture")
    folder = brightness(tmp_path / "odd")
    write_manifest(
        folder,
        "1",
        "anomaly",
        input={"interpolation": "area"},
        output={"decoder": "score", "threshold": "p50", "learn": 4},
    )
    odd = load_model(load(folder), [EngineChoice("onnxruntime")], "picture")
    inner = SecondStage(name="inner", model="odd")
    outer = SecondStage(name="outer", model="boxes", then=(inner,))
    sure = SecondStage(name="sure", model="odd", threshold=50.0)
    stages = [
        (outer, boxes),
        (inner, odd),
        (SecondStage(name="odd", model="odd"), odd),
        (sure, odd),
    ]
    learned = LearnedValues(tmp_path)
    then = (outer, stages[2][0], sure)
    settings = Pipeline(name="p", source="dir:x", model="boxes", then=then)
    path = FramePath(settings, None, learned)

    def judged(left: int, right: int) -> dict[str, list[tuple[float | None, bool]]]:
        picture = plain(left)
        picture[:, picture.shape[1] // 2 :] = right
        then = path.infer(boxes, Sample(picture, 0, 0, 0.0), stages).then
        below = {**then, "inner": then["outer"].then["inner"]}
        return {
            name: [
                (each.threshold, each.anomalous)
                for each in below[name].found
                if isinstance(each, Anomaly)
            ]
            for name in ("odd", "inner", "sure")
        }

    assert judged(10, 20)["odd"] == [(None, False)] * 2
    found = judged(30, 40)
    assert found["odd"] == [(None, False), (20.0, True)]
    assert found["inner"][-1] == (10.0, True)
    assert judged(5, 90)["odd"] == [(20.0, False), (20.0, True)]
    assert judged(5, 90)["sure"] == [(50.0, False), (50.0, True)]
    path = FramePath(settings, None, learned)
    assert judged(5, 90)["odd"] == [(20.0, False), (20.0, True)], "kept over a restart"


def test_a_second_stage_that_is_given_other_crops_learns_anew(tmp_path: Path) -> None:
    """With another `margin` or first model nothing was ever anomalous, or all was."""
    left = [(0, 0.9, 0.0, 0.0, 0.5, 1.0)]
    boxes, other = (
        load_model(
            load(detector(tmp_path / name, left, ["box"])), [EngineChoice("onnxruntime")], "picture"
        )
        for name in ("boxes", "other")
    )
    folder = brightness(tmp_path / "odd")
    output = {"decoder": "score", "threshold": "p50", "learn": 2}
    write_manifest(folder, "1", "anomaly", output=output)
    odd = load_model(load(folder), [EngineChoice("onnxruntime")], "picture")
    stage = SecondStage(name="odd", model="odd")
    learned = LearnedValues(tmp_path)

    def threshold(first: Model, stage: SecondStage, route: str = "") -> float | None:
        name = route or first.manifest.name
        settings = Pipeline(name="p", source="dir:x", model=name, then=(stage,))
        path = FramePath(settings, None, learned)
        then = path.infer(first, Sample(plain(30), 0, 0, 0.0), [(stage, odd)]).then
        (found,) = then["odd"].found
        assert isinstance(found, Anomaly)
        return found.threshold

    deeper = SecondStage(name="odd", model="odd", then=(SecondStage(name="in", model="odd"),))
    assert threshold(boxes, replace(stage)) is None
    settings = Pipeline(name="p", source="dir:x", model="boxes", then=(stage,))
    path = FramePath(settings, None, learned)
    for _ in range(2):
        path.infer(boxes, Sample(plain(30), 0, 0, 0.0), [(stage, odd)])
    assert threshold(boxes, replace(stage, margin=0.5)) is None
    assert threshold(boxes, replace(stage, labels=("box",))) is None
    assert threshold(other, stage) is None
    assert threshold(boxes, stage) == 30
    assert threshold(boxes, stage, "boxes@1") == 30, "a version of it finds the same"
    assert threshold(boxes, deeper) == 30
