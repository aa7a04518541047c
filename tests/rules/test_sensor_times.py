"""Rules on sensors that say when each reading was taken, whenever their messages arrive."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from edge_agent.config.rules import Rule
from edge_agent.config.settings import Pipeline
from edge_agent.core.types import Outcome, Timing, Values
from edge_agent.inference.preprocess.windowing import Windower
from edge_agent.inference.readings import EachReading
from edge_agent.models.manifest import InputSpec
from edge_agent.rules.event import Event
from edge_agent.rules.rule_engine import RuleEngine
from edge_agent.rules.totals import LineTotals
from edge_agent.sources.continuity import SLOW_COPIES, Continuity, Counts, Rows

Told = list[tuple[str, float, float | None]]
WINDOWERS = [EachReading, Windower]
"""Of readings without a model, and of a model that takes a row at a time."""


class Sensor:
    """A sensor of one channel, and the rules on it."""

    def __init__(
        self, windower: type[Windower], *, gap_s: float | None = None, **rule: Any
    ) -> None:
        self.start = time.time() - 10_000
        """The sender's time 0, seconds since 1970."""
        self._events: list[Event] = []
        self._names, self._seq = count(), count()
        bounds = {"name": "r", "when": "value", "value": "a", "above": 8, "frames": "1/1"}
        self._engine = RuleEngine(
            Pipeline(
                name="p",
                source="mqtt:x",
                model="readings",
                rules=(Rule(**{**bounds, **rule}),),
            ),
            apart=None,
            name_event=lambda: f"e{next(self._names)}",
            emit=self._events.extend,
            totals=LineTotals(None),
        )
        self._windower, self._gap_s = windower, gap_s
        self._open()

    def _open(self) -> None:
        self._continuity = Continuity(self._gap_s)
        self._cut = self._windower(InputSpec(), ("a",))

    def lose(self, at: float) -> None:
        """Lose the source, and open it again."""
        self._engine.source_lost(switched_off=False, at=at)
        self._open()

    def say(
        self,
        values: Sequence[float],
        first: float | None,
        *,
        arrives: float,
        silence: Mapping[int, float] | None = None,
    ) -> None:
        """Send rows in one message, a second apart.

        *first* is the sender's time of the first; None: it says none. *silence*: further seconds
        before some of them, by number. *arrives*: when, monotonic seconds.
        """
        times = None
        if first is not None:
            steps = [(silence or {}).get(number, 0.0) for number in range(len(values))]
            seconds = self.start + first + np.arange(len(values)) + np.cumsum(steps)
            times = np.rint(seconds * 1e3).astype(np.int64) * 10**6
        rows = np.array(values, np.float32)[:, None]
        wall = round((self.start + 9_000) * 1e9)
        for found in self._continuity.pieces(Rows(rows, wall, arrives, ("a",), times)):
            if found.gap:
                self._cut.reset()
            for window in self._cut.push(found):
                outcome = Outcome("m@1", "", Values({"a": float(window.data[0])}), Timing(0, 0, 0))
                self._engine.process(replace(window, seq=next(self._seq)), outcome, None)

    @property
    def counts(self) -> Counts:
        return self._continuity.counts

    @property
    def told(self) -> Told:
        """State and time of each event by the sender's clock, and the seconds that it lasted."""
        return [
            (
                each.state,
                round(each.time_ns / 1e9 - self.start, 3),
                each.facts.get("seconds"),
            )
            for each in self._events
        ]


@pytest.mark.parametrize("windower", WINDOWERS)
def test_for_s_counts_by_the_times_of_rows_sent_together(windower: type[Windower]) -> None:
    """A warm end and a warm begin of messages, two seconds in all, were an event of eight."""
    sensor = Sensor(windower, for_s=6)
    sensor.say([1] * 9 + [9], 0, arrives=110)
    sensor.say([9] + [1] * 9, 10, arrives=128)
    assert sensor.told == []
    sensor.say([1] + [9] * 8 + [1], 20, arrives=130)
    assert sensor.told == [("begin", 27, None), ("end", 29, 2.0)]


@pytest.mark.parametrize("windower", WINDOWERS)
def test_messages_that_were_held_up_and_come_at_once_take_their_time(
    windower: type[Windower],
) -> None:
    """None of what a broker had kept for a box was true for long, as it came within a moment."""
    sensor = Sensor(windower, for_s=6, cooldown_s=5)
    sensor.say([1], 0, arrives=100)
    for second in range(1, 40):
        sensor.say([1 if second in {10, 12} else 9], second, arrives=140)
    assert sensor.told == [("begin", 7, None), ("end", 10, 3.0), ("begin", 19, None)]
    # After a delay no more time has passed than the sender says, either.
    sensor.say([1], 40, arrives=141)
    sensor.say([9], 60, arrives=161)
    sensor.say([9], 61, arrives=190)
    assert sensor.told[3:] == [("end", 40, 21.0)]


@pytest.mark.parametrize("windower", WINDOWERS)
def test_rows_that_overlap_or_come_late_do_not_go_back_in_time(windower: type[Windower]) -> None:
    """A message repeats the last rows of the one before, another comes after a newer one."""
    sensor = Sensor(windower, for_s=4)
    sensor.say([1, 9, 9, 9], 0, arrives=103)
    sensor.say([1, 1, 9, 9], 2, arrives=105)
    sensor.say([1, 1], 3, arrives=105.5)
    sensor.say([1], 6, arrives=106)
    assert sensor.told == [("begin", 5, None), ("end", 6, 1.0)]


