"""Many pipelines at once: their joint rate, the cost of an idle one, how many are carried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

from ...core.errors import AgentError
from ...mqtt.loopback import Loopback
from ..common.child import call
from ..common.programs import SETTLE_SECONDS, Line, Program, Window, agent, endless
from ..common.report import Progress, p99
from .pipeline_figures import PipelineSetup, Turn

IDLE = 16
IDLE_SECONDS = 10.0
"""Least time that idle pipelines are watched: the kernel counts processor time in hundredths of a
second, and the agent's background work varies."""
MOST = 256
"""Most streams that are tried."""
SERVED = 0.95
"""Share of its rate that every stream must get: results missing at the window's ends are not lost,
dropped ones are."""

FELLOW = "fellow"
"""Device name and folder of the agent with one pipeline, beside the one with many."""
TURN_SECONDS = 1.0
WARM_SECONDS = 0.2
"""Time for a suspended agent to fill its queues again."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place where agents run, and their model."""

    model: Path
    loopback: Loopback
    folder: Path
    """Folder that keeps state from run to run."""

    def agent(self, lines: Sequence[Line]) -> AbstractContextManager[Program]:
        """Run the agent with these pipelines."""
        return agent(self.model, lines, self.loopback, self.folder)

    def overhead(self) -> float:
        """Measure the cost of a frame besides decoding and inference; see `frame_cost`."""
        at = {"url": self.loopback.url, "protocol": self.loopback.protocol}
        took: float = call(f"{__package__}.frame_cost", "overhead", **at)
        return took


def together(place: Place, setup: PipelineSetup, count: int) -> Iterator[tuple[Turn, Turn]]:
    """Play at full pace through one model in *count* pipelines, and in one beside them.

    Both run all the time and take turns of a second, in which the other is suspended, so that
    longer disturbances affect both. Yields the turn of the one and that of the many.
    """
    line = Line(setup.source())
    other = place.folder / FELLOW
    if not other.exists():
        # Includes the prepared form and the choice of engine.
        copytree(place.folder / "state", other / "state")
    with (
        agent(place.model, [line], place.loopback, other, FELLOW) as one,
        place.agent([line] * count) as many,
    ):
        with one.standing_still():
            many.settle()
        with many.standing_still():
            one.settle()
        for _ in range(max(1, round(setup.runs * setup.seconds / TURN_SECONDS))):
            turns = []
            for player, fellow in ((one, many), (many, one)):
                with fellow.standing_still():
                    player.watch(WARM_SECONDS)
                    turns.append(Turn.of(player.watch(TURN_SECONDS), ages=True))
            yield turns[0], turns[1]


def idle(place: Place, setup: PipelineSetup, pictures: Path) -> dict[str, float]:
    """Measure the cost of additional idle pipelines, for at least `IDLE_SECONDS`.

    *pictures* is a folder with one picture, which each pipeline takes only once an hour.
    """
    line = Line(f"dir:{pictures}?loop=1&rate=0.0003")
    costs = []
    for count in (1, 1 + IDLE):
        with place.agent([line] * count) as player:
            player.settle()
            window = player.watch(max(setup.seconds, IDLE_SECONDS))
            costs.append((window.cpu_seconds / window.seconds, player.resident_mb()))
    return {**cost_of_each(*costs), "seconds": max(setup.seconds, IDLE_SECONDS)}


def cost_of_each(alone: tuple[float, float], crowded: tuple[float, float]) -> dict[str, float]:
    """Return the cost of each additional pipeline, at least 0.

    Args:
        alone: processor time, as a share of a core, and memory in MB of an agent with one pipeline.
        crowded: the same with `IDLE` more.
    """
    cpu, memory = (max(0.0, more - one) / IDLE for one, more in zip(alone, crowded, strict=True))
    return {"cpu_percent": round(cpu * 100, 4), "memory_mb": round(memory, 3), "of": IDLE}


def carried(
    attempt: Callable[[int], tuple[float, str]],
    guess: int,
    name: str,
    bounds: tuple[float, float],
    report_progress: Progress,
    limit: int = MOST,
) -> dict[str, Any]:
    """Find how many streams of a rate are served in time, starting with a guess.

    Args:
        attempt: runs a number of streams; returns the p99 of the ages of their results, and why
            that is too many, if it is.
        guess: how many to start with.
        name: name of the measurement, before each line.
        bounds: results per second for each stream, and the limit for that p99 in ms.
        report_progress: takes a line about each attempt.
        limit: most streams that are tried.
    """
    rate, bound = bounds
    ages: dict[int, float] = {}
    problems: dict[int, str] = {}

    def served(count: int) -> bool:
        # Repeated if it was too many: a single delay of a tenth of a second on the device is too
        # much for the 99th percentile (65 streams were found where there was room for 85).
        for _ in range(2):
            ages[count], problems[count] = attempt(count)
            report_progress(
                f"{name} {count} streams of {rate:g} a second: p99 {ages[count]:.1f} ms, "
                f"{problems[count] or 'served'}"
            )
            if not problems[count]:
                return True
        return False

    most, refused = most_served(served, guess, limit)
    return {
        "carried": most,
        "rate": rate,
        "p99_ms": round(ages.get(most, 0.0), 2),
        "p99_bound_ms": bound,
        "too_many": refused or None,
        "why": problems.get(refused, ""),
    }


def most_served(served: Callable[[int], bool], guess: int, limit: int = MOST) -> tuple[int, int]:
    """Find the greatest number that is served, by doubling, then by bisection.

    Returns that, at most a twentieth too low, and the least number that failed; 0: none did.
    """
    most, refused = 0, 0
    count = max(1, min(guess, limit))
    while True:
        if served(count):
            most = count
        else:
            refused = count
        if refused and refused - most <= max(1, most // 20):
            return most, refused
        if refused:
            count = (most + refused) // 2
        elif most == limit:
            return most, 0
        else:
            count = min(limit, 2 * most)


def watched(
    program: AbstractContextManager[Program],
    seconds: float,
    settled_for: float = SETTLE_SECONDS,
) -> Window | str:
    """Watch a program for *seconds* once it is stable, or return why that is impossible."""
    try:
        with program as player:
            player.settle(settled_for)
            window = player.watch(seconds)
    except AgentError as problem:
        return str(problem)
    return window if window.results else "no results"


def judged(window: Window | str, count: int, rate: float, bound_ms: float) -> tuple[float, str]:
    """Return the p99 of the ages, and why the streams were too many: late, or below their rate.

    Each of *count* streams has a topic whose name ends with its number.
    """
    if isinstance(window, str):
        return 0.0, window
    age = p99(window.of("timing", "age_ms"))
    if age > bound_ms:
        return age, f"p99 of the age is above {bound_ms:g} ms"
    served = Counter(topic.rpartition("/p")[2] for topic, _ in window.results)
    # By chance, the window has one result more or less.
    due = SERVED * rate * window.seconds - 1
    starved = sum(1 for number in range(count) if served[str(number)] < due)
    return age, f"{starved} of them get less than their rate" if starved else ""


def attempt(place: Place, setup: PipelineSetup, count: int) -> tuple[float, str]:
    """Run *count* streams, each a clip at its own pace, like a camera; see `carried`."""
    lines = [Line(endless(setup.clip, "real"), setup.rate, share=False)] * count
    window = watched(place.agent(lines), max(setup.seconds, 3.0 / setup.rate))
    return judged(window, count, setup.rate, setup.p99_ms)
