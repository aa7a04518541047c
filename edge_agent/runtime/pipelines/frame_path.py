"""A frame's path through a pipeline: ask the model, filter, add second stages, decide, track.

The agent's lanes and `try` use the same path, so `try` shows what `run` publishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from ...config.settings import Pipeline as PipelineSettings
from ...config.settings import SecondStage, parse_route
from ...core.errors import AgentError
from ...core.names import READINGS
from ...core.types import (
    Anomaly,
    Array,
    Classes,
    Detections,
    Findings,
    Outcome,
    Request,
    Sample,
    Second,
    State,
    significant,
)
from ...inference.model import Model
from ...inference.preprocess.placement import Region
from ...models.decoders import WITHOUT_THRESHOLD
from .drift import Drift
from .learned import Decisions, LearnedValues
from .second_stage import add
from .sinks import ResultStage


class FramePath:
    """The path of one pipeline's frames, from a sample to the outcome for its sinks.

    `request` and `filter` may be called for several frames at a time; `decide`, `follow` and
    `learn` in the order of capture, one frame at a time.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        stage: ResultStage | None,
        learned: LearnedValues | None = None,
    ) -> None:
        """Start without results; *learned* None: learned values are not kept."""
        self.stage = stage
        """Replaced as a whole while frames continue."""
        self.threshold = settings.threshold
        """Lowest score of a result; None: the manifest's."""
        self.region: Region | None = None
        """The part of a picture that the models get; None: all of it."""
        if any(settings.roi):
            x1, y1, x2, y2 = settings.roi
            self.region = (x1, y1, x2, y2)
        self._learned = learned
        self.drift = Drift(
            settings.name,
            learned.usual if learned else None,
            settings.source,
            self.region,
            self._content,
        )
        self.drift.look_at(_masks(settings))
        self._filter = Filter(settings)
        self._settings = settings
        self._decisions = self._make_decisions()
        self._of_stages: dict[str, Decisions] = {}
        """Of second stages whose threshold is learned, by their place."""
        self._state = State()
        """State of a stateful model between the windows of this pipeline."""

    def apply(self, settings: PipelineSettings, stage: ResultStage | None) -> None:
        """Use other settings from the next frame on."""
        self.threshold = settings.threshold
        self._filter = Filter(settings)
        self._settings = settings
        for decisions in (self._decisions, *list(self._of_stages.values())):
            decisions.look_at(_view(settings))
        self.drift.look_at(_masks(settings))
        self.stage = stage

    def _make_decisions(self, place: str = "") -> Decisions:
        """Make the decisions of the pipeline, or of the second stage at a place."""
        settings, learned = self._settings, self._learned.thresholds if self._learned else None
        given = learned, settings.source, _view(settings)
        if place:
            return Decisions(f"{settings.name}/{place}", *given, _crops(settings, place))
        return Decisions(settings.name, *given, arms=len(settings.arms) or 1)

    def _content(self, model: Model) -> str:
        """Return the digest of a model's files, of which something is learned."""
        return "" if self._learned is None else self._learned.content(model)

    def limit(self, model: Model) -> float:
        """Return the lowest score of a result whose label has no separate threshold."""
        return model.threshold if self.threshold is None else self.threshold

    def lowest(self, model: Model) -> float | None:
        """Return the threshold in effect for a model; None: none yet, or it has no effect."""
        spec = model.manifest.output
        if model.manifest.task in WITHOUT_THRESHOLD:
            return None
        if self.threshold is None and isinstance(spec.threshold, str):
            learned = self._decisions.learned(model.id, spec, self._content(model))
            return None if learned is None else significant(learned)
        return self.limit(model)

    @property
    def _least(self) -> float | None:
        """Lowest score for which findings below the threshold are wanted, or None."""
        least, stage = self._filter.least, self.stage
        if stage is None or stage.tracking_score is None:
            return least
        return stage.tracking_score if least is None else min(least, stage.tracking_score)

    def infer(
        self, model: Model, sample: Sample, seconds: Iterable[tuple[SecondStage, Model]] = ()
    ) -> Outcome:
        """Run one frame along the whole path, in the caller's thread.

        Raises:
            SampleError, EngineError, ModelError: the first model failed.
        """
        answer = model.answer(self.request(sample))
        if isinstance(answer, AgentError):
            raise answer
        filtered, weak = self.filter(model, answer)
        filtered = add(filtered, sample, model, seconds)
        outcome = self.decide(model, sample, filtered)
        if self.stage is not None:
            outcome = self.stage.process(sample, outcome, weak)
            self.learn(model, sample, filtered.findings)  # here only rules use it
        return outcome

    def request(self, sample: Sample) -> Request:
        """Return the request for the model, with the current threshold."""
        return Request(sample, self.threshold, self.region, self._state, self._least)

    def filter(self, model: Model, answer: Outcome) -> tuple[Outcome, Detections | None]:
        """Drop unwanted findings; return the rest and the detections that are only too weak."""
        if not self._filter and self._least is None:
            return answer, None
        found, weak = self._filter.split(answer.findings, self.limit(model))
        return replace(answer, findings=found), weak

    def decide(self, model: Model, sample: Sample, outcome: Outcome) -> Outcome:
        """Return the outcome to report: smoothed, with the learned threshold applied."""
        spec = model.manifest.output
        learns = isinstance(spec.threshold, str) and self.threshold is None
        outcome = self._decisions.decide(
            outcome,
            spec,
            follows=sample.follows,
            override=self.threshold,
            content=self._content(model) if learns else "",
        )
        if outcome.then:
            outcome = replace(outcome, then=self._decide_stages(outcome.then))
        if self.stage is None:
            return outcome
        return replace(outcome, drift=self.drift.indices, camera=sample.camera)

    def _decide_stages(self, then: Mapping[str, Second], above: str = "") -> dict[str, Second]:
        """Apply the learned thresholds of second stages; each crop is a window to learn from."""
        made = {}
        for name, second in then.items():
            place, model, found = f"{above}{name}", second.by, second.found
            if isinstance(model, Model) and isinstance(model.manifest.output.threshold, str):
                found = tuple(self._judge(each, place, model) for each in found)
            below = self._decide_stages(second.then, f"{place}/") if second.then else {}
            made[name] = replace(second, found=found, then=below)
        return made

    def _judge(self, found: Findings | None, place: str, model: Model) -> Findings | None:
        """Apply a learned threshold to what a second stage has found in one crop."""
        if not isinstance(found, Anomaly) or found.threshold is not None:
            return found  # it has a threshold of its own
        decisions = self._of_stages.get(place)
        if decisions is None:
            decisions = self._of_stages[place] = self._make_decisions(place)
        return decisions.judge(found, model.manifest.output, model.id, self._content(model))

    def learn(self, model: Model, sample: Sample, found: Findings) -> None:
        """Measure the drift of inputs and scores from the findings before any decision."""
        if model.id != READINGS:  # for a sensor, the usual values are up to a model
            self.drift.follow(model, sample, found, self.limit(model))

    def asked_of_candidates(self, model: Model, outcome: Outcome) -> Outcome:
        """Return an outcome without the findings requested only for tracks and labels."""
        if self._least is None:
            return outcome
        return replace(outcome, findings=outcome.findings.above(self.limit(model)))


