"""Figures of accuracy: top-1, mAP and AUC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ..core.frozen import record
from ..core.types import Anomaly, Array, Classes, Detections, Findings
from ..inference.agreement import match_boxes


@record(quick=True, eq=False)
class Truth:
    """What a sample shows."""

    label: str | None = None
    """Of the whole; of an anomaly "normal", or anything else."""
    boxes: Array | None = None
    """(n, 4) x1, y1, x2, y2 in pixels …"""
    labels: tuple[str, ...] = ()
    """… and what they show."""


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
        order = np.argsort(-one.scores, kind="stable")
        names = [one.labels[index] for index in order]
        matches = match_boxes(one.boxes[order], names, truth.boxes, truth.labels)
        for label, score, match in zip(names, one.scores[order], matches, strict=True):
            hits[label].append((float(score), match >= 0))
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
