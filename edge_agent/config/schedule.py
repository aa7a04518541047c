"""When a rule applies: `during = "mon-fri 22:00-06:00"`, in the device's local time."""

from __future__ import annotations

import re
import time
from functools import lru_cache

from ..core.frozen import record
from .rules import CombinedRule, Rule

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXPECTED = 'expected days and hours as "mon-fri 22:00-06:00", "sat,sun" or "08:00-18:00"'
_HOURS = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_DAY = 24 * 60
_ONE = f"({'|'.join(''.join(f'[{c}{c.upper()}]' for c in day) for day in DAYS)})"
_SOME = f"{_ONE}(-{_ONE})?(,{_ONE}(-{_ONE})?)*"
_TIMES = "([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)"
_PART = rf"\s*({_SOME}|({_SOME}\s+)?{_TIMES})\s*"
PATTERN = f"^({_PART}(;{_PART})*)?$"
"""Of `during`, for editors; it takes hours of no length, too."""


@record
class Span:
    """A range of hours on some days."""

    days: frozenset[int]
    """Days on which it begins; 0: Monday."""
    begin: int
    """Minutes since midnight."""
    end: int
    """If it is less than `begin`, it is on the next day."""

    def includes(self, day: int, minute: int) -> bool:
        """Whether a minute of a day is within it."""
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        begun = day in self.days and minute >= self.begin
        return begun or ((day - 1) % 7 in self.days and minute < self.end)


def holds(rule: Rule | CombinedRule, time_ns: int, mode: str | None) -> bool:
    """Whether a rule applies at a time, nanoseconds since 1970, and in a mode of the device."""
    if rule.modes and mode not in rule.modes:
        return False
    if not rule.during:
        return True
    at = time.localtime(time_ns / 1e9)
    minute = at.tm_hour * 60 + at.tm_min
    return any(span.includes(at.tm_wday, minute) for span in parse_during(rule.during))


@lru_cache(maxsize=256)
def parse_during(text: str) -> tuple[Span, ...]:
    """Parse the spans of a text, separated by semicolons."""
    return tuple(_span(part.split(), text) for part in text.split(";"))


def _span(words: list[str], text: str) -> Span:
    hours = [word for word in words if ":" in word]
    days = [word for word in words if ":" not in word]
    if not words or max(len(hours), len(days)) > 1 or words != days + hours:
        raise ValueError(f"{EXPECTED}, found {text!r}")
    begin, end = _hours(hours[0], text) if hours else (0, _DAY)
    return Span(_days(days[0], text) if days else frozenset(range(7)), begin, end)


def _hours(word: str, text: str) -> tuple[int, int]:
    found = _HOURS.fullmatch(word)
    hour, minute, to_hour, to_minute = map(int, found.groups()) if found else (99, 0, 0, 0)
    begin, end = hour * 60 + minute, to_hour * 60 + to_minute
    if begin >= _DAY or end > _DAY or max(minute, to_minute) > 59:
        raise ValueError(f"{EXPECTED}; hours are 00:00 to 24:00, found {text!r}")
    if begin == end:
        raise ValueError(f"{EXPECTED}; {word} is an empty time span")
    return begin, end


def _days(word: str, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in word.lower().split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"{EXPECTED}; days are {', '.join(DAYS)}, found {text!r}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {(begin + n) % 7 for n in range((end - begin) % 7 + 1)}
    return frozenset(found)