def _view(settings: PipelineSettings) -> str:
    """Return what part of its pictures a pipeline's models see."""
    return f"{[*map(float, settings.roi)]} {_masks(settings)}"


def _crops(settings: PipelineSettings, place: str) -> str:
    """Return what decides which crops the second stage at a place is given."""
    told, above, stages = [], settings.arms, settings.then
    for name in place.split("/"):
        stage = next(each for each in stages if each.name == name)
        # A new version of the model above finds the same things.
        told.append(
            (sorted({arm.name for arm in above}), sorted(stage.labels), float(stage.margin))
        )
        above, stages = parse_route(stage.model), stage.then
    return str(told)


def _masks(settings: PipelineSettings) -> str:
    """Return its masks as a text, the same for 0 and 0.0; empty: it has none."""
    masks = [[(float(x), float(y)) for x, y in area] for area in settings.masks]
    return str(masks) if masks else ""


class Filter:
    """Drops findings that the settings exclude. Immutable: new settings need a new filter."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._labels = frozenset(settings.labels)
        self._thresholds = dict(settings.thresholds)
        width, height = settings.min_box
        self._min_box = (width, height) if width or height else None
        self.least = min(self._thresholds.values(), default=None)
        """Lowest score to ask a model for, or None if nothing below the threshold is needed."""

    def __bool__(self) -> bool:
        """Whether it can drop anything."""
        return bool(self._labels or self._thresholds or self._min_box)

    def kept(self, found: Findings, threshold: float) -> Findings:
        """Return the findings that pass; *threshold* is for labels without a separate one."""
        return self.split(found, threshold)[0]

    def split(self, found: Findings, threshold: float) -> tuple[Findings, Detections | None]:
        """Return the findings that pass, and detections that fail only by score; see `kept`."""
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
        # The same comparison as in the decoder, in the precision of the scores.
        sure = np.asarray(found.scores, np.float32) >= limits
        keep = wanted & sure
        if keep.all():
            return found, None
        passing = found.select(np.flatnonzero(keep))
        weak = np.flatnonzero(wanted & ~sure)
        if isinstance(found, Classes) or not weak.size:
            return passing, None
        return passing, found.select(weak)
