"""Zones and rules: what is told of objects and of whole results, and how often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge_agent.core.types import Anomaly, Classes, Outcome, Second, Timing, Values
from edge_agent.models.manifest import OutputSpec
from edge_agent.runtime.pipelines.learned import Decisions
from tests.helpers.rule_engines import Stage, box, detections

YARD = {"yard": [(0.3, 0.3), (1.0, 0.3), (1.0, 1.0), (0.3, 1.0)]}


def rule(when: str, **keys: Any) -> dict[str, Any]:
    """Make a rule `r`."""
    return {"name": "r", "when": when, **keys}


def test_frigate_3819_a_box_at_the_edge_of_the_frame_is_in_the_zone() -> None:
    """frigate#3819: a box that reaches the frame's lower edge, or beyond, is not outside."""
    stage = Stage(zones=YARD)
    for low in (99.0, 100.0, 104.0):
        found = stage.show(("a", 0.9, (60.0, 60.0, 90.0, low)))
        assert found.zones == (("yard",),)
    found = stage.show(("a", 0.9, (92.0, 60.0, 108.0, 100.0)))
    assert found.zones == (("yard",),)


def test_what_is_in_a_zone_is_told_by_result_and_counted_by_track() -> None:
    """Results name the zones of each detection; counts are of objects, under their labels."""
    stage = Stage(zones=YARD)
    for _ in range(5):
        found = stage.show(box(50, 60, label="cat"), box(10, 10, label="dog", score=0.8))
    assert found.zones == (("yard",), ())
    assert stage.engine.counts() == {"yard": {"cat": 1}}


def test_an_object_enters_once_and_leaves_once_however_it_trembles_on_the_edge() -> None:
    """A box whose edge shakes on a zone's border neither enters nor leaves with each frame."""
    stage = Stage(
        zones=YARD, rules=[rule("enter", zone="yard"), {**rule("leave", zone="yard"), "name": "l"}]
    )
    rng = np.random.default_rng(0)
    for x in [*np.arange(10, 30, 1.0), *([30.0] * 100), *np.arange(30, 60, 1.0)]:
        stage.show(box(x + rng.normal(0, 0.1), 60))
    assert stage.told() == [("r", "once")]
    event = stage.events[0]
    assert event.facts["zone"] == "yard"
    assert event.facts["track"] == 1
    for x in np.arange(60, 10, -1.0):
        stage.show(box(x, 60))
    assert stage.told() == [("r", "once"), ("l", "once")]


def test_an_object_that_vanishes_has_left() -> None:
    """Whoever is not seen any more is not in the zone any more."""
    stage = Stage(zones=YARD, rules=[rule("leave", zone="yard")])
    for _ in range(10):
        stage.show(box(60, 60))
    for _ in range(40):
        stage.show()
    assert stage.told() == [("r", "once")]


def test_who_stays_for_long_dwells_until_he_goes() -> None:
    """One event for each object, with a begin after for_s and an end with how long it was."""
    stage = Stage(zones=YARD, rules=[rule("dwell", zone="yard", for_s=2.0)], rate=10)
    for i in range(40):
        stage.show(box(60, 60), *([box(80, 80)] if i < 10 else []))
    assert stage.told() == [("r", "begin")]
    assert stage.events[0].facts["box"] == [55.0, 50.0, 65.0, 60.0]
    for _ in range(20):
        stage.show(box(10, 10))
    assert stage.told() == [("r", "begin"), ("r", "end")]
    assert stage.events[1].id == stage.events[0].id
    assert stage.events[1].facts["why"] == "over"
    assert stage.events[1].facts["seconds"] == pytest.approx(3.1, abs=0.5)


def test_objects_are_counted_not_frames_with_hysteresis() -> None:
    """`above` begins, `below` ends, and another count in between is an update."""
    stage = Stage(zones=YARD, rules=[rule("count", zone="yard", above=2, below=2)], rate=2)
    crowd = [box(40 + 12 * i, 60) for i in range(5)]
    for number in (2, 2, 3, 3, 3, 4, 4, 4, 2, 2, 2, 2, 2):
        stage.show(*crowd[:number])
    assert stage.told() == [("r", "begin"), ("r", "update"), ("r", "update")]
    assert [event.facts["count"] for event in stage.events] == [3, 4, 2]
    for _ in range(12):
        stage.show(*crowd[:1])
    assert stage.told()[-1] == ("r", "end")


def test_absence_begins_when_nobody_has_been_there_for_long() -> None:
    """It ends when somebody comes."""
    stage = Stage(zones=YARD, rules=[rule("absent", zone="yard", for_s=1.0)], rate=10)
    for _ in range(15):
        stage.show(box(10, 10))
    assert stage.told() == [("r", "begin")]
    for _ in range(5):
        stage.show(box(60, 60))
    assert stage.told() == [("r", "begin"), ("r", "end")]


UNNAMED, UNKNOWN = (), ()


