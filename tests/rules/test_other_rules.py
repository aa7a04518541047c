"""Other zones, lines and rules on a running pipeline: what has not changed goes on."""

from __future__ import annotations

from typing import Any

from edge_agent.core.types import Values
from tests.helpers.rule_engines import Stage, box

WHOLE = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
LEFT = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))


def rule(name: str, when: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "when": when, **keys}


def test_nobody_comes_in_where_another_rule_is_edited() -> None:
    """Each parked car set off `enter`; the unchanged dwell goes on, the edited one begins anew."""
    zones = {"yard": WHOLE}
    enters, stays = rule("in", "enter", zone="yard"), rule("stay", "dwell", zone="yard", for_s=1.0)
    stage = Stage(zones=zones, rules=[enters, stays, rule("edited", "dwell", for_s=1.0)], rate=10)
    for _ in range(20):
        stage.show(box(20, 60), box(80, 60))
    began = [("in", "once")] * 2 + [("stay", "begin")] * 2 + [("edited", "begin")] * 2
    assert sorted(stage.told()) == sorted(began)
    stage.events.clear()
    edited = rule("edited", "dwell", for_s=2.0)
    stage.apply(zones=zones, rules=[edited, rule("new", "enter", zone="yard"), enters, stays])
    assert stage.told() == [("edited", "end")] * 2
    assert {event.facts["why"] for event in stage.events} == {"reloaded"}
    stage.events.clear()
    for _ in range(18):
        stage.show(box(20, 60), box(80, 60))
    assert stage.events == []
    for _ in range(5):
        found = stage.show(box(20, 60), box(80, 60))
    assert stage.told() == [("edited", "begin")] * 2
    assert sorted(found.tracks.tolist() if found.tracks is not None else []) == [1, 2]
    stage.engine.close("stopped")
    assert sorted(stage.told()[2:]) == [("edited", "end")] * 2 + [("stay", "end")] * 2


def test_a_new_zone_knows_at_once_who_is_in_it() -> None:
    """Its count does not begin at 0, and who leaves it has left it."""
    stage = Stage(zones={"yard": WHOLE}, rules=[rule("out", "leave", zone="yard")])
    for _ in range(5):
        stage.show(box(20, 60, label="cat"), box(80, 60, label="dog"))
    gone = rule("gone", "leave", zone="left")
    stage.apply(zones={"yard": WHOLE, "left": LEFT}, rules=[rule("out", "leave"), gone])
    assert stage.engine.counts() == {"yard": {"cat": 1, "dog": 1}, "left": {"cat": 1}}
    for step in range(60):
        stage.show(box(20 + step, 60, label="cat"), box(80, 60, label="dog"))
    assert stage.told() == [("gone", "once")]
    assert stage.engine.counts()["left"] == {}


def test_who_is_on_the_way_over_a_line_crosses_it_once() -> None:
    """Amid an edit; a line that is moved begins anew."""
    lines = {"gate": ((0.5, 1.0), (0.5, 0.0)), "far": ((0.8, 1.0), (0.8, 0.0))}
    crosses = rule("over", "cross", line="gate", frames="3/3")
    stage = Stage(lines=lines, rules=[crosses])
    for x in range(30, 53):
        stage.show(box(x, 60))
    stage.apply(
        lines={**lines, "far": ((0.9, 1.0), (0.9, 0.0))}, rules=[rule("r", "enter"), crosses]
    )
    for x in range(53, 85):
        stage.show(box(x, 60))
    assert stage.told() == [("over", "once")]
    assert stage.crossed == {("gate", "in", "a"): 1}


