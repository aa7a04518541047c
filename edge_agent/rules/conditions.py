"""When rules fire: rules about single objects, whole results, or how many objects are in a zone.

Single objects cross a line, arrive, depart, or stay: each class checks the view of one result and
the objects that are given up with it. The others are conditions: true in k of n results, for some
time, with hysteresis; the event lasts while the condition is true.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..config.rule_kinds import Measured, kind_of, rules_by_trigger
from ..config.rules import Rule
from ..config.settings import Pipeline
from ..core.types import Anomaly, Classes, Outcome, Values
from .condition import Change, Condition
from .event import UPDATE_SECONDS, EventLog, OngoingEvent, Why
from .geometry import Gates, common, where
from .motion import Slots
from .occupancy import KNOWN, NEEDED, Counts, Occupancy, TrackedObjects, View
from .totals import LineTotals

log = logging.getLogger(__name__)

UNTOLD_SECONDS = 2.0
"""Time without a result that tells of a rule's labels, beyond which its counts begin again."""
LEARNS = (
    "rule %s: goes on while %s learns its threshold; what is there now will be usual: if it is "
    "not, roll back, or set a threshold"
)
_MANY = 2**31
"""More objects than any rule counts."""


class _Entry:
    """A rule with its condition and its event."""

    __slots__ = (
        *("column", "condition", "event", "facts", "key", "learns"),
        *("measure", "model", "rule", "shown", "untold", "waited"),
    )

    def __init__(self, rule: Rule, column: int | None, key: object) -> None:
        kind = kind_of(rule)
        assert kind.measure is not None  # noqa: S101 - kinds of these triggers have one
        self.measure = kind.measure
        self.rule = rule
        self.column = column
        self.key = key
        """What it is about: the rule and its zone."""
        self.condition = Condition(rule)
        self.event: OngoingEvent | None = None
        self.facts: dict[str, Any] = {}
        """Facts of the latest result that had the value."""
        self.model = ""
        """The model of that result."""
        self.learns = ""
        """The model of which was last said that it learns while the event goes on."""
        self.shown = True
        """Whether the event may begin: results show what is counted, and not only tracks."""
        self.waited = 0
        """Results since the event could have begun but for that."""
        self.untold: float | None = None
        """Time of the first of the latest results that do not tell of its labels or its value."""


