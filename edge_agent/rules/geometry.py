"""Zones and lines, checked against the anchors of many boxes at a time.

Polygons and lines are in 0 to 1 of the frame, everything else in pixels. Both have a margin that
grows with the box: a detector's jitter from frame to frame must not move an object across an edge
that it stands on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.rules import Line, Zone
from ..core.frozen import record
from .motion import Slots, grown

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MARGIN = 0.05
"""Margin as a share of the square root of a box's area."""
MARGIN_PIXELS = 1.5
"""Additional margin, pixels: for a small box half a pixel matters."""
EDGE = 1e-3
"""Pixels from the frame's edge: a point on the edge is inside the frame."""


@record(quick=True, eq=False)
class Placed:
    """The positions of n boxes in a frame, pixels."""

    bottom: Floats
    """(2, n) x and y of the middles of the lower edges."""
    center: Floats
    """(2, n) x and y of the centers."""
    margin: Floats
    """(n,) how far beyond an edge each must be to count as across it."""
    size: tuple[int, int]
    """Width and height of the frame."""


def place(boxes: NDArray[np.float32], size: tuple[int, int]) -> Placed:
    """Return the anchors of boxes, (n, 4) x1, y1, x2, y2 in pixels, in a frame.

    A box may extend beyond the frame; its anchors are those of its visible part.
    """
    width, height = size
    x1, y1, x2, y2 = boxes.T.astype(np.float64)
    margin = MARGIN_PIXELS + MARGIN * np.sqrt(np.maximum(x2 - x1, 1) * np.maximum(y2 - y1, 1))
    x1, x2 = _within(x1, width), _within(x2, width)
    y1, y2 = _within(y1, height), _within(y2, height)
    middle = (x1 + x2) / 2
    return Placed(np.array([middle, y2]), np.array([middle, (y1 + y2) / 2]), margin, size)


def _within(values: Floats, size: int) -> Floats:
    found: Floats = np.minimum(np.maximum(values, EDGE), size - EDGE)
    return found


class Edges:
    """The sides of several shapes, concatenated, in pixels of the frame.

    Arrays are (sides, n), one per coordinate, so that operations on all boxes use contiguous
    memory.
    """

    def __init__(
        self, shapes: Sequence[Sequence[Sequence[float]]], centers: Sequence[bool], *, closed: bool
    ) -> None:
        """Build the sides of shapes whose points are in 0 to 1 of the frame.

        *centers*: whether each shape uses the centers of boxes. *closed*: whether a side leads
        from the last point to the first.
        """
        begins: list[Sequence[float]] = []
        ends: list[Sequence[float]] = []
        first: list[int] = []
        for points in shapes:
            first.append(len(begins))
            begins += list(points if closed else points[:-1])
            ends += [*points[1:], points[0]] if closed else points[1:]
        sides = np.diff([*first, len(begins)])
        self._begins = np.array(begins, np.float64).reshape(-1, 2)
        self._ends = np.array(ends, np.float64).reshape(-1, 2)
        self._center = np.repeat(np.array(centers, bool), sides)
        self.first = np.array(first, np.intp)
        """First side of each shape."""
        self.shape = np.repeat(np.arange(len(first)), sides)
        """Shape of each side."""
        self._parts = list(pairwise([*first, len(begins)]))
        self.scale((1, 1))

    def scale(self, size: tuple[int, int]) -> None:
        """Scale the sides to a frame of this width and height."""
        self.x, self.y = (self._begins * size).T[:, :, None]
        end_x, end_y = (self._ends * size).T[:, :, None]
        self.dx, self.dy = end_x - self.x, end_y - self.y
        self._length = np.maximum(self.dx * self.dx + self.dy * self.dy, 1e-9)

    def points(self, bottom: Floats, center: Floats) -> tuple[Floats, Floats]:
        """Return x and y of each box's anchor for each side.

        (sides, n), or (1, n) if all use the same anchor.
        """
        if not self._center.any():
            return bottom[0, None], bottom[1, None]
        mixed = self._center[:, None]
        return np.where(mixed, center[0], bottom[0]), np.where(mixed, center[1], bottom[1])

    def each(self, how: np.ufunc, sides: NDArray[Any]) -> NDArray[Any]:
        """Reduce values by side, (sides, n), to (shapes, n)."""
        if len(self._parts) == len(sides):
            return sides
        # `reduceat` goes column by column: two to five times as slow.
        found = np.empty((len(self._parts), *sides.shape[1:]), sides.dtype)
        for place, (first, end) in zip(found, self._parts, strict=True):
            how.reduce(sides[first:end], axis=0, out=place)
        return found

    def distance(self, x: Floats, y: Floats) -> Floats:
        """Return (shapes, n): the distance of points (sides, n) from each shape, pixels."""
        off_x, off_y = x - self.x, y - self.y
        share = (off_x * self.dx + off_y * self.dy) / self._length
        np.clip(share, 0, 1, out=share)
        off_x -= share * self.dx
        off_y -= share * self.dy
        off_x *= off_x
        off_y *= off_y
        off_x += off_y
        result: Floats = np.sqrt(self.each(np.minimum, off_x))
        return result