@pytest.mark.parametrize(
    ("label", "told", "lost", "begins"),
    [
        ("red", (["box"], ["red"]), (UNKNOWN,), True),
        ("red", (["box"], ["red"]), (["red"],), False),
        ("red", (["box"],), (["red"],), False),
        ("red", (["box"],), (UNKNOWN,), False),
        ("red", (UNNAMED,), (UNKNOWN,), False),
        ("red", (UNNAMED,), (["blue"],), True),
        ("2", (UNNAMED,), (UNKNOWN,), True),
        ("2", (["box"], UNNAMED), (["red"],), True),
        ("2", (["box"],), (UNKNOWN,), False),
    ],
)
def test_what_only_a_failed_stage_can_find_is_not_absent(
    label: str, told: Any, lost: Any, begins: bool
) -> None:
    """A model without named classes finds numbers; of one that is not loaded nothing is known."""
    stage = Stage(rules=[rule("absent", labels=[label], for_s=1.0)], rate=10)
    for _ in range(30):
        stage.give(detections([box(10, 10)]), told=told, lost=lost)
    assert stage.told() == ([("r", "begin")] if begins else [])


def test_what_is_seen_is_enough_whatever_a_failed_stage_would_find() -> None:
    """A label that nobody knows may be the failed stage's; what the first model sees counts."""
    labels = ["a", "forklift"]
    few = {"labels": labels, "for_s": 1.0}
    stage = Stage(
        rules=[
            {**rule("count", above=1, **few), "name": "crowd"},
            {**rule("count", above=2, **few), "name": "more"},
            {**rule("count", below=2, **few), "name": "less"},
            {**rule("count", below=3, **few), "name": "few"},
            {**rule("absent", **few), "name": "nobody"},
        ],
        rate=10,
    )
    failed: Any = {"told": (["a"],), "lost": (UNKNOWN,)}
    for _ in range(30):
        stage.give(detections([]))
    assert stage.told() == [("less", "begin"), ("few", "begin"), ("nobody", "begin")]
    for _ in range(30):
        stage.give(detections([box(10, 10), box(80, 80)]), **failed)
    told = stage.told()[3:]
    assert sorted(told) == [("crowd", "begin"), ("less", "end"), ("nobody", "end")]
    # One of them is no longer there, or the stage would have found something else.
    for _ in range(30):
        stage.give(detections([]), **failed)
    assert stage.told()[6:] == []


@pytest.mark.parametrize(("period", "fails", "begins"), [(20, 1, True), (40, 25, False)])
def test_a_stage_that_fails_now_and_then_stops_no_rule(
    period: int, fails: int, begins: bool
) -> None:
    """Only where nothing is known for seconds do the seconds of a rule begin again."""
    stage = Stage(rules=[rule("absent", labels=["red"], for_s=3.0)], rate=10)
    for frame in range(100):
        failed: Any = {"told": (["a"],), "lost": (["red"],)} if frame % period < fails else {}
        stage.give(detections([box(10, 10)]), **failed)
    assert stage.told() == ([("r", "begin")] if begins else [])


def test_nothing_begins_while_the_last_result_does_not_tell() -> None:
    """Whoever comes to stand in the frame in which the stage fails: nothing moves after it."""
    stage = Stage(rules=[rule("absent", labels=["red"], for_s=5.0)], rate=10)
    there = detections([box(10, 10)])
    for _ in range(5):
        stage.give(there)
    stage.give(there, told=(["a"],), lost=(["red"],))
    for _ in range(60):
        stage.still()
    assert stage.told() == []


def test_what_was_found_long_ago_is_not_there_because_its_stage_fails() -> None:
    """An object counts as what the last result that told has found in it, which may be nothing."""
    stage = Stage(zones=YARD, rules=[rule("enter", zone="yard", labels=["red"])], rate=10)
    there = detections([box(60, 60)])
    red, none = Classes(("red",), (0.9,)), Classes((), ())
    for found in (none, red, *[none] * 30, *[None] * 30):
        failed = frozenset({0} if found is None else ())
        stage.give(there, then={"color": Second((found,), 1, 1, 0.0, failed=failed)})
    assert stage.told() == []


def test_an_object_that_was_there_does_not_enter_for_a_new_rule() -> None:
    """Though the stage had found nothing in its latest crop."""
    stage = Stage(zones=YARD)
    there = detections([box(60, 60)])
    red, none = Classes(("red",), (0.9,)), Classes((), ())
    for found in (*[red] * 30, none):
        stage.give(there, then={"color": Second((found,), 1, 1, 0.0)})
    stage.apply(zones=YARD, rules=[rule("enter", zone="yard", labels=["red"])])
    for _ in range(10):
        stage.give(there, then={"color": Second((red,), 1, 1, 0.0)})
    assert stage.told() == []


