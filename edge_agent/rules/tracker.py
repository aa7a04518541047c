"""Tracks: a number that stays with an object, after ByteTrack (Zhang and others, 2022).

Detections are assigned to tracks in two steps, first strong ones, then weak ones, by overlap with
the tracks' places predicted by a Kalman filter. Unlike ByteTrack, the filter uses time, not a count
of frames, and if frames are far apart a third step searches as far from the predicted place as its
uncertainty reaches. An unseen track lives for LOST_SECONDS and LOST_RESULTS.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.types import Detections
from .motion import Floats, Motion, Slots, grown, overlaps, places

LOWEST_SCORE = 0.1
"""Lowest score of a detection that can continue a track."""
OVERLAP = 0.2
"""Least overlap of a strong detection with a track."""
OVERLAP_WEAK = 0.4
"""Least overlap of a weak detection with a track."""
OVERLAP_NEW = 0.1
"""Least overlap of a detection with a track that has been seen only once."""
SAME_LABEL = 0.1
"""Added to the overlap if the labels are the same, to decide between similar fits."""
REACH = 9.2
"""Greatest squared distance from the predicted place, in variances: 99 of 100 are nearer."""
TWIN = 0.8
"""A detection with this overlap with a tracked one begins no track: it is the same object with
another label."""
EDGE = 2.0
"""A box this near the frame's edge may be cut by it, pixels."""
CUT = 0.1
"""Factor for the weight of a cut box's label."""
LABEL_SECONDS = 5.0
"""Time in which a label that is said no more loses its weight, down to 1/e."""
LABEL_RESULTS = 20
"""At low rates it takes this many results."""
LABEL_CHANGE = 2.0
"""A track's label changes once another has this many times its weight: two labels that a model
gives in turn do not begin and end events in turn."""
LOST_SECONDS = 1.0
LOST_RESULTS = 3
"""At low rates a track survives this many results without it."""
FRAMES_PER_SECOND = 30.0
LONGEST = 3 * FRAMES_PER_SECOND
"""Longest extrapolation, frames."""

Flags = NDArray[np.bool_]
NONE: Slots = np.zeros(0, np.intp)


