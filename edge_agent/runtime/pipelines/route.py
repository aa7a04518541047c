"""The route of a pipeline's frames: which model, what is asked of it, and where results go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ...config.settings import Pipeline as PipelineSettings
from ...config.settings import SecondStage
from ...core.containment import contained, reason
from ...core.errors import AgentError
from ...core.timeline import Timeline
from ...core.types import Detections, Outcome, Request, Sample, Second, State
from ...inference.model import Model, Region
from ..scheduler.board import Board, Job
from ..serving.active import Serving
from .decisions import Decisions
from .drift import Drift
from .filters import Filter, above
from .learned import LearnedValues
from .sinks import ResultStage, Sink, Sinks, Stream
from .snapshots import Snapshots
from .status import FrameErrors


class PipelineRoute:
    """Splits frames between the arms, adds second stages and shadows, calls the sinks."""

    def __init__(
        self,
        settings: PipelineSettings,
        servings: Sequence[Serving],
        seconds: Sequence[tuple[SecondStage, Serving]],
        *,
        board: Board[Model],
        stream: Stream,
        sinks: Sinks,
        snapshots: Snapshots,
        errors: FrameErrors,
        timeline: Timeline,
        load: Callable[[Serving], None],
        stage: ResultStage | None = None,
        learned: LearnedValues | None = None,
    ) -> None:
        """Build the route of one pipeline.

        Args:
            settings: the pipeline's.
            servings: its models, one for each arm.
            seconds: its second stages and their models.
            board: counts and orders what is completed.
            stream: its results.
            sinks: take them, in the order of capture.
            snapshots: makes pictures of them.
            errors: records why frames are dropped.
            timeline: measures the start.
            load: loads a model that is needed now; returns when it is there, or cannot be loaded.
            stage: adds to results before the sinks take them.
            learned: keeps what is learned; None: it is not kept.

        """
        self.threshold = settings.threshold
        self.filter = Filter(settings)
        """Replaced as a whole while frames go on."""
        self.stage = stage
        """Replaced while frames go on, too."""
        self.region: Region | None = None
        """Of a picture, all that the models get; None: the whole."""
        if any(settings.roi):
            x1, y1, x2, y2 = settings.roi
            self.region = (x1, y1, x2, y2)
        self._name = settings.name
        self._servings = servings
        self._seconds = seconds
        self._board = board
        self._stream = stream
        self._sinks = sinks
        self._snapshots = snapshots
        self._errors = errors
        self._timeline = timeline
        self._load = load
        # Its own: others split their frames between the same models otherwise.
        self._weights = [arm.weight for arm in settings.arms]
        self._credit = [0] * len(servings)
        self._decisions = Decisions(settings.name, learned.thresholds if learned else None)
        self.drift = Drift(
            settings.name, learned.usual if learned else None, settings.source, self.region
        )
        """Of the first model, where frames are split."""
        self._state = State()
        """What a model has found so far in this pipeline's windows, where it has a state."""
        self._loaded = False
        """Every model has been loaded once, or could not be."""

    def apply(self, settings: PipelineSettings, stage: ResultStage | None) -> None:
        """Ask and filter by other settings, from the next frame on."""
        self.threshold = settings.threshold
        self.filter = Filter(settings)
        self.stage = stage

    def lowest(self, model: Model) -> float | None:
        """Return the threshold that holds for a model; None: it is being learned."""
        spec = model.manifest.output
        if self.threshold is None and isinstance(spec.threshold, str):
            return self._decisions.learned(model.id, spec)
        return self._limit(model)

    # Before inference

    def choose(self) -> Model | None:
        """Choose the model of the next frame: smooth weighted round robin over the arms."""
        if not self._loaded:
            # Every frame goes through all arms and stages of the settings, the first ones too.
            everyone = [*self._servings, *(serving for _, serving in self._seconds)]
            self._loaded = not any(
                s.model is None and s.problem is None and not s.lazy for s in everyone
            )
            if not self._loaded:
                return None
        if len(self._servings) == 1:
            return self._servings[0].model
        arm = self._arm()
        return None if arm is None else self._servings[arm].model

    def _arm(self) -> int | None:
        """Find the arm that is most behind its weight; the same one until `advance`."""
        there = [index for index, serving in enumerate(self._servings) if serving.model is not None]
        return max(
            there,
            key=lambda index: self._credit[index] + self._weights[index],
            default=None,
        )

    def advance(self) -> None:
        """Charge the chosen arm with a frame."""
        if len(self._servings) == 1:
            return
        arm = self._arm()
        for index, serving in enumerate(self._servings):
            if serving.model is not None and arm is not None:
                self._credit[index] += self._weights[index]
                self._credit[arm] -= self._weights[index]

    def request(self, sample: Sample) -> Request:
        """Return what is asked of the model, by the threshold of the moment."""
        return Request(sample, self.threshold, self.region, self._state, self._least)

    @property
    def _least(self) -> float | None:
        """What is asked for below the threshold; None: nothing."""
        least, stage = self.filter.least, self.stage
        if stage is None or stage.tracking_score is None:
            return least
        return stage.tracking_score if least is None else min(least, stage.tracking_score)

    # After inference

    def complete(self, job: Job[Model], answer: Outcome | AgentError) -> None:
        """Run the second stages, count, hand the result over in order."""
        try:
            if isinstance(answer, AgentError):
                raise answer
            outcome, weak = self._filtered(job.model, answer)
            outcome = self._add_second_stages(job.sample, outcome)
        except AgentError as problem:
            job.model.errors += 1
            self._errors.record(problem)
            self._board.finish(job, None)
            self._shadow(job, None)
            return
        self._timeline.record("first_inference", outcome.timing.infer_ms / 1e3)
        self._board.finish(job, partial(self._deliver, job.model, job.sample, outcome, weak))
        self._shadow(job, answer)

    def _filtered(self, model: Model, answer: Outcome) -> tuple[Outcome, Detections | None]:
        """Leave out what the settings do not want; what is only too weak is returned beside it."""
        if not self.filter and self._least is None:
            return answer, None
        found, weak = self.filter.split(answer.findings, self._limit(model))
        return replace(answer, findings=found), weak

    def _limit(self, model: Model) -> float:
        """Return the lowest score of a result, where its label has none of its own."""
        return model.threshold if self.threshold is None else self.threshold

    def _add_second_stages(self, sample: Sample, outcome: Outcome) -> Outcome:
        """Run the second stages on what was found."""
        if not self._seconds or not isinstance(outcome.findings, Detections):
            return outcome
        from . import second_stage

        then: dict[str, Second] = {}
        for stage, serving in self._seconds:
            unloaded = serving.lazy and serving.model is None and serving.problem is None
            if unloaded and second_stage.concerns(stage, outcome.findings):
                self._load(serving)
        with (
            contained(self._name),
            self._board.using(lambda: [serving.model for _, serving in self._seconds]) as models,
        ):
            for (stage, _), model in zip(self._seconds, models, strict=True):
                if model is not None:
                    then[stage.name] = second_stage.infer(stage, model, sample, outcome.findings)
        return Outcome(outcome.model, outcome.engine, outcome.findings, outcome.timing, then)

    def _deliver(
        self, model: Model, sample: Sample, outcome: Outcome, weak: Detections | None
    ) -> None:
        """Decide, call stage and sinks, follow drift; the board does so in the order of capture.

        One that raises has not taken the result, which is counted; the others get it, and the lane
        goes on.
        """
        found = outcome.findings
        outcome = self._decisions.decide(
            outcome, model.manifest.output, follows=sample.follows, override=self.threshold
        )
        stage = self.stage
        if stage is not None:
            outcome = replace(outcome, drift=self.drift.indices)
            try:
                outcome = stage.process(sample, outcome, weak)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is the stage's
                self._errors.record_sink(type(stage).__name__, reason(problem))
        if self._stream.began is None:
            self._stream.began = time.monotonic()
        takers: tuple[Sink | Snapshots, ...] = (*self._sinks.all, self._snapshots)
        for taker in takers:
            self._give(taker, partial(taker.result, self._stream, sample, outcome))
        if stage is not None:
            self._give(stage, partial(stage.result, self._name, sample, outcome))
        if model is self._servings[0].model:
            self.drift.follow(model, sample, found, self._limit(model))

    def _give(self, taker: object, take: Callable[[], None]) -> None:
        try:
            take()
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is the sink's
            self._errors.record_sink(type(taker).__name__, reason(problem))

    def _shadow(self, job: Job[Model], outcome: Outcome | None) -> None:
        """Hand the frame to a candidate, which infers and compares: before any filter."""
        for serving in self._servings:
            shadow = serving.shadow  # taken away by another thread
            if shadow is not None and serving.model is job.model:
                if outcome is not None and self._least is not None:
                    # More was asked of the model that serves than is asked of the candidate.
                    found = above(outcome.findings, self._limit(job.model))
                    outcome = replace(outcome, findings=found)
                shadow.compare(job.sample, outcome, self.threshold, self.region)
