"""So many a second, and some at once."""

from __future__ import annotations

import pytest

from edge_agent.answers.credit import Credit


def test_a_burst_is_taken_at_once_and_what_follows_as_time_passes() -> None:
    """Of a flood, 100 are taken at once, then 100 a second; nothing is saved up beyond a burst."""
    now = [5.0]
    credit = Credit(lambda: now[0])

    def taken() -> int:
        return sum(not credit.take(100, 100) for _ in range(1000))

    assert taken() == 100
    assert credit.take(100, 100) == pytest.approx(0.01)
    now[0] += 0.505
    assert taken() == 50
    assert credit.take(100, 100) == pytest.approx(0.005)
    now[0] += 3600
    assert taken() == 100
