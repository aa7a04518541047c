"""The objects of one pipeline: their tracks, where each was last seen, and its zones.

An object counts in a zone once it has been there long enough. Arrays are (slots of the tracker,
columns): one column for each zone, then one for each rule on objects in a zone. All objects and
columns are updated together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.rule_kinds import Trigger, kind_of
from ..config.rules import Rule, Zone
from ..config.settings import Pipeline
from ..core.frozen import record
from ..core.types import Detections
from .geometry import Flags, Placed, Zones, common, ones, place
from .motion import Slots, grown
from .tracker import Tracker

Counts = NDArray[np.intp]
"""(columns,)"""
KNOWN = 2
"""Results in which an object must be seen before it gets a number and is counted."""
MOST_PAUSE = 30.0
"""Seconds between looks at still pictures on which a stage goes on failing."""
NEEDED = (2, 3)
"""k of n results in which an object must be in a zone or beyond a line to be counted."""


class Occupancy:
    """Which objects count in which zone and for which rule. For use by one thread at a time."""

    def __init__(self, zones: Sequence[Zone], rules: Sequence[Rule], room: int) -> None:
        """Begin without objects; *room*: slots of the tracker."""
        within = [rule for rule in rules if kind_of(rule).in_zone]
        self.names = [zone.name for zone in zones]
        whole = len(zones)
        self.rules = dict(enumerate(within, whole))
        """Rules by column."""
        self.changed = True
        """Whether `counts` have changed since they were last read."""
        by_name = {zone.name: zone for zone in zones}
        self.keys = [*zones, *((rule, by_name.get(rule.zone or "")) for rule in within)]
        """What each column is about: a zone, or a rule and its zone."""
        self._zones = Zones(zones) if zones else None
        places = [self.names.index(rule.zone) if rule.zone else whole for rule in within]
        self._zone_of = np.array([*range(whole), *places], np.intp)
        """Index of each column's zone; the number of zones means the whole frame."""
        needed = [NEEDED] * whole + [rule.needed for rule in within]
        self._needed = np.array(needed, np.int64).reshape(-1, 2).T
        """(2, columns): k and n of the k of n results."""
        self._labels = [frozenset[str]()] * whole + [frozenset(rule.labels) for rule in within]
        self._label_fits = np.zeros((0, len(needed)), bool)
        """Whether a label counts, by label of the tracker and column."""
        self._inside = np.zeros((room, whole), bool)
        self._bits = np.zeros((room, len(needed)), np.int64)
        """Whether it was there in the latest results, one bit each, the newest lowest."""
        self.held = np.zeros((room, len(needed)), bool)
        """Whether it counts there: k of n results said so, and no k of n since denied it."""
        self.since = np.zeros((room, len(needed)))
        """When that became true, monotonic seconds."""
        self.missed = np.ones((room, len(needed)), np.int64)
        """Results since the last one that showed it there."""
        self._risen = np.zeros((room, len(needed)), np.int64)
        """Results since it began to count there."""

    def columns(self, *triggers: Trigger) -> Slots:
        """Return the columns of rules with one of these triggers."""
        found = [place for place, rule in self.rules.items() if kind_of(rule).trigger in triggers]
        return np.array(found, np.intp)

    def update(
        self,
        slots: Slots,
        placed: Placed,
        tracker: Tracker,
        now: float,
        also: Sequence[frozenset[str]] | None = None,
    ) -> tuple[Flags, Flags, Flags]:
        """Update the objects in *slots* (n,) at *now*, monotonic seconds.

        Return (n, zones): whether each is inside; (n, columns): what becomes true; and (n,
        columns): what becomes false. *also*: the labels found in each by second stages.
        """
        inside, present = self._present(slots, placed, tracker, also)
        self.missed += 1
        self._risen += 1
        self.missed[slots] = np.where(present, 0, self.missed.take(slots, axis=0))
        bits = self._bits.take(slots, axis=0) << 1 | present
        rose, fell = self._judge(slots, bits, (tracker.number[slots] > 0)[:, None], now)
        return inside, rose, fell

    def leave(self, slots: Slots, placed: Placed) -> Flags:
        """Take where the objects in *slots* (n,) are that are seen below the threshold only.

        They count nowhere anew, and where they are they go on counting. Return (n, columns): what
        becomes false.
        """
        before = self._inside.take(slots, axis=0)
        there = self._places(slots, placed).take(self._zone_of, axis=1)
        self._inside[slots] &= before
        bits = self._bits.take(slots, axis=0)
        _, fell = self._judge(slots, np.where(there, bits, bits << 1), np.zeros((1, 1), bool), 0.0)
        return fell

    def _judge(
        self, slots: Slots, bits: NDArray[np.int64], known: Flags, now: float
    ) -> tuple[Flags, Flags]:
        """Return (n, columns): what becomes true, and what false, by the latest *bits*.

        *known* (n, 1): whether each may begin to count.
        """
        least, of = self._needed
        bits &= (1 << of) - 1
        self._bits[slots] = bits
        count = ones(bits)
        enough = count >= least
        before = self.held.take(slots, axis=0)
        held = (enough & known) | (before & (enough | (of - count < least)))
        self.held[slots] = held
        rose, fell = held & ~before, before & ~held
        if (rose | fell).any():
            self.changed = True
            self.since[slots] = np.where(rose, now, self.since.take(slots, axis=0))
            self._risen[slots] = np.where(rose, 0, self._risen.take(slots, axis=0))
        return rose, fell

    def _present(
        self,
        slots: Slots,
        placed: Placed,
        tracker: Tracker,
        also: Sequence[frozenset[str]] | None,
    ) -> tuple[Flags, Flags]:
        """Return (n, zones): whether each is inside; (n, columns): whether each is there."""
        there = self._places(slots, placed)
        present = there.take(self._zone_of, axis=1)
        if any(self._labels):
            present &= self._labeled(slots, tracker, also)
        return there[:, :-1], present

    def _places(self, slots: Slots, placed: Placed) -> Flags:
        """Return (n, zones + 1): whether each is inside, and in the whole frame, which it is."""
        there = np.ones((len(slots), len(self.names) + 1), bool)
        if self._zones is not None:
            before = self._inside.take(slots, axis=0)
            self._inside[slots] = there[:, :-1] = self._zones.inside(placed, before)
        return there

    def _labeled(
        self, slots: Slots, tracker: Tracker, also: Sequence[frozenset[str]] | None
    ) -> Flags:
        """Return (n, columns): whether each counts by its labels; *also*: those of stages."""
        fits: Flags = self._fits(tracker.labels).take(tracker.kind[slots], axis=0)
        if also:
            fits |= np.array([[bool(w & labels) for w in self._labels] for labels in also])
        return fits

    def take_over(
        self,
        before: Occupancy,
        slots: Slots,
        placed: Placed,
        tracker: Tracker,
        now: float,
        also: Sequence[frozenset[str]],
        ages: Slots,
    ) -> None:
        """Take what is known from the one *before*, which had other zones or rules.

        Objects in *slots* (n,), last seen where they are *placed*, have been in a new zone all the
        time: they do not come into it. Nor out of it as what was found in them before, *also*, is
        not any more: *ages* (n,) results ago, that counts as long as those that a rule looks at.
        """
        mine, theirs = common(self.keys, before.keys)
        for column, other in zip(mine, theirs, strict=True):
            if column < len(self.names):
                self._inside[:, column] = before._inside[:, other]
        _, present = self._present(slots, placed, tracker, None)
        _, lately = self._present(slots, placed, tracker, also)
        present |= lately & (ages[:, None] < self._needed[1])
        self._bits[slots] = np.where(present, (1 << self._needed[1]) - 1, 0)
        self.held[slots] = present & (tracker.number[slots] > 0)[:, None]
        self.since[slots] = now
        for name in ("_bits", "held", "since", "missed", "_risen"):
            getattr(self, name)[:, mine] = getattr(before, name)[:, theirs]

    def _fits(self, labels: Sequence[str]) -> Flags:
        """Return (labels, columns): whether each label counts in each column."""
        if len(self._label_fits) < len(labels):
            fits = [[not w or label in w for w in self._labels] for label in labels]
            self._label_fits = np.array(fits, bool)
        return self._label_fits

    def count(self) -> Counts:
        """Return (columns,): how many objects count in each."""
        found: Counts = self.held.sum(axis=0)
        return found

    def least(self, slots: Slots, tracker: Tracker, told: Sequence[frozenset[str]]) -> Counts:
        """Return (columns,): how many of *slots* (n,) count by the first model, or what is told."""
        held = self.held.take(slots, axis=0) & self._labeled(slots, tracker, told)
        found: Counts = held.sum(axis=0)
        return found

    @property
    def patience(self) -> int:
        """Results in a row after which each rule that names labels knows of an object."""
        return KNOWN + int(self._needed[1].max()) if any(self._labels) else 0

    def shown(self, columns: int | Slots) -> Flags:
        """Return (slots, …): which objects count in *columns* and are in the latest result."""
        seen: Flags = self.missed.take(columns, axis=1) == 0
        return seen & self.held.take(columns, axis=1)

    def together(self, column: int, results: int) -> int:
        """Return how many objects have counted at once in a column, by what has shown them.

        In the latest result or one of the *results* before it: a track may outlive its object, and
        where a picture jumps, one object has several tracks, one after the other.
        """
        if results == 0:
            return int(self.shown(column).sum())
        held = np.flatnonzero(self.held[:, column])
        seen, risen = self.missed[held, column], self._risen[held, column]
        moments = np.unique(seen[seen <= results])[:, None]
        counts = ((seen <= moments) & (moments <= risen)).sum(axis=1)
        return int(counts.max(initial=0))

    def counts(self, tracker: Tracker) -> dict[str, dict[str, int]]:
        """Return how many objects of each label count in each zone."""
        alive, labels = tracker.alive, tracker.labels
        kinds = tracker.kind[alive]
        return {
            zone: dict(Counter(labels[kind] for kind in kinds[self.held[alive, column]].tolist()))
            for column, zone in enumerate(self.names)
        }

    def forget(self, slots: Slots) -> None:
        """Forget objects whose slots will be reused."""
        if slots.size:
            self.changed = self.changed or bool(self.held[slots].any())
            self._inside[slots] = self.held[slots] = False
            self._bits[slots] = 0

    def grow(self, room: int) -> None:
        """Make room for more slots."""
        arrays = (self._inside, self._bits, self.held, self.since, self.missed, self._risen)
        self._inside, self._bits, self.held, self.since, self.missed, self._risen = grown(
            room, *arrays
        )


