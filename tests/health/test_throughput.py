"""Pipelines that do not keep up: when that is worth a word, and when it is as meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.health.throughput import WINDOW_SECONDS, Throughput
from edge_agent.runtime.scheduler.board import Account
from tests.helpers.cameras import MjpegServer
from tests.helpers.small_models import encode_jpeg, heavy, plain
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings

DEADLINES = {"door": 0.0}


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(seconds: float, step: float, **a_second: float) -> list[str]:
    """Let a pipeline run at some rates, and say what the last look gives."""
    clock = Clock()
    throughput = Throughput(clock)
    words: list[str] = []
    for index in range(int(seconds / step) + 1):
        passed = index * step
        account = Account(
            captured=int(passed * a_second["captured"]),
            inferred=int(passed * a_second["inferred"]),
        )
        account.dropped["rate"] = int(passed * a_second.get("rate", 0))
        account.dropped["still"] = int(passed * a_second.get("still", 0))
        words = throughput.problems({"door": account}, DEADLINES)
        clock.now += step
    return words


@pytest.mark.parametrize("step", [0.2, 1.0, 10.0])
def test_one_of_twenty_is_a_collapse(step: float) -> None:
    """A camera that gives 20 frames a second and gets 1 result is a reason, however often asked."""
    (reason,) = run(20, step, captured=20, inferred=1)
    assert reason.startswith("pipeline door: infers 1.0 of 20.0 frames a second of its source; ")


@pytest.mark.parametrize(
    "a_second",
    [
        {"captured": 20, "inferred": 20},
        {"captured": 20, "inferred": 7},  # a slow processor takes every third
        {"captured": 20, "inferred": 1, "rate": 19},  # as the settings ask
        {"captured": 20, "inferred": 0, "still": 20},  # nothing moves
        {"captured": 1, "inferred": 0},  # too few to say
    ],
)
def test_what_is_no_collapse(a_second: dict[str, float]) -> None:
    """Newest-wins, a `rate`, stillness and a slow source are no reason."""
    assert run(20, 1.0, **a_second) == []


def test_a_collapse_is_over_when_results_come_again() -> None:
    """The reason goes away within one window of the results coming back."""
    clock = Clock()
    throughput = Throughput(clock)
    account = Account()
    for _ in range(10):
        account.captured += 20
        words = throughput.problems({"door": account}, DEADLINES)
        clock.now += 1.0
    assert words
    for _ in range(int(WINDOW_SECONDS) + 1):
        account.captured += 20
        account.inferred += 20
        words = throughput.problems({"door": account}, DEADLINES)
        clock.now += 1.0
    assert words == []


def test_a_pipeline_made_anew_counts_anew() -> None:
    """After a reload the same name begins from 0, which is no collapse."""
    clock = Clock()
    throughput = Throughput(clock)
    throughput.problems({"door": Account(captured=1000, inferred=1000)}, DEADLINES)
    clock.now += 10
    assert throughput.problems({"door": Account(captured=30, inferred=0)}, DEADLINES) == []
    clock.now += 10
    assert throughput.problems({}, {}) == []


def test_a_collapsed_pipeline_degrades_health(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """A camera of 20 frames a second through a model that takes one second: degraded, and why."""
    heavy(tmp_path / "models" / "slow", rounds=1000)
    listener = listen(broker.port)
    with MjpegServer([encode_jpeg(plain(40))], rate=20.0) as camera:
        pipeline = {"name": "door", "source": camera.url(), "model": "slow"}
        models = [str(tmp_path / "models")]
        running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
        health = listener.wait_why("pipeline door: infers")
        assert health["state"] == "degraded"
        door = health["pipelines"]["door"]
        assert door["captured"] >= 20
        assert door["inferred"] < 0.2 * door["captured"]
        assert running.stop() == 0