def test_an_object_that_was_hidden_does_not_enter_for_a_new_rule() -> None:
    """It had been called red in each result that showed it."""
    stage = Stage(zones=YARD)
    there, red = detections([box(60, 60)]), Classes(("red",), (0.9,))
    for _ in range(10):
        stage.give(there, then={"color": Second((red,), 1, 1, 0.0)})
    for _ in range(8):
        stage.give(detections([]))
    stage.apply(zones=YARD, rules=[rule("enter", zone="yard", labels=["red"])])
    for _ in range(10):
        stage.give(there, then={"color": Second((red,), 1, 1, 0.0)})
    assert stage.told() == []


@pytest.mark.parametrize(("clear", "left"), [(1, True), (3, False), (100, False)])
def test_an_object_does_not_leave_for_a_new_rule_that_was_called_so_long_ago(
    clear: int, left: bool
) -> None:
    """Each person who had once been seen with a helmet left as a rule about helmets was added."""
    stage = Stage(zones=YARD)
    there = detections([box(60, 60)])
    red, none = Classes(("red",), (0.9,)), Classes((), ())
    for found in (*[red] * 10, *[none] * clear):
        stage.give(there, then={"color": Second((found,), 1, 1, 0.0)})
    stage.apply(zones=YARD, rules=[rule("leave", zone="yard", labels=["red"])])
    for _ in range(10):
        stage.give(there, then={"color": Second((none,), 1, 1, 0.0)})
    assert stage.told() == ([("r", "once")] if left else [])


LOST: Any = {"told": (["a"],), "lost": (["red"],)}
RED = Classes(("red",), (0.9,))


def second(found: Any) -> dict[str, Second]:
    """Make what a second stage has found in a single object; None: it has failed."""
    failed = frozenset({0} if found is None else ())
    return {"color": Second((found,), 1, 1, 0.0, failed=failed)}


@pytest.mark.parametrize("when", ["count", "enter", "dwell"])
@pytest.mark.parametrize("failed", [1, 10])
def test_still_pictures_are_looked_at_once_a_stage_that_has_failed_works_again(
    when: str, failed: int
) -> None:
    """It failed in the last frames before the scene came to rest: no event ever began."""
    stage = Stage(zones=YARD, rules=[rule(when, zone="yard", labels=["red"])], rate=10)
    there = detections([box(60, 60)])
    for _ in range(failed):
        stage.give(there, then=second(None), **LOST)
    for _ in range(50):
        if stage.engine.unsettled:
            stage.give(there, then=second(RED))
        else:
            stage.still()
    assert stage.told() == [("r", "once" if when == "enter" else "begin")]


def test_what_goes_on_failing_is_looked_at_ever_more_seldom() -> None:
    """The model of a stage is missing, and a car is parked in the picture."""
    stage = Stage(rules=[rule("count", labels=["red"])], rate=10)
    looks = 0
    for frame in range(6000):
        if frame < 5 or stage.engine.unsettled:
            stage.give(detections([box(10, 10)]), then=second(None), **LOST)
            looks += 1
        else:
            stage.still()
    assert 20 < looks < 60


def test_what_another_stage_surely_sees_is_enough() -> None:
    """Two stages find red things: one of them in a car, while the other fails on a person."""
    stage = Stage(rules=[rule("count", labels=["red"], for_s=1.0)], rate=10)
    both = detections([box(10, 10, score=0.9), box(80, 80, score=0.8)])
    found = {
        "cars": Second((RED, None), 1, 1, 0.0),
        "persons": Second((None, None), 1, 1, 0.0, failed=frozenset({1})),
    }
    for _ in range(30):
        stage.give(both, then=found, told=(["a"], ["red"]), lost=(["red"],))
    assert stage.told() == [("r", "begin")]


def test_a_bound_is_no_count_to_update_an_event_with() -> None:
    """Three are there, of which the stage that fails now had found two."""
    stage = Stage(rules=[rule("count", labels=["a", "red"], above=0)], rate=10)
    boxes = [box(20, 20), box(50, 50, label="b"), box(80, 80, label="b")]
    for frame in range(40):
        gone = frame >= 20
        found = Second(
            (None, None, None) if gone else (None, RED, RED),
            *(2, 1, 0.0),
            failed=frozenset({1, 2} if gone else ()),
        )
        stage.give(detections(boxes), then={"color": found}, **(LOST if gone else {}))
    assert [(e.state, e.facts.get("count")) for e in stage.events] == [("begin", 3)]