@record(quick=True, eq=False)
class View:
    """The n tracked objects of one result."""

    slots: Slots
    placed: Placed
    rose: Flags
    """(n, columns of `Occupancy`): flags that became true with this result."""
    fell: Flags
    """(m, columns of `Occupancy`): flags that became false with this result."""
    left: Slots
    """(m,) the slots of `fell`: also of objects that are seen below the threshold only."""
    begun: Slots
    """Slots of objects seen for the first time."""
    ended: Slots
    """Slots of objects that are given up."""


class _Looks:
    """Whether still pictures are looked at because a stage has failed, or had failed just now.

    After that a rule may need some results. What goes on failing is looked at ever more seldom.
    """

    def __init__(self) -> None:
        self._failing: float | None = None
        """Since when; None: the latest result has told."""
        self._latest = 0.0
        self._left = 0

    def add(self, now: float, wanted: int) -> None:
        """Take the latest result.

        *wanted*: how many are looked for once one tells again; 0: this one tells, or nobody asks.
        """
        self._latest = now
        if wanted:
            self._left = wanted
            self._failing = now if self._failing is None else self._failing
        else:
            self._left, self._failing = max(0, self._left - 1), None

    def are_due(self, now: float) -> bool:
        """Whether the next picture is to be looked at though nothing moves."""
        if self._failing is None:
            return self._left > 0
        return now - self._latest >= min(MOST_PAUSE, (self._latest - self._failing) / 2)


