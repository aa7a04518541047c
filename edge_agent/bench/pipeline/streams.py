"""Many pipelines at once: what they give together, what an idle one costs, how many are carried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

from ...core.errors import AgentError
from ...mqtt.loopback import Loopback
from .pipeline_figures import Carried, Idle, PipelineSetup, Turn, p99
from .players import Line, SilentError, agent, endless, played, resident_mb

IDLE = 16
IDLE_SECONDS = 10.0
"""For which idle pipelines are watched at least: the kernel counts processor time in hundredths of
a second, and what the agent does by itself comes and goes."""
MOST = 256
"""Streams that are tried."""
SERVED = 0.95
"""Share of its rate that every stream must get: what is missing at the window's ends is not lost,
what was displaced is."""

FELLOW = "fellow"
"""The one beside the many: its name on the broker, and its folder."""
TURN_SECONDS = 1.0
WARM_SECONDS = 0.2
"""For what stood still to fill its queues again."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where agents are run, and of what model."""

    model: Path
    loopback: Loopback
    folder: Path
    """Keeps state from run to run."""


def together(place: Place, setup: PipelineSetup, count: int) -> Iterator[tuple[Turn, Turn]]:
    """Play at full pace through one model in this many pipelines, and in one beside them.

    Both are there all the time and take turns of a second, in which the other stands still: what
    disturbs the device for longer disturbs both.

    Returns:
        The turn of the one, and that of the many, round by round.
    """
    line = Line(played(setup))
    other = place.folder / FELLOW
    if not other.exists():
        # With the prepared form and the choice of engine.
        copytree(place.folder / "state", other / "state")
    rounds = max(1, round(setup.runs * setup.seconds / TURN_SECONDS))
    with (
        agent(place.model, [line], place.loopback, other, FELLOW) as one,
        agent(place.model, [line] * count, place.loopback, place.folder) as many,
    ):
        with one.standing_still():
            many.settle()
        with many.standing_still():
            one.settle()
        for _ in range(rounds):
            turns = []
            for player, fellow in ((one, many), (many, one)):
                with fellow.standing_still():
                    player.watch(WARM_SECONDS)
                    window = player.watch(TURN_SECONDS)
                ages = tuple(window.of("timing", "age_ms"))
                turns.append(Turn(window.fps, window.cpu_per_1000, ages))
            yield turns[0], turns[1]


def idle(place: Place, setup: PipelineSetup, pictures: Path) -> Idle:
    """Measure what further pipelines cost that have nothing to do, for at least `IDLE_SECONDS`.

    *pictures* is a folder with one picture, which each shows once and then not for an hour.
    """
    line = Line(f"dir:{pictures}?loop=1&rate=0.0003")
    costs = []
    for count in (1, 1 + IDLE):
        with agent(place.model, [line] * count, place.loopback, place.folder) as player:
            player.settle()
            window = player.watch(idle_seconds(setup))
            costs.append((window.cpu_seconds / window.seconds, resident_mb(player.process.pid)))
    return cost_of_each(costs[0], costs[1])


def idle_seconds(setup: PipelineSetup) -> float:
    """Return for how long idle pipelines are watched, seconds."""
    return max(setup.seconds, IDLE_SECONDS)


def cost_of_each(alone: tuple[float, float], crowded: tuple[float, float]) -> Idle:
    """Return what each further pipeline costs, at least 0.

    Args:
        alone: processor time, as a share of a core, and memory, MB, of an agent with one pipeline.
        crowded: likewise, with `IDLE` more.
    """
    cpu, memory = (max(0.0, more - one) / IDLE for one, more in zip(alone, crowded, strict=True))
    return Idle(IDLE, cpu * 100, memory)


def carried(place: Place, setup: PipelineSetup, guess: int, report_progress: Progress) -> Carried:
    """Find how many streams of a rate are served in time, beginning with a guess.

    A stream is a clip at its own pace, as a camera is; every one is served if it gets its rate, or
    the clip's where that is lower, and the 99th percentile of all ages stays within the bound.
    """
    ages: dict[int, float] = {}
    problems: dict[int, str] = {}

    def served(count: int) -> bool:
        # Once more where it is too many: one hold-up of the device, of a tenth of a second, is more
        # than the 99th percentile bears (65 streams were found so where there was room for 85).
        for _ in range(2):
            ages[count], problems[count] = attempt(place, setup, count)
            report_progress(
                f"{count} streams of {setup.rate:g} a second: p99 {ages[count]:.1f} ms, "
                f"{problems[count] or 'served'}"
            )
            if not problems[count]:
                return True
        return False

    most, refused = most_served(served, guess)
    return Carried(
        most, setup.rate, ages.get(most, 0.0), setup.p99_ms, refused, problems.get(refused, "")
    )


def most_served(served: Callable[[int], bool], guess: int) -> tuple[int, int]:
    """Find the greatest number that is served: by doubling, then by halving what is in between.

    Returns:
        That number, at most a twentieth too low, and the least number that failed; 0: none failed.
    """
    most, refused = 0, 0
    count = max(1, min(guess, MOST))
    while True:
        if served(count):
            most = count
        else:
            refused = count
        if refused and refused - most <= max(1, most // 20):
            return most, refused
        if refused:
            count = (most + refused) // 2
        elif most == MOST:
            return most, 0
        else:
            count = min(MOST, 2 * most)


def attempt(place: Place, setup: PipelineSetup, count: int) -> tuple[float, str]:
    """Run this many streams; return the p99 of their ages, and why that is too many, if it is."""
    rate = min(setup.rate, clip_rate(setup.clip))
    lines = [Line(endless(setup.clip, "real"), setup.rate)] * count
    try:
        with agent(place.model, lines, place.loopback, place.folder) as player:
            player.settle()
            window = player.watch(max(setup.seconds, 3.0 / rate))
    except SilentError as problem:
        return 0.0, str(problem)
    if not window.results:
        return 0.0, "no results"
    age = p99(window.of("timing", "age_ms"))
    if age > setup.p99_ms:
        return age, f"p99 of the age is above {setup.p99_ms:g} ms"
    served = Counter(topic for topic, _ in window.results)
    # One result more or less falls into the window by chance.
    due = SERVED * rate * window.seconds - 1
    starved = sum(1 for topic in range(count) if served[f"edge/bench/result/p{topic}"] < due)
    return age, f"{starved} of them get less than their rate" if starved else ""


def clip_rate(clip: Path) -> float:
    """Return the frames a second that a clip was made for."""
    from ...sources.video import FILE, Video

    video = Video(str(clip.resolve()), clip.name, FILE)
    rate = video.rate
    video.close()
    if not rate > 0:
        raise AgentError(f"{clip}: does not say its rate")
    return rate