def _about(rule: Rule, said: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return of results with different values, oldest first, the last word on a rule's value."""
    named = [
        each
        for each in said
        if isinstance(each.findings, Values)
        and rule.value in {*each.findings.values, *each.findings.unknown}
    ]
    return named[-1:] or said


def _is_unknown(rule: Rule, outcome: Outcome, value: float | None) -> bool:
    """Whether a result says that the value of a rule is not known, or not yet whether it is usual.

    The threshold of a new version is still being learned, or too few windows have come since a gap;
    with bounds of its own a rule about anomalies needs neither.
    """
    found = outcome.findings
    if isinstance(found, Anomaly):
        judged = rule.when == "anomaly" and rule.above is None and rule.below is None
        return judged and (found.threshold is None or bool(outcome.undecided))
    if isinstance(found, Classes):
        may_be = (each for each in outcome.undecided if not rule.labels or each in rule.labels)
        return rule.when == "class" and not value and any(may_be)
    return isinstance(found, Values) and value is None and rule.value in found.unknown


class Conditions:
    """All conditions of one pipeline and their events. For use by one thread at a time."""

    def __init__(
        self,
        settings: Pipeline,
        occupancy: Occupancy,
        log: EventLog,
        before: Conditions | None = None,
        latest: Iterable[Outcome] = (),
    ) -> None:
        """Go on from the conditions *before*; the events of what has changed end.

        What is new is checked with the *latest* results, without objects, of a silent sensor.
        """
        self._log = log
        self._occupancy = occupancy
        self._units = settings.units
        self._splits = len(settings.arms) > 1
        """Whether results come of several models in turn."""
        self._entries = [
            _Entry(rule, column, occupancy.keys[column])
            for column, rule in occupancy.rules.items()
            if kind_of(rule).trigger == "count"
        ]
        whole = rules_by_trigger(settings.rules, "result")
        self._entries += [_Entry(rule, None, rule) for rule in whole]
        fresh = self._entries if before is None else self._take_over(before)
        said = list(latest)
        for entry in fresh:
            entry.shown = False  # it begins below: not before the end of what it replaces
            for outcome in _about(entry.rule, said):
                self._step([entry], outcome, None, None, 0)
            entry.shown = True
        with log.without_sample():
            log.let_pass(log.held_until)
            self._begin_due(fresh)

    def _take_over(self, before: Conditions) -> list[_Entry]:
        """Take what has not changed from the conditions *before*; return what is new."""
        known, fresh = {entry.rule.name: entry for entry in before._entries}, []
        for place, entry in enumerate(self._entries):
            same = known.get(entry.rule.name)
            if same is None or same.key != entry.key:
                fresh.append(entry)
                continue
            same.column = entry.column
            self._entries[place] = known.pop(same.rule.name)
        for entry in known.values():
            if entry.event is not None:
                self._log.end(entry.event, "reloaded")
        return fresh

    def step(
        self, outcome: Outcome, counts: Counts | None, least: Counts | None, results: int
    ) -> None:
        """Check a result.

        *counts* (columns,): objects counted in each; *least*: those of them that count whatever a
        failed stage would have found; None: the result has no objects. *results* counts the results
        with objects so far, including this one.
        """
        self._step(self._entries, outcome, counts, least, results)

    def _step(
        self,
        entries: Sequence[_Entry],
        outcome: Outcome,
        counts: Counts | None,
        least: Counts | None,
        results: int,
    ) -> None:
        for entry in entries:
            told = entry.column is None or outcome.tells(entry.rule.labels)
            value, plain, facts = self._measure(entry, outcome, counts if told else least, results)
            if not told and not self._is_certain(entry, outcome, value, plain=plain):
                if entry.untold is None:
                    entry.untold = self._log.now
                self._stand_still(entry)
                continue
            if _is_unknown(entry.rule, outcome, value):
                if entry.untold is None:
                    entry.untold = self._log.now  # until one comes that decides
                if isinstance(outcome.findings, Anomaly) and not outcome.undecided:
                    self._let_learn(entry, outcome.model)
                continue
            if value is not None:
                if told or entry.event is None:  # a bound is no count to update an event with
                    entry.facts = facts
                entry.model = outcome.model
            elif outcome.model == entry.model or self._splits:
                continue  # a result without the value: no temperature, but the battery
            # Else a version serves that has no such value: what has begun would never end.
            entry.untold = None
            change = entry.condition.step(value, self._log.now, plain=plain)
            if entry.column is not None and counts is not None:
                entry.shown = self._is_shown(entry, entry.column, outcome)
            self._tell(entry, change)

    def _let_learn(self, entry: _Entry, model: str) -> None:
        """Go on while a model learns its threshold; what had not begun by then begins anew."""
        if not self._splits:  # else another version's results come between
            entry.condition.interrupt()
        if entry.event is not None and entry.learns != model:
            entry.learns = model
            log.warning(LEARNS, entry.rule.name, model)

    def _is_certain(
        self, entry: _Entry, outcome: Outcome, least: float | None, *, plain: bool
    ) -> bool:
        """Whether more objects than the *least* number would make the rule neither true nor not."""
        if least is None:
            return False
        value, other, _ = entry.measure(entry.rule, outcome, _MANY)
        now = entry.condition.holds(least, plain=plain)
        return value is not None and now == entry.condition.holds(value, plain=other)

    def _stand_still(self, entry: _Entry) -> bool:
        """Whether the latest result does not tell of its labels; what has begun goes on then.

        Nor of its value: a sensor may say every other time that it does not know it.
        """
        if entry.untold is None:
            return False
        if entry.column is not None and self._log.now - entry.untold >= UNTOLD_SECONDS:
            entry.condition.interrupt()
        return True

    def _is_shown(self, entry: _Entry, column: int, outcome: Outcome) -> bool:
        """Whether the rule is true without the objects that were not seen since its event is due.

        Tracks go on for a moment without being seen: such an object may be hidden, or gone.
        """
        count = self._occupancy.together(column, entry.waited)
        due = entry.event is None and entry.condition.active
        due = due and not self._log.is_silent(entry.rule, entry.facts)
        entry.waited = entry.waited + 1 if due else 0
        value, plain, _ = entry.measure(entry.rule, outcome, count)
        return value is not None and entry.condition.holds(value, plain=plain)

    def _measure(
        self, entry: _Entry, outcome: Outcome, counts: Counts | None, results: int
    ) -> Measured:
        rule, count = entry.rule, 0
        if entry.column is not None:
            # Objects cannot have been counted in the first results.
            if counts is None or results < max(KNOWN, rule.needed[0]):
                return None, False, {}
            count = int(counts[entry.column])
        value, plain, facts = entry.measure(rule, outcome, count)
        if rule.zone is not None:
            facts["zone"] = rule.zone
        if (unit := self._units.get(facts.get("name", ""))) is not None:
            facts["unit"] = unit
        return value, plain, facts

    def interrupt(self) -> None:
        """Restart the counts of results and seconds, because something is missing."""
        for entry in self._entries:
            entry.condition.interrupt()

    def advance(self) -> None:
        """Advance the time without a result."""
        for entry in self._entries:
            if not self._stand_still(entry):
                self._tell(entry, entry.condition.advance(self._log.now))

    def begin_due(self) -> None:
        """Begin the events of what has now been true for long enough without a result.

        Also where a cooldown, or time outside of the rule's hours or modes, has ended.
        """
        self._begin_due(self._entries)

    def _begin_due(self, entries: Iterable[_Entry]) -> None:
        for entry in entries:
            if self._stand_still(entry):
                continue
            entry.condition.advance(self._log.now)
            if entry.condition.active and entry.event is None:
                entry.event = self._log.begin(entry.rule, entry.facts)

    def end_over(self, over: Callable[[Rule], bool]) -> None:
        """End the events of rules that are *over*; the conditions go on."""
        for entry in self._entries:
            if entry.event is not None and over(entry.rule):
                self._log.end(entry.event, "over")
                entry.event = None

    def finish(self, why: Why) -> None:
        """End all events, and forget the past."""
        for entry in self._entries:
            if entry.event is not None:
                self._log.end(entry.event, why)
            entry.event = None
            entry.condition.reset()

    def _tell(self, entry: _Entry, change: Change | None) -> None:
        """Begin, update or end the event of a condition."""
        event, facts = entry.event, entry.facts
        if event is not None and change is None and not self._log.holds(entry.rule):
            change = "end"  # its hours are over, even if its condition stays true
        if event is None:
            # Also if the cooldown ends while the condition is still true.
            if entry.condition.active and entry.shown:
                entry.event = self._log.begin(entry.rule, facts)
            return
        if facts.get("label") != event.facts.get("label"):
            facts = {}  # they have another label than the event
        if change == "end":
            entry.event = None
            self._log.end(event, "over", facts)
        elif self._log.now - event.updated >= UPDATE_SECONDS and (
            facts.get("count") != event.facts.get("count") or event.is_better(facts)
        ):
            self._log.update(event, facts)


class Crossings:
    """Counts crossings of lines, and reports those with a rule."""

    def __init__(
        self,
        settings: Pipeline,
        objects: TrackedObjects,
        log: EventLog,
        totals: LineTotals,
        before: Crossings | None = None,
    ) -> None:
        """Go on from the crossings *before*, where a line and a rule have not changed."""
        self._objects = objects
        self._log = log
        self._totals = totals
        self._lines = [line.name for line in settings.lines]
        self._rules = rules_by_trigger(settings.rules, "crosses")
        # One gate for each line, then one for each rule.
        by_name = {line.name: line for line in settings.lines}
        of_rules = [(rule, by_name[rule.line]) for rule in self._rules if rule.line]
        gates = [*settings.lines, *(line for _, line in of_rules)]
        self._keys: list[object] = [*settings.lines, *of_rules]
        """What each gate is about."""
        needed = [NEEDED] * len(self._lines) + [rule.needed for rule in self._rules]
        self._gates = Gates(gates, needed, objects.tracker.room) if gates else None
        if before is not None:
            self._take_over(before)

    def _take_over(self, before: Crossings) -> None:
        if before._gates is None:
            return
        before._gates.grow(self._objects.tracker.room)
        mine, theirs = common(self._keys, before._keys)
        if self._gates is not None:
            self._gates.take_over(before._gates, mine, theirs)
        # What is gone tells of whoever was last seen beyond it, as where an object is given up.
        alive = self._objects.tracker.alive
        pending = before._gates.pending(alive)
        for row, gate in where(pending):
            if gate not in theirs:
                before._tell(int(alive[row]), gate, int(pending[row, gate]))

    def step(self, view: View) -> None:
        """Check a result."""
        if self._gates is None:
            return
        self._gates.grow(self._objects.tracker.room)
        self._gates.forget(view.begun)
        crossed = self._gates.update(view.slots, view.placed)
        for row, gate in where(crossed):
            self._tell(int(view.slots[row]), gate, int(crossed[row, gate]))

    def end(self, slots: Slots) -> None:
        """Count the lines that given-up objects had crossed when last seen."""
        if self._gates is None or not slots.size:
            return
        pending = self._gates.pending(slots)
        for row, gate in where(pending):
            self._tell(int(slots[row]), gate, int(pending[row, gate]))

    def _tell(self, slot: int, gate: int, sign: int) -> None:
        way = "in" if sign > 0 else "out"
        label = self._objects.label(slot)
        if gate < len(self._lines):
            self._totals.add(self._lines[gate], way, label)
            return
        rule = self._rules[gate - len(self._lines)]
        label = self._objects.label(slot, rule.labels)
        if (not rule.labels or label in rule.labels) and rule.direction in {"any", way}:
            facts = self._objects.facts(slot, rule)
            self._log.once(rule, {**facts, "line": rule.line, "direction": way})


class Moves:
    """Reports objects that have entered or left a zone."""

    def __init__(self, objects: TrackedObjects, log: EventLog) -> None:
        self._objects = objects
        self._log = log
        self._arrivals = objects.occupancy.columns("arrives")
        self._departures = objects.occupancy.columns("departs")

    def step(self, view: View) -> None:
        """Check a result."""
        self._tell(self._arrivals, view.slots, view.rose)
        self._tell(self._departures, view.left, view.fell)

    def end(self, slots: Slots) -> None:
        """Report objects that are given up as having left their zones."""
        self._tell(self._departures, slots, self._objects.occupancy.held[slots])

    def _tell(self, columns: Slots, slots: Slots, moved: Any) -> None:
        for row, place in where(moved.take(columns, axis=1)):
            rule = self._objects.occupancy.rules[int(columns[place])]
            self._log.once(rule, self._objects.facts(int(slots[row]), rule))


class Stays:
    """Begins an event for each object that stays in a zone for `for_s`, and ends it."""

    def __init__(self, objects: TrackedObjects, log: EventLog, before: Stays | None = None) -> None:
        """Go on from the stays *before*; the events of what has changed end."""
        self._objects = objects
        self._log = log
        self._columns = objects.occupancy.columns("stays")
        rules = objects.occupancy.rules
        self._for_s = np.array([rules[column].for_s for column in self._columns.tolist()])
        self._ongoing: dict[tuple[int, int], OngoingEvent] = {}
        """Events by column and slot."""
        self._keys = objects.occupancy.keys
        if before is not None:
            self._take_over(before)

    def _take_over(self, before: Stays) -> None:
        for (column, slot), event in before._ongoing.items():
            key = before._keys[column]
            if key in self._keys:
                self._ongoing[self._keys.index(key), slot] = event
            else:
                self._log.end(event, "reloaded")

    def step(self, view: View) -> None:
        """Check a result: end the events of objects that have left."""
        for row, place in where(view.fell.take(self._columns, axis=1)):
            self._end(int(self._columns[place]), int(view.left[row]), "over")

    def end(self, slots: Slots) -> None:
        """End the events of objects that are given up."""
        for slot in slots.tolist():
            for column in self._columns.tolist():
                self._end(column, slot, "over")

    def advance(self) -> None:
        """Begin the events of objects that have now stayed long enough and are to be seen."""
        if not self._columns.size:
            return
        self.end_over(lambda rule: not self._log.holds(rule))
        occupancy = self._objects.occupancy
        stayed = self._log.now - occupancy.since.take(self._columns, axis=1)
        due = occupancy.shown(self._columns) & (stayed >= self._for_s)
        for slot, place in where(due):
            column = int(self._columns[place])
            if (column, slot) in self._ongoing:
                continue
            rule = occupancy.rules[column]
            event = self._log.begin(rule, self._objects.facts(slot, rule))
            if event is not None:
                self._ongoing[column, slot] = event

    def end_over(self, over: Callable[[Rule], bool]) -> None:
        """End the events of rules that are *over*; the objects go on to stay."""
        for (column, slot), event in list(self._ongoing.items()):
            if over(event.rule):
                self._end(column, slot, "over")

    def update(self) -> None:
        """Report better scores of objects that stay."""
        occupancy = self._objects.occupancy
        for (column, slot), event in self._ongoing.items():
            better = event.is_better({"score": self._objects.scores[slot]})
            if better and occupancy.shown(column)[slot]:
                self._log.update(event, self._objects.facts(slot, event.rule))

    def finish(self, why: Why) -> None:
        """End all events."""
        for column, slot in list(self._ongoing):
            self._end(column, slot, why)

    def _end(self, column: int, slot: int, why: Why) -> None:
        event = self._ongoing.pop((column, slot), None)
        if event is not None:
            self._log.end(event, why)
