"""Zones and lines against the anchors of many boxes at a time.

Polygons and lines are in 0..1 of the frame, all else in its pixels. Both have a margin that grows
with the box: what a detector adds and takes away from one frame to the next must not carry an
object across an edge that it stands on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..config.settings import Line, Zone
from .slots import grow

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MARGIN = 0.05
"""Of the square root of a box's area …"""
MARGIN_PIXELS = 1.5
"""… and so much more: of a small box half a pixel is a lot."""
EDGE = 1e-3
"""Pixels: what lies on the frame's edge is inside the frame."""


def anchors(boxes: NDArray[np.float32], size: tuple[int, int]) -> tuple[Floats, Floats]:
    """Return the anchors of boxes, within the frame: the middles of lower edges, and centers.

    A box at the frame's edge may reach beyond it; its anchor is what can be seen of it.
    """
    inside = np.asarray(boxes, np.float64)
    inside = np.clip(inside, EDGE, np.array([*size, *size]) - EDGE)
    middle = (inside[:, 0] + inside[:, 2]) / 2
    bottom = np.stack([middle, inside[:, 3]], axis=1)
    center = np.stack([middle, (inside[:, 1] + inside[:, 3]) / 2], axis=1)
    return bottom, center


def margins(boxes: NDArray[np.float32]) -> Floats:
    """Return how far beyond an edge each box has to be to be sure."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 1).astype(np.float64)
    result: Floats = MARGIN_PIXELS + MARGIN * np.sqrt(sides[:, 0] * sides[:, 1])
    return result


class Edges:
    """The sides of several shapes, one after the other, in pixels of the frame.

    Coordinates are in arrays of their own: of (n, sides, 2) each operation takes many times longer.
    """

    def __init__(
        self, shapes: Sequence[Sequence[Sequence[float]]], centers: Sequence[bool], *, closed: bool
    ) -> None:
        """Lay out the sides.

        Args:
            shapes: the points of each, in 0..1 of the frame.
            centers: of each, whether it looks at the centers of boxes.
            closed: whether a side leads from the last point to the first.

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
        """By shape: its first side."""
        self.shape = np.repeat(np.arange(len(first)), sides)
        """By side: its shape."""
        self.scale((1, 1))

    def scale(self, size: tuple[int, int]) -> None:
        """Bring the sides to a frame of this width and height."""
        self.x, self.y = (self._begins * size).T
        end_x, end_y = (self._ends * size).T
        self.dx, self.dy = end_x - self.x, end_y - self.y
        self._length = np.maximum(self.dx * self.dx + self.dy * self.dy, 1e-9)

    def points(self, bottom: Floats, center: Floats) -> tuple[Floats, Floats]:
        """Return x and y, (n, sides), of the anchor of each box that each side looks at."""
        mixed = self._center
        return (
            np.where(mixed, center[:, 0, None], bottom[:, 0, None]),
            np.where(mixed, center[:, 1, None], bottom[:, 1, None]),
        )

    def distance(self, x: Floats, y: Floats) -> Floats:
        """Return (n, shapes): how far points, (n, sides), are from each shape, in pixels."""
        off_x, off_y = x - self.x, y - self.y
        share = (off_x * self.dx + off_y * self.dy) / self._length
        np.clip(share, 0, 1, out=share)
        off_x -= share * self.dx
        off_y -= share * self.dy
        off_x *= off_x
        off_y *= off_y
        off_x += off_y
        result: Floats = np.sqrt(np.minimum.reduceat(off_x, self.first, axis=1))
        return result


class Zones:
    """Which objects are in which zones."""

    def __init__(self, zones: Sequence[Zone]) -> None:
        self.names = [zone.name for zone in zones]
        centers = [zone.anchor == "center" for zone in zones]
        self._edges = Edges([zone.polygon for zone in zones], centers, closed=True)
        self._size = (0, 0)

    def inside(
        self, bottom: Floats, center: Floats, margin: Floats, before: Flags, size: tuple[int, int]
    ) -> Flags:
        """Return (n, zones): who is inside.

        Args:
            bottom: (n, 2) anchors of boxes at their lower edge.
            center: (n, 2) their centers.
            margin: (n,) what was inside stays so up to this distance from the zone.
            before: (n, zones) who was inside.
            size: width and height of the frame.

        """
        if size != self._size:
            self._size = size
            self._edges.scale(size)
        edges = self._edges
        x, y = edges.points(bottom, center)
        off_y = y - edges.y
        # Sides that a line from the point to the right would cross: an odd number, from inside.
        spans = (off_y >= 0) != (off_y >= edges.dy)
        with np.errstate(divide="ignore", invalid="ignore"):
            off_y *= edges.dx / edges.dy
        crossed = spans & (x - edges.x < off_y)
        now: Flags = np.logical_xor.reduceat(crossed, edges.first, axis=1)
        doubtful = before & ~now
        if doubtful.any():
            rows = np.flatnonzero(doubtful.any(axis=1))
            near = edges.distance(x[rows], y[rows]) <= margin[rows, None]
            now[rows] |= doubtful[rows] & near
        return now