@pytest.mark.parametrize("windower", WINDOWERS)
def test_copies_of_long_ago_begin_nothing_again(windower: type[Windower]) -> None:
    """A broker that had no acknowledgments, and a sender whose batch failed, said it all again.

    They were taken for a clock that was set back: an alarm of long ago began once more, and stood.
    """
    sensor = Sensor(windower, gap_s=7200)
    messages = [(1, 0), (9, 60), (5, 90), (5, 340)]
    for value, second in messages:
        sensor.say([value], second, arrives=100 + second)
    told = [("begin", 60, None), ("end", 90, 30.0)]
    assert sensor.told == told
    for value, second in [messages[1], *messages, *messages[:2] * 6]:
        sensor.say([value], second, arrives=450)
    assert sensor.told == told
    assert (sensor.counts.doubled, sensor.counts.late, sensor.counts.gaps) == (17, 0, 0)
    sensor.say([9], 360, arrives=460)
    assert sensor.told[2:] == [("begin", 360, None)]


@pytest.mark.parametrize("windower", WINDOWERS)
def test_a_clock_that_was_set_back_may_say_the_same_again(windower: type[Windower]) -> None:
    """Of a sensor whose times are whole minutes; only what comes faster than that is a copy."""
    sensor = Sensor(windower, gap_s=7200)
    for minute in range(60):
        sensor.say([9 if minute < 30 else 1], 60 * minute, arrives=100 + 60 * minute)
    assert [state for state, *_ in sensor.told] == ["begin", "end"]
    for minute in range(30):
        sensor.say([9], 60 * minute, arrives=3700 + 60 * minute)
    assert [state for state, *_ in sensor.told[2:]] == ["begin"]
    assert sensor.counts.doubled == SLOW_COPIES - 1


@pytest.mark.parametrize("windower", WINDOWERS)
def test_a_clock_of_whole_seconds_that_was_set_back_is_no_copy_for_long(
    windower: type[Windower],
) -> None:
    """Of a sensor that says two things in each: equal times began the count of copies anew."""
    sensor = Sensor(windower, gap_s=7200)
    for half in range(400):
        sensor.say([half % 2], half // 2, arrives=100 + half / 2)
    for half in range(100):
        sensor.say([half % 2], half // 2, arrives=300 + half / 2)
    assert 2 * (SLOW_COPIES - 1) <= sensor.counts.doubled <= 2 * SLOW_COPIES


@pytest.mark.parametrize("windower", WINDOWERS)
def test_a_clock_that_is_set_and_a_source_that_is_opened_again(windower: type[Windower]) -> None:
    """Cooldown and `for_s` go on by arrival where the sender's times do not say it."""
    sensor = Sensor(windower, for_s=2, cooldown_s=30)
    sensor.say([9, 9, 9, 1], 0, arrives=103)
    assert [state for state, *_ in sensor.told] == ["begin", "end"]
    sensor.say([9] * 4, -1000, arrives=110)  # set back: a gap
    sensor.say([9] * 4, -996, arrives=114)
    assert len(sensor.told) == 2, "its cooldown goes on"
    for second in range(600):  # far ahead of the clock of this machine, as all come at once
        sensor.say([1], -992 + second, arrives=115)
    sensor.lose(at=116)
    for second in range(4):
        sensor.say([9], second, arrives=120 + second)
    assert [state for state, *_ in sensor.told[2:]] == ["begin"]


@pytest.mark.parametrize("windower", WINDOWERS)
def test_nothing_fires_over_a_gap(windower: type[Windower]) -> None:
    """For a model that takes a row at a time, `for_s` and `frames` went on over it."""
    long = Sensor(windower, gap_s=3, for_s=6)
    twice = Sensor(windower, gap_s=3, frames="2/2")
    for sensor in (long, twice):
        sensor.say([1], None, arrives=100)
        sensor.say([9], None, arrives=101)
        sensor.say([9], None, arrives=110)
        assert sensor.told == []
        sensor.say([9], None, arrives=111)
    assert [state for state, *_ in twice.told] == ["begin"]
    for second in range(112, 117):
        long.say([9], None, arrives=second)
    assert [state for state, *_ in long.told] == ["begin"]


@pytest.mark.parametrize("windower", WINDOWERS)
@pytest.mark.parametrize("gap_s", [3.0, None])
def test_a_gap_within_a_message_is_one(windower: type[Windower], gap_s: float | None) -> None:
    """Rows that a sensor had gathered before and after it was away went on over that."""
    sensor = Sensor(windower, gap_s=gap_s, for_s=6)
    for message in range(5):  # from which the usual interval is known
        sensor.say([1, 1], 2 * message, arrives=100 + 2 * message)
    sensor.say([9, 9, 9, 1, 9, 9], 10, arrives=140, silence={1: 2.0, 2: 20.0, 4: 20.0})
    assert sensor.told == []
    sensor.say([9] * 6, 58, arrives=146)
    assert [(state, at) for state, at, _ in sensor.told] == [("begin", 62)]
