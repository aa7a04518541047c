"""A pipeline that infers next to nothing: the reason that is given is the true one."""

from __future__ import annotations

import pytest

from edge_agent.health.throughput import Throughput
from edge_agent.runtime.scheduler.board import Account
from tests.health.test_throughput import Clock


def run(**a_second: float) -> list[str]:
    """Let a pipeline run for ten seconds at some rates, and say what the last look gives."""
    clock = Clock()
    throughput = Throughput(clock)
    words: list[str] = []
    for passed in range(10):
        account = Account(
            captured=int(passed * a_second["captured"]),
            inferred=int(passed * a_second.get("inferred", 0)),
        )
        for reason in ("deadline", "error", "superseded"):
            account.dropped[reason] = int(passed * a_second.get(reason, 0))
        words = throughput.problems({"door": account}, {"door": 50.0})
        clock.now += 1.0
    return words


def test_frames_that_come_too_late_are_said_as_such() -> None:
    """Where all go by `deadline_ms`, that is the reason, and what to set is not the rate alone."""
    (reason,) = run(captured=20, deadline=20)
    assert reason.startswith(
        "pipeline door: 20.0 of 20.0 frames a second are older than deadline_ms = 50 when their"
    )


def test_frames_that_give_way_are_said_as_such() -> None:
    """Where newer frames take their place, the device cannot do as much as is asked of it."""
    (reason,) = run(captured=20, inferred=1, superseded=19)
    assert reason.startswith("pipeline door: infers 1.0 of 20.0 frames a second of its source")


@pytest.mark.parametrize(
    "a_second",
    [
        {"captured": 20, "error": 20},  # health has the error itself
        {"captured": 20, "inferred": 10, "deadline": 10},
        {"captured": 1, "deadline": 1},  # too few to say
    ],
)
def test_what_needs_no_word_here(a_second: dict[str, float]) -> None:
    """Errors have a reason of their own; half the frames too late, or a slow source, is none."""
    assert run(**a_second) == []


def test_a_pipeline_made_anew_counts_anew() -> None:
    """After a reload the same name begins from 0."""
    clock = Clock()
    throughput = Throughput(clock)
    for late in (1000, 0):
        account = Account(captured=late)
        account.dropped["deadline"] = late
        assert throughput.problems({"door": account}, {"door": 50.0}) == []
        clock.now += 10
    assert throughput.problems({}, {}) == []