class Zones:
    """Determines which objects are in which zones."""

    def __init__(self, zones: Sequence[Zone]) -> None:
        self.names = [zone.name for zone in zones]
        centers = [zone.anchor == "center" for zone in zones]
        self._edges = Edges([zone.polygon for zone in zones], centers, closed=True)
        self._size = (0, 0)
        self._slope: Floats = np.zeros(0)
        """Pixels to the right per pixel down, for each side."""

    def inside(self, placed: Placed, before: Flags) -> Flags:
        """Return (n, zones): whether each object is inside.

        An object that was inside *before*, (n, zones), stays so up to its margin beyond the zone.
        """
        if placed.size != self._size:
            self._size = placed.size
            self._edges.scale(placed.size)
            # A horizontal line crosses no horizontal side.
            level = self._edges.dy == 0
            self._slope = np.where(level, 0, self._edges.dx / np.where(level, 1, self._edges.dy))
        edges = self._edges
        x, y = edges.points(placed.bottom, placed.center)
        off_y = y - edges.y
        # Sides that a line from the point to the right would cross: an odd number if inside.
        spans = (off_y >= 0) != (off_y >= edges.dy)
        off_y *= self._slope
        off_y += edges.x
        spans &= x < off_y
        now: Flags = edges.each(np.logical_xor, spans).T
        doubtful = before & ~now
        rows = np.flatnonzero(doubtful.any(axis=1))
        if rows.size:
            near = placed.margin[rows, None] >= edges.distance(x[:, rows], y[:, rows]).T
            now[rows] |= doubtful[rows] & near
        return now


