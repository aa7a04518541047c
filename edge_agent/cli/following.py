"""Tracks, zones, lines and rules for `try`: what a settings file says, without broker or agent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..config.load import load
from ..config.settings import Pipeline
from ..core.errors import UsageError
from ..core.types import Outcome, Sample
from ..inference.model import Model
from ..rules.event import Event, payload
from ..rules.rule_engine import RuleEngine
from ..rules.totals import LineTotals
from ..runtime.pipelines.filters import Filter
from ..runtime.pipelines.masks import Masks
from ..runtime.pipelines.overlay import Shape
from .event_words import count_words, event_sentence


def read_pipeline(file: str) -> Pipeline:
    """Return the first pipeline of a settings file.

    Raises:
        UsageError: the file is wrong, or has none.

    """
    settings = load(Path(file))
    if not settings.pipelines:
        raise UsageError(f"{file}: names no pipeline whose zones, lines and rules could be tried")
    return settings.pipelines[0]


class Follower:
    """Filters and follows the results of one source, as an agent would."""

    def __init__(self, pipeline: Pipeline, *, lossless: bool, say: Callable[[str], None]) -> None:
        """Begin with nothing seen.

        Args:
            pipeline: its settings; source and model in them do not matter.
            lossless: every picture is inferred.
            say: takes each event as a sentence.

        """
        self._pipeline = pipeline
        self._filter = Filter(pipeline)
        self._masks = Masks(pipeline.masks) if pipeline.masks else None
        self._say = say
        self._totals = LineTotals(None)
        names = itertools.count(1)
        self._engine = RuleEngine(
            pipeline,
            lossless=lossless,
            name_event=lambda: f"try-{next(names)}",
            emit=self._emit,
            totals=self._totals,
        )

    def infer(self, model: Model, sample: Sample) -> tuple[Sample, Outcome]:
        """Return the sample with its masks, and what is found in it, tracks and zones included.

        Raises:
            SampleError: the sample does not fit.

        """
        if self._masks is not None and sample.picture:
            sample = replace(sample, data=self._masks.apply(sample.data), early=None)
        given = self._pipeline.threshold
        limit = model.threshold if given is None else given
        asked = [limit, self._filter.least, self._engine.tracking_score]
        outcome = model.infer(sample, threshold=min(each for each in asked if each is not None))
        found, weak = self._filter.split(outcome.findings, limit)
        outcome = self._engine.process(sample, replace(outcome, findings=found), weak)
        self._engine.result("try", sample, outcome)
        return sample, outcome

    def shapes(self) -> list[Shape]:
        """Return zones and lines with their counts, to be drawn."""
        return self._engine.shapes()

    def counts(self) -> str:
        """Return the counts in words; empty: there are no zones or lines."""
        if not (self._pipeline.zones or self._pipeline.lines):
            return ""
        lines = self._totals.of([line.name for line in self._pipeline.lines])
        return count_words({"zones": self._engine.counts(), **lines})

    def _emit(self, event: Event) -> None:
        said = payload(event, "", "")
        self._say(f"{said['time'][11:23]} {event_sentence(said)}")
