"""Figures of accuracy: agreement of two sets of findings, top-1, mAP and AUC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ..core.frozen import record
from ..core.types import Anomaly, Array, Classes, Detections, Findings
from ..inference.compare import compare_findings, matched, overlap

LEEWAY = 0.1
"""How near two scores are that may as well stand the other way round: of a box to the threshold, of
the two best classes to each other; and how far an anomaly score or a number may be off."""
IOU = 0.5


@record(quick=True, eq=False)
class Truth:
    """What a sample shows."""

    label: str | None = None
    """Of the whole; of an anomaly "normal", or anything else."""
    boxes: Array | None = None
    """(n, 4) x1, y1, x2, y2 in pixels …"""
    labels: tuple[str, ...] = ()
    """… and what they show."""


def agreement(expected: Findings, found: Findings, threshold: float) -> float:
    """Return how far findings are the same, 0 to 1.

    Args:
        expected: of the float network.
        found: of another.
        threshold: of boxes: one within `LEEWAY` of it may be there or not.

    """
    if isinstance(expected, Detections) and isinstance(found, Detections):
        return matched(expected, found, threshold + LEEWAY)
    if isinstance(expected, Classes) and isinstance(found, Classes):
        near = [
            label
            for label, score in zip(expected.labels, expected.scores, strict=True)
            if score >= expected.scores[0] - LEEWAY
        ]
        return float(not expected.labels if not found.labels else found.labels[0] in near)
    return float(compare_findings(expected, found, LEEWAY).passed)


def top1(found: Sequence[Findings], truths: Sequence[Truth]) -> float:
    """Return the share of samples whose best class is the true one."""
    right = [
        isinstance(one, Classes) and one.labels[:1] == (truth.label,)
        for one, truth in zip(found, truths, strict=True)
    ]
    return sum(right) / len(right)


def auc(found: Sequence[Findings], truths: Sequence[Truth]) -> float:
    """Return the chance that something abnormal has the higher score; ties count half."""
    scores = np.array([one.score for one in found if isinstance(one, Anomaly)])
    normal = np.array([truth.label == NORMAL for truth in truths])
    good, bad = scores[normal], scores[~normal]
    if not len(good) or not len(bad):
        return float("nan")
    above = (bad[:, None] > good[None]).mean() + 0.5 * (bad[:, None] == good[None]).mean()
    return float(above)


NORMAL = "normal"


def mean_average_precision(found: Sequence[Findings], truths: Sequence[Truth]) -> float:
    """Return the mean over classes of the average precision at an IoU of 0.5, as COCO has it."""
    wanted: dict[str, int] = defaultdict(int)
    hits: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for one, truth in zip(found, truths, strict=True):
        for label in truth.labels:
            wanted[label] += 1
        if not isinstance(one, Detections) or truth.boxes is None:
            continue
        free = set(range(len(truth.labels)))
        for index in np.argsort(-one.scores, kind="stable"):
            label = one.labels[index]
            best, best_iou = -1, IOU
            for other in free:
                if truth.labels[other] != label:
                    continue
                shared = overlap(one.boxes[index], truth.boxes[other])
                if shared >= best_iou:
                    best, best_iou = other, shared
            free.discard(best)
            hits[label].append((float(one.scores[index]), best >= 0))
    return float(np.mean([_average(hits[label], count) for label, count in wanted.items()]))


def _average(hits: list[tuple[float, bool]], wanted: int) -> float:
    """Return the average precision of one class, at 101 recalls."""
    if not hits:
        return 0.0
    right = np.array([hit for _, hit in sorted(hits, key=lambda each: -each[0])], np.float64)
    found = right.cumsum()
    precision = found / np.arange(1, len(right) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(found / wanted, np.linspace(0, 1, 101), side="left")
    padded = np.append(precision, 0.0)
    return float(padded[np.minimum(places, len(precision))].mean())
