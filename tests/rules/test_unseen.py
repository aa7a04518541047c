"""Objects whose tracks go on though no result shows them: they are hidden for a moment, or gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.rule_engines import Stage, box

YARD = {"yard": ((0.0, 0.0), (0.7, 0.0), (0.7, 1.0), (0.0, 1.0))}
DWELL = {"name": "dwell", "when": "dwell", "zone": "yard", "for_s": 2.0, "picture": "crop"}
COUNT = {"name": "count", "when": "count", "zone": "yard", "for_s": 2.0, "picture": "frame"}
BEGUN = [("dwell", "begin"), ("count", "begin")]


def stage_of(*rules: dict[str, Any], **more: Any) -> Stage:
    return Stage(**{"zones": YARD, "rules": rules or (DWELL, COUNT), "rate": 10, **more})


@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize(("rate", "for_s"), [(10.0, 2.0), (0.5, 10.0)])
def test_who_is_gone_does_not_dwell_nor_count(rate: float, for_s: float, still: bool) -> None:
    """Seen for less than `for_s`: a siren was switched on, and the picture showed nobody.

    Where nothing moves behind him, no result comes that would give his track up.
    """
    rules = [{**rule, "for_s": for_s} for rule in (DWELL, COUNT)]
    stage = stage_of(*rules, rate=rate)
    for _ in range(round(rate * for_s)):
        stage.show(box(40, 60))
    for step in range(30):
        if still and step > 2:
            stage.still()
        else:
            stage.show()
    assert stage.told() == []


def test_who_is_hidden_for_a_moment_dwells_once_he_is_seen_again() -> None:
    """The event begins with a result that shows him where he is."""
    stage = stage_of()
    for _ in range(20):
        stage.show(box(40, 60))
    for _ in range(6):
        stage.show(weak=[box(40, 60, score=0.2)])
    assert stage.told() == []
    stage.show(box(42, 60))
    assert stage.told() == BEGUN
    assert stage.events[0].facts["box"] == [37.0, 50.0, 47.0, 60.0]
    assert {event.seq for event in stage.events} == {27}


def test_who_leaves_while_seen_below_the_threshold_has_left() -> None:
    """Somebody who sat down at the far end held the zone that he had left, and its alarm."""
    leave = {"name": "leave", "when": "leave", "zone": "yard"}
    absent = {"name": "absent", "when": "absent", "zone": "yard", "for_s": 1.0}
    stage = stage_of(DWELL, COUNT, leave, absent)
    for _ in range(30):
        stage.show(box(40, 60))
    for _ in range(30):
        stage.show(weak=[box(40, 60, score=0.2)])
    assert sorted(stage.told()) == sorted(BEGUN), "he is still there"
    assert stage.engine.counts() == {"yard": {"a": 1}}
    for step in range(60):
        stage.show(weak=[box(min(90, 40 + 2 * step), 60, score=0.2)])
    told = stage.told()[2:]
    assert sorted(told[:3]) == [("count", "end"), ("dwell", "end"), ("leave", "once")]
    assert told[3:] == [("absent", "begin")]
    assert stage.engine.counts() == {"yard": {}}
    for step in range(60):
        stage.show(weak=[box(max(40, 90 - 2 * step), 60, score=0.2)])
    assert len(stage.told()) == 6, "below the threshold nobody comes"
    stage.show(box(40, 60))
    stage.show(box(40, 60))
    assert stage.told()[6:] == [("absent", "end")]


@pytest.mark.parametrize("reload", [False, True])
def test_nobody_comes_into_a_zone_below_the_threshold(reload: bool) -> None:
    """Nor with other settings, nor beside its edge, once he has been in it below the threshold."""
    enter = {"name": "enter", "when": "enter", "zone": "yard"}
    stage = stage_of(enter, COUNT)
    for _ in range(5):
        stage.show(box(71.5, 60))
    for _ in range(5):
        stage.show(weak=[box(69, 60, score=0.2)])
    if reload:
        stage.apply(
            zones={"yard": ((0.0, 0.0), (0.71, 0.0), (0.71, 1.0), (0.0, 1.0))}, rules=[enter]
        )
        stage.show(weak=[box(69, 60, score=0.2)])
    else:
        for _ in range(5):
            assert stage.show(box(71.5, 60)).zones == ((),)
    assert stage.told() == []
    assert stage.engine.counts() == {"yard": {}}


def test_who_is_beyond_the_zone_does_not_begin_to_dwell_in_it() -> None:
    """With `frames` of 2/6 he counts as being there for five more results, which is no begin."""
    rules = [{**rule, "frames": "2/6"} for rule in (DWELL, COUNT)]
    stage = stage_of(*rules)
    for x in [60] * 20 + [80] * 12:
        stage.show(box(x, 60, 30))
    assert stage.told() == []


def test_who_is_gone_when_a_cooldown_is_over_does_not_begin_again() -> None:
    """The count was still true, of a track, in the first result after the cooldown."""
    stage = stage_of({**COUNT, "for_s": 0.0, "cooldown_s": 4.0})
    for _ in range(10):
        stage.show(box(40, 60))
    for _ in range(12):
        stage.show()
    told = [("count", "begin"), ("count", "end")]
    assert stage.told() == told
    while stage.now < stage.events[-1].since + 3.5:
        stage.show(box(40, 60))
    for _ in range(40):
        stage.show()
    assert stage.told() == told


def test_a_crowd_in_which_somebody_is_always_hidden_is_counted() -> None:
    """Counted by track, never by frame: no result shows all five, each soon shows again."""
    stage = stage_of({**COUNT, "above": 4})
    crowd = [box(5 + 15 * place, 60) for place in range(5)]
    for step in range(26):
        stage.show(*(each for place, each in enumerate(crowd) if step % 5 != place))
    assert stage.told() == [("count", "begin")]
    assert stage.events[0].facts["count"] == 5


def test_who_was_there_when_all_stood_still_dwells() -> None:
    """As the last result shows; who had gone by then does not, nor are they two."""
    stage = stage_of({**DWELL, "for_s": 5.0}, {**COUNT, "for_s": 5.0, "above": 1})
    for step in range(10):
        stage.show(box(20, 60), *([box(60, 60)] * (step < 8)))
    for _ in range(60):
        stage.still()
    assert stage.told() == [("dwell", "begin")]
    assert stage.events[0].facts["track"] == 1


def test_a_better_score_is_told_with_a_picture_of_its_object() -> None:
    """An update, at most one a second, came after the object had gone."""
    stage = stage_of({**DWELL, "for_s": 0.5}, rate=20)
    for step in range(39):
        stage.show(box(40, 60, score=0.6 if step < 30 else 0.95))
    for _ in range(10):
        stage.show()
    stage.show(box(40, 60))
    told = [(event.state, event.seq) for event in stage.events]
    assert told[0][0] == "begin"
    assert all(seq not in range(40, 50) for _, seq in told), told
