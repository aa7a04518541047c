"""A pipeline: one source, one or more models, and its sinks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from ...config.settings import Pipeline as PipelineSettings
from ...config.settings import SecondStage
from ...core.threads import ThreadGroup
from ...core.types import Sample
from ...inference.model import Model
from ...inference.statistics import Cost
from ...models.decoders import threshold_troubles
from ...serving.active import Serving
from ...sources.spec import SourceSpec
from ..scheduler.board import FrameQueue
from .capture import Capture
from .route import PipelineRoute
from .sinks import Shape, Stream
from .snapshots import Snapshots
from .status import Common, FrameErrors, SourceStatus

if TYPE_CHECKING:
    from ...sources.continuity import Counts

SIGNAL_ROOM = 256
"""Windows of a live signal: each has unique data, and a message may complete many."""
LOSSLESS_ROOM = 4
"""Enough to keep two lanes busy while the source decodes the next."""
RECORDED_ROOM = 16
"""Windows of a recording: most are small, and half of them come at a time."""


def beyond_scores(
    servings: Iterable[Serving], threshold: float | None, by_label: Mapping[str, float]
) -> str | None:
    """Return why no result of a model can reach one of these thresholds; None: some can."""
    for model in (serving.model for serving in servings if serving.model is not None):
        for key, why in threshold_troubles(model.manifest.task, threshold, by_label):
            return f"{key} for {model.id}: {why}"
    return None


def _room(spec: SourceSpec) -> int:
    """Return how many captures may wait: only the newest of live pictures, several of signals."""
    if spec.kind == "signal":
        return RECORDED_ROOM if spec.lossless else SIGNAL_ROOM
    return LOSSLESS_ROOM if spec.lossless else 1


class Pipeline:
    """The parts of a pipeline, and its lifecycle.

    A frame goes from `Capture` to the board's queue; a lane then takes it along the
    `PipelineRoute` through the models to the sinks.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        spec: SourceSpec,
        servings: list[Serving],
        seconds: list[tuple[SecondStage, Serving]],
        common: Common,
    ) -> None:
        """Build the parts, with one of *servings* per arm; `start` opens the source."""
        self._common = common
        self.settings = settings
        self.spec = spec
        self.servings = servings
        self.seconds = seconds
        self.errors = FrameErrors(settings.name)
        self.source = SourceStatus(settings, common)
        self.stream = Stream(settings.name, settings.qos, spec.lossless)
        self.snapshots = Snapshots(settings, self.stream, common.sinks, self.errors)
        common.sinks.open(self.stream)
        self._threads: ThreadGroup | None = None
        self._route = PipelineRoute(
            settings,
            servings,
            seconds,
            common,
            stream=self.stream,
            snapshots=self.snapshots,
            errors=self.errors,
            stage=common.stages(settings, spec, running=False),
        )
        self.source.on_gone = self._lose
        self.snapshots.shapes = self._shapes
        self.queue: FrameQueue[Model] = FrameQueue(
            settings.name,
            self._route,
            room=_room(spec),
            lossless=spec.lossless,
            priority=settings.priority,
            deadline=settings.deadline_ms / 1e3,
            cost=Cost() if seconds else None,
        )
        self._capture = Capture(
            settings,
            spec,
            self.queue,
            servings,
            common,
            region=self._route.path.region,
            wait_credit=partial(common.sinks.wait_credit, self.stream),
            snapshots=self.snapshots,
            status=self.source,
            errors=self.errors,
        )
        self._capture.pictures.on_still = self._stay
        self._capture.pictures.unsettled = self._unsettled

    # Lifecycle

    def start(self, threads: ThreadGroup) -> None:
        """Start capturing."""
        self._threads = threads
        self._common.board.add(self.queue)
        if self.settings.enabled:
            self._capture.start(threads)
        else:
            self.source.switch(enabled=False)

    def expect(self, more: int) -> None:
        """Have the connection expect the source, and keep what is held for it; -1: no more."""
        if self.spec.topic is not None:
            self._common.client.feeds.expect(self.spec.topic, more, held=self.spec.held)

    def apply(self, settings: PipelineSettings) -> None:
        """Apply settings that differ from the present ones in live keys, losing no frame."""
        before, self.settings = self.settings, settings
        if settings.enabled != before.enabled:
            self.expect(1 if settings.enabled else -1)
        stage = self._route.path.stage
        if not before.has_rules_of(settings):
            stage = self._common.stages(settings, self.spec, running=True)
        self._route.path.apply(settings, stage)
        self._capture.apply(settings)
        self.snapshots.apply(settings)
        if settings.enabled != before.enabled and self._threads is not None:
            if not settings.enabled:
                self._capture.halt()
            self.source.switch(enabled=settings.enabled)
            if settings.enabled:
                self._capture.start(self._threads)

    def halt(self) -> None:
        """Stop capturing."""
        self._capture.halt()

    def stop(self) -> None:
        """Stop capturing, discard waiting captures, and deliver what is in the lanes."""
        self._capture.halt()
        self._common.board.remove(self.queue)
        self._common.board.end_results([self.queue])
        self._common.sinks.close(self.stream)

    def _lose(self, switched_off: bool) -> None:
        """End the tracks and events that span results."""
        stage = self._route.path.stage
        if stage is not None:
            stage.source_lost(switched_off=switched_off, at=time.monotonic())

    def _stay(self, sample: Sample) -> None:
        """Advance the time of rules and tracks that span results."""
        stage = self._route.path.stage
        # Otherwise a result of an earlier scene is still in progress.
        if stage is not None and self.queue.at_rest:
            stage.advance_time(sample)

    def _unsettled(self) -> bool:
        stage = self._route.path.stage
        return stage is not None and stage.unsettled

    def _shapes(self) -> Sequence[Shape]:
        stage = self._route.path.stage
        return () if stage is None else stage.shapes()

    def watch(self, threads: ThreadGroup) -> None:
        """Replace a capture thread that hangs; called about once per second."""
        self._capture.watch(threads)

    # Read and changed by others

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def served(self) -> bool:
        """Whether all models that it needs are loaded."""
        everyone = [*self.servings, *(serving for _, serving in self.seconds)]
        return all(serving.model is not None or serving.lazy for serving in everyone)

    @property
    def state(self) -> str | None:
        """The source's state: running, lost, ended or off; None: not opened yet."""
        return self.source.state

    @property
    def error(self) -> str | None:
        """Why the source is lost."""
        return self.source.error

    @property
    def counts(self) -> Counts | None:
        """Counters of a live signal, or None if its source is something else."""
        return self._capture.counts

    @property
    def silent_since(self) -> float:
        """Since when its sensor says nothing because nothing changes, monotonic seconds.

        That is so for at most `gap_s`, and only where no reading is left out, refused, or gathered
        with others to be sent later. Minus infinity: it is not so.
        """
        latest, gap_s = self.stream.latest, self.spec.options.get("gap_s")
        if not self.settings.tells_each_reading or gap_s is None:
            return -inf
        error_at = -inf if self.errors.latest is None else self.errors.latest[0]
        refused = max(error_at, self.errors.quiet_at) > latest
        if refused or self.stream.together or time.monotonic() - latest > gap_s:
            return -inf
        running = self.spec.live and self.state == "running" and self.queue.at_rest
        return latest if running and self.rate is None else -inf

    @property
    def camera(self) -> str | None:
        """The camera's trouble; empty if there is none, None if it is not known."""
        return self._capture.pictures.camera if self.state == "running" else None

    @property
    def drift(self) -> dict[str, Any] | None:
        """Drift of inputs and scores from the usual, or None if nothing is known yet."""
        return self._route.path.drift.report()

    @property
    def rate(self) -> float | None:
        """Most captures per second."""
        return self._capture.rate.most

    @property
    def threshold(self) -> float | None:
        """Lowest score of a result; None: the manifest's."""
        return self._route.path.threshold

    @threshold.setter
    def threshold(self, threshold: float | None) -> None:
        self._route.path.threshold = threshold
        self._capture.pictures.look_again()

    @property
    def lowest(self) -> float | None:
        """The threshold in effect: the settings' or else the manifest's.

        None: it is unknown, being learned, or has no effect.
        """
        if self.threshold is not None:
            return self.threshold
        model = next((serving.model for serving in self.servings if serving.model), None)
        return None if model is None else self._route.path.lowest(model)

    def doubts(self) -> list[str]:
        """List which of its settings have no effect with its models, one line each."""
        from ...config.lint import lint_pipeline
        from ...config.surroundings import Surroundings

        common = self._common
        around = Surroundings(
            size=self.source.size, reads=common.client.feeds.wants, device=common.identity.device
        )
        models = [each.model for each in self.servings]
        seconds = [serving.model for _, serving in self.seconds]
        return lint_pipeline(
            self.settings,
            [None if model is None else model.folder for model in models],
            [None if model is None else model.folder for model in seconds],
            around,
        )

    def split_problem(self) -> str | None:
        """Return why a model gets none of the frames that are split; None: all get theirs."""
        models = [serving.model.manifest for serving in self.servings if serving.model is not None]
        if len(models) < 2:
            return None
        from ...inference.preprocess.windowing import split_troubles

        return next(iter(split_troubles(models)), None)

    def threshold_problem(self) -> str | None:
        """Return why no result of its models can reach a threshold; None: some can."""
        first = beyond_scores(self.servings, self.threshold, self.settings.thresholds)
        stages = (beyond_scores([each], stage.threshold, {}) for stage, each in self.seconds)
        return first or next(filter(None, stages), None)
