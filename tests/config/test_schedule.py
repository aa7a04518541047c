"""The hours in which a rule holds: spans, midnight, and clocks that are put forward and back."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from edge_agent.config.rules import Rule
from edge_agent.config.schedule import PATTERN, holds, parse_during

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(autouse=True)
def _berlin() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def at(text: str, *, fold: int = 0) -> int:
    """Return a local time, "2026-03-27 22:00", in ns since 1970."""
    local = datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold)
    return round(local.timestamp()) * 10**9


NIGHTS = "mon-fri 22:00-06:00"  # 2026-03-27 is a Friday


@pytest.mark.parametrize(
    ("during", "when", "wanted"),
    [
        (NIGHTS, "2026-03-27 21:59", False),
        (NIGHTS, "2026-03-27 22:00", True),
        (NIGHTS, "2026-03-28 05:59", True),  # what begins on Friday ends on Saturday
        (NIGHTS, "2026-03-28 06:00", False),
        (NIGHTS, "2026-03-28 22:30", False),
        (NIGHTS, "2026-03-30 03:00", False),  # Monday's begins in its evening
        ("sat,sun", "2026-03-29 23:59", True),
        ("sat,sun", "2026-03-30 00:00", False),
        ("fri-mon", "2026-03-30 12:00", True),
        ("fri-mon", "2026-03-31 12:00", False),
        ("08:00-18:00", "2026-03-31 08:00", True),
        ("08:00-18:00", "2026-03-31 18:00", False),
        ("00:00-24:00", "2026-03-31 23:59", True),
        ("mon 08:00-09:00; TUE 10:00-11:00", "2026-03-31 10:30", True),
        ("mon 08:00-09:00; TUE 10:00-11:00", "2026-03-31 08:30", False),
        ("", "2026-03-31 08:30", True),
    ],
)
def test_a_span_is_of_the_day_on_which_it_begins(during: str, when: str, wanted: bool) -> None:
    """By local time, over midnight, days in ranges and lists."""
    assert re.search(PATTERN, during)
    assert holds(Rule(name="r", when="enter", during=during), at(when), None) is wanted


def test_the_clock_on_the_wall_counts_when_it_is_changed() -> None:
    """In the night in which an hour is missing, and in both hours of that in which one is twice."""
    rule = Rule(name="r", when="enter", during="sat 22:00-06:00")
    assert holds(rule, at("2026-03-29 05:59"), None)
    assert not holds(rule, at("2026-03-29 06:00"), None)
    assert at("2026-03-29 06:00") - at("2026-03-28 22:00") == 7 * 3600 * 10**9
    twice = Rule(name="r", when="enter", during="02:00-03:00")
    for fold in (0, 1):
        assert holds(twice, at("2026-10-25 02:30", fold=fold), None)
    assert not holds(twice, at("2026-03-29 03:00"), None)


@pytest.mark.parametrize(
    "text",
    [
        *(" ", "mon-fri 22:00", "22:00-22:00", "24:00-25:00", "25:00-26:00", "10:60-11:00"),
        *("22-6", "monday", "mon-fri 1:00-2:00", "mon tue", "08:00-09:00 mon", "mon;", "8", "mon-"),
        *("mon 08:00-09:00 10:00-11:00", "\u0660\u0668:00-09:00", "22:00-06:00\0"),
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    """With an example of what is; by the schema, too, as far as a pattern can say it."""
    assert not re.search(PATTERN, text) or text == "22:00-22:00"
    with pytest.raises(ValueError, match="mon-fri 22:00-06:00"):
        parse_during(text)
