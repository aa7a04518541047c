"""Tasks of upkeep are called in their order, one at a time, and only when they are due."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from edge_agent.core.errors import EngineError
from edge_agent.inference.model import Model
from edge_agent.serving.active import Serving
from edge_agent.serving.task_thread import TaskThread


class Named:
    """Stands for a model."""

    def __init__(self, name: str) -> None:
        self.name = self.id = name


class Recorded:
    """A task that records its calls, and returns what it is told to."""

    def __init__(self, name: str, calls: list[str], *pauses: float | None) -> None:
        self.name = name
        self.calls = calls
        self.pauses = list(pauses)
        self.on_run: Callable[[], None] = lambda: None

    def run(self, _serving: Serving, model: Model) -> float | None:
        self.calls.append(f"{self.name} {model.name}")  # type: ignore[attr-defined]
        self.on_run()
        return self.pauses.pop(0) if self.pauses else None

    def step(self) -> float:
        self.calls.append(self.name)
        return math.inf


class Table:
    """Models that serve, and a clock."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.servings: list[Any] = [SimpleNamespace(model=Named(name)) for name in names]

    def task(self, name: str, *pauses: float | None) -> Recorded:
        return Recorded(name, self.calls, *pauses)

    def thread_of(self, *sequences: tuple[Recorded, ...], **more: Any) -> TaskThread:
        active: Any = SimpleNamespace(all=lambda: self.servings)
        return TaskThread("upkeep", active, models=sequences, clock=lambda: self.now, **more)

    def taken(self) -> list[str]:
        """Return the calls since the last time."""
        calls = self.calls[:]
        self.calls.clear()
        return calls


def test_what_stands_first_is_done_first() -> None:
    """Each model goes through a sequence once; what is for all of them comes after."""
    table = Table("a", "b")
    one, two, last = table.task("one"), table.task("two"), table.task("last")
    worker = table.thread_of((one, two), tasks=(last,))
    assert worker.round() == math.inf
    assert table.taken() == ["one a", "two a", "one b", "two b", "last"]
    worker.round()
    assert table.taken() == ["last"]


def test_a_task_waits_for_the_one_before_it() -> None:
    """While one is not done with a model the next one is kept from that model, and no other."""
    table = Table("a", "b")
    slow, after, other = table.task("slow", 5.0, None), table.task("after"), table.task("other")
    worker = table.thread_of((slow, after), (other,))
    assert worker.round() == 5.0
    assert table.taken() == ["slow a", "slow b", "after b", "other a", "other b"]
    table.now = 4.0
    assert worker.round() == 1.0
    assert table.taken() == []
    table.now = 5.0
    assert worker.round() == math.inf
    assert table.taken() == ["slow a", "after a"]


def test_another_model_goes_through_all_of_them() -> None:
    """One that a task has put there is seen to from the beginning, in the next round."""
    table = Table("a")
    one, two = table.task("one"), table.task("two")
    worker = table.thread_of((one, two))
    new = Named("new")

    def exchange() -> None:
        table.servings[0].model = new

    one.on_run = exchange
    assert worker.round() == 0.0
    assert table.taken() == ["one a"]
    assert worker.round() == math.inf
    assert table.taken() == ["one new", "two new"]


def test_closing_waits_for_the_task_that_runs_and_for_no_other() -> None:
    """The rest of the round is left out, and what is to be closed is closed in the thread."""
    table = Table("a", "b")
    long, after, last = table.task("long"), table.task("after"), table.task("last")
    ended: list[str] = []
    worker = table.thread_of(
        (long, after),
        tasks=(last,),
        at_end=(lambda: ended.append(threading.current_thread().name),),
    )
    long.on_run = worker.close
    thread = threading.Thread(target=worker.run, name="upkeep")
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert table.taken() == ["long a"]
    assert ended == ["upkeep"]


def test_it_is_woken_by_a_change() -> None:
    """A round begins at once when something has changed, whatever the pause."""
    table = Table("a")
    seen = threading.Event()
    one = table.task("one")
    one.on_run = seen.set
    worker = table.thread_of((one,))
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert seen.wait(10)
    seen.clear()
    table.servings.append(SimpleNamespace(model=Named("b")))
    worker.wake()
    assert seen.wait(10)
    worker.close()
    thread.join(10)
    assert table.taken() == ["one a", "one b"]


@pytest.mark.parametrize("problem", [MemoryError(), EngineError("no"), KeyError("x")])
def test_a_model_on_which_a_task_fails_costs_nothing_but_its_own_upkeep(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged in one line and told in health; the other models get their turn."""
    table = Table("a", "b")
    one, two = table.task("one"), table.task("two")

    def fail() -> None:
        if table.calls[-1] == "one a":
            raise problem

    one.on_run = fail
    worker = table.thread_of((one, two))
    assert worker.round() == math.inf
    assert table.taken() == ["one a", "two a", "one b", "two b"]
    assert [line.exc_info for line in caplog.records if line.levelname == "ERROR"] == [None]
    (told,) = worker.problems()
    assert "\n" not in told
    assert worker.round() == math.inf, "it is not tried again and again"
    assert table.taken() == []
    table.servings.pop(0)
    assert worker.problems() == [], "a model that is gone is no problem"
