"""Filters of what a model has found: labels, thresholds of labels, smallest box."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...config.settings import Pipeline as PipelineSettings
from ...core.types import Array, Classes, Detections, Findings


class Filter:
    """Leaves out what the settings do not want. Never changed: other settings make another one."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._labels = frozenset(settings.labels)
        self._thresholds = dict(settings.thresholds)
        width, height = settings.min_box
        self._min_box = (width, height) if width or height else None
        self.least = min(self._thresholds.values(), default=None)
        """What a model has to be asked for, at least; None: nothing below the threshold."""

    def __bool__(self) -> bool:
        """Whether anything can be left out."""
        return bool(self._labels or self._thresholds or self._min_box)

    def kept(self, found: Findings, threshold: float) -> Findings:
        """Return what passes.

        Args:
            found: detections or classes; anything else passes.
            threshold: lowest score of a label that has none of its own.

        """
        if not isinstance(found, Detections | Classes):
            return found
        keep = self._passing(found.labels, np.asarray(found.scores, np.float64), threshold)
        if isinstance(found, Classes):
            if keep.all():
                return found
            there = np.nonzero(keep)[0].tolist()
            return Classes(
                tuple(found.labels[index] for index in there),
                tuple(found.scores[index] for index in there),
            )
        if self._min_box is not None and len(found):
            sides = found.boxes[:, 2:] - found.boxes[:, :2]
            keep &= (sides >= self._min_box).all(axis=1)
        return found if keep.all() else select(found, np.nonzero(keep)[0])

    def _passing(
        self, labels: tuple[str, ...], scores: NDArray[np.float64], threshold: float
    ) -> NDArray[np.bool_]:
        if self._thresholds:
            limits = [self._thresholds.get(label, threshold) for label in labels]
            # The decoder's own comparison, in the scores' precision.
            keep = scores >= np.asarray(limits, np.float32)
        else:
            keep = np.ones(len(labels), bool)
        if self._labels:
            keep &= np.fromiter((label in self._labels for label in labels), bool, len(labels))
        return keep


def above(found: Findings, threshold: float) -> Findings:
    """Return the detections or classes of at least this score; anything else as it is."""
    if isinstance(found, Detections):
        keep = found.scores >= np.float32(threshold)
        return found if keep.all() else select(found, np.nonzero(keep)[0])
    if isinstance(found, Classes) and found.scores and found.scores[-1] < threshold:
        count = sum(score >= threshold for score in found.scores)
        return Classes(found.labels[:count], found.scores[:count])
    return found


def select(found: Detections, indices: Array) -> Detections:
    """Return some of the detections, by their indices."""
    return replace(
        found,
        boxes=found.boxes[indices],
        scores=found.scores[indices],
        labels=tuple(found.labels[index] for index in indices.tolist()),
        points=None if found.points is None else found.points[indices],
    )
