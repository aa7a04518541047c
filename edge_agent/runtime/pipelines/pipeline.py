"""One source through one model: which model, and what a lane does with a frame."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from ...config.settings import Pipeline as PipelineSettings
from ...config.settings import SecondStage
from ...core.errors import AgentError, EngineError, ModelError, SampleError
from ...core.threads import Crew
from ...core.types import Array, Detections, Findings, Outcome, Request, Sample, Second
from ...inference.cost import Cost
from ...inference.model import Model, Region
from ...models.manifest import threshold_trouble
from ...mqtt import payloads
from ...mqtt.client import Channel, Client, Message
from ...sources.source import SourceContext
from ...sources.spec import SourceSpec
from ..scheduler.board import Board, Job, Slot
from ..serving.active import Serving
from .capture import Capture, Identity

__all__ = ["Identity", "Pipeline"]

log = logging.getLogger(__name__)

LOSSLESS_ROOM = 4
"""Enough to keep two lanes busy while the source decodes the next."""
SNAPSHOT_SECONDS = 2.0
"""A snapshot that was asked for waits so long for a frame that is not dropped by its deadline."""


class Pipeline:
    """A pipeline at work."""

    def __init__(
        self,
        settings: PipelineSettings,
        spec: SourceSpec,
        servings: list[Serving],
        seconds: list[tuple[SecondStage, Serving]],
        *,
        identity: Identity,
        board: Board[Model],
        client: Client,
        wake: Callable[[Serving], None] = lambda _serving: None,
        context: SourceContext | None = None,
    ) -> None:
        self._wake = wake
        """Loads a model that is needed now; returns when it is there, or cannot be loaded."""
        self.settings = settings
        self.spec = spec
        self.servings = servings
        self.seconds = seconds
        self.threshold = settings.threshold
        self.snapshot_wanted = False
        self._wanted_since: tuple[float, int] | None = None
        """When the first frame came that it could be made of, and how many were late before."""
        self.latency_ms: deque[float] = deque(maxlen=1000)
        self.last_problem: tuple[float, str] | None = None
        """When and why a frame was last dropped by an error."""
        self._identity = identity
        self._board = board
        self._client = client
        self._topic = identity.topics.result(settings.name)
        self._region: Region | None = None
        if any(settings.roi):
            x1, y1, x2, y2 = settings.roi
            self._region = (x1, y1, x2, y2)
        # Its own: others split their frames between the same models otherwise.
        self._shares = [arm.weight for arm in settings.arms]
        self._credit = [0] * len(servings)
        self._loaded = False
        """Every model has been loaded once, or could not be."""
        self.slot: Slot[Model] = Slot(
            settings.name,
            room=LOSSLESS_ROOM if spec.lossless else 1,
            lossless=spec.lossless,
            priority=settings.priority,
            deadline=settings.deadline_ms / 1e3,
        )
        self.slot.cost = Cost() if seconds else None
        self.slot.pick = self._pick
        self.slot.taken = self._taken
        self.slot.work = self.process
        self.slot.ask = self._ask
        self.slot.tell = self._conclude
        self.channel: Channel = client.open_channel(
            settings.name, qos=settings.qos, lossless=spec.lossless
        )
        self._capture = Capture(
            settings.name,
            spec,
            self.slot,
            self.channel,
            servings,
            rate=settings.rate,
            motion=settings.motion,
            region=self._region,
            identity=identity,
            board=board,
            client=client,
            report=self._report,
            wanted=self._wanted,
            context=context,
        )

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def served(self) -> bool:
        """Whether every model that it needs is there."""
        everyone = [*self.servings, *(serving for _, serving in self.seconds)]
        return all(serving.model is not None or serving.lazy for serving in everyone)

    def _pick(self) -> Model | None:
        """Choose the model of the next frame: smooth weighted round robin over the arms."""
        if not self._loaded:
            # Every frame is split and looked at again as the settings say, the first ones too.
            everyone = [*self.servings, *(serving for _, serving in self.seconds)]
            self._loaded = not any(
                s.model is None and s.problem is None and not s.lazy for s in everyone
            )
            if not self._loaded:
                return None
        if len(self.servings) == 1:
            return self.servings[0].model
        best = self._best()
        return None if best is None else self.servings[best].model

    def _best(self) -> int | None:
        """Find the arm that is most behind its share; the same one until its turn is taken."""
        there = [index for index, serving in enumerate(self.servings) if serving.model is not None]
        return max(
            there,
            key=lambda index: self._credit[index] + self._shares[index],
            default=None,
        )

    def _taken(self) -> None:
        """Note that the next frame goes through the model that was picked."""
        if len(self.servings) == 1:
            return
        best = self._best()
        for index, serving in enumerate(self.servings):
            if serving.model is not None and best is not None:
                self._credit[index] += self._shares[index]
                self._credit[best] -= self._shares[index]

    def unfit(self) -> str | None:
        """Say why the threshold does not fit what its models find; None: it does."""
        thresholds = [(self.threshold, serving) for serving in self.servings]
        thresholds += [(stage.threshold, serving) for stage, serving in self.seconds]
        for threshold, serving in thresholds:
            model = serving.model
            if threshold is not None and model is not None:
                trouble = threshold_trouble(model.manifest.task, threshold)
                if trouble is not None:
                    return f"threshold for {model.id}: {trouble}"
        return None

    # Capture

    def start(self, crew: Crew) -> None:
        self._board.add(self.slot)
        self._capture.begin(crew)

    def stop(self) -> None:
        """Stop capturing and forget what waits."""
        self._capture.halt()
        self._board.remove(self.slot)
        self._client.close_channel(self.channel)

    def halt(self) -> None:
        """Stop capturing."""
        self._capture.halt()

    def watch(self, crew: Crew) -> None:
        """Give up on a camera that hangs."""
        self._capture.watch(crew)

    @property
    def state(self) -> str | None:
        """The source's: running, lost or ended; None: it has not been opened yet."""
        return self._capture.state

    @property
    def error(self) -> str | None:
        """Why it is lost."""
        return self._capture.error

    @property
    def rate(self) -> float | None:
        """Most captures a second."""
        return self._capture.rate

    def change_rate(self, rate: float) -> None:
        """Take another rate at once."""
        self._capture.change_rate(rate)

    # A lane's work

    def process(self, job: Job[Model]) -> None:
        """Infer, count, publish in order."""
        try:
            answer: Outcome | AgentError = job.model.infer(
                job.sample, threshold=self.threshold, region=self._region
            )
        except (SampleError, EngineError, ModelError) as problem:
            answer = problem
        self._conclude(job, answer)

    def _ask(self, job: Job[Model]) -> Request:
        """Say what is to be inferred, for a lane that infers several frames together."""
        return Request(job.sample, self.threshold, self._region)

    def _conclude(self, job: Job[Model], answer: Outcome | AgentError) -> None:
        """Look again at what was found, count, publish in order."""
        try:
            if isinstance(answer, AgentError):
                raise answer
            outcome = self._again(job.sample, answer)
        except (SampleError, EngineError, ModelError) as problem:
            job.model.errors += 1
            self._report(problem)
            self._board.finish(job, None)
            self._shadow(job, None)
            return
        self._identity.clock.take("first_inference", outcome.timing.infer_ms / 1e3)
        self._board.finish(job, lambda: self._deliver(job.sample, outcome))
        self._shadow(job, outcome)

    def _shadow(self, job: Job[Model], outcome: Outcome | None) -> None:
        """Let a candidate look at the same frame."""
        for serving in self.servings:
            shadow = serving.shadow  # taken away by another thread
            if shadow is not None and serving.model is job.model:
                shadow.compare(job.sample, outcome, self.threshold, self._region)

    def _again(self, sample: Sample, outcome: Outcome) -> Outcome:
        """Let the second stages look at what was found."""
        if not self.seconds or not isinstance(outcome.findings, Detections):
            return outcome
        from . import second_stage

        then: dict[str, Second] = {}
        for stage, serving in self.seconds:
            asleep = serving.lazy and serving.model is None and serving.problem is None
            if asleep and second_stage.concerns(stage, outcome.findings):
                self._wake(serving)
        with self._board.using(lambda: [serving.model for _, serving in self.seconds]) as models:
            for (stage, _), second in zip(self.seconds, models, strict=True):
                if second is not None:
                    then[stage.name] = second_stage.look(stage, second, sample, outcome.findings)
        return Outcome(outcome.model, outcome.engine, outcome.findings, outcome.timing, then)

    def _deliver(self, sample: Sample, outcome: Outcome) -> None:
        def encode(replayed: bool) -> bytes:
            age_ms = (time.monotonic() - sample.since) * 1e3
            payload = payloads.result(
                self._identity.device, self._identity.session, self.name, sample, outcome, age_ms
            )
            if replayed:
                payload["replayed"] = True
            wall = self._identity.wall
            if wall is not None and not wall.credible(sample.time_ns):
                payload["clock"] = payloads.UNSET
            return payloads.encode(payload)

        since = sample.since

        def sent(replayed: bool) -> None:
            if not replayed:
                self.latency_ms.append((time.monotonic() - since) * 1e3)
            self._identity.clock.published()

        self._client.publish_message(Message(self.channel, self._topic, encode, sent))
        if sample.picture and (self.settings.snapshot or self.snapshot_wanted):
            self._snapshot(sample.data, outcome.findings)

    def _wanted(self, picture: Array) -> bool:
        """Whether a snapshot was asked for, so that a frame is looked at though it is still.

        Where frames come only too late to be looked at, it is made of this one, without boxes.
        """
        if not self.snapshot_wanted:
            return False
        now, late = time.monotonic(), self.slot.account.dropped["deadline"]
        since, before = self._wanted_since = self._wanted_since or (now, late)
        if late > before and now - since > SNAPSHOT_SECONDS:
            self._snapshot(picture, None)
        return self.snapshot_wanted

    def _snapshot(self, data: Array, found: Findings | None) -> None:
        from .draw import annotate, jpeg

        self.snapshot_wanted, self._wanted_since = False, None
        try:
            picture = jpeg(data if found is None else annotate(data, found))
        except SampleError as problem:
            self._report(problem)
            return
        self._client.publish(self._identity.topics.snapshot(self.name), picture)

    def _report(self, problem: Exception) -> None:
        """Log a kind of error when it begins; how often it happens is in health."""
        text = str(problem)
        now = time.monotonic()
        if (
            self.last_problem is None
            or now - self.last_problem[0] > 60
            or self.last_problem[1] != text
        ):
            log.warning("%s: a frame is dropped: %s", self.name, text)
            self.last_problem = (now, text)
        else:
            self.last_problem = (now, self.last_problem[1])