@pytest.mark.parametrize("every", [3, 5, 8])
def test_one_object_in_a_picture_that_jumps_is_not_several(every: int) -> None:
    """A stream that stalls breaks its track; the ones before last for a moment, and counted."""
    stage = Stage(rules=[rule("count", above=1)], rate=10)
    for frame in range(60):
        stage.show(box(10 + (frame // every * 30) % 80, 50))
    assert stage.told() == []


def test_a_crowd_counts_though_others_come_and_go_all_the_time() -> None:
    """A detector that misses two in five, and boxes of a moment in every frame."""
    chance = np.random.default_rng(4)
    stage = Stage(rules=[rule("count", above=13)], rate=10)
    crowd = [box(10 + 20 * (n % 5), 20 + 30 * (n // 5), side=8) for n in range(15)]
    for frame in range(16):
        seen = [each for each in crowd if chance.random() < 0.6]
        stage.show(*seen, box(5 + frame // 2 * 37 % 90, 96, side=3))
    assert stage.told()[:1] == [("r", "begin")]


def test_objects_that_are_seen_in_turn_are_several() -> None:
    """Hardly any detector finds each of two in every frame."""
    stage = Stage(rules=[rule("count", above=1, frames="1/3")], rate=10)
    for frame in range(60):
        stage.show(*[box(x, 50) for x, phase in ((20, 0), (80, 1)) if frame % 3 != phase])
        if stage.told():
            break
    assert stage.told() == [("r", "begin")]


@pytest.mark.parametrize("frames", ["1/1", "2/3", "4/6"])
def test_nobody_is_missed_before_there_was_time_to_count_him(frames: str) -> None:
    """Neither at the start nor after a lost source: who is there is counted after some results."""
    few = {**rule("count", zone="yard", below=1, frames=frames), "name": "few"}
    stage = Stage(zones=YARD, rules=[rule("absent", zone="yard", frames=frames), few])
    for _ in range(2):
        for _ in range(10):
            stage.show(box(60, 60))
        stage.engine.source_lost(switched_off=False, at=stage.now)
    assert stage.told() == []
    for _ in range(10):
        stage.show(box(10, 10))
    assert stage.told() == [("r", "begin"), ("few", "begin")]


def test_a_rule_on_classes_is_true_in_k_of_n() -> None:
    """A single window of another class neither begins an event nor ends it."""
    stage = Stage(rules=[rule("class", labels=("bad",), frames="3/5")])
    good, bad = Classes(("good", "bad"), (0.9, 0.1)), Classes(("bad", "good"), (0.8, 0.2))
    for each in (bad, good, bad, good, good, good, good):
        stage.give(each)
    assert stage.told() == []
    for each in (bad, good, bad, bad, bad, good, bad):
        stage.give(each)
    assert stage.told() == [("r", "begin")]
    assert stage.events[0].facts == {"label": "bad", "score": 0.8}
    for _ in range(5):
        stage.give(good)
    assert stage.told() == [("r", "begin"), ("r", "end")]


@pytest.mark.parametrize("bounds", [{}, {"above": 0.8}, {"above": 0.9, "below": 0.5}])
@pytest.mark.parametrize("labels", [(), ("siren",)])
def test_a_class_ends_where_nothing_is_found(bounds: Any, labels: tuple[str, ...]) -> None:
    """Below the model's threshold no class is left, and of a gallery nobody is known.

    A siren that was switched on stayed so for ever.
    """
    stage = Stage(rules=[rule("class", labels=labels, frames="2/3", **bounds)])
    for _ in range(3):
        stage.give(Classes(("siren",), (0.95,)))
    assert stage.told() == [("r", "begin")]
    for _ in range(3):
        stage.give(Classes((), ()))
    assert stage.told() == [("r", "begin"), ("r", "end")]
    for found in (("siren",), (), (), ("siren",), (), ()):
        stage.give(Classes(found, (0.95,) * len(found)))
    assert len(stage.told()) == 2, "two of three is not two within minutes"


def test_a_class_that_a_filter_has_left_is_not_the_best_for_that() -> None:
    """With `labels = ["green"]` each result has green first, be it red a thousand times."""
    stage = Stage(rules=[rule("class", labels=("green",), frames="1/1")])
    for red in (1.0, 0.9, 0.4, 0.1):
        chances = np.array([red, 1 - red], np.float32)
        stage.give(Classes(("green",), (float(chances[1]),), every=chances))
    assert [(each.state, each.facts["score"]) for each in stage.events] == [("begin", 0.6)]


def test_an_event_ends_with_the_label_that_it_began_with() -> None:
    """Whatever the best of the rule's labels is by then: an action may have it in its topic."""
    stage = Stage(rules=[rule("class", labels=("siren", "alarm"), above=0.8, frames="1/1")])
    for labels, scores in (
        (("siren", "alarm"), (0.85, 0.1)),
        (("alarm", "siren"), (0.95, 0.1)),
        (("alarm", "siren"), (0.2, 0.1)),
    ):
        stage.give(Classes(labels, scores), wait=2.0)
    assert stage.told() == [("r", "begin"), ("r", "end")]
    assert [(each.label, each.facts["score"]) for each in stage.events] == [("siren", 0.85)] * 2


def test_anomaly_and_values_have_rules_too() -> None:
    """An anomaly that lasts, and a value beyond its bound until it is back below the other."""
    stage = Stage(rules=[rule("anomaly", frames="1/1", for_s=0.1)])
    for score in (1, 9, 1, 9, 9, 9, 9, 9):
        stage.give(Anomaly(float(score), 5.0))
    assert stage.told() == [("r", "begin")]
    assert stage.events[0].facts["anomaly"] == {"score": 9.0, "threshold": 5.0, "anomalous": True}
    stage.engine.close("stopped")
    begun, ended = stage.events
    assert (ended.seq, ended.time_ns - begun.time_ns) == (8, 40_000_000), "when it was true last"
    stage = Stage(rules=[rule("value", value="t", above=80, below=70, frames="1/1")])
    for value in (60, 81, 75, 82, 75, 69, 75):
        stage.give(Values({"t": float(value), "u": 100.0}))
    assert stage.told() == [("r", "begin"), ("r", "end")]


def test_an_alarm_goes_on_while_a_new_version_learns_its_threshold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was said to be over with the push: the siren fell silent, and the fault was learned."""
    drift = {**rule("drift", frames="1/1"), "name": "d"}
    stage = Stage(rules=[rule("anomaly", frames="1/1"), drift])
    stage.give(Anomaly(9.0, 5.0))
    for _ in range(5):
        stage.give(Anomaly(9.0, None, 0.5), model="m@2")
    assert stage.told() == [("r", "begin")]
    assert [each for each in caplog.messages if "goes on while m@2 learns" in each] != []
    assert len(caplog.messages) == 1
    stage.give(Anomaly(9.0, None, 0.9), model="m@2", drift={"score": 0.3})
    assert stage.told() == [("r", "begin"), ("d", "begin")]
    stage.give(Anomaly(9.0, 8.0), model="m@2")
    stage.give(Anomaly(7.0, 8.0), model="m@2")
    assert stage.told() == [("r", "begin"), ("d", "begin"), ("r", "end")]


@pytest.mark.parametrize("between", ["a gap", "learning"])
def test_a_smoothed_alarm_goes_on_until_windows_decide(between: str) -> None:
    """Each gap of a sensor, and a version that learned, ended one alarm and began another."""
    stage, decisions = Stage(rules=[rule("anomaly", frames="1/1")]), Decisions("p", None)
    fixed = OutputSpec(decoder="score", threshold=5.0, smooth="3/5")
    learns = OutputSpec(decoder="score", threshold="p90", learn=10, smooth="3/5")

    def give(score: float, model: str = "m@1", *, follows: bool = True) -> None:
        found = Anomaly(score, 5.0 if model == "m@1" else None)
        spec = fixed if model == "m@1" else learns
        made = Outcome(model, "none", found, Timing(0.0, 0.0, 0.0))
        made = decisions.decide(made, spec, follows=follows, override=None)
        stage.give(made.findings, model=model, undecided=made.undecided)

    for score in (1, 1, 9, 9, 9):
        give(score)
    assert stage.told() == [("r", "begin")]
    if between == "learning":
        for score in range(1, 11):
            give(score, "m@2")
        for model in ("m@2", "m@1"):  # learned, and rolled back
            for _ in range(5):
                give(9.5, model)
    else:
        for number in range(6):
            give(9, follows=number % 2 > 0)
    assert stage.told() == [("r", "begin")]
    for number in range(3):
        assert stage.told() == [("r", "begin")], "two more windows could make it three of five"
        give(1, follows=number > 0)
    assert stage.told() == [("r", "begin"), ("r", "end")]


def test_a_smoothed_alarm_ends_though_gaps_come_often() -> None:
    """Two windows at a time are never three of five, nor too few for it; the last five tell."""
    stage, decisions = Stage(rules=[rule("anomaly", frames="1/1")]), Decisions("p", None)
    spec = OutputSpec(decoder="score", threshold=5.0, smooth="3/5")
    told = []
    for number, score in enumerate([9] * 8 + [1] * 4):
        made = Outcome("m@1", "none", Anomaly(score, 5.0), Timing(0.0, 0.0, 0.0))
        follows = number < 4 or number % 2 == 1
        made = decisions.decide(made, spec, follows=follows, override=None)
        stage.give(made.findings, undecided=made.undecided)
        told.append(stage.told()[-1:])
    assert told == [[]] * 2 + [[("r", "begin")]] * 8 + [[("r", "end")]] * 2


def test_an_alarm_ends_though_each_reading_follows_a_gap() -> None:
    """A sensor that reports quickly while something changes, and then less often than `gap_s`.

    Two of three in a row that say so were never reached, so that it stood for good.
    """
    stage = Stage(rules=[rule("value", value="t", above=5)])
    for _ in range(6):
        stage.give(Values({"t": 9.0}), follows=False)
    assert stage.told() == [], "nothing begins over a gap"
    stage.give(Values({"t": 9.0}))
    assert stage.told() == [("r", "begin")]
    for temperature in (1.0, 9.0, 9.0, 9.0, 1.0, 9.0):
        stage.give(Values({"t": temperature}), follows=False)
    assert stage.told() == [("r", "begin")]
    stage.give(Values({"t": 1.0}), follows=False)
    assert stage.told() == [("r", "begin"), ("r", "end")], "two of the last three, gaps or not"


def test_a_smoothed_class_goes_on_over_a_gap() -> None:
    """Until the windows since then have it, another one, or none."""
    named = rule("class", labels=("siren",), above=0.5, frames="1/1")
    stage, decisions = Stage(rules=[named]), Decisions("p", None)
    spec = OutputSpec(decoder="softmax", smooth="2/3")

    def give(label: str, *, follows: bool = True) -> None:
        made = Outcome("m@1", "none", Classes((label,), (0.9,)), Timing(0.0, 0.0, 0.0))
        made = decisions.decide(made, spec, follows=follows, override=None)
        stage.give(made.findings, undecided=made.undecided)

    for follows in (True, True, False, True, False):
        give("siren", follows=follows)
    assert stage.told() == [("r", "begin")]
    give("horn")
    assert stage.told() == [("r", "begin")]
    give("horn")
    assert stage.told() == [("r", "begin"), ("r", "end")]
    for _ in range(3):
        give("siren")
    assert stage.told()[2:] == [("r", "begin")]
    give("horn", follows=False)
    assert stage.told()[2:] == [("r", "begin")]
    give("horn", follows=False)
    assert stage.told()[2:] == [("r", "begin"), ("r", "end")], "two of the last three, gaps or not"


def test_what_had_not_begun_before_a_version_learned_begins_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One anomalous result after hours of learning began what was due after ten minutes."""
    stage = Stage(rules=[rule("anomaly", frames="1/1", for_s=600)])
    stage.give(Anomaly(9.0, 5.0))
    stage.give(Anomaly(9.0, None, 0.5), model="m@2", wait=3600.0)
    stage.give(Anomaly(9.0, 8.0), model="m@2", wait=3600.0)
    assert stage.told() == []
    split = Stage(rules=[rule("anomaly", frames="2/3")], model="m@1:50,m@2:50")
    for _ in range(5):
        split.give(Anomaly(9.0, 5.0), model="m@1")
        split.give(Anomaly(9.0, None, 0.5), model="m@2")
    assert split.told() == [("r", "begin")]
    assert len(caplog.messages) == 1


def test_an_event_ends_with_a_version_that_cannot_have_its_value() -> None:
    """It went on for ever where a new version gave the value another name, or none."""
    stage = Stage(rules=[rule("value", value="t", above=80, frames="1/1")])
    stage.give(Values({"t": 90.0}))
    stage.give(Values({"battery": 3.1}))
    assert stage.told() == [("r", "begin")], "a sensor that says one thing at a time"
    stage.give(Values({"temperature": 90.0}), model="m@2")
    assert stage.told() == [("r", "begin"), ("r", "end")]
    assert (stage.events[1].facts["value"], stage.events[1].facts["why"]) == (90.0, "over")
    split = Stage(rules=[rule("value", value="t", above=80, frames="1/1")], model="m@1:90,m@2:10")
    for model in ("m@1", "m@2", "m@1"):
        split.give(Values({"t" if model == "m@1" else "u": 90.0}), model=model)
    assert split.told() == [("r", "begin")], "of two versions in turn one has it"
    counting = Stage(rules=[rule("count", above=0, frames="1/1")])
    for _ in range(3):
        counting.show(box(50, 60))
    counting.give(Classes(("a",), (0.9,)), model="m@2")
    assert counting.told() == [("r", "begin"), ("r", "end")]


def test_a_camera_that_changes_its_size_shows_the_same_objects() -> None:
    """Each change, as at dusk, made who stood in a zone enter it again."""
    stage = Stage(zones=YARD, rules=[rule("enter", zone="yard"), rule("leave", zone="yard")])
    for step in range(10):
        stage.show(box(40 + step, 60))
    stage.resize((300, 200))
    for step in range(10, 20):
        found = stage.show(("a", 0.9, (3.0 * (35 + step), 100.0, 3.0 * (45 + step), 120.0)))
        assert (found.tracks is not None and found.tracks.tolist()) == [1]
    assert stage.told() == [("r", "once")]


def test_drift_has_rules_of_the_worst_channel_or_of_one() -> None:
    """Above a bound, 0.25 where there is none, until below the other; the event names the worst."""
    rules = [
        rule("drift", above=0.5, below=0.2, frames="1/1"),
        {**rule("drift", frames="1/1", value="ay"), "name": "y"},
    ]
    stage = Stage(rules=rules)
    found = Anomaly(1.0, 5.0)
    for ax, score in ((0.3, 0.1), (0.6, 0.1), (0.3, 0.4), (0.1, 0.1)):
        stage.give(found, drift={"ax": ax, "ay": score, "score": score})
    stage.give(found)
    assert stage.told() == [("r", "begin"), ("y", "begin"), ("r", "end"), ("y", "end")]
    assert stage.events[0].facts == {"value": 0.6, "channel": "ax"}
    assert stage.events[1].facts == {"value": 0.4, "channel": "ay"}


def test_after_its_end_a_rule_is_silent_for_its_cooldown_by_label() -> None:
    """Another label is another matter."""
    stage = Stage(zones=YARD, rules=[rule("enter", zone="yard", cooldown_s=60)])
    for label in ("cat", "cat", "dog"):
        for x in (10, 15, 20, 60, 60, 60, 60):
            stage.show(box(x, 60, 40, label=label))
        for _ in range(40):
            stage.show()
    assert [event.label for event in stage.events] == ["cat", "dog"]


@pytest.mark.parametrize("why", ["lost", "stopped", "reloaded"])
def test_what_lasts_is_ended_with_the_reason(why: Any) -> None:
    """At a lost source, a stop and a reload every begin gets its end; nothing comes after it."""
    rules = [rule("dwell", zone="yard", for_s=0.2), {**rule("count", above=0), "name": "c"}]
    stage = Stage(zones=YARD, rules=rules)
    for _ in range(20):
        stage.show(box(60, 60), box(80, 80))
    begun = {event.id for event in stage.events if event.state == "begin"}
    assert len(begun) == 3
    if why == "lost":
        stage.engine.source_lost(switched_off=False, at=stage.now)
    else:
        stage.engine.close(why)
    ends = [event for event in stage.events if event.state == "end"]
    assert {event.id for event in ends} == begun
    assert {event.facts["why"] for event in ends} == {why}
    if why != "lost":
        before = len(stage.events)
        for _ in range(20):
            stage.show(box(60, 60))
        assert len(stage.events) == before


def test_what_was_captured_before_the_source_was_lost_counts_no_more() -> None:
    """Results that lanes still had begin nothing, which nobody would end; later ones do."""
    rules = [rule("count", zone="yard"), {**rule("class", frames="1/1"), "name": "c"}]
    stage = Stage(zones=YARD, rules=rules)
    for _ in range(5):
        stage.show(box(60, 60))
    before, stage.now = stage.now, stage.now + 1
    stage.engine.source_lost(switched_off=True, at=stage.now)
    stage.now = before
    for _ in range(5):
        assert stage.show(box(60, 60)).tracks is None
    stage.give(Classes(("a",), (0.9,)))
    assert stage.told() == [("r", "begin"), ("r", "end")]
    assert stage.engine.counts() == {"yard": {}}
    stage.now += 1
    for _ in range(5):
        stage.show(box(60, 60))
    assert stage.told()[2:] == [("r", "begin")]
    assert stage.engine.counts() == {"yard": {"a": 1}}


def test_labels_of_a_rule_are_those_of_the_track() -> None:
    """An object that is mistaken for another now and then does not fire the rule about that."""
    stage = Stage(zones=YARD, rules=[rule("enter", zone="yard", labels=("person",))])
    for i in range(30):
        stage.show(box(20 + i, 60, 20, label="person" if i % 5 == 4 else "car"))
    assert stage.told() == []


@pytest.mark.parametrize("rate", [30.0, 5.0, 1.0])
def test_the_label_follows_within_seconds_however_long_another_was_seen(rate: float) -> None:
    """A rule on a new label does not begin as late as the old one lasted."""
    rules = [
        {**rule("dwell", zone="yard", for_s=0, labels=[label]), "name": label}
        for label in ("dog", "person")
    ]
    stage = Stage(zones=YARD, rules=rules, rate=rate)
    for _ in range(int(600 * rate)):
        stage.show(box(60, 60, label="dog"))
    assert stage.told() == [("dog", "begin")]
    for _ in range(int(max(8 * rate, 27))):
        stage.show(box(60, 60, label="person"))
    assert sorted(stage.told()[1:]) == [("dog", "end"), ("person", "begin")]


@pytest.mark.parametrize("rate", [30.0, 5.0])
def test_labels_given_in_turn_do_not_begin_and_end_events_in_turn(rate: float) -> None:
    """What a model takes for a car and a truck by turns stays what it was first."""
    rules = [
        {**rule("dwell", zone="yard", for_s=0, labels=[label]), "name": label}
        for label in ("car", "truck")
    ]
    stage = Stage(zones=YARD, rules=rules, rate=rate)
    said = np.random.default_rng(1).integers(0, 2, int(60 * rate))
    for i in [0, 0, *said.tolist()]:
        stage.show(box(60, 60, label=("car", "truck")[i]))
    assert len(stage.told()) == 1


def test_the_label_stays_where_the_frame_cuts_the_object() -> None:
    """What was seen whole is not renamed soon after what little of it shows at the edge."""
    stage = Stage(rules=[{**rule("count", labels=["truck"], above=0)}], rate=10)
    for _ in range(40):
        stage.show(box(50, 60, 30, label="truck"))
    for i in range(35):
        stage.show(box(50 - i, 60, 30, label="truck"))
    for _ in range(100):
        stage.show(box(15, 60, 30, label="car"))
    assert stage.told() == [("r", "begin")]


def test_what_is_taken_for_something_else_leaves_under_a_label_of_the_rule() -> None:
    """An event of a rule about persons is never one about a dog."""
    stage = Stage(zones=YARD, rules=[rule("leave", zone="yard", labels=("person", "child"))])
    for _ in range(3):
        stage.show(box(60, 60, label="person", score=0.5))
    for _ in range(8):
        stage.show(box(60, 60, label="dog", score=0.9))
    assert [event.label for event in stage.events] == ["person"]


def test_time_goes_on_while_nothing_moves() -> None:
    """Who stands in a still picture dwells, stays the same object, and can be absent."""
    rules = [
        rule("dwell", zone="yard", for_s=3.0, labels=["a"], picture="crop"),
        {**rule("absent", for_s=3.0, labels=["b"]), "name": "none"},
        {**rule("leave", zone="yard"), "name": "left"},
    ]
    stage = Stage(zones=YARD, rules=rules, rate=10)
    for _ in range(8):
        stage.show(box(60, 60))
    for _ in range(20):
        stage.still()
    assert stage.told() == []
    for _ in range(20):
        stage.still()
    assert sorted(stage.told()) == [("none", "begin"), ("r", "begin")]
    begun = next(event for event in stage.events if event.rule == "r")
    assert begun.facts["box"] == [55.0, 50.0, 65.0, 60.0]
    assert begun.picture is not None
    for _ in range(1000):
        stage.still()
    found = stage.show(box(61, 60))
    assert found.tracks is not None
    assert found.tracks.tolist() == [1]
    assert len(stage.events) == 2
    for _ in range(30):
        stage.show()
    assert stage.told()[2:] == [("r", "end"), ("left", "once")]


def test_a_still_picture_is_no_result_that_counts() -> None:
    """Of `frames` it is none: what one result says is not taken for settled by it."""
    stage = Stage(rules=[rule("class", labels=["yes"], frames="3/4")])
    stage.still()  # before any result
    for label in ("no", "no", "no", "no", "yes", "yes"):
        stage.give(Classes((label,), (0.9,)))
    for _ in range(20):
        stage.still()
    assert stage.told() == []
    stage.give(Classes(("yes",), (0.9,)))
    assert stage.told() == [("r", "begin")]


def test_a_recording_in_which_nothing_moves_keeps_its_tracks() -> None:
    """What moves between two of its frames is told by their numbers, the still ones aside."""
    stage = Stage(zones=YARD, rules=[rule("leave", zone="yard")], apart=1 / 30)
    for _ in range(10):
        stage.show(box(60, 60))
    for _ in range(300):
        stage.still()
    found = stage.show(box(60, 60))
    assert found.tracks is not None
    assert found.tracks.tolist() == [1]
    assert stage.told() == []


def test_an_event_says_which_plate_was_read() -> None:
    """The latest text of the object itself, and none for one in which nothing was read."""
    stage = Stage(rules=[rule("enter"), {**rule("leave"), "name": "gone"}])
    plates = detections([box(20, 50, label="plate"), box(70, 50, label="plate", score=0.8)])
    for texts in (("", ""), ("AB 12", ""), ("AB 123", ""), ("", "")):
        stage.give(replace(plates, texts=texts))
    for _ in range(40):
        stage.show()
    told = [(each.rule, each.facts["track"], each.facts.get("text")) for each in stage.events]
    assert told == [("r", 1, "AB 12"), ("r", 2, None), ("gone", 1, "AB 123"), ("gone", 2, None)]
    for _ in range(3):
        stage.show(box(20, 50, label="plate"))
    assert "text" not in stage.events[-1].facts


def test_the_seconds_of_a_rule_are_the_recordings_at_any_speed() -> None:
    """With `pace=max` they were the processor's: of 20 stays of a second and more 3 were told."""
    dwells = {**rule("dwell", zone="yard", for_s=1), "name": "dwells"}
    here = {**rule("count", zone="yard", for_s=2, cooldown_s=60), "name": "here"}
    stage = Stage(zones=YARD, rules=[dwells, here], rate=1000.0, apart=1 / 30)
    for _ in range(75):
        stage.show(box(50, 60))
    for _ in range(60):
        stage.show()
    ended = {event.rule: event.facts["seconds"] for event in stage.events if event.state == "end"}
    assert stage.told()[:2] == [("dwells", "begin"), ("here", "begin")]
    assert ended["here"] == pytest.approx(0.5 + 1.0, abs=0.2)
    assert ended["dwells"] == pytest.approx(2.5, abs=0.2)