class Tracker:
    """The tracks of one pipeline. For use by one thread at a time."""

    def __init__(self, first: int = 1) -> None:
        """Start without tracks; the first will have the number *first*."""
        self.motion = Motion()
        room = self.motion.room
        self.number = np.zeros(room, np.int64)
        """Track number by slot; 0: it has been seen only once."""
        self.votes = np.zeros((room, 8))
        """Weights of labels, by slot and label: scores, the latest count most."""
        self.kind = np.zeros(room, np.intp)
        """Index of the label in `labels`, by slot."""
        self.labels: list[str] = []
        self.alive = NONE
        """Slots in use."""
        self.ended = NONE
        """Slots whose tracks ended with the latest update; free from the next update on."""
        self.begun = NONE
        """Slots whose tracks were first seen in the latest update."""
        self.carried = NONE, NONE
        """Slots whose tracks only weak detections continued in the latest update, and their rows
        in those detections."""
        self._index: dict[str, int] = {}
        self._free = list(range(room))[::-1]
        self._unseen = np.zeros(room)
        """Seconds since each was last seen."""
        self._missed = np.zeros(room, np.int64)
        """Results since each was last seen."""
        self.next = first
        """The number of the next track."""
        self.size: tuple[int, int] = (1, 1)
        """Width and height of the latest frame."""

    @property
    def room(self) -> int:
        """Number of slots."""
        return len(self.number)

    @property
    def unsettled(self) -> bool:
        """Whether an object was not in the latest result, or only in that one."""
        alive = self.alive
        return bool((self._missed[alive] > 0).any() or (self.number[alive] == 0).any())

    def reset(self) -> None:
        """End all tracks after a gap. Numbers continue."""
        self._release(np.concatenate([self.alive, self.ended]))
        self.alive = self.begun = NONE

    def update(
        self, found: Detections, weak: Detections | None, seconds: float, size: tuple[int, int]
    ) -> Slots:
        """Add the detections of the next result, *seconds* after the previous one.

        Return the slot of the track of each detection in *found*; -1: no track. *weak*: detections
        with scores below the threshold, which only continue existing tracks. *size*: width and
        height of the frame.
        """
        self._release(self.ended)
        if self.size != size:  # a camera may change it: its objects stay the same
            self.motion.scale(size[0] / self.size[0], size[1] / self.size[1])
            self.size = size
        frames = min(max(seconds, 1e-3) * FRAMES_PER_SECOND, LONGEST)
        alive = self.alive
        self.motion.predict(frames)
        slot_of = np.full(len(found), -1, np.intp)
        kinds = self._kinds(found.labels)
        seen = places(found.boxes)
        rows_left = np.ones(len(alive), bool)
        columns_left = np.ones(len(found), bool)
        if len(alive) and len(found):
            self._match(found, kinds, seen, slot_of, rows_left, columns_left)
        said = _said(found, size)
        self._take(slot_of, seen, kinds, said, seconds)
        self.carried = NONE, NONE
        if weak is not None and len(weak):
            self._carry_on(alive, rows_left, weak)
        self._age(alive[rows_left], seconds)
        self._begin(found, slot_of, columns_left, seen, kinds, said)
        return slot_of

    def _match(
        self,
        found: Detections,
        kinds: Slots,
        seen: Floats,
        slot_of: Slots,
        rows_left: Flags,
        columns_left: Flags,
    ) -> None:
        """Assign detections to tracks: by overlap, then by distance."""
        alive = self.alive
        rows, columns, fit = overlaps(self.motion.boxes(alive), found.boxes)
        label = self.kind[alive]
        gain = fit + np.float32(SAME_LABEL) * (label[rows] == kinds[columns])
        # All tracks at once: a known track must not take a detection that fits a new one better.
        known = self.number[alive[rows]] > 0
        there = np.flatnonzero(fit >= np.where(known, OVERLAP, OVERLAP_NEW))
        there = there[assign(rows[there], columns[there], gain[there])]
        slot_of[columns[there]] = alive[rows[there]]
        rows_left[rows[there]] = False
        columns_left[columns[there]] = False
        # Not for tracks that were missing before: their uncertainty reaches so far that they would
        # take new objects.
        fresh = rows_left & (self._missed[alive] == 0)
        rest, free = np.flatnonzero(fresh), np.flatnonzero(columns_left)
        if not (rest.size and free.size):
            return
        near = self.motion.distance(alive[rest], seen[free])
        sides = np.maximum(self.motion.place(alive[rest])[:, None, 2:], 1)
        size = np.abs(np.log(np.maximum(seen[free][None, :, 2:], 1) / sides)).max(axis=2)
        allowed = (near < REACH) & (size < np.log(2)) & (label[rest][:, None] == kinds[free])
        rows, columns = np.nonzero(allowed)
        picked = assign(rows, columns, (REACH - near[rows, columns]).astype(np.float32))
        slot_of[free[columns[picked]]] = alive[rest[rows[picked]]]
        rows_left[rest[rows[picked]]] = False
        columns_left[free[columns[picked]]] = False

    def _take(
        self,
        slot_of: Slots,
        seen: Floats,
        kinds: Slots,
        said: NDArray[np.float32],
        seconds: float,
    ) -> None:
        """Correct the tracks by matched detections; one seen a second time gets its number."""
        there = np.flatnonzero(slot_of >= 0)
        slots = slot_of[there]
        self.motion.update(slots, seen[there])
        self._vote(slots, kinds[there], said[there], seconds)
        self._unseen[slots] = 0.0
        self._missed[slots] = 0
        new = slots[self.number[slots] == 0]
        self.number[new] = np.arange(self.next, self.next + len(new))
        self.next += len(new)

    def _vote(self, slots: Slots, kinds: Slots, said: NDArray[np.float32], seconds: float) -> None:
        """Add what detections say of tracks' labels, *seconds* after the previous result."""
        fade = min(1 - np.exp(-seconds / LABEL_SECONDS), 1 / LABEL_RESULTS)
        # By what is said: at the frame's edge little is, so what was seen before stays.
        votes = self.votes[slots] * (1 - fade * np.minimum(said, 1)[:, None])
        rows, known = np.arange(len(slots)), self.kind[slots]
        votes[rows, kinds] += said
        self.votes[slots] = votes
        most = votes.argmax(axis=1)
        change = votes[rows, most] > LABEL_CHANGE * votes[rows, known]
        self.kind[slots[change]] = most[change]

    def _carry_on(self, alive: Slots, rows_left: Flags, weak: Detections) -> None:
        """Assign weak detections to known tracks that were in the previous result."""
        there = np.flatnonzero(
            rows_left & (self.number[alive] > 0) & (self._missed[alive] <= LOST_RESULTS)
        )
        if not there.size:
            return
        rows, columns, fit = overlaps(self.motion.boxes(alive[there]), weak.boxes)
        enough = fit >= OVERLAP_WEAK
        rows, columns, fit = rows[enough], columns[enough], fit[enough]
        picked = assign(rows, columns, fit)
        rows, columns = rows[picked], columns[picked]
        slots = alive[there[rows]]
        self.carried = slots, columns
        self.motion.update(slots, places(weak.boxes)[columns])
        self._unseen[slots] = 0.0
        self._missed[slots] = 0
        rows_left[there[rows]] = False

    def _age(self, slots: Slots, seconds: float) -> None:
        """End tracks that have not been seen for long, or were seen only once."""
        self._unseen[slots] += seconds
        self._missed[slots] += 1
        over = (self._unseen[slots] > LOST_SECONDS) & (self._missed[slots] > LOST_RESULTS)
        over |= self.number[slots] == 0
        self.ended = slots[over]
        if self.ended.size:
            self.alive = np.setdiff1d(self.alive, self.ended, assume_unique=True)

    def _begin(
        self,
        found: Detections,
        slot_of: Slots,
        columns_left: Flags,
        seen: Floats,
        kinds: Slots,
        said: NDArray[np.float32],
    ) -> None:
        """Start tracks for detections that belong to none."""
        new = np.flatnonzero(columns_left)
        if new.size and len(found) > 1:
            # Best first: of two detections of an object, the better one begins the track.
            rows, columns, fit = overlaps(found.boxes[new], found.boxes)
            earlier = (columns < new[rows]) | ~columns_left[columns]
            new = np.delete(new, rows[(fit > TWIN) & earlier])
        while len(self._free) < len(new):
            room = self.room
            self.motion.grow(2 * room)
            arrays = (self.number, self.votes, self.kind, self._unseen, self._missed)
            self.number, self.votes, self.kind, self._unseen, self._missed = grown(
                2 * room, *arrays
            )
            self._free += range(2 * room - 1, room - 1, -1)
        slots = np.array([self._free.pop() for _ in range(len(new))], np.intp)
        self.begun = slots
        if not new.size:
            return
        self.motion.begin(slots, seen[new])
        self.number[slots] = 0
        self.votes[slots] = 0.0
        self.votes[slots, kinds[new]] = said[new]
        self.kind[slots] = kinds[new]
        self._unseen[slots] = 0.0
        self._missed[slots] = 0
        slot_of[new] = slots
        self.alive = np.concatenate([self.alive, slots])

    def _kinds(self, labels: tuple[str, ...]) -> Slots:
        """Return labels as indices of `labels`."""
        index = self._index
        for label in set(labels).difference(index):
            index[label] = len(self.labels)
            self.labels.append(label)
        if len(self.labels) > self.votes.shape[1]:
            more = np.zeros((self.room, 2 * len(self.labels)))
            more[:, : self.votes.shape[1]] = self.votes
            self.votes = more
        return np.array([*map(index.__getitem__, labels)], np.intp)

    def _release(self, slots: Slots) -> None:
        self._free += slots.tolist()
        self.ended = NONE


