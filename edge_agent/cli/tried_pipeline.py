"""The pipeline that `try` runs: the frame path of `run`, without a broker or agent."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..config.load import load
from ..config.settings import Pipeline, SecondStage, Settings, parse_route
from ..core.errors import UsageError
from ..core.types import Outcome, Sample
from ..inference.model import Model, load_model
from ..rules.event import Event, payload
from ..rules.rule_engine import RuleEngine
from ..rules.totals import LineTotals
from ..runtime.pipelines.capture import masks_of
from ..runtime.pipelines.frame_path import FramePath
from ..runtime.pipelines.second_stage import whole
from ..runtime.pipelines.sinks import Shape
from ..serving.reference_check import attach_check
from .lineup import engines_for
from .terminal import count_words, event_sentence


def read_pipeline(file: str) -> tuple[Settings, Pipeline]:
    """Return the settings of a file, and their first pipeline."""
    settings = load(Path(file))
    if not settings.pipelines:
        raise UsageError(f"{file}: names no pipeline whose filters and rules could be tried")
    return settings, settings.pipelines[0]


def load_second_stages(
    settings: Settings | None, pipeline: Pipeline
) -> list[tuple[SecondStage, Model]]:
    """Load the second stages of a pipeline, from the same places as `run`."""
    if settings is None or not pipeline.then:
        return []
    from ..serving.loader import open_library, open_store

    library = open_library(settings, open_store(settings, make=False))
    loaded = []
    for stage in pipeline.stages:
        arm = parse_route(stage.model)[0]
        folder = library.find(arm.name, arm.version)
        model = load_model(folder, engines_for(folder.network), "picture")
        attach_check(model, "picture")
        loaded.append((stage, model))
    return loaded


class TriedPipeline:
    """Takes the frames of one source along the same path as `run`."""

    def __init__(
        self,
        pipeline: Pipeline,
        seconds: Sequence[tuple[SecondStage, Model]] = (),
        *,
        apart: float | None,
    ) -> None:
        self._pipeline = pipeline
        self._seconds = seconds
        self._masks = masks_of(pipeline)
        self.said: deque[str] = deque()
        """Events, and errors of second stages, as sentences, oldest first; removed by the code that
        shows them."""
        self._totals = LineTotals(None)
        names = itertools.count(1)
        self._engine: RuleEngine | None = None
        if pipeline.needs_rule_engine:
            self._engine = RuleEngine(
                pipeline,
                apart=apart,
                name_event=lambda: f"try-{next(names)}",
                emit=self._emit,
                totals=self._totals,
            )
        self.path = FramePath(pipeline, self._engine)

    def infer(self, model: Model, sample: Sample) -> tuple[Sample, Outcome]:
        """Return the sample with its masks, and the outcome that `run` would publish."""
        if self._masks is not None and sample.picture:
            sample = replace(sample, data=self._masks.apply(sample.data), early=None)
        outcome = self.path.infer(model, sample, self._seconds)
        self.said += [
            f"a second stage has failed: {second.error}"
            for second in whole(outcome.then)
            if second.error is not None
        ]
        return sample, outcome

    def shapes(self) -> Sequence[Shape]:
        """Return zones and lines with their counts, to be drawn."""
        return () if self._engine is None else self._engine.shapes()

    def counts(self) -> str:
        """Return the counts as text; empty without zones or lines."""
        if self._engine is None or not (self._pipeline.zones or self._pipeline.lines):
            return ""
        lines = self._totals.of([line.name for line in self._pipeline.lines])
        return count_words({"zones": self._engine.counts(), **lines})

    def _emit(self, events: Sequence[Event]) -> None:
        for event in events:
            said = payload(event, "", "")
            self.said.append(f"{said['time'][11:23]} {event_sentence(said)}")
