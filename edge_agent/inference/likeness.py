"""Which boxes of two answers are the same: by overlap, mask, key points, corners, and text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.types import Array, Detections

IOU = 0.5
"""Least IoU of two boxes that count as the same, and of their masks."""
REACH = 0.1
"""How far apart points and corners may be, as a share of the box's diagonal."""
SEEN = 0.5
"""Least score of a key point that counts."""


def alike(one: Detections, place: int, other: Detections, match: int) -> bool:
    """Whether a detection and its match in another answer agree in all columns that both have."""
    box = one.boxes[place]
    reach = REACH * float(np.hypot(*(box[2:] - box[:2])))
    if (
        one.masks is not None
        and other.masks is not None
        and one.masks[place].overlap(other.masks[match]) < IOU
    ):
        return False
    if one.corners is not None and other.corners is not None:
        # Angles of nearly square boxes may be a quarter turn apart: any corner may match.
        away = _distances(one.corners[place][:, None], other.corners[match])
        if away.min(axis=1).max() > reach:
            return False
    if one.points is not None and other.points is not None:
        mine, theirs = one.points[place], other.points[match]
        seen = mine[:, 2] >= SEEN if mine.shape[1] > 2 else slice(None)
        away = _distances(mine, theirs)[seen]
        if away.size and away.mean() > reach:
            return False
    if one.texts is not None and other.texts is not None:
        return one.texts[place] == other.texts[match]
    return True


def _distances(points: Array, others: Array) -> Array:
    """Return the distances (...) between points (..., 2 or 3) and others."""
    apart: Array = np.linalg.norm(points[..., :2] - others[..., :2], axis=-1)
    return apart


def unmatched(
    expected: Detections, found: Detections, least: float
) -> tuple[list[int], list[int], int]:
    """Match boxes one to one, by label, overlap, and their other properties.

    Returns the indices of boxes with scores of at least *least* that are only in the first; the
    same for the second; and the number of matches, whatever their scores.
    """
    pairs = match_boxes(expected.boxes, expected.labels, found.boxes, found.labels)
    pairs = [
        other if other >= 0 and alike(expected, place, found, other) else -1
        for place, other in enumerate(pairs)
    ]
    taken = set(pairs)
    missing = [
        place for place, other in enumerate(pairs) if other < 0 and expected.scores[place] >= least
    ]
    extra = [
        place for place in range(len(found)) if place not in taken and found.scores[place] >= least
    ]
    return missing, extra, len(taken - {-1})


def match_boxes(
    boxes: Array, labels: Sequence[str], others: Array, other_labels: Sequence[str]
) -> list[int]:
    """Match boxes, (n, 4) and (m, 4), greedily and in order: same label, best IoU of at least 0.5.

    Returns the index of each one's match in *others*, each used once; -1: no match.
    """
    if not len(boxes) or not len(others):
        return [-1] * len(boxes)
    same = np.array(labels)[:, None] == np.array(other_labels)[None]
    shared = np.where(same, overlaps(boxes, others), 0.0)
    found = []
    for row in shared:
        best = int(row.argmax())
        if row[best] < IOU:
            found.append(-1)
            continue
        found.append(best)
        shared[:, best] = 0.0
    return found


def overlaps(boxes: Array, others: Array) -> Array:
    """Return the IoU (n, m) of boxes (n, 4) and (m, 4), given as x1, y1, x2, y2."""
    one, other = boxes[:, None].astype(np.float64), others[None].astype(np.float64)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    common = sides.clip(0).prod(axis=-1)
    areas = [(each[..., 2:] - each[..., :2]).prod(axis=-1) for each in (one, other)]
    whole: Array = np.maximum(areas[0] + areas[1] - common, 1e-9)
    return np.asarray(common / whole)
