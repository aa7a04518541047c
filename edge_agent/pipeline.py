"""One source through one model: the capture side, and what a lane does with a frame."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import wire
from .board import Board, Job, Slot
from .crew import Crew
from .errors import AgentError, EngineError, ModelError, SampleError, SourceError
from .link import Backoff, Channel, Link, Parcel
from .model import Model, Region
from .record import record
from .records import Array, Detections, Findings, Outcome, Reading, Request, Sample
from .serving import Serving
from .settings import Pipeline as PipelineSettings
from .settings import SecondStage
from .sources import Source, SourceSpec, open_source
from .start.clock import Clock
from .wallclock import WallClock

if TYPE_CHECKING:
    from .motion import MotionGate
    from .window import Windower

log = logging.getLogger(__name__)

LOSSLESS_ROOM = 4
"""Enough to keep two lanes busy while the source decodes the next."""
STALL_SECONDS = 10.0
"""A camera that gives nothing for so long is given up on."""
OPEN_SECONDS = 30.0
STUCK_READS = 4
"""Reads that may be stuck in a driver at a time before no new one is begun."""
SOURCE_STABLE = 10.0


@record
class Identity:
    """Who publishes."""

    device: str
    session: str
    topics: wire.Topics
    clock: Clock
    wall: WallClock | None = None
    """Judges the times that results bear; None: they are taken as they are."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One capture thread; it may get stuck in a driver and be left behind."""

    closing: threading.Event = field(default_factory=threading.Event)
    beat: float = field(default_factory=time.monotonic)
    """When it last gave a sign of life."""
    limit: float = OPEN_SECONDS
    began: float = field(default_factory=time.monotonic)
    thread: threading.Thread | None = None


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
        link: Link,
        wake: Callable[[Serving], None] = lambda _serving: None,
    ) -> None:
        self._wake = wake
        """Loads a model that is needed now; returns when it is there, or cannot be loaded."""
        self.settings = settings
        self.spec = spec
        self.servings = servings
        self.seconds = seconds
        self.threshold = settings.threshold
        self.rate = settings.rate
        self.snapshot_wanted = False
        self.state: str | None = None
        self.error: str | None = None
        self.latency_ms: deque[float] = deque(maxlen=1000)
        self.last_problem: tuple[float, str] | None = None
        """When and why a frame was last dropped by an error."""
        self._identity = identity
        self._board = board
        self._link = link
        self._topic = identity.topics.result(settings.name)
        self._region: Region | None = None
        if any(settings.roi):
            x1, y1, x2, y2 = settings.roi
            self._region = (x1, y1, x2, y2)
        self._gate: MotionGate | None = None
        self._credit = [0] * len(servings)
        self._loaded = False
        """Every model has been loaded once, or could not be."""
        self._due = 0.0
        self._attempt: Attempt | None = None
        self._stuck: list[Attempt] = []
        self.slot: Slot[Model] = Slot(
            settings.name,
            room=LOSSLESS_ROOM if spec.lossless else 1,
            lossless=spec.lossless,
            priority=settings.priority,
            deadline=settings.deadline_ms / 1e3,
        )
        self.slot.pick = self._pick
        self.slot.taken = self._taken
        self.slot.work = self.process
        self.slot.ask = self._ask
        self.slot.tell = self._conclude
        self.channel: Channel = link.channel(
            settings.name, qos=settings.qos, lossless=spec.lossless
        )

    @property
    def name(self) -> str:
        return self.settings.name

    def change_rate(self, rate: float) -> None:
        """Take another rate at once, however long the pause that the old one asked for."""
        self.rate = rate
        self._due = 0.0

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
            key=lambda index: self._credit[index] + self.servings[index].arm.weight,
            default=None,
        )

    def _taken(self) -> None:
        """Note that the next frame goes through the model that was picked."""
        if len(self.servings) == 1:
            return
        best = self._best()
        for index, serving in enumerate(self.servings):
            if serving.model is not None and best is not None:
                self._credit[index] += serving.arm.weight
                self._credit[best] -= serving.arm.weight

    # Capture: one thread each

    def start(self, crew: Crew) -> None:
        self._board.add(self.slot)
        self._begin(crew)

    def stop(self) -> None:
        """Stop capturing and forget what waits."""
        if self._attempt is not None:
            self._attempt.closing.set()
        self._board.remove(self.slot)
        self._link.drop_channel(self.channel)

    def halt(self) -> None:
        """Stop capturing."""
        if self._attempt is not None:
            self._attempt.closing.set()

    def _begin(self, crew: Crew) -> None:
        attempt = Attempt()
        self._attempt = attempt
        attempt.thread = crew.spawn(f"capture-{self.name}", lambda: self._capture(attempt))

    def watch(self, crew: Crew) -> None:
        """Give up on a camera that hangs in its driver, where no time-out helps (opencv#22677)."""
        attempt = self._attempt
        self._stuck = [
            old for old in self._stuck if old.thread is not None and old.thread.is_alive()
        ]
        if attempt is None or attempt.closing.is_set() or not self.spec.live:
            return
        if time.monotonic() - attempt.beat < attempt.limit:
            return
        self._set_state("lost", f"gave nothing for {attempt.limit:.0f} s")
        if len(self._stuck) >= STUCK_READS:
            return
        attempt.closing.set()
        if attempt.thread is not None:
            crew.abandon(attempt.thread)
            self._stuck.append(attempt)
        self._begin(crew)

    def _capture(self, attempt: Attempt) -> None:
        """Keep the newest capture on the board, through every loss of the source."""
        backoff = Backoff(first=0.5, most=30.0)
        while not attempt.closing.is_set():
            began = time.monotonic()
            pause = backoff.pause()
            attempt.beat, attempt.limit = began, OPEN_SECONDS
            try:
                with closing(open_source(self.spec, attempt.closing)) as source:
                    attempt.limit = STALL_SECONDS
                    self._read(source, attempt)
                # Said after the last result, for those who wait for it.
                self._board.settled(self.slot, attempt.closing)
                if not attempt.closing.is_set():
                    self._set_state("ended", None)
                return
            except SourceError as problem:
                if attempt.closing.is_set():
                    return
                self._set_state("lost", str(problem))
            if time.monotonic() - began > SOURCE_STABLE:
                backoff.reset()
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline and not attempt.closing.wait(0.25):
                attempt.beat = time.monotonic()

    def _read(self, source: Source, attempt: Attempt) -> None:
        lossless = self.spec.lossless
        windows = _Windows(self) if source.kind == "signal" else None
        while not attempt.closing.is_set():
            if lossless and not self._link.ready(self.channel, attempt.closing):
                return
            # A signal is slowed down window by window.
            if lossless and windows is None and not self._pace(attempt):
                return
            attempt.beat = time.monotonic()
            if not source.grab():
                break
            if attempt.closing.is_set():
                return  # given up on, or gone, while the driver was stuck
            if self.state != "running":
                self._identity.clock.take("first_frame", time.monotonic() - attempt.began)
                self._set_state("running", None)
            if not lossless and not self._is_due(time.monotonic()):
                self._board.skip(self.slot, "rate")
                continue
            try:
                reading = source.retrieve()
            except SampleError as problem:
                self._board.skip(self.slot, "error")
                self._report(problem)
                if windows is not None:
                    windows.end()  # no window spans what is missing
                if lossless:
                    # A looped recording of nothing but damage must not spin.
                    attempt.closing.wait(0.005)
                continue
            if windows is not None:
                if not windows.put(reading, attempt):
                    return
            elif not self._put_picture(reading):
                return
        if windows is not None:
            windows.end()

    def _put_picture(self, reading: Reading) -> bool:
        if self.settings.motion and not self._moved(reading.data):
            self._board.skip(self.slot, "still")
            return True
        return self._board.put(
            self.slot,
            lambda seq: Sample(reading.data, seq, reading.time_ns, reading.since, reading.file),
        )

    def _moved(self, picture: Array) -> bool:
        if self._gate is None:
            from .motion import MotionGate

            self._gate = MotionGate()
        return self._gate.moved(picture)

    def _is_due(self, now: float) -> bool:
        """Whether `rate` allows another capture now."""
        if self.rate is None:
            return True
        period = 1.0 / self.rate
        if now < self._due:
            return False
        # Keeping to the grid makes the average exact; after a pause it starts anew.
        self._due = self._due + period if now - self._due < period else now + period
        return True

    def _pace(self, attempt: Attempt) -> bool:
        """Let `rate` slow a lossless source down; False when it shall stop."""
        # In small steps: `rate` may change meanwhile.
        while self.rate is not None and (pause := self._due - time.monotonic()) > 0:
            if attempt.closing.wait(min(pause, 0.5)):
                return False
        if self.rate is not None:
            self._due = max(self._due, time.monotonic()) + 1.0 / self.rate
        return True

    def _set_state(self, state: str, error: str | None) -> None:
        if (state, error) == (self.state, self.error):
            return
        self.state, self.error = state, error
        if state == "lost":
            log.warning("source of %s: %s", self.name, error)
        else:
            log.info("source of %s: %s", self.name, state)
        payload = {"schema": wire.SCHEMA, "state": state, "time": wire.iso(time.time_ns())}
        if error is not None:
            payload["error"] = error
        self._link.publish(
            self._identity.topics.source(self.name), wire.encode(payload), qos=1, retain=True
        )

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
                shadow.look(job.sample, outcome, self.threshold, self._region)

    def _again(self, sample: Sample, outcome: Outcome) -> Outcome:
        """Let the second stages look at what was found."""
        if not self.seconds or not isinstance(outcome.findings, Detections):
            return outcome
        from . import cascade

        then: dict[str, tuple[Findings | None, ...]] = {}
        for stage, serving in self.seconds:
            asleep = serving.lazy and serving.model is None and serving.problem is None
            if asleep and cascade.concerns(stage, outcome.findings):
                self._wake(serving)
        with self._board.using(lambda: [serving.model for _, serving in self.seconds]) as models:
            for (stage, _), second in zip(self.seconds, models, strict=True):
                if second is not None:
                    then[stage.name] = cascade.look(stage, second, sample, outcome.findings)
        return Outcome(outcome.model, outcome.engine, outcome.findings, outcome.timing, then)

    def _deliver(self, sample: Sample, outcome: Outcome) -> None:
        def encode(replayed: bool) -> bytes:
            age_ms = (time.monotonic() - sample.since) * 1e3
            payload = wire.result(
                self._identity.device, self._identity.session, self.name, sample, outcome, age_ms
            )
            if replayed:
                payload["replayed"] = True
            wall = self._identity.wall
            if wall is not None and not wall.credible(sample.time_ns):
                payload["clock"] = wire.UNSET
            return wire.encode(payload)

        since = sample.since

        def sent(replayed: bool) -> None:
            if not replayed:
                self.latency_ms.append((time.monotonic() - since) * 1e3)
            self._identity.clock.published()

        self._link.send(Parcel(self.channel, self._topic, encode, sent))
        if sample.picture and (self.settings.snapshot or self.snapshot_wanted):
            self.snapshot_wanted = False
            self._snapshot(sample, outcome.findings)

    def _snapshot(self, sample: Sample, found: Findings) -> None:
        from .annotate import annotate, jpeg

        try:
            picture = jpeg(annotate(sample.data, found))
        except SampleError as problem:
            self._report(problem)
            return
        self._link.publish(self._identity.topics.snapshot(self.name), picture)

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


