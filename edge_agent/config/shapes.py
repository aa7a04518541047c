"""Checks of polygons and lines in 0 to 1 of the frame, from settings and commands.

The cost is bounded: checking an untrusted shape takes no longer than one with MOST_POINTS points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

MOST_POINTS = 256
"""Most points of a polygon or line."""
MOST_SHAPES = 64
"""Most masks, zones or lines of a pipeline."""
SMALLEST = 1e-6
"""Least area of a polygon, as a share of the frame: below it the points lie on one line."""

Points = Sequence[Sequence[float]]


def polygon_trouble(points: Points) -> str | None:
    """Return why a list of points is not an area, or None if it is one."""
    trouble = _points_trouble(points, 3, "a polygon")
    if trouble is not None:
        return trouble
    corners = [(float(x), float(y)) for x, y in points]
    count = len(corners)
    for first in range(count):
        for second in range(first + 1, count):
            if second - first == 1 or (first == 0 and second == count - 1):
                continue  # neighbors share a corner
            if crosses(
                corners[first],
                corners[(first + 1) % count],
                corners[second],
                corners[(second + 1) % count],
            ):
                return (
                    f"crosses itself: the side after point {first + 1} and the one after point "
                    f"{second + 1} meet; list the points in order around the area"
                )
    if abs(area(corners)) < SMALLEST:
        return "has no area: its points lie on one line"
    return None


def line_trouble(points: Points) -> str | None:
    """Return why a list of points is not a line, or None if it is one."""
    trouble = _points_trouble(points, 2, "a line")
    if trouble is not None:
        return trouble
    for number, (one, other) in enumerate(pairwise(points), 1):
        if tuple(one) == tuple(other):
            return f"points {number} and {number + 1} are the same"
    return None


def _points_trouble(points: Points, least: int, what: str) -> str | None:
    if not least <= len(points) <= MOST_POINTS:
        return f"{what} takes {least} to {MOST_POINTS} points, found {len(points)}"
    for number, point in enumerate(points, 1):
        if len(point) != 2 or not all(math.isfinite(x) and 0 <= x <= 1 for x in point):
            expected = "expected [x, y], each from 0 to 1 of the frame"
            return f"point {number}: {expected}, found {list(point)[:4]}"
    return None


def area(corners: Sequence[tuple[float, float]]) -> float:
    """Return the area of a polygon, positive if its corners are clockwise in the picture."""
    pairs = zip(corners, [*corners[1:], corners[0]], strict=True)
    return sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs) / 2


Point = tuple[float, float]


def crosses(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the segments from a to b and from c to d have a point in common."""

    def turn(p: Point, q: Point, r: Point) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    def within(p: Point, q: Point, r: Point) -> bool:
        return min(p[0], q[0]) <= r[0] <= max(p[0], q[0]) and min(p[1], q[1]) <= r[1] <= max(
            p[1], q[1]
        )

    t1, t2, t3, t4 = turn(c, d, a), turn(c, d, b), turn(a, b, c), turn(a, b, d)
    if t1 * t2 < 0 and t3 * t4 < 0:
        return True
    return (
        (t1 == 0 and within(c, d, a))
        or (t2 == 0 and within(c, d, b))
        or (t3 == 0 and within(a, b, c))
        or (t4 == 0 and within(a, b, d))
    )


def apart(points: Points, box: tuple[float, float, float, float], *, closed: bool) -> bool:
    """Whether a line, or a polygon if it is *closed*, has no point in common with a box.

    Args:
        points: the points of the shape.
        box: x1, y1, x2, y2.
        closed: whether the shape is an area.
    """
    x1, y1, x2, y2 = box
    corners = [(float(x), float(y)) for x, y in points]
    if any(x1 <= x <= x2 and y1 <= y <= y2 for x, y in corners):
        return False
    sides = list(pairwise([*corners, corners[0]] if closed else corners))
    # A side whose ends are both outside passes through the box if it crosses a diagonal.
    if any(
        crosses(*side, (x1, y1), (x2, y2)) or crosses(*side, (x1, y2), (x2, y1)) for side in sides
    ):
        return False
    return not (closed and _surrounds(sides, (x1, y1)))


def _surrounds(sides: Sequence[tuple[Point, Point]], point: Point) -> bool:
    """Whether a point lies within a polygon with these sides: a ray to the right leaves it."""
    x, y = point
    odd = False
    for (ax, ay), (bx, by) in sides:
        if (ay > y) != (by > y) and x < ax + (y - ay) * (bx - ax) / (by - ay):
            odd = not odd
    return odd