def _said(found: Detections, size: tuple[int, int]) -> NDArray[np.float32]:
    """Return the weight of each detection's label.

    It is the score, or a tenth of it if the edge of the frame cuts the box.
    """
    x1, y1, x2, y2 = found.boxes.T
    width, height = size
    cut = (x1 <= EDGE) | (y1 <= EDGE) | (x2 >= width - EDGE) | (y2 >= height - EDGE)
    return found.scores * np.where(cut, np.float32(CUT), np.float32(1))


# The assignment of detections to tracks: most pairs are obvious, the rest is solved


def assign(rows: Slots, columns: Slots, gain: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Choose pairs of rows and columns (n,) of greatest total gain, above 0; return which, (n,).

    Each row and each column is in at most one pair.
    """
    if not rows.size:
        return np.zeros(0, bool)
    # A pair that gains more than the best others of its row and its column together is in every
    # best choice: without it, at most one of each could be chosen. Usually this decides nearly all.
    in_row, in_column = np.bincount(rows, gain)[rows], np.bincount(columns, gain)[columns]
    picked: NDArray[np.bool_] = 3 * gain > in_row + in_column
    if picked.all():
        return picked
    taken = np.bincount(rows, picked)[rows] + np.bincount(columns, picked)[columns]
    left = np.flatnonzero(taken == 0)
    if left.size:
        picked[left] = _solve(rows[left], columns[left], gain[left])
    return picked


def _solve(rows: Slots, columns: Slots, gain: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Choose as `assign` does when no pair is obvious."""
    import lap

    row_of, row_count = _renumbered(rows)
    column_of, column_count = _renumbered(columns)
    most = float(gain.max())
    # An impossible pair costs more than leaving both unassigned, as set by the limit.
    cost = np.full((row_count, column_count), 10 * most + 10)
    cost[row_of, column_of] = most - gain
    _, chosen, _ = lap.lapjv(cost, extend_cost=True, cost_limit=most + 1e-6)
    picked: NDArray[np.bool_] = chosen[row_of] == column_of
    return picked


def _renumbered(indices: Slots) -> tuple[Slots, int]:
    """Return the indices renumbered without gaps, and their number."""
    there = np.zeros(int(indices.max()) + 1, bool)
    there[indices] = True
    return (np.cumsum(there) - 1)[indices], int(there.sum())
