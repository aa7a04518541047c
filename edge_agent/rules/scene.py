"""What goes on before a pipeline's source: tracks, zones, lines, and the rules about them.

One scene for each pipeline that follows anything. As a stage it adds tracks and zones to a result
before it is published; as a sink, behind that, it looks at its rules. All objects and all rules are
looked at together, in arrays of (slots of tracks, rules): a frame costs much the same with one as
with many.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config.rule_kinds import Measured, kind_of, rules_by_trigger
from ..config.settings import Pipeline as PipelineSettings
from ..config.settings import Rule
from ..core.frozen import record
from ..core.types import Array, Detections, Outcome, Sample
from ..runtime.pipelines.overlay import Shape
from .conditions import Change, Condition
from .event import Event, State, Why
from .geometry import Gates, Zones, anchors, margins, ones, where
from .slots import grow
from .tracker import NONE, WEAK, Tracker

USUAL = (2, 3)
"""Results in which an object must be in a zone, or beyond a line, to be counted there."""
KNOWN = 2
"""Results in which an object is seen before it has a number, and is counted."""
UPDATE_SECONDS = 1.0
BETTER = 0.05
"""An update tells of a score that is so much better."""

Floats = NDArray[np.float64]
Slots = NDArray[np.intp]


class Totals(Protocol):
    """Counts what crosses lines, for good."""

    def add(self, line: str, way: str, label: str) -> None:
        """Count one crossing, `in` or `out`."""

    def of(self, lines: Iterable[str]) -> Mapping[str, Any]:
        """Return under `lines` the totals of these lines, by way and label."""


@record(quick=True, eq=False)
class _View:
    """The tracked objects of one result."""

    slots: Slots
    at: NDArray[np.intp]
    """Their places among the detections."""
    found: Detections
    rose: NDArray[np.bool_]
    fell: NDArray[np.bool_]
    """(objects, columns): what has become true or false with this result."""
    crossed: NDArray[np.int8]
    """(objects, gates)"""


class _Lasting:
    """An event between its begin and its end."""

    __slots__ = ("began", "began_ns", "best", "facts", "id", "told")

    def __init__(self, name: str, now: float, time_ns: int, facts: dict[str, Any]) -> None:
        self.id = name
        self.began = self.told = now
        self.began_ns = time_ns
        self.facts = facts
        self.best = float(facts.get("score", 0.0))


class Scene:
    """Follows the results of one pipeline. Any thread may call it."""

    def __init__(
        self,
        settings: PipelineSettings,
        *,
        lossless: bool,
        name_event: Callable[[], str],
        emit: Callable[[Event], None],
        totals: Totals,
    ) -> None:
        """Begin with nothing seen.

        Args:
            settings: the pipeline's.
            lossless: every capture is inferred, as fast as it goes: what moves between two of them
                is told by their numbers, not by the clock.
            name_event: returns another name for an event.
            emit: takes the events, must not wait.
            totals: of the lines.

        """
        self.least: float | None = WEAK
        """Scores from here on carry on tracks."""
        self.changed = True
        """Whether what is counted has changed since it was read last."""
        self._settings = settings
        self._lossless = lossless
        self._name_event = name_event
        self._emit = emit
        self._totals = totals
        self._lock = threading.Lock()
        self._tracker = Tracker()
        self._seq = -1
        self._since, self._time_ns = 0.0, 0
        self._zones = Zones(settings.zones) if settings.zones else None
        self._names: dict[int, tuple[str, ...]] = {}
        """By who is in which zones, a bit for each: the names of those zones."""
        self._lines = {line.name: line for line in settings.lines}
        self._view: _View | None = None
        self._quiet: dict[tuple[str, str], float] = {}
        """Until when a rule is silent about a label."""
        self._updated = 0.0
        self._results = 0
        """With objects, since the source has been there."""
        self._closed = False
        """Lanes may still have results for it, which count no more."""
        self._gone_at = -math.inf
        """When the source was gone last: of what was captured before, lanes may have some yet."""

        # Columns: the zones themselves, then the rules on objects.
        zones = [zone.name for zone in settings.zones]
        self._rules = [rule for rule in settings.rules if kind_of(rule).in_zone]
        whole = len(zones)
        self._zone_of = np.array(
            [*range(whole), *(zones.index(r.zone) if r.zone else whole for r in self._rules)],
            np.intp,
        )
        needed = [USUAL] * whole + [rule.needed for rule in self._rules]
        # As small as what is compared with them: counts of bits.
        self._needed = np.array([least for least, _ in needed], np.uint8)
        of = np.array([of for _, of in needed], np.int64)
        # Of no more bits than it takes: that many more are looked at together.
        bits = np.min_scalar_type((1 << int(max([1, *of]))) - 1)
        self._window = ((1 << of) - 1).astype(bits)
        self._most_false = (of - self._needed).astype(np.uint8)
        """With no more in the window it is false in as many as it takes."""
        self._wanted: list[frozenset[str]] = [frozenset()] * whole
        self._wanted += [frozenset(rule.labels) for rule in self._rules]
        self._by_label = any(self._wanted)
        self._label_ok = np.zeros((0, len(needed)), bool)
        room = self._tracker.room
        self._inside = np.zeros((room, whole), bool)
        self._bits = np.zeros((room, len(needed)), bits)
        self._held = np.zeros((room, len(needed)), bool)
        self._rise = np.zeros((room, len(needed)))
        """When each became true, monotonic seconds."""
        self._boxes = np.zeros((room, 4), np.float32)
        self._scores = np.zeros(room, np.float32)

        # Gates: the lines themselves, then the rules on lines.
        self._crossings = rules_by_trigger(settings.rules, "crosses")
        gates = [*settings.lines, *(self._lines[r.line] for r in self._crossings if r.line)]
        each = [USUAL] * len(settings.lines) + [rule.needed for rule in self._crossings]
        self._gates = Gates(gates, each, room) if gates else None

        self._enters, self._leaves, self._dwells = (
            self._columns(*triggers)
            for triggers in (("arrives",), ("departs", "stays"), ("stays",))
        )
        self._dwelling: dict[tuple[int, int], _Lasting] = {}
        """By column and slot."""
        self._in_dwell = np.zeros((room, len(needed)), bool)
        self._conditions = [
            (column, rule, Condition(rule))
            for column, rule in (
                *(
                    (c, r)
                    for c, r in enumerate(self._rules, whole)
                    if kind_of(r).trigger == "count"
                ),
                *((-1, r) for r in rules_by_trigger(settings.rules, "result")),
            )
        ]
        self._dwell_s = np.array([r.for_s for r in rules_by_trigger(settings.rules, "stays")])
        self._counted = self._columns("count")
        self._lasting: dict[str, _Lasting] = {}
        """By rule: the events of conditions."""
        self._facts_of: dict[str, dict[str, Any]] = {}
        """By rule: what the latest result says of a condition."""

    def _columns(self, *triggers: str) -> Slots:
        """Return the columns of rules on objects of some kinds."""
        first = len(self._settings.zones)
        there = [kind_of(rule).trigger in triggers for rule in self._rules]
        return np.flatnonzero(np.array(there, bool)) + first

    # Before a result is published

    def process(self, sample: Sample, outcome: Outcome, weak: Detections | None) -> Outcome:
        """Add tracks and zones to a result.

        Args:
            sample: what it was found in.
            outcome: what was found.
            weak: detections below the threshold, which carry on tracks.

        """
        found = outcome.findings
        with self._lock:
            if sample.since <= self._gone_at:
                return outcome
            if not isinstance(found, Detections):
                self._note(sample)
                return outcome
            height, width = sample.data.shape[:2]
            return replace(outcome, findings=self._follow(sample, found, weak, (width, height)))

    def _follow(
        self, sample: Sample, found: Detections, weak: Detections | None, size: tuple[int, int]
    ) -> Detections:
        tracker = self._tracker
        slot_of = tracker.update(found, weak, self._elapsed(sample), size)
        if tracker.room > len(self._inside):
            self._grow(tracker.room)
        self._forget(tracker.begun)
        at = np.flatnonzero(slot_of >= 0)
        slots = slot_of[at]
        boxes = found.boxes.take(at, axis=0)
        self._boxes[slots], self._scores[slots] = boxes, found.scores[at]
        bottom, center = anchors(boxes, size)
        margin = margins(boxes)
        numbers = np.where(slot_of >= 0, tracker.number[slot_of], 0)
        names: tuple[tuple[str, ...], ...] | None = None
        if self._zones is not None:
            before = self._inside.take(slots, axis=0)
            inside = self._zones.inside(bottom, center, margin, before, size)
            self._inside[slots] = inside
            names = self._name(len(found), at, inside)
        rose, fell = self._hold(slots, sample.since)
        crossed = np.zeros((len(slots), 0), np.int8)
        if self._gates is not None:
            crossed = self._gates.update(slots, bottom, center, margin, size)
        self._view = _View(slots, at, found, rose, fell, crossed)
        return replace(found, tracks=numbers, zones=names)

    def _note(self, sample: Sample) -> None:
        """Remember which capture was the latest."""
        self._seq, self._since, self._time_ns = sample.seq, sample.since, sample.time_ns

    def _elapsed(self, sample: Sample) -> float:
        """Return the seconds from the result before, as what moves has spent them."""
        seq, since = self._seq, self._since
        self._note(sample)
        if seq < 0:
            return 1 / 30
        return (sample.seq - seq) / 30 if self._lossless else sample.since - since

    def _name(
        self, count: int, at: NDArray[np.intp], inside: NDArray[np.bool_]
    ) -> tuple[tuple[str, ...], ...]:
        """Return by detection the names of the zones that it is in."""
        assert self._zones is not None  # noqa: S101 - checked by the caller
        bits = np.zeros((len(at), 8), np.uint8)
        packed = np.packbits(inside, axis=1, bitorder="little")
        bits[:, : packed.shape[1]] = packed
        keys = bits.view("<u8")[:, 0].tolist()
        known = self._names
        for key in set(keys).difference(known):
            known[key] = tuple(name for i, name in enumerate(self._zones.names) if key >> i & 1)
        if len(at) == count:
            return tuple(map(known.__getitem__, keys))
        names: list[tuple[str, ...]] = [()] * count
        for place, key in zip(at.tolist(), keys, strict=True):
            names[place] = known[key]
        return tuple(names)

    def _hold(self, slots: Slots, now: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Take which objects are where; return (objects, columns) what becomes true or false."""
        tracker = self._tracker
        if self._by_label and len(self._label_ok) < len(tracker.labels):
            self._label_ok = np.array(
                [[not w or label in w for w in self._wanted] for label in tracker.labels], bool
            ).reshape(len(tracker.labels), -1)
        there = np.ones((len(slots), self._inside.shape[1] + 1), bool)
        there[:, :-1] = self._inside.take(slots, axis=0)
        true = there.take(self._zone_of, axis=1)
        if len(self._label_ok):
            true &= self._label_ok.take(tracker.label_of(slots), axis=0)
        bits = self._bits.take(slots, axis=0)
        bits <<= 1
        bits |= true
        bits &= self._window
        self._bits[slots] = bits
        count = ones(bits)
        enough = count >= self._needed
        stays = count > self._most_false
        stays |= enough
        before = self._held.take(slots, axis=0)
        stays &= before
        enough &= (tracker.number[slots] > 0)[:, None]
        held = enough | stays
        self._held[slots] = held
        changed = held != before
        rose, fell = changed & held, changed & before
        if changed.any():
            self.changed = True
            rise = self._rise[slots]
            rise[rose] = now
            self._rise[slots] = rise
        return rose, fell

    # Behind it

    def result(self, pipeline: str, sample: Sample, outcome: Outcome) -> None:
        """Look at the rules, given a result that `process` has seen."""
        del pipeline
        with self._lock:
            if self._closed or sample.since <= self._gone_at:
                return
            now = sample.since
            view, self._view = self._view, None
            if view is not None:
                self._results += 1
                self._tell_crossings(view, sample)
                self._tell_moves(view, sample)
                self._tell_gone(sample)
                self._tell_dwells(sample)
            # What is not alive is nowhere.
            each = self._held.take(self._counted, axis=1).sum(axis=0)
            counts = dict(zip(self._counted.tolist(), each.tolist(), strict=True))
            for column, rule, condition in self._conditions:
                if column >= 0:
                    if not isinstance(outcome.findings, Detections):
                        continue
                    if self._results < max(KNOWN, rule.needed[0]):
                        # Who is there cannot have been counted yet.
                        continue
                count = counts.get(column, 0)
                self._step(rule, condition, condition.measure(rule, outcome, count), sample)
            if now - self._updated >= UPDATE_SECONDS:
                self._updated = now
                self._update_dwells(sample)

    def still(self, sample: Sample) -> None:
        """Go on in time: nothing has moved in a capture, so that the latest result holds in it.

        It is none of the results that `frames` of a rule counts.

        Args:
            sample: the capture; all before it have been given to `result`.

        """
        with self._lock:
            if self._closed or self._seq < 0 or sample.since <= self._gone_at:
                return
            # What moves next has stood until now.
            self._note(sample)
            self._tell_dwells(sample)
            for _, rule, condition in self._conditions:
                change = condition.last(sample.since)
                self._tell(rule, condition, change, self._facts_of.get(rule.name, {}), sample)

    def _tell_crossings(self, view: _View, sample: Sample | None) -> None:
        for row, gate in where(view.crossed):
            self._cross(int(view.slots[row]), gate, int(view.crossed[row, gate]), sample)

    def _tell_last_crossings(self, gone: Slots, sample: Sample | None) -> None:
        """Count what objects had crossed when they were seen last."""
        if self._gates is None:
            return
        pending = self._gates.last(gone)
        for row, gate in where(pending):
            self._cross(int(gone[row]), gate, int(pending[row, gate]), sample)

    def _cross(self, slot: int, gate: int, sign: int, sample: Sample | None) -> None:
        way = "in" if sign > 0 else "out"
        label = self._label(slot)
        lines = self._settings.lines
        if gate < len(lines):
            self._totals.add(lines[gate].name, way, label)
            self.changed = True
            return
        rule = self._crossings[gate - len(lines)]
        wanted = not rule.labels or label in rule.labels
        if wanted and rule.direction in {"any", way}:
            facts = {**self._facts(slot), "line": rule.line, "direction": way}
            self._once(rule, facts, sample)

    def _tell_moves(self, view: _View, sample: Sample) -> None:
        for columns, moved in ((self._enters, view.rose), (self._leaves, view.fell)):
            for row, place in where(moved.take(columns, axis=1)):
                self._tell_moved(int(columns[place]), int(view.slots[row]), sample)

    def _tell_moved(self, column: int, slot: int, sample: Sample) -> None:
        rule = self._rules[column - self._inside.shape[1]]
        if kind_of(rule).trigger == "stays":
            self._end_dwell(column, slot, "over", sample)
        else:
            self._once(rule, self._facts(slot, rule), sample)

    def _tell_gone(self, sample: Sample) -> None:
        """Tell of the objects that are not seen any more."""
        gone = self._tracker.ended
        if not gone.size:
            return
        self._tell_last_crossings(gone, sample)
        held = self._held[gone]
        for row, place in where(held[:, self._leaves]):
            self._tell_moved(int(self._leaves[place]), int(gone[row]), sample)
        if held.any():
            self.changed = True
        self._forget(gone)

    def _tell_dwells(self, sample: Sample) -> None:
        columns = self._dwells
        if not columns.size:
            return
        due = self._held.take(columns, axis=1) & ~self._in_dwell.take(columns, axis=1)
        due &= sample.since - self._rise.take(columns, axis=1) >= self._dwell_s
        for slot, place in where(due):
            column = int(columns[place])
            rule = self._rules[column - self._inside.shape[1]]
            facts = self._facts(slot, rule)
            if self._is_quiet(rule, facts, sample.since):
                continue
            self._in_dwell[slot, column] = True
            self._dwelling[column, slot] = self._begin(rule, facts, sample)

    def _end_dwell(self, column: int, slot: int, why: Why, sample: Sample | None) -> None:
        lasting = self._dwelling.pop((column, slot), None)
        self._in_dwell[slot, column] = False
        if lasting is not None:
            rule = self._rules[column - self._inside.shape[1]]
            self._end(rule, lasting, {}, why, sample)

    def _update_dwells(self, sample: Sample) -> None:
        """Tell of better views of objects that dwell."""
        first = self._inside.shape[1]
        for (column, slot), lasting in self._dwelling.items():
            score = float(self._scores[slot])
            if score < lasting.best + BETTER:
                continue
            lasting.best = score
            rule = self._rules[column - first]
            lasting.facts |= self._facts(slot, rule)
            self._send(rule, "update", lasting, lasting.facts, sample)

    def _step(self, rule: Rule, condition: Condition, found: Measured, sample: Sample) -> None:
        value, plain, facts = found
        change = condition.step(value, sample.since, plain=plain)
        if rule.zone is not None:
            facts["zone"] = rule.zone
        self._facts_of[rule.name] = facts
        self._tell(rule, condition, change, facts, sample)

    def _tell(
        self,
        rule: Rule,
        condition: Condition,
        change: Change | None,
        facts: dict[str, Any],
        sample: Sample,
    ) -> None:
        """Tell of a condition whose event begins, goes on or ends."""
        lasting = self._lasting.get(rule.name)
        if lasting is not None and facts.get("label") != lasting.facts.get("label"):
            facts = {}  # of another label than the event
        if change == "end" and lasting is not None:
            del self._lasting[rule.name]
            self._end(rule, lasting, facts, "over", sample)
        elif lasting is not None:
            told = sample.since - lasting.told >= UPDATE_SECONDS
            score = float(facts.get("score", 0.0))
            other = facts.get("count") != lasting.facts.get("count")
            if told and (other or score >= lasting.best + BETTER):
                lasting.told, lasting.best = sample.since, max(score, lasting.best)
                lasting.facts |= facts
                self._send(rule, "update", lasting, lasting.facts, sample)
        elif condition.active and not self._is_quiet(rule, facts, sample.since):
            # Also where the silence after the last one ends while the condition still holds.
            self._lasting[rule.name] = self._begin(rule, facts, sample)

    # Events

    def _once(self, rule: Rule, facts: dict[str, Any], sample: Sample | None) -> None:
        now = self._since
        if self._is_quiet(rule, facts, now):
            return
        self._silence(rule, facts, now)
        moment = _Lasting(self._name_event(), now, self._time_ns, facts)
        self._send(rule, "once", moment, facts, sample)

    def _begin(self, rule: Rule, facts: dict[str, Any], sample: Sample) -> _Lasting:
        lasting = _Lasting(self._name_event(), sample.since, sample.time_ns, facts)
        self._send(rule, "begin", lasting, facts, sample)
        return lasting

    def _end(
        self,
        rule: Rule,
        lasting: _Lasting,
        facts: Mapping[str, Any],
        why: Why,
        sample: Sample | None,
    ) -> None:
        now = self._since if sample is None else sample.since
        seconds = round(max(0.0, now - lasting.began), 3)
        told = {**lasting.facts, **facts, "seconds": seconds, "why": why}
        self._silence(rule, lasting.facts, now)
        self._send(rule, "end", lasting, told, sample)

    def _send(
        self,
        rule: Rule,
        state: State,
        lasting: _Lasting,
        facts: Mapping[str, Any],
        sample: Sample | None,
    ) -> None:
        picture: Array | None = None
        if sample is None:
            # At the end of all: when it was true last.
            seq = max(0, self._seq)
            time_ns = lasting.began_ns + int((self._since - lasting.began) * 1e9)
        else:
            seq, time_ns = sample.seq, sample.time_ns
            if rule.picture != "none" and state != "end" and sample.picture:
                picture = sample.data
        self._emit(
            Event(
                lasting.id,
                rule,
                self._settings.name,
                state,
                seq,
                time_ns,
                lasting.began_ns,
                dict(facts),
                picture,
            )
        )

    def _is_quiet(self, rule: Rule, facts: Mapping[str, Any], now: float) -> bool:
        return now < self._quiet.get((rule.name, str(facts.get("label", ""))), 0.0)

    def _silence(self, rule: Rule, facts: Mapping[str, Any], now: float) -> None:
        if rule.cooldown_s:
            self._quiet[rule.name, str(facts.get("label", ""))] = now + rule.cooldown_s

    def _facts(self, slot: int, rule: Rule | None = None) -> dict[str, Any]:
        """Return what an event tells of an object."""
        facts: dict[str, Any] = {
            "label": self._label(slot, () if rule is None else rule.labels),
            "score": round(float(self._scores[slot]), 4),
            "track": int(self._tracker.number[slot]),
            "box": [round(float(side), 1) for side in self._boxes[slot]],
        }
        if rule is not None and rule.zone is not None:
            facts["zone"] = rule.zone
        return facts

    def _label(self, slot: int, wanted: Sequence[str] = ()) -> str:
        """Return the label that a track was seen with most; of those that are wanted."""
        labels, votes = self._tracker.labels, self._tracker.votes[slot]
        among = [kind for kind, label in enumerate(labels) if label in wanted]
        return labels[max(among, key=votes.__getitem__) if among else int(votes.argmax())]

    # What others call

    def counts(self, *, seen: bool = True) -> dict[str, dict[str, int]]:
        """Return by zone how many objects of each label are in it.

        Args:
            seen: the change is known with this.

        """
        with self._lock:
            self.changed = self.changed and not seen
            alive = self._tracker.alive
            kinds = self._tracker.label_of(alive)
            labels = self._tracker.labels
            counted: dict[str, dict[str, int]] = {}
            for column, zone in enumerate(self._settings.zones):
                there = kinds[self._held[alive, column]].tolist()
                counted[zone.name] = dict(Counter(labels[kind] for kind in there))
            return counted

    def shapes(self) -> list[Shape]:
        """Return zones and lines with what is counted in them, to be drawn."""
        inside = self.counts(seen=False)
        shapes = [
            Shape(zone.polygon, True, f"{zone.name} {sum(inside[zone.name].values())}")
            for zone in self._settings.zones
        ]
        totals = self._totals.of([line.name for line in self._settings.lines])["lines"]
        for line in self._settings.lines:
            ways = {way: sum(counts.values()) for way, counts in totals[line.name].items()}
            text = f"{line.name} in {ways['in']} out {ways['out']}"
            shapes.append(Shape(line.points, False, text))
        return shapes

    def gone(self, *, switched_off: bool, at: float) -> None:
        """End what lasts, and forget all objects: the source is lost, or was switched off.

        Args:
            switched_off: it was.
            at: monotonic seconds; what was captured before counts no more.

        """
        self._finish("stopped" if switched_off else "lost", at=at)

    def close(self, why: Why) -> None:
        """End what lasts, for good: the pipeline stops, or goes on with other settings."""
        self._finish(why, closed=True)

    def _finish(self, why: Why, *, closed: bool = False, at: float = -math.inf) -> None:
        with self._lock:
            self._closed, self._gone_at = closed, at
            for column, slot in list(self._dwelling):
                self._end_dwell(column, slot, why, None)
            for rule, lasting in list(self._ongoing()):
                self._end(rule, lasting, {}, why, None)
            # They are other tracks hereafter, which begin where these were last seen.
            if self._view is not None:
                self._tell_crossings(self._view, None)
            self._tell_last_crossings(self._tracker.alive, None)
            self._lasting.clear()
            for _, _, condition in self._conditions:
                condition.reset()
            self._forget(self._tracker.alive)
            # Of these the rules may not have been told yet.
            self._forget(self._tracker.ended)
            self._tracker.reset()
            self._seq = -1
            self._results = 0
            self._view = None
            self.changed = True

    def _ongoing(self) -> Iterator[tuple[Rule, _Lasting]]:
        for _, rule, _ in self._conditions:
            if rule.name in self._lasting:
                yield rule, self._lasting[rule.name]

    # Slots

    def _forget(self, slots: Slots) -> None:
        """Prepare slots for other objects."""
        if slots is NONE or not slots.size:
            return
        self._inside[slots] = self._held[slots] = self._in_dwell[slots] = False
        self._bits[slots] = 0
        if self._gates is not None:
            self._gates.forget(slots)

    def _grow(self, room: int) -> None:
        names = ("_inside", "_bits", "_held", "_rise", "_boxes", "_scores", "_in_dwell")
        grow(self, names, room)
        if self._gates is not None:
            self._gates.grow(room)
