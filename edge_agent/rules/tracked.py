"""The objects of one pipeline: a track each, where it was seen last, and the zones it is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from ..config.rules import Rule
from ..config.settings import Pipeline
from ..core.frozen import record
from ..core.types import Detections
from .geometry import Flags, Placed, place
from .motion import Slots, grown
from .occupancy import Occupancy
from .tracker import Tracker


@record(quick=True, eq=False)
class View:
    """The tracked objects of one result, n of them."""

    slots: Slots
    placed: Placed
    rose: Flags
    """(n, columns of `Occupancy`): what has become true with this result, …"""
    fell: Flags
    """… or false."""
    begun: Slots
    """Slots of objects that are seen for the first time."""
    ended: Slots
    """Slots of objects that are given up."""


class TrackedObjects:
    """What is known of objects, by slot of the tracker. Used by one thread at a time."""

    def __init__(self, settings: Pipeline) -> None:
        self.tracker = Tracker()
        room = self.tracker.room
        self.occupancy = Occupancy(settings.zones, settings.rules, room)
        self.scores = np.zeros(room, np.float32)
        self._boxes = np.zeros((room, 4), np.float32)
        self._staged: dict[int, frozenset[str]] = {}
        """By slot: the labels that second stages found when they last found any."""

    def update(
        self,
        found: Detections,
        weak: Detections | None,
        seconds: float,
        size: tuple[int, int],
        now: float,
        staged: Sequence[frozenset[str]] | None = None,
    ) -> tuple[Detections, View]:
        """Take the detections of a result, *seconds* after the one before.

        Return them with tracks and zones, and what the rules look at. *weak*: those below the
        threshold, which only carry on tracks. *size*: width and height of the frame. *staged*: the
        labels that second stages found in each.
        """
        tracker, occupancy = self.tracker, self.occupancy
        slot_of = tracker.update(found, weak, seconds, size)
        if tracker.room > len(self.scores):
            self.scores, self._boxes = grown(tracker.room, self.scores, self._boxes)
            occupancy.grow(tracker.room)
        occupancy.forget(tracker.begun)
        at = np.flatnonzero(slot_of >= 0)
        slots = slot_of[at]
        boxes = found.boxes.take(at, axis=0)
        self._boxes[slots], self.scores[slots] = boxes, found.scores[at]
        placed = place(boxes, size)
        also = None
        if staged is not None:
            for slot in tracker.begun.tolist():
                self._staged.pop(slot, None)
            also = [staged[index] for index in at.tolist()]
            self._staged |= {
                s: labels for s, labels in zip(slots.tolist(), also, strict=True) if labels
            }
        inside, rose, fell = occupancy.update(slots, placed, tracker, now, also)
        zones: list[tuple[str, ...]] | None = None
        if occupancy.names:
            zones = [()] * len(found)
            for index, row in zip(at.tolist(), inside.tolist(), strict=True):
                zones[index] = tuple(compress(occupancy.names, row))
        numbers = np.where(slot_of >= 0, tracker.number[slot_of], 0)
        view = View(slots, placed, rose, fell, tracker.begun, tracker.ended)
        return replace(found, tracks=numbers, zones=None if zones is None else tuple(zones)), view

    def label(self, slot: int, wanted: Sequence[str] = ()) -> str:
        """Return the label that an object was seen with most; of those that are wanted.

        Where it was seen with none of those, that of a second stage.
        """
        labels, votes = self.tracker.labels, self.tracker.votes[slot]
        among = [kind for kind, label in enumerate(labels) if label in wanted]
        if not any(votes[kind] for kind in among):
            staged = self._staged.get(slot, frozenset())
            below = next((label for label in wanted if label in staged), None)
            if below is not None:
                return below
        return labels[max(among, key=votes.__getitem__) if among else int(votes.argmax())]

    def facts(self, slot: int, rule: Rule) -> dict[str, Any]:
        """Return what an event of a rule says about an object."""
        facts: dict[str, Any] = {
            "label": self.label(slot, rule.labels),
            "score": round(float(self.scores[slot]), 4),
            "track": int(self.tracker.number[slot]),
            "box": [round(float(side), 1) for side in self._boxes[slot]],
        }
        if rule.zone is not None:
            facts["zone"] = rule.zone
        return facts

    def counts(self) -> dict[str, dict[str, int]]:
        """Return by zone how many objects of each label count in it."""
        return self.occupancy.counts(self.tracker)

    def reset(self) -> None:
        """Forget all objects. Numbers of tracks go on."""
        for slots in (self.tracker.alive, self.tracker.ended):
            self.occupancy.forget(slots)
        self.tracker.reset()
        self._staged.clear()
        self.occupancy.changed = True
