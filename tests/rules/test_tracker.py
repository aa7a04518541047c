"""Tracks: a number stays with its object, at any rate, through gaps, and no longer than it is."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from edge_agent.rules.tracker import LOST_SECONDS, assign
from tests.helpers.rule_engines import Stage, box


def numbers(
    stage: Stage, *boxes: tuple[str, float, tuple[float, float, float, float]]
) -> list[int]:
    """Show boxes; gives their tracks, 0 where they have none."""
    tracks = stage.show(*boxes).tracks
    assert tracks is not None
    return [int(track) for track in tracks]


def test_an_object_has_a_number_once_it_was_seen_twice() -> None:
    """What is seen once may be nothing; what is seen again keeps its number."""
    stage = Stage()
    assert numbers(stage, box(20, 50)) == [0]
    assert [numbers(stage, box(20 + i, 50)) for i in range(1, 10)] == [[1]] * 9


@pytest.mark.parametrize("rate", [30.0, 10.0, 5.0, 2.0])
def test_the_number_stays_at_low_rates(rate: float) -> None:
    """An object that moves a width in a second keeps its number, however few frames show it."""
    stage = Stage(rate=rate, size=(400, 100))
    seen = [numbers(stage, box(20 + 20 * i / rate, 50, 20)) for i in range(int(8 * rate))]
    assert {number for each in seen[1:] for number in each} == {1}


def test_dropped_frames_do_not_count_the_clock_does() -> None:
    """With a gap in the frames an object is expected where its time has taken it."""
    stage = Stage(rate=25, size=(400, 100))
    for i in range(25):
        numbers(stage, box(20 + 4 * i, 50, 20))
    # 16 frames are missing: by count it would be expected 4 pixels on, it is 64.
    found = stage.show(box(20 + 4 * 40, 50, 20), wait=16 / 25).tracks
    assert found is not None
    assert found.tolist() == [1]


def test_a_recording_is_moved_by_its_frames_not_by_the_clock() -> None:
    """Of a lossless source frames come as fast as they are read, with pauses of any length."""
    stage = Stage(apart=1 / 30, size=(400, 100))
    rng = np.random.default_rng(1)
    for i in range(60):
        tracks = stage.show(box(20 + 5 * i, 50, 14), wait=float(rng.uniform(0.001, 0.2))).tracks
        assert tracks is not None
        assert tracks.tolist() == [1 if i else 0]


def test_weak_detections_carry_a_track_on_and_begin_none() -> None:
    """Where only a weak detection is left of an object, its track goes on below the threshold."""
    stage = Stage()
    for i in range(10):
        numbers(stage, box(20 + i, 50))
    for i in range(10, 40):
        stage.show(weak=[box(20 + i, 50, score=0.2), box(80, 80, score=0.3)])
    assert numbers(stage, box(60, 50), box(80, 80)) == [1, 0]


def test_an_object_that_is_gone_for_long_gets_another_number() -> None:
    """A track ends when its object has not been seen for a second and a few results."""
    stage = Stage(rate=10)
    for _ in range(5):
        numbers(stage, box(20, 50))
    for _ in range(round(LOST_SECONDS * 10) + 1):
        stage.show()
    assert numbers(stage, box(20, 50)) == [0]
    assert numbers(stage, box(20, 50)) == [2]


def test_a_source_that_was_lost_begins_new_tracks() -> None:
    """What stands where something stood before need not be the same; numbers are not reused."""
    stage = Stage()
    for _ in range(3):
        numbers(stage, box(20, 50))
    stage.engine.source_lost(switched_off=False, at=stage.now)
    assert numbers(stage, box(20, 50)) == [0]
    assert numbers(stage, box(20, 50)) == [2]


def test_a_source_that_is_lost_often_takes_no_more_room() -> None:
    """What has just ended when the source is lost gives its place back, too."""
    stage = Stage(rate=10)
    tracker = stage.engine._objects.tracker
    for _ in range(3 * tracker.room):
        stage.show(box(20, 50))
        stage.show(box(21, 50))
        while not tracker.ended.size:
            stage.show()
        stage.engine.source_lost(switched_off=False, at=stage.now)
    assert tracker.room == Stage().engine._objects.tracker.room


def test_two_labels_on_one_object_are_one_track() -> None:
    """A detector that is not sure what it sees finds an object twice; it is still one."""
    stage = Stage()
    for _ in range(5):
        numbers(stage, box(20, 50, label="good"), box(20.3, 50, label="crack", score=0.6))
    assert numbers(stage, box(20, 50, label="crack")) == [1]
    assert stage.engine.counts() == {}


def test_objects_that_meet_keep_their_numbers() -> None:
    """Two that pass each other are told apart by where they were going."""
    stage = Stage(size=(400, 100))
    for i in range(60):
        left = (20 + 5 * i, 50.0)
        right = (320 - 5 * i, 58.0)
        found = numbers(stage, box(*left, 20, score=0.9), box(*right, 20, score=0.8))
    assert found == [1, 2]


def test_many_objects_get_more_room() -> None:
    """There is no limit to how many are tracked."""
    stage = Stage(size=(1000, 1000))
    boxes = [box(20 + 40 * (i % 24), 30 + 40 * (i // 24)) for i in range(500)]
    numbers(stage, *boxes)
    assert sorted(numbers(stage, *boxes)) == list(range(1, 501))


def test_the_assignment_is_the_best_one() -> None:
    """As good as trying all permutations, on matrices with gaps."""
    from itertools import permutations

    rng = np.random.default_rng(3)
    for _ in range(200):
        gain = rng.uniform(0.01, 1, (4, 4)) * (rng.random((4, 4)) > 0.4)
        rows, columns = np.nonzero(gain)
        given = gain[rows, columns].astype(np.float32)
        picked = assign(rows, columns, given)
        assert len(set(rows[picked])) == len(set(columns[picked])) == picked.sum()
        best = max(sum(gain[i, order[i]] for i in range(4)) for order in permutations(range(4)))
        assert given[picked].sum() == pytest.approx(best, abs=1e-4)


def test_what_is_obvious_is_assigned_as_the_solver_does() -> None:
    """Random pairs, many of them decided without it: the gain is that of the best choice."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        size = int(rng.integers(1, 7))
        pairs = np.flatnonzero(rng.random(size * size) < 0.5)
        rows, columns = np.divmod(pairs, size)
        gain = rng.uniform(0.05, 1.1, len(pairs)).astype(np.float32)
        picked = assign(rows, columns, gain)
        assert len(set(rows[picked])) == len(set(columns[picked])) == picked.sum()
        table = np.zeros((size, size))
        table[rows, columns] = gain
        best = max(table[range(size), order].sum() for order in permutations(range(size)))
        assert gain[picked].sum() == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(("apart", "most"), [(1.0, 2), (1 / 30, 12)])
def test_pictures_of_a_folder_are_as_far_apart_as_its_rate_says(apart: float, most: int) -> None:
    """Pages at one a second counted the lines of the last thirty: each lived for a second more."""
    stage = Stage(zones={"all": [(0, 0), (1, 0), (1, 1), (0, 1)]}, apart=apart, rate=1.0)
    counts = []
    for place in range(12):
        for _ in range(2):
            stage.show(box(8 * (5 * place % 12) + 5, 50, 6))
            counts.append(sum(stage.engine.counts()["all"].values()))
    assert max(counts) == most