class Gates:
    """Determines which objects have crossed which line in which direction.

    A gate is a line with the number of results in which an object must be seen beyond it.
    Positions within the margin are ignored; between other positions, the path either crosses the
    line or not. An object that returns before it has been seen often enough has not crossed.
    """

    def __init__(self, lines: Sequence[Line], needed: Sequence[tuple[int, int]], room: int) -> None:
        """Create a gate for each line, with space for *room* objects, none seen yet.

        *needed*: (k, n) for each line: an object must be seen beyond it in k of n results.
        """
        centers = [line.anchor == "center" for line in lines]
        self._edges = Edges([line.points for line in lines], centers, closed=False)
        self._least = np.array([[each[0]] for each in needed], np.int64)
        self._window = np.array([[(1 << each[1]) - 1] for each in needed], np.int64)
        self._size = (0, 0)
        gates = len(lines)
        self._known = np.zeros((gates, room), bool)
        """By gate and slot: whether it has been seen clearly on one side."""
        self._last_x = np.zeros((gates, room))
        self._last_y = np.zeros((gates, room))
        """By gate and slot: where it was last seen so."""
        self._pending = np.zeros((gates, room), np.int8)
        """By gate and slot: a crossing not counted yet, 1 in, -1 out."""
        self._seen = np.zeros((gates, room), np.int64)
        """By gate and slot: in which results since then it was seen beyond, one bit each."""

    def take_over(self, others: Gates, gates: Slots, theirs: Slots) -> None:
        """Take what is known of *gates* (n,) from those of *others* that are *theirs* (n,)."""
        self._size = others._size
        self._edges.scale(self._size)
        for mine, other in zip(self._state(), others._state(), strict=True):
            mine[gates] = other[theirs]

    def _state(self) -> tuple[NDArray[Any], ...]:
        return self._known, self._last_x, self._last_y, self._pending, self._seen

    def grow(self, room: int) -> None:
        """Extend the arrays to this many slots."""
        if room > self._known.shape[1]:
            self._known, self._last_x, self._last_y, self._pending, self._seen = grown(
                room, *self._state(), axis=1
            )

    def forget(self, slots: NDArray[np.intp]) -> None:
        """Forget the objects in slots (n,), which other objects use now."""
        self._known[:, slots] = False
        self._pending[:, slots] = 0

    def update(self, slots: NDArray[np.intp], at: Placed) -> NDArray[np.int8]:
        """Update the objects in n slots; return (n, gates): 1 crossed in, -1 out, 0 not."""
        if at.size != self._size:
            if self._size != (0, 0):
                self.forget(np.arange(self._known.shape[1]))
            self._size = at.size
            self._edges.scale(at.size)
        edges = self._edges
        # All slots are processed, even unused ones: extracting and restoring the used ones takes
        # longer.
        room = self._known.shape[1]
        there = np.zeros(room, bool)
        there[slots] = True
        placed = np.zeros((5, room))
        placed[:, slots] = np.concatenate([at.bottom, at.center, at.margin[None]])
        x, y = edges.points(placed[:2], placed[2:4])
        distance = edges.distance(x, y)
        sure = (distance > placed[4]) & there
        if len(x) > 1:
            x, y = x[edges.first], y[edges.first]
        # A path shorter than the distance of its end from the line does not cross it.
        near = np.abs(x - self._last_x) + np.abs(y - self._last_y) >= distance
        near &= sure
        near &= self._known
        way = np.zeros(near.shape, np.int8)
        some = np.flatnonzero(near.any(axis=0))
        if some.size:
            to_x, to_y = (np.broadcast_to(each[:, some], (len(near), some.size)) for each in (x, y))
            from_x, from_y = (each.take(some, axis=1) for each in (self._last_x, self._last_y))
            way[:, some] = self._ways(from_x, from_y, to_x, to_y) * near.take(some, axis=1)
        np.copyto(self._last_x, x, where=sure)
        np.copyto(self._last_y, y, where=sure)
        self._known |= sure
        counted = self._count(way, sure, there)
        return counted.take(slots, axis=1).T

    def _count(self, way: NDArray[np.int8], sure: Flags, there: Flags) -> NDArray[np.int8]:
        """Return (gates, slots): which crossings are counted now.

        *way* (gates, slots): the crossings of this result; *sure* (gates, slots): whether each is
        clearly on one side; *there* (slots,): whether each is seen.
        """
        counted = np.zeros_like(way)
        some = np.flatnonzero((way | self._pending).any(axis=0) & there)
        if not some.size:
            return counted
        way, pending = way.take(some, axis=1), self._pending.take(some, axis=1)
        back = (way != 0) & (pending == -way)
        fresh = (way != 0) & ~back
        # In the window of a crossing not counted yet, each result is one bit.
        seen = ((self._seen.take(some, axis=1) << 1) | sure.take(some, axis=1)) & self._window
        seen[fresh] = 1
        pending = np.where(fresh, way, np.where(back, 0, pending)).astype(np.int8)
        done = (pending != 0) & (ones(seen) >= self._least)
        counted[:, some] = np.where(done, pending, 0)
        pending[done] = 0
        self._pending[:, some], self._seen[:, some] = pending, seen
        return counted

    def pending(self, slots: NDArray[np.intp]) -> NDArray[np.int8]:
        """Return (n, gates): crossings not counted yet of objects last seen beyond the line."""
        pending: NDArray[np.int8] = self._pending[:, slots].T
        return pending

    def _ways(self, x: Floats, y: Floats, to_x: Floats, to_y: Floats) -> NDArray[np.int8]:
        """Return the direction in which paths cross: 1 in, -1 out; 0: not, or both ways.

        All are (gates, n).
        """
        edges = self._edges
        x, y, to_x, to_y = (each.take(edges.shape, axis=0) for each in (x, y, to_x, to_y))
        path_x, path_y = to_x - x, to_y - y
        off_x, off_y = x - edges.x, y - edges.y
        turn = edges.dx * path_y - edges.dy * path_x
        # For each side and path, the share up to where they meet, times `turn`; half open, so that
        # a path through the joint of two sides crosses only one of them.
        on_line = off_x * path_y - off_y * path_x
        on_path = off_x * edges.dy - off_y * edges.dx
        sign = np.sign(turn)
        size = np.abs(turn)
        on_line *= sign
        on_path *= sign
        meets = (on_line >= 0) & (on_line < size) & (on_path >= 0) & (on_path < size)
        net = edges.each(np.add, sign * meets)
        result: NDArray[np.int8] = np.sign(net).astype(np.int8)
        return result


def where(flags: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield row and column of all entries other than False or 0 in an array (rows, columns)."""
    # `nonzero` in two dimensions takes ten times as long.
    width = flags.shape[1]
    for place in np.flatnonzero(flags).tolist():
        yield divmod(place, width)


def common(mine: Sequence[object], theirs: Sequence[object]) -> tuple[Slots, Slots]:
    """Return which of *mine* are also among *theirs*, and where there: indices (n,), (n,)."""
    pairs = [(i, theirs.index(each)) for i, each in enumerate(mine) if each in theirs]
    found = np.array(pairs, np.intp).reshape(-1, 2).T
    return found[0], found[1]


def ones(bits: NDArray[Any]) -> NDArray[np.uint8]:
    """Count the bits that are set in each number; any shape."""
    found: NDArray[np.uint8] = np.bitwise_count(bits)
    return found