@dataclass(slots=True, eq=False)
class _Staged:
    """What second stages have found in an object."""

    latest: dict[str, frozenset[str]] = field(default_factory=dict)
    """The latest labels, by stage."""
    told: frozenset[str] = frozenset()
    """The labels that stages which did not fail have found in the latest result of it."""
    shown: frozenset[str] = frozenset()
    """The latest of `latest` where there were any."""
    age: int = 0
    """In how many results since it was seen without any."""

    def add(self, found: Mapping[str, frozenset[str] | None]) -> frozenset[str]:
        """Add a result of it; return its labels now."""
        self.latest = {
            stage: self.latest.get(stage, frozenset()) if labels is None else labels
            for stage, labels in found.items()
        }
        self.told = frozenset().union(*filter(None, found.values()))
        labels = frozenset().union(*self.latest.values())
        self.shown, self.age = (labels, 0) if labels else (self.shown, self.age + 1)
        return labels


_NONE = _Staged()
"""Of an object in which no stage has looked."""


class TrackedObjects:
    """The state of tracked objects by slot of the tracker. For use by one thread at a time."""

    def __init__(self, settings: Pipeline, first_track: int = 1) -> None:
        self.tracker = Tracker(first_track)
        room = self.tracker.room
        self.occupancy = Occupancy(settings.zones, settings.rules, room)
        self.scores = np.zeros(room, np.float32)
        self._boxes = np.zeros((room, 4), np.float32)
        self._staged: dict[int, _Staged] = {}
        """By slot."""
        self._texts: dict[int, str] = {}
        """The latest text read in each, by slot."""
        self._looks = _Looks()
        self._unsettled = False
        """Whether an object was not in the latest result, or only in that one."""

    def update(
        self,
        found: Detections,
        weak: Detections | None,
        seconds: float,
        size: tuple[int, int],
        now: float,
        staged: Sequence[Mapping[str, frozenset[str] | None]] | None = None,
    ) -> tuple[Detections, View]:
        """Add the detections of a result, *seconds* after the previous one.

        Return them with tracks and zones, and the view for the rules. *weak*: those below the
        threshold, which continue tracks and say where these are no more. *size*: width and height
        of the frame. *staged*: the labels found in each, by second stage; None: not known now, so
        as before.
        """
        tracker, occupancy = self.tracker, self.occupancy
        if tracker.size != size:
            x, y = size[0] / tracker.size[0], size[1] / tracker.size[1]
            self._boxes *= np.array([x, y, x, y], np.float32)
        slot_of = tracker.update(found, weak, seconds, size)
        failed = any(None in each.values() for each in staged or ())
        self._looks.add(now, occupancy.patience if failed else 0)
        self._unsettled = tracker.unsettled
        if tracker.room > len(self.scores):
            self.scores, self._boxes = grown(tracker.room, self.scores, self._boxes)
            occupancy.grow(tracker.room)
        occupancy.forget(tracker.begun)
        at = np.flatnonzero(slot_of >= 0)
        slots = slot_of[at]
        boxes = found.boxes.take(at, axis=0)
        self._boxes[slots], self.scores[slots] = boxes, found.scores[at]
        placed = place(boxes, size)
        also = None if staged is None else self._note(slots, at, staged)
        self._read(found, at, slots)
        inside, rose, fell = occupancy.update(slots, placed, tracker, now, also)
        left = slots
        if weak is not None and tracker.carried[0].size:
            left = np.concatenate([slots, tracker.carried[0]])
            fell = np.vstack([fell, self._leave(weak)])
        zones: list[tuple[str, ...]] | None = None
        if occupancy.names:
            zones = [()] * len(found)
            for index, row in zip(at.tolist(), inside.tolist(), strict=True):
                zones[index] = tuple(compress(occupancy.names, row))
        numbers = np.where(slot_of >= 0, tracker.number[slot_of], 0)
        view = View(slots, placed, rose, fell, left, tracker.begun, tracker.ended)
        return replace(found, tracks=numbers, zones=None if zones is None else tuple(zones)), view

    def _leave(self, weak: Detections) -> Flags:
        """Let objects that only *weak* detections show leave where they are no more."""
        (slots, rows), size = self.tracker.carried, self.tracker.size
        boxes = weak.boxes.take(rows, axis=0)
        fell = self.occupancy.leave(slots, place(boxes, size))
        gone = fell.any(axis=1)
        self._boxes[slots[gone]] = boxes[gone]  # other settings are to find it there
        return fell

    def _note(
        self, slots: Slots, at: Slots, staged: Sequence[Mapping[str, frozenset[str] | None]]
    ) -> list[frozenset[str]]:
        """Record what second stages have found in the objects in *slots*; return that, by object.

        *at* (n,): their places in *staged*.
        """
        for slot in self.tracker.begun.tolist():
            self._staged.pop(slot, None)
        return [
            self._staged.setdefault(slot, _Staged()).add(staged[index])
            for slot, index in zip(slots.tolist(), at.tolist(), strict=True)
        ]

    def _read(self, found: Detections, at: Slots, slots: Slots) -> None:
        """Record the texts in the detections *at* (n,) of the objects in *slots* (n,)."""
        for slot in self.tracker.begun.tolist():
            self._texts.pop(slot, None)
        if found.texts is not None:
            texts = zip(slots.tolist(), at.tolist(), strict=True)
            self._texts |= {slot: text for slot, i in texts if (text := found.texts[i])}

    def label(self, slot: int, wanted: Sequence[str] = ()) -> str:
        """Return an object's label if it is wanted, else what else was said of it that is.

        That is the label it had most among those, or one of a second stage.
        """
        labels, votes = self.tracker.labels, self.tracker.votes[slot]
        own: str = labels[self.tracker.kind[slot]]
        if not wanted or own in wanted:
            return own
        among = [kind for kind, label in enumerate(labels) if label in wanted and votes[kind]]
        if among:
            return labels[max(among, key=votes.__getitem__)]
        staged = self._staged.get(slot, _NONE).shown
        return next((label for label in wanted if label in staged), own)

    def facts(self, slot: int, rule: Rule) -> dict[str, Any]:
        """Return the facts about an object for the event of a rule."""
        facts: dict[str, Any] = {
            "label": self.label(slot, rule.labels),
            "score": round(float(self.scores[slot]), 4),
            "track": int(self.tracker.number[slot]),
            "box": [round(float(side), 1) for side in self._boxes[slot]],
        }
        if slot in self._texts:
            facts["text"] = self._texts[slot]
        if rule.zone is not None:
            facts["zone"] = rule.zone
        return facts

    def apply(self, settings: Pipeline, now: float) -> None:
        """Go on with other zones and rules from *now*, monotonic seconds."""
        tracker, before = self.tracker, self.occupancy
        self.occupancy = Occupancy(settings.zones, settings.rules, tracker.room)
        alive = tracker.alive
        placed = place(self._boxes[alive], tracker.size)
        staged = [self._staged.get(slot, _NONE) for slot in alive.tolist()]
        ages = np.array([each.age for each in staged], np.int64)
        also = [each.shown for each in staged]
        self.occupancy.take_over(before, alive, placed, tracker, now, also, ages)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many objects of each label count in each zone."""
        return self.occupancy.counts(self.tracker)

    def least(self) -> Counts:
        """Return (columns,): how many count whatever stages would find that have failed."""
        alive = self.tracker.alive
        told = [self._staged.get(slot, _NONE).told for slot in alive.tolist()]
        return self.occupancy.least(alive, self.tracker, told)

    def is_unsettled(self, now: float) -> bool:
        """Whether further results will tell, though nothing moves, if what it tracks is there."""
        return self._unsettled or self._looks.are_due(now)

    def reset(self) -> None:
        """Forget all objects. Track numbers continue."""
        for slots in (self.tracker.alive, self.tracker.ended):
            self.occupancy.forget(slots)
        self.tracker.reset()
        self._staged.clear()
        self._texts.clear()
        self._looks = _Looks()
        self._unsettled = False
        self.occupancy.changed = True
