"""At most so many captures a second, and which."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.runtime.pipelines.rate import Rate


def taken(rate: Rate, times: list[float]) -> list[float]:
    """Give the times of the captures that are allowed."""
    return [at for at in times if rate.due(at)]


def test_a_camera_of_just_that_rate_loses_nothing_to_its_jitter() -> None:
    """Pictures that are a bit early or late are in a slot of their own all the same."""
    jitter = np.random.default_rng(1).uniform(-0.08, 0.08, 200)
    times = np.maximum(0, np.arange(200) / 5 + jitter).tolist()
    assert taken(Rate(5), times) == times


@pytest.mark.parametrize("most", [5, 4.9, 0.3])
def test_of_a_quick_camera_no_more_than_that_many_come(most: float) -> None:
    """On average exactly so many; after a pause no burst makes up for it."""
    times = [number / 30 for number in range(3000)]
    assert len(taken(Rate(most), times)) == pytest.approx(100 * most, abs=1.5)
    rate = Rate(most)
    assert rate.due(0.0)
    late = [500 + number / 30 for number in range(300)]
    assert len(taken(rate, late)) <= 10 * most + 2


def test_all_of_one_rate_take_the_same_and_a_late_one_joins_them() -> None:
    """A pipeline that comes later has its first at once, and then those that the others have."""
    times = [number / 30 for number in range(300)]
    first, late = taken(Rate(5), times), taken(Rate(5), times[100:])
    assert late[0] == times[100]
    assert late[1:] == [at for at in first if at > late[0]]