class Gates:
    """Who has crossed which line, and which way.

    A gate is a line with a number of results in which an object must be seen beyond it. Positions
    within the margin say nothing; between two that do, the path either crosses the line or not. An
    object that comes back before it has been seen often enough has not crossed.
    """

    def __init__(self, lines: Sequence[Line], needed: Sequence[tuple[int, int]], room: int) -> None:
        """Begin with nobody seen.

        Args:
            lines: one for each gate.
            needed: in how many of how many results an object must be seen beyond it.
            room: slots of objects.

        """
        centers = [line.anchor == "center" for line in lines]
        self._edges = Edges([line.points for line in lines], centers, closed=False)
        self._least = np.array([each[0] for each in needed], np.int64)
        self._window = np.array([(1 << each[1]) - 1 for each in needed], np.int64)
        self._size = (0, 0)
        gates = len(lines)
        self._known = np.zeros((room, gates), bool)
        """By slot and gate: whether it has been seen on a side, …"""
        self._last_x = np.zeros((room, gates))
        self._last_y = np.zeros((room, gates))
        """… where last, …"""
        self._pending = np.zeros((room, gates), np.int8)
        """… which way it has crossed, not counted yet, 1 in, -1 out, …"""
        self._seen = np.zeros((room, gates), np.int64)
        """… and in which results since then it was seen beyond, a bit for each."""

    def grow(self, room: int) -> None:
        """Make room for more slots."""
        grow(self, ("_known", "_last_x", "_last_y", "_pending", "_seen"), room)

    def forget(self, slots: NDArray[np.intp]) -> None:
        """Forget where objects were: the slots are others' now."""
        self._known[slots] = False
        self._pending[slots] = 0

    def update(
        self,
        slots: NDArray[np.intp],
        bottom: Floats,
        center: Floats,
        margin: Floats,
        size: tuple[int, int],
    ) -> NDArray[np.int8]:
        """Take where objects are now; return (n, gates): 1 crossed in, -1 out, 0 neither."""
        if size != self._size:
            if self._size != (0, 0):
                self.forget(np.arange(len(self._known)))
            self._size = size
            self._edges.scale(size)
        edges = self._edges
        x, y = edges.points(bottom, center)
        sure = edges.distance(x, y) > margin[:, None]
        known, last_x, last_y = self._known[slots], self._last_x[slots], self._last_y[slots]
        way = self._ways(last_x[:, edges.shape], last_y[:, edges.shape], x, y)
        way *= sure & known
        pending, seen = self._pending[slots], self._seen[slots]
        back = (way != 0) & (pending == -way)
        fresh = (way != 0) & ~back
        # In the window of a crossing that is not counted yet, each result is a bit.
        seen = ((seen << 1) | sure) & self._window
        seen[fresh] = 1
        pending = np.where(fresh, way, np.where(back, 0, pending)).astype(np.int8)
        done = (pending != 0) & (ones(seen) >= self._least)
        counted: NDArray[np.int8] = np.where(done, pending, 0).astype(np.int8)
        pending[done] = 0
        self._pending[slots], self._seen[slots] = pending, seen
        self._last_x[slots] = np.where(sure, x[:, edges.first], last_x)
        self._last_y[slots] = np.where(sure, y[:, edges.first], last_y)
        self._known[slots] = known | sure
        return counted

    def last(self, slots: NDArray[np.intp]) -> NDArray[np.int8]:
        """Return the crossings of objects that have gone: they stayed where they were last seen."""
        pending: NDArray[np.int8] = self._pending[slots]
        return pending

    def _ways(self, x: Floats, y: Floats, to_x: Floats, to_y: Floats) -> NDArray[np.int8]:
        """Return (n, gates): which way the paths lead across; 0: not, or there and back."""
        edges = self._edges
        path_x, path_y = to_x - x, to_y - y
        off_x, off_y = x - edges.x, y - edges.y
        turn = edges.dx * path_y - edges.dy * path_x
        # Of each side and path, the shares up to where they meet, times `turn`; half open, so that
        # a path through the joint of two sides crosses one of them.
        on_line = off_x * path_y - off_y * path_x
        on_path = off_x * edges.dy - off_y * edges.dx
        sign = np.sign(turn)
        size = np.abs(turn)
        on_line *= sign
        on_path *= sign
        meets = (on_line >= 0) & (on_line < size) & (on_path >= 0) & (on_path < size)
        net = np.add.reduceat(sign * meets, edges.first, axis=1)
        result: NDArray[np.int8] = np.sign(net).astype(np.int8)
        return result


def ones(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the bits that are set."""
    return np.bitwise_count(bits).astype(np.int64)
