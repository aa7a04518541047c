"""Filters of what a model has found: labels, thresholds of labels, smallest box."""

from __future__ import annotations

import numpy as np

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
        """What a model has to be asked for, at least, or None if nothing below the threshold."""

    def __bool__(self) -> bool:
        """Whether anything can be left out."""
        return bool(self._labels or self._thresholds or self._min_box)

    def kept(self, found: Findings, threshold: float) -> Findings:
        """Return what passes.

        Args:
            found: detections or classes; anything else passes.
            threshold: lowest score of a label that has none of its own.
        """
        return self.split(found, threshold)[0]

    def split(self, found: Findings, threshold: float) -> tuple[Findings, Detections | None]:
        """Return what passes, and which detections pass but for their score; see `kept`."""
        if not isinstance(found, Detections | Classes):
            return found, None
        wanted = np.ones(len(found.labels), bool)
        if self._labels:
            wanted = np.fromiter((label in self._labels for label in found.labels), bool)
        limits: Array = np.full(len(found.labels), threshold, np.float32)
        if self._thresholds:
            own = [self._thresholds.get(label, threshold) for label in found.labels]
            limits = np.asarray(own, np.float32)
        if isinstance(found, Detections) and self._min_box is not None and len(found):
            sides = found.boxes[:, 2:] - found.boxes[:, :2]
            wanted &= (sides >= self._min_box).all(axis=1)
        # The decoder's own comparison, in the scores' precision.
        sure = np.asarray(found.scores, np.float32) >= limits
        keep = wanted & sure
        if keep.all():
            return found, None
        passing = found.select(np.flatnonzero(keep))
        weak = np.flatnonzero(wanted & ~sure)
        if isinstance(found, Classes) or not weak.size:
            return passing, None
        return passing, found.select(weak)
