"""Whether two overlapping boxes also agree in mask, key points, corners, and text."""

from __future__ import annotations

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
