"""Rules about a whole result, or about how many objects are in a zone.

Each is a condition: true in k of n results, for so long, with hysteresis; its event lasts while it
is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..config.rule_kinds import kind_of
from ..config.rules import Rule
from ..core.types import Outcome
from .event import UPDATE_SECONDS, EventLog, OngoingEvent, Why

Change = Literal["begin", "end"]
KNOWN = 2
"""Results in which an object is seen before it has a number, and is counted."""


class Condition:
    """Whether a rule is true, from result to result."""

    def __init__(self, rule: Rule) -> None:
        self.active = False
        """Between its begin and its end."""
        self._rule = rule
        kind = kind_of(rule)
        self._bounded = kind.bounded
        # What is counted was true in k of n by itself, object by object.
        held = kind.smoothed or kind.trigger == "count"
        self._least, self._of = (1, 1) if held else rule.needed
        self._bits = 0
        self._true = False
        self._since = 0.0

    def step(self, value: float, now: float, *, plain: bool = True) -> Change | None:
        """Take a result at *now*, monotonic seconds; return what changes with it.

        *value* is compared with `above` and `below`; *plain*: it is true where there are no bounds.
        """
        wanted = self._holds(value, plain=plain)
        # A bit for each result in which it was not as it is held to be.
        self._bits = (self._bits << 1 | (wanted != self._true)) & ((1 << self._of) - 1)
        if self._bits.bit_count() >= self._least:
            self._true, self._since, self._bits = wanted, now, 0
        if not self._true and self.active:
            self.active = False
            return "end"
        return self.advance(now)

    def advance(self, now: float) -> Change | None:
        """Go on in time without another result; return what changes with that."""
        if self._true and not self.active and now - self._since >= self._rule.for_s:
            self.active = True
            return "begin"
        return None

    def interrupt(self) -> None:
        """Forget what has not become an event: something is missing before the next result."""
        self._true, self._bits = self.active, 0

    def reset(self) -> None:
        """Forget what was: nothing is known of the time between."""
        self.active = self._true = False
        self._bits = 0

    def _holds(self, value: float, *, plain: bool) -> bool:
        above, below = self._rule.above, self._rule.below
        if not self._bounded:
            return plain
        if above is not None:
            return value >= below if below is not None and self._true else value > above
        return plain if below is None else value < below


class _Entry:
    """A rule with its condition and its event."""

    __slots__ = ("column", "condition", "event", "facts", "measure", "rule")

    def __init__(self, rule: Rule, column: int | None) -> None:
        kind = kind_of(rule)
        assert kind.measure is not None  # noqa: S101 - kinds of these triggers have one
        self.measure = kind.measure
        self.rule = rule
        self.column = column
        self.condition = Condition(rule)
        self.event: OngoingEvent | None = None
        self.facts: dict[str, Any] = {}
        """What the latest result says."""


class Conditions:
    """All conditions of one pipeline, and their events. Used by one thread at a time."""

    def __init__(self, rules: Mapping[int, Rule], others: list[Rule], log: EventLog) -> None:
        """Begin with nothing known; *rules* on the number of objects, by column of `Occupancy`."""
        self._log = log
        self._entries = [_Entry(rule, column) for column, rule in rules.items()]
        self._entries += [_Entry(rule, None) for rule in others]

    def step(self, outcome: Outcome, counts: NDArray[np.intp] | None, results: int) -> None:
        """Look at a result.

        *counts* (columns,): objects that count in each; None: the result is not one of objects.
        *results* counts those of objects so far, this one too.
        """
        for entry in self._entries:
            rule, count = entry.rule, 0
            if entry.column is not None:
                # Who is there cannot have been counted in the very first results.
                if counts is None or results < max(KNOWN, rule.needed[0]):
                    continue
                count = int(counts[entry.column])
            value, plain, facts = entry.measure(rule, outcome, count)
            if value is None:
                continue  # a result that says nothing of it: no temperature, but the battery
            entry.facts = facts
            if rule.zone is not None:
                entry.facts["zone"] = rule.zone
            self._tell(entry, entry.condition.step(value, self._log.now, plain=plain))

    def interrupt(self) -> None:
        """Begin to count results and seconds anew: something is missing before the next one."""
        for entry in self._entries:
            entry.condition.interrupt()

    def advance(self) -> None:
        """Go on in time without a result."""
        for entry in self._entries:
            self._tell(entry, entry.condition.advance(self._log.now))

    def finish(self, why: Why) -> None:
        """End all events, and forget what was."""
        for entry in self._entries:
            if entry.event is not None:
                self._log.end(entry.event, why)
            entry.event = None
            entry.condition.reset()

    def _tell(self, entry: _Entry, change: Change | None) -> None:
        """Begin, update or end the event of a condition."""
        event, facts = entry.event, entry.facts
        if event is not None and change is None and not self._log.holds(entry.rule):
            change = "end"  # its hours are over; what it is about may go on
        if event is None:
            # Also where the cooldown ends while the condition still holds.
            if entry.condition.active:
                entry.event = self._log.begin(entry.rule, facts)
            return
        if facts.get("label") != event.facts.get("label"):
            facts = {}  # of another label than the event
        if change == "end":
            entry.event = None
            self._log.end(event, "over", facts)
        elif self._log.now - event.updated >= UPDATE_SECONDS and (
            facts.get("count") != event.facts.get("count") or event.is_better(facts)
        ):
            self._log.update(event, facts)
