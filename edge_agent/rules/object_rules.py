"""Rules about single objects: those that cross a line, arrive, depart, or stay.

Each class looks at the view of one result, and at the objects that are given up with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..config.rule_kinds import rules_by_trigger
from ..config.settings import Pipeline
from .event import EventLog, OngoingEvent, Why
from .geometry import Gates, where
from .motion import Slots
from .occupancy import NEEDED, TrackedObjects, View
from .totals import LineTotals


class Crossings:
    """Counts what crosses lines, and tells of it where rules ask for it."""

    def __init__(
        self, settings: Pipeline, objects: TrackedObjects, log: EventLog, totals: LineTotals
    ) -> None:
        self._objects = objects
        self._log = log
        self._totals = totals
        self._lines = [line.name for line in settings.lines]
        self._rules = rules_by_trigger(settings.rules, "crosses")
        # A gate for each line, then one for each rule.
        by_name = {line.name: line for line in settings.lines}
        gates = [*settings.lines, *(by_name[rule.line] for rule in self._rules if rule.line)]
        needed = [NEEDED] * len(self._lines) + [rule.needed for rule in self._rules]
        self._gates = Gates(gates, needed, objects.tracker.room) if gates else None

    def step(self, view: View) -> None:
        """Look at a result."""
        if self._gates is None:
            return
        self._gates.grow(self._objects.tracker.room)
        self._gates.forget(view.begun)
        crossed = self._gates.update(view.slots, view.placed)
        for row, gate in where(crossed):
            self._tell(int(view.slots[row]), gate, int(crossed[row, gate]))

    def end(self, slots: Slots) -> None:
        """Count what objects that are given up had crossed when they were seen last."""
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
    """Tells of objects that have come into a zone, or gone from it."""

    def __init__(self, objects: TrackedObjects, log: EventLog) -> None:
        self._objects = objects
        self._log = log
        self._arrivals = objects.occupancy.columns("arrives")
        self._departures = objects.occupancy.columns("departs")

    def step(self, view: View) -> None:
        """Look at a result."""
        self._tell(self._arrivals, view.slots, view.rose)
        self._tell(self._departures, view.slots, view.fell)

    def end(self, slots: Slots) -> None:
        """Tell of objects that are given up: they have gone from where they were."""
        self._tell(self._departures, slots, self._objects.occupancy.held[slots])

    def _tell(self, columns: Slots, slots: Slots, moved: Any) -> None:
        for row, place in where(moved.take(columns, axis=1)):
            rule = self._objects.occupancy.rules[int(columns[place])]
            self._log.once(rule, self._objects.facts(int(slots[row]), rule))


class Stays:
    """Begins an event for each object that stays in a zone for `for_s`, and ends it."""

    def __init__(self, objects: TrackedObjects, log: EventLog) -> None:
        self._objects = objects
        self._log = log
        self._columns = objects.occupancy.columns("stays")
        rules = objects.occupancy.rules
        self._for_s = np.array([rules[column].for_s for column in self._columns.tolist()])
        self._ongoing: dict[tuple[int, int], OngoingEvent] = {}
        """By column and slot."""

    def step(self, view: View) -> None:
        """Look at a result: end the events of objects that have gone."""
        for row, place in where(view.fell.take(self._columns, axis=1)):
            self._end(int(self._columns[place]), int(view.slots[row]), "over")

    def end(self, slots: Slots) -> None:
        """End the events of objects that are given up."""
        for slot in slots.tolist():
            for column in self._columns.tolist():
                self._end(column, slot, "over")

    def advance(self) -> None:
        """Begin the events of objects that have stayed for long enough by now."""
        if not self._columns.size:
            return
        for (column, slot), ongoing in list(self._ongoing.items()):
            if not self._log.holds(ongoing.rule):
                self._end(column, slot, "over")
        occupancy = self._objects.occupancy
        stayed = self._log.now - occupancy.since.take(self._columns, axis=1)
        due = occupancy.held.take(self._columns, axis=1) & (stayed >= self._for_s)
        for slot, place in where(due):
            column = int(self._columns[place])
            if (column, slot) in self._ongoing:
                continue
            rule = occupancy.rules[column]
            event = self._log.begin(rule, self._objects.facts(slot, rule))
            if event is not None:
                self._ongoing[column, slot] = event

    def update(self) -> None:
        """Tell of better views of objects that stay."""
        for (_, slot), event in self._ongoing.items():
            if event.is_better({"score": self._objects.scores[slot]}):
                self._log.update(event, self._objects.facts(slot, event.rule))

    def finish(self, why: Why) -> None:
        """End all events."""
        for column, slot in list(self._ongoing):
            self._end(column, slot, why)

    def _end(self, column: int, slot: int, why: Why) -> None:
        event = self._ongoing.pop((column, slot), None)
        if event is not None:
            self._log.end(event, why)
