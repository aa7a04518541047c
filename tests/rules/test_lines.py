"""Lines: each object that crosses counts once, whatever its box does meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tests.helpers.rule_engines import Stage, box

ACROSS = {"gate": [(0.2, 0.5), (0.8, 0.5)]}
"""From left to right: its right side, seen along it, is below."""


def walked(ys: Iterable[float], *, x: float = 50, rate: float = 25.0) -> dict[str, int]:
    """Move an object to these heights; gives how often it was counted, by way."""
    stage = Stage(lines=ACROSS, rate=rate)
    for y in ys:
        stage.show(box(x, y))
    for _ in range(60):
        stage.show()
    return {way: number for (_, way, _), number in stage.crossed.items()}


def test_from_left_to_right_is_in_and_back_is_out() -> None:
    """Seen along the line in the picture."""
    assert walked(np.arange(30, 70, 2)) == {"in": 1}
    assert walked(np.arange(70, 30, -2)) == {"out": 1}
    there_and_back = [*np.arange(30, 70, 2), *np.arange(70, 30, -2)]
    assert walked(there_and_back) == {"in": 1, "out": 1}


def test_around_the_end_of_a_line_nothing_is_crossed() -> None:
    """A line is no longer than it is drawn."""
    assert walked(np.arange(30, 70, 2), x=10) == {}


@pytest.mark.parametrize("seed", range(5))
def test_supervision_1540_a_box_that_jitters_on_the_line_counts_once(seed: int) -> None:
    """supervision#1540: a box whose edge jumps to and fro is counted as often as it crosses."""
    rng = np.random.default_rng(seed)
    path = [*np.arange(40, 50, 1.0), *([50.0] * 200), *np.arange(50, 60, 1.0)]
    assert walked(y + rng.normal(0, 0.6) for y in path) == {"in": 1}


def test_supervision_1540_jitter_of_a_whole_margin_from_frame_to_frame_counts_once() -> None:
    """supervision#1540: also where each frame shows the box on the other side."""
    to_and_fro = [50 + (3 if i % 2 else -3) for i in range(100)]
    assert walked([40, 42, 44, *to_and_fro, 56, 58, 60]) == {"in": 1}


def test_supervision_2600_a_flicker_to_the_other_side_counts_neither_way() -> None:
    """supervision#2600: seen beyond for one frame and back again, an object has not crossed."""
    still = [44.0] * 10
    assert walked([*still, 54, *still, 54, *still, 54, *still]) == {}


@pytest.mark.parametrize(
    ("apart", "step", "counted"),
    [
        *[(1 / 30, 4, 1), (1 / 30, 6, 1), (1 / 30, 10, 0), (1.0, 10, 1), (1.0, 20, 1)],
        *[(None, 6, 1), (None, 10, 1), (None, 20, 1)],
    ],
)
def test_bytetrack_5_and_64_and_ultralytics_18504_a_fast_object_at_one_picture_a_second(
    apart: float | None, step: float, counted: int
) -> None:
    """ByteTrack#5, #64, ultralytics#18504: the limit in pictures of a folder is documented."""
    stage = Stage(lines=ACROSS, rate=1.0, apart=apart)
    for number in range(8):
        stage.show(box(50, 28 + step * number, 8))
    assert sum(stage.crossed.values()) == counted


def test_an_object_that_begins_on_the_line_counts_when_it_comes_back() -> None:
    """Where it came from is not known: nothing is counted before it has been on a side."""
    assert walked([50, 50, 50, *np.arange(50, 70, 2)]) == {}
    assert walked([50, 50, 50, *np.arange(50, 70, 2), *np.arange(70, 30, -2)]) == {"out": 1}


def test_an_object_that_is_last_seen_beyond_has_crossed() -> None:
    """At a low rate one frame may be all that shows it there, before it is gone."""
    assert walked([40, 43, 46, 49, 54]) == {"in": 1}


@pytest.mark.parametrize("how", ["lost", "reloaded"])
def test_an_object_that_is_last_seen_beyond_has_crossed_before_a_lost_source_and_a_reload(
    how: str,
) -> None:
    """Afterward it is another track, which begins beyond the line."""
    crossed = {"name": "r", "when": "cross", "line": "gate"}
    stage = Stage(lines={"gate": [(0.2, 0.5), (0.8, 0.5)]}, rules=[crossed])
    for y in (40, 43, 46, 49, 54):
        stage.show(box(50, y))
    assert not stage.events
    if how == "lost":
        stage.engine.source_lost(switched_off=False, at=stage.now)
    else:
        stage.engine.close("reloaded")
    assert sum(stage.crossed.values()) == 1
    [event] = stage.events
    assert (event.state, event.seq) == ("once", stage.seq)
    assert event.time_ns == event.began_ns == int(stage.now * 1e9)
    for y in (57, 60, 63):
        stage.show(box(50, y))
    assert sum(stage.crossed.values()) == len(stage.events) == 1


@pytest.mark.parametrize(("rate", "dropped"), [(25.0, 0.0), (5.0, 0.0), (25.0, 0.2), (5.0, 0.2)])
def test_a_belt_of_parts_is_counted_exactly(rate: float, dropped: float) -> None:
    """Two minutes of parts on a belt: each crosses once, under the label it mostly has.

    Boxes shake, one in thirty is missing, one in fourteen has another label; the belt moves 75
    pixels a second.
    """
    rng = np.random.default_rng(7)
    labels = ["good", "crack", "chip", "dent"]
    length, radius = 75 * 120, 45.0
    parts: list[tuple[float, float, str]] = []
    while len(parts) < 100:
        at = float(rng.uniform(0, length)), float(rng.uniform(70, 314))
        if all((at[0] - a) ** 2 + (at[1] - b) ** 2 > (2 * radius) ** 2 for a, b, _ in parts):
            parts.append((*at, labels[int(rng.integers(4))]))
    place = np.array([part[:2] for part in parts])
    stage = Stage(
        lines={"gate": [(0.5, 1.0), (0.5, 0.0)]}, rate=rate, size=(640, 384), anchor="center"
    )
    frames = int((length + 700) / 75 * rate)
    missed = 0
    for frame in range(frames):
        missed += 1
        if rng.random() < dropped:
            continue
        x = place[:, 0] - frame / rate * 75 + 640
        shown = np.flatnonzero((x > -20) & (x < 660) & (rng.random(len(parts)) > 1 / 30))
        boxes = []
        for index in shown:
            half = radius + rng.normal(0, 1.2, 4)
            sides = np.array([x[index], place[index, 1], x[index], place[index, 1]])
            sides += half * (-1, -1, 1, 1)
            sides[[0, 2]] = sides[[0, 2]].clip(0, 640)
            other = rng.random() < 1 / 14
            label = labels[int(rng.integers(4))] if other else parts[index][2]
            if sides[2] - sides[0] > 12:
                boxes.append((label, float(rng.uniform(0.5, 1)), tuple(sides.tolist())))
        stage.show(*boxes, wait=missed / rate)
        missed = 0
    truth = {("gate", "out", label): sum(p[2] == label for p in parts) for label in labels}
    wrong = sum(abs(truth.get(key, 0) - stage.crossed[key]) for key in {*truth, *stage.crossed})
    assert wrong <= (0 if not dropped else len(parts) // 100)
