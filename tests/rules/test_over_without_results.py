"""Events of rules whose hours or mode are over while no result comes that could say so."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.config.rules import CombinedRule, Rule
from edge_agent.core.types import Values
from tests.helpers.rule_engines import Stage, box

OPEN = {"name": "open", "when": "value", "value": "contact", "above": 0.5, "frames": "1/1"}
DWELL = {"name": "dwell", "when": "dwell", "zone": "all"}
ALL = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
SIX = 110
"""When the hours of `Until` are over: ten seconds after the first frame of a stage."""


class Mode:
    """Says whether rules hold, as the mode of a device does."""

    on = True

    def __call__(self, _rule: Rule | CombinedRule, _time_ns: int) -> bool:
        return self.on


def until(_rule: Rule | CombinedRule, time_ns: int) -> bool:
    """Let rules hold up to a time."""
    return time_ns < SIX * 1e9


def test_an_event_is_ended_when_its_mode_is_over_though_the_sensor_says_nothing() -> None:
    """The siren went on until somebody touched the door."""
    mode = Mode()
    stage = Stage(rules=[OPEN, DWELL], zones={"all": ALL}, holds=mode)
    for _ in range(3):
        stage.show(box(50, 50))
    stage.give(Values({"contact": 1.0}))
    stage.tick(1.0)
    begun = [("dwell", "begin"), ("open", "begin")]
    assert stage.told() == begun
    mode.on = False
    stage.give(Values({"battery": 89.0}), wait=5.0)
    stage.tick(1.0)
    stage.tick(1.0)
    assert stage.told() == [*begun, ("dwell", "end"), ("open", "end")]
    ended = stage.events[-1]
    assert (ended.facts["why"], ended.facts["seconds"]) == ("over", pytest.approx(7.0))
    assert ended.time_ns == pytest.approx((stage.now - 1.0) * 1e9, abs=1000)
    mode.on = True
    stage.tick(1.0)
    assert len(stage.told()) == 4
    stage.give(Values({"contact": 1.0}))
    assert stage.told()[4:] == [("open", "begin")]


def test_what_a_silent_sensor_has_said_begins_its_event_when_the_rule_may() -> None:
    """An open door was told of when it moved again: after a cooldown, or with the mode of night."""
    mode = Mode()
    stage = Stage(rules=[{**OPEN, "cooldown_s": 8}], holds=mode)
    for contact, wait in ((1.0, 0.0), (0.0, 6.0), (1.0, 2.0)):
        stage.give(Values({"contact": contact}), wait=wait)
    assert stage.told() == [("open", "begin"), ("open", "end")]
    stage.tick(4.0, silent=True)
    assert len(stage.told()) == 2
    stage.tick(4.0, silent=True)
    assert stage.told()[2:] == [("open", "begin")]
    mode.on = False
    stage.tick(1.0, silent=True)
    assert stage.told()[3:] == [("open", "end")]
    stage.tick(20.0, silent=True)
    mode.on = True
    stage.tick(1.0, silent=True)
    assert stage.told()[4:] == [("open", "begin")]


def test_the_seconds_of_a_value_that_is_not_known_do_not_pass() -> None:
    """A sensor that said that it does not know its temperature raised the alarm of the last one.

    Other values of its messages go on, and so does what has begun, until a number tells.
    """
    warm = {"name": "warm", "when": "value", "value": "t", "above": 30, "frames": "1/1"}
    damp = {**warm, "name": "damp", "value": "h", "for_s": 12}
    away = Values({"h": 40.0}, unknown=frozenset({"t"}))
    stage = Stage(rules=[{**warm, "for_s": 12}, damp])
    stage.give(Values({"t": 50.0, "h": 40.0}))
    stage.give(away, wait=6.0)
    stage.give(Values({"h": 40.0}), wait=1.0)  # does not mention it
    stage.tick(7.0, silent=True)
    assert stage.told() == [("damp", "begin")]
    stage.give(Values({"t": 50.0}), wait=1.0)  # says the same as the number before
    stage.give(away, wait=1.0)
    stage.tick(30.0, silent=True)
    begun = [("damp", "begin"), ("warm", "begin")]
    assert stage.told() == begun
    stage.give(Values({"t": 20.0}), wait=1.0)
    assert stage.told() == [*begun, ("warm", "end")]


@pytest.mark.parametrize("for_s", [0.0, 3.0])
def test_a_sensor_that_does_not_know_its_value_every_other_time_alarms(for_s: float) -> None:
    """What it says otherwise counts, however long the pauses are."""
    warm = {"name": "warm", "when": "value", "value": "t", "above": 30, "for_s": for_s}
    stage = Stage(rules=[warm])
    for _ in range(4):
        stage.give(Values({"t": 50.0, "h": 40.0}), wait=3.0)
        stage.give(Values({"h": 40.0}, unknown=frozenset({"t"})), wait=3.0)
    assert stage.told() == [("warm", "begin")]


@pytest.mark.parametrize(
    "told",
    [
        [(60.0, True)] * 8 + [(60.1, False), (60.1, True)],
        [(1.0, True), (60.0, False), (59.0, True)],
        [(50.0, False), (50.0, True), (50.0, False), (200.0, True)],
    ],
    ids=["one of ten", "in pairs", "irregular"],
)
def test_nulls_among_numbers_delay_nothing(told: list[tuple[float, bool]]) -> None:
    """However regular they are: the next number that says the same has the time in between."""
    warm = {"name": "warm", "when": "value", "value": "t", "above": 30, "for_s": 1800}
    stage = Stage(rules=[{**warm, "frames": "1/1"}])
    began = stage.now
    while not stage.told() and stage.now - began < 4000:
        for wait, known in told:
            found = Values({"t": 50.0}) if known else Values({}, unknown=frozenset({"t"}))
            stage.give(found, wait=wait)
    assert stage.told() == [("warm", "begin")]
    assert stage.now - began < 1800 + 2 * sum(wait for wait, _ in told)


def test_packets_with_one_value_and_null_for_the_rest_delay_nothing() -> None:
    """A device tells its temperature in one of ten packets."""
    warm = {"name": "warm", "when": "value", "value": "t", "above": 30, "for_s": 60}
    stage = Stage(rules=[{**warm, "frames": "1/1"}])
    for number in range(75):
        now = number % 10 == 0
        found = Values({"t": 50.0} if now else {}, unknown=frozenset(() if now else {"t"}))
        stage.give(found, wait=1.0)
    assert stage.told() == [("warm", "begin")]


def test_a_new_rule_heeds_the_last_word_on_its_value() -> None:
    """Messages with other values do not have the same keys."""
    stage = Stage(rules=[])
    stage.give(Values({"contact": 1.0, "battery": 90.0}))
    stage.give(Values({"linkquality": 9.0}, unknown=frozenset({"contact"})))
    stage.apply(rules=[OPEN])
    stage.tick(10.0, silent=True)
    assert stage.told() == []
    stage.give(Values({"contact": 1.0}))
    assert stage.told() == [("open", "begin")]


def test_a_new_rule_does_not_heed_what_is_not_known_any_more() -> None:
    """The sensor has said nothing but null since: a reload raised the alarm of its last number."""
    stage = Stage(rules=[])
    stage.give(Values({"contact": 1.0}))
    stage.apply(told=False, rules=[OPEN])
    stage.tick(10.0, silent=True)
    assert stage.told() == []
    stage.give(Values({"contact": 1.0}))
    assert stage.told() == [("open", "begin")]


def test_no_event_begins_after_a_cooldown_with_a_value_that_is_not_known_any_more() -> None:
    """It had been true when the cooldown began to hold it back."""
    stage = Stage(rules=[{**OPEN, "cooldown_s": 8}])
    for contact in (1.0, 0.0, 1.0):
        stage.give(Values({"contact": contact}))
    stage.give(Values({}, unknown=frozenset({"contact"})), wait=1.0)
    stage.give(Values({"battery": 89.0}), wait=1.0)
    stage.tick(20.0, silent=True)
    assert stage.told() == [("open", "begin"), ("open", "end")]
    stage.give(Values({"contact": 1.0}), wait=1.0)
    assert stage.told()[2:] == [("open", "begin")]


def test_a_new_rule_does_not_begin_with_a_value_that_is_not_known_any_more() -> None:
    """What a silent sensor has said holds under other rules, but not beyond its own word."""
    stage = Stage(rules=[])
    stage.give(Values({"contact": 1.0, "battery": 90.0}))
    stage.give(Values({"battery": 90.0}, unknown=frozenset({"contact"})))
    stage.apply(rules=[OPEN])
    stage.tick(5.0, silent=True)
    assert stage.told() == []
    stage.give(Values({"contact": 1.0}), wait=1.0)
    assert stage.told() == [("open", "begin")]


@pytest.mark.parametrize(("why", "again"), [("stopped", 1), ("reloaded", 1), ("lost", 0)])
def test_what_is_switched_off_and_on_does_not_wait_for_its_cooldown(why: Any, again: int) -> None:
    """It ended because of whoever did that; a camera that fails now and then is to tell once."""
    stage = Stage(rules=[{**OPEN, "cooldown_s": 600}])
    stage.give(Values({"contact": 1.0}))
    if why == "lost":
        stage.engine.source_lost(switched_off=False, at=stage.now)
    elif why == "stopped":
        stage.engine.source_lost(switched_off=True, at=stage.now)
    else:
        stage.apply(rules=[{**OPEN, "cooldown_s": 600, "above": 0.7}])
    if why != "reloaded":
        stage.give(Values({"contact": 1.0}), wait=5.0)
    assert stage.told() == [("open", "begin"), ("open", "end"), *[("open", "begin")] * again]


def test_what_waited_from_before_the_end_of_its_hours_does_not_begin_it_again() -> None:
    """A lane that is behind delivers it after the event was ended."""
    stage = Stage(rules=[OPEN], holds=until)
    stage.give(Values({"contact": 1.0}))
    stage.tick(SIX - stage.now - 0.1)
    assert stage.told() == [("open", "begin")]
    stage.tick(0.2)
    assert stage.told() == [("open", "begin"), ("open", "end")]
    stage.give(Values({"contact": 1.0}), wait=-0.2)
    stage.give(Values({"contact": 1.0}), wait=0.5)
    assert len(stage.told()) == 2


@pytest.mark.parametrize("clock", [-30.0, 30.0])
def test_hours_are_over_once_they_are_by_the_clocks_of_device_and_sender(clock: float) -> None:
    """Else readings of a sender whose clock is behind would begin and end it in turn."""
    stage = Stage(rules=[OPEN], holds=until)
    stage.give(Values({"contact": 1.0}))
    for _ in range(20):
        stage.tick(1.0, clock=clock)
    assert len(stage.told()) == (1 if clock < 0 else 2)
    stage.tick(20.0, clock=clock)
    assert len(stage.told()) == 2


def test_the_hours_of_a_recording_pass_with_its_results() -> None:
    """Results may wait for the broker; the mode is that of the device."""
    mode = Mode()

    def holds(rule: Rule | CombinedRule, time_ns: int) -> bool:
        return mode(rule, time_ns) and until(rule, time_ns)

    stage = Stage(rules=[OPEN], holds=holds, apart=1 / 30)
    stage.give(Values({"contact": 1.0}))
    stage.tick(60.0)
    assert stage.told() == [("open", "begin")]
    mode.on = False
    stage.tick(1.0)
    assert stage.told() == [("open", "begin"), ("open", "end")]
    assert stage.events[1].facts["seconds"] == 0.0


def test_passing_time_moves_no_track() -> None:
    """An object is expected where it goes by the time between its frames."""
    far: list[Any] = []
    for waits in (False, True):
        stage = Stage(rules=[DWELL], zones={"all": ALL}, rate=2)
        for x in range(10, 90, 10):
            found = stage.show(box(x, 50, 8))
            if waits:
                stage.tick(0.25)
                stage.now -= 0.25
        assert found.tracks is not None
        far.append(found.tracks.tolist())
    assert far[0] == far[1]


def test_what_a_silent_sensor_has_said_holds_until_it_says_otherwise() -> None:
    """A sensor that reports changes does not say again that it is still warm."""
    warm = {**OPEN, "value": "t", "above": 8, "for_s": 60, "modes": ["night"]}
    mode = Mode()
    stage = Stage(rules=[warm], holds=mode)
    stage.tick(100.0, silent=True)
    stage.give(Values({"t": 9.0}))
    stage.tick(59.0, silent=True)
    stage.tick(100.0)
    stage.give(Values({"t": 7.0}))
    stage.tick(100.0, silent=True)
    stage.give(Values({"t": 9.5}))
    stage.tick(60.5, silent=True)
    assert stage.told() == [], "another message may be on its way"
    stage.tick(1.0, silent=True)
    (begun,) = stage.events
    assert (begun.state, begun.facts["value"]) == ("begin", 9.5)
    assert begun.time_ns == pytest.approx((stage.now - 1.0) * 1e9, abs=1000)
    stage.give(Values({"t": 7.0}), wait=-0.5)
    assert stage.told()[1:] == [("open", "end")]
    mode.on = False
    stage.give(Values({"t": 9.5}))
    stage.tick(100.0, silent=True)
    mode.on = True
    stage.tick(1.0, silent=True)
    assert stage.told()[2:] == [("open", "begin")]
    stage.engine.source_lost(switched_off=False, at=stage.now)
    stage.tick(100.0, silent=True)
    assert stage.told()[3:] == [("open", "end")]


@pytest.mark.parametrize("for_s", [0.0, 60.0])
def test_a_changed_rule_of_a_silent_sensor_begins_where_the_one_before_ends(for_s: float) -> None:
    """It began before that end, so that Home Assistant, told of both late, showed no alarm."""
    stage = Stage(rules=[OPEN])
    stage.give(Values({"contact": 1.0}))
    stage.tick(100.0, silent=True)
    stage.apply(rules=[{**OPEN, "above": 0.7, "for_s": for_s}])
    assert stage.told() == [("open", "begin"), ("open", "end"), ("open", "begin")]
    _, ended, begun = stage.events
    assert ended.time_ns == begun.time_ns == pytest.approx(stage.now * 1e9, abs=1000)
    assert ended.facts["seconds"] == pytest.approx(100.0)
    late = Values({"contact": 0.0})  # read before the change, and on its way since
    stage.give(late, wait=-0.5)
    ended = stage.events[-1]
    assert (ended.time_ns, ended.facts["seconds"]) == (begun.time_ns, 0.0)


@pytest.mark.parametrize("why", ["stopped", "reloaded", "lost"])
def test_what_a_silent_sensor_has_said_lasts_until_it_is_ended(why: Any) -> None:
    """A door that had been open for an hour was said to have been so for no time at all."""
    stage = Stage(rules=[{**OPEN, "cooldown_s": 8}])
    stage.give(Values({"contact": 1.0}))
    stage.tick(3600.0, silent=True)
    held = stage.now
    stage.tick(5.0)  # no longer known to hold
    if why == "lost":
        stage.engine.source_lost(switched_off=False, at=stage.now)
    else:
        stage.engine.close(why)
    begun, ended = stage.events
    assert (ended.facts["why"], ended.facts["seconds"]) == (why, pytest.approx(3600.0))
    assert ended.time_ns == pytest.approx(held * 1e9, abs=1000)
    assert begun.time_ns == ended.began_ns


def test_what_a_camera_has_shown_lasts_until_it_was_seen_last() -> None:
    """Nobody knows of the time since."""
    stage = Stage(rules=[OPEN])
    for _ in range(2):
        stage.give(Values({"contact": 1.0}), wait=2.0)
    stage.tick(60.0)
    stage.engine.source_lost(switched_off=False, at=stage.now)
    assert stage.events[-1].facts["seconds"] == pytest.approx(2.0)