class _Windows:
    """Cuts a signal into what the pipeline's model takes; a new model may take other windows."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._spec: object = None
        self._windower: Windower | None = None

    def put(self, reading: Reading, attempt: Attempt) -> bool:
        """Put every window that *reading* completes on the board; False when it shall stop."""
        model = self._model(attempt)
        if model is None:
            return False
        spec = model.manifest.input
        if self._windower is None or spec != self._spec:
            self.end()
            from .window import Windower

            try:
                self._windower = Windower(spec, reading.columns)
            except ModelError as problem:
                raise SourceError(f"{model.id} does not fit this source: {problem}") from None
            self._spec = spec
        try:
            windows = self._windower.push(reading.data, reading.time_ns, reading.since)
        except ModelError as problem:
            raise SourceError(f"{model.id} does not fit this source: {problem}") from None
        pipeline = self._pipeline
        for data, time_ns, since in windows:

            def make(
                seq: int, data: Array = data, time_ns: int = time_ns, since: float = since
            ) -> Sample:
                return Sample(data, seq, time_ns, since, picture=False)

            if not pipeline._link.ready(pipeline.channel, attempt.closing):  # noqa: SLF001
                return False
            if not (pipeline._pace(attempt) and pipeline._board.put(pipeline.slot, make)):  # noqa: SLF001
                return False
        return True

    def _model(self, attempt: Attempt) -> Model | None:
        """Wait for a model: only it knows the windows."""
        while not attempt.closing.is_set():
            for serving in self._pipeline.servings:
                if serving.model is not None:
                    return serving.model
            attempt.closing.wait(0.02)
        return None

    def end(self) -> None:
        """Count what no window has taken."""
        if self._windower is not None and self._windower.rest:
            self._pipeline._board.skip(self._pipeline.slot, "partial")  # noqa: SLF001
            self._windower.reset()