def test_what_a_silent_sensor_has_said_holds_under_other_rules() -> None:
    """The event of an unchanged rule ended, with what its end switches off, and never began again.

    A rule that is new or has changed judges the latest reading.
    """
    leak = rule("leak", "value", value="leak", above=0.5, frames="1/1")
    low = rule("low", "value", value="battery", below=5.0, frames="1/1")
    stage = Stage(rules=[leak, low])
    stage.give(Values({"leak": 1.0, "battery": 3.0}))
    stage.apply(rules=[low, rule("t", "value", value="battery", below=4.0, frames="1/1"), leak])
    assert stage.told() == [("leak", "begin"), ("low", "begin"), ("t", "begin")]
    stage.apply(rules=[{**leak, "above": 0.7}, low])
    assert stage.told()[3:] == [("t", "end"), ("leak", "end"), ("leak", "begin")]
    stage.give(Values({"leak": 0.0, "battery": 3.0}))
    assert stage.told()[6:] == [("leak", "end")]


def test_a_sensor_that_says_one_thing_at_a_time_is_judged_by_all_that_it_said() -> None:
    """An edit ended the alarm of a leak for good, as the battery had spoken last."""
    leak = rule("leak", "value", value="leak", above=0.5, frames="1/1")
    stage = Stage(rules=[leak])
    stage.give(Values({"leak": 1.0}))
    stage.give(Values({"battery": 97.0}))
    stage.apply(rules=[{**leak, "above": 0.7}])
    assert stage.told() == [("leak", "begin"), ("leak", "end"), ("leak", "begin")]


def test_an_edited_rule_of_a_camera_begins_with_a_picture() -> None:
    """It began between two frames, without one, and a model was asked what is in no picture."""
    count = rule("n", "count", above=0, picture="frame")
    stage = Stage(zones={"yard": WHOLE}, rules=[count])
    for _ in range(4):
        stage.show(box(50, 60))
    stage.apply(zones={"yard": WHOLE}, rules=[{**count, "for_s": 0.01}])
    assert stage.told() == [("n", "begin"), ("n", "end")]
    for _ in range(2):
        stage.show(box(50, 60))
    assert stage.told()[2:] == [("n", "begin")]
    assert stage.events[2].picture is not None


def test_who_is_beyond_a_line_has_crossed_it_though_its_rule_is_edited() -> None:
    """Two of three results had said so, and the third came under another rule."""
    lines = {"gate": ((0.5, 1.0), (0.5, 0.0))}
    crosses = rule("over", "cross", line="gate", frames="3/3")
    stage = Stage(lines=lines, rules=[crosses])
    for x in range(30, 54):
        stage.show(box(x, 60))
    assert stage.told() == []
    stage.apply(lines=lines, rules=[{**crosses, "frames": "2/3"}])
    for x in range(54, 70):
        stage.show(box(x, 60))
    assert stage.told() == [("over", "once")]


def test_objects_are_where_they_are_after_another_size_and_other_zones() -> None:
    """A box in pixels of before was in no zone, so that its object came in with the next frame."""
    stage = Stage(zones={"yard": WHOLE}, rules=[rule("in", "enter", zone="yard")])
    for _ in range(4):
        stage.show(box(80, 90))
    stage.resize((50, 50))
    stage.show()
    zones = {"yard": WHOLE, "right": ((0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 1.0))}
    stage.apply(zones=zones, rules=[rule("in", "enter", zone="right")])
    for _ in range(4):
        stage.show(("a", 0.9, (37.5, 40.0, 42.5, 45.0)))
    assert stage.told() == [("in", "once")]


def test_a_cooldown_goes_on_where_another_rule_is_edited() -> None:
    """That edit told of the same thing once more; one of the rule itself begins it anew."""
    hot = rule("hot", "value", value="t", above=80.0, frames="1/1", cooldown_s=60.0)
    cold = rule("cold", "value", value="t", below=0.0, frames="1/1")
    stage = Stage(rules=[hot, cold])
    for value in (90.0, 70.0):
        stage.give(Values({"t": value}))
    stage.apply(rules=[hot, {**cold, "below": 5.0}])
    stage.give(Values({"t": 90.0}), wait=30.0)
    assert stage.told() == [("hot", "begin"), ("hot", "end")]
    stage.apply(rules=[{**hot, "cooldown_s": 0.0}])
    stage.give(Values({"t": 90.0}))
    assert stage.told() == [("hot", "begin"), ("hot", "end"), ("hot", "begin")]
