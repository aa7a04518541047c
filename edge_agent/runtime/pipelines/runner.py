"""The runner: pipelines, their scheduler and lanes, and the models that serve.

Only what a frame needs to reach the broker, because it runs before the first result; requests,
pushes and health follow (`control`).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from ...config.overrides import FILE, Overrides
from ...config.settings import Arm, Settings, parse_route
from ...config.settings import Pipeline as PipelineSettings
from ...core.errors import UsageError
from ...core.logs import ANSWER
from ...core.threads import ShutdownQueue, ThreadGroup
from ...core.timeline import Timeline
from ...core.types import Kind
from ...device.wall_clock import WallClock
from ...inference.model import Model
from ...mqtt import payloads
from ...mqtt.client import Client
from ...mqtt.inbox import Inbox
from ...mqtt.retained import LEDGER
from ...mqtt.subscriptions import Subscriptions
from ...mqtt.topics import Topics
from ...serving.active import ActiveModels, Serving
from ...sources.source import SourceContext
from ...sources.spec import SourceSpec, parse_source
from ..scheduler.board import Board
from . import lane
from .device_mode import DeviceMode
from .learned import LearnedValues
from .mqtt_sink import MqttSink
from .pipeline import Pipeline, beyond_scores
from .route import Split
from .sinks import ResultStage, Sink, Sinks
from .status import Common, Identity

if TYPE_CHECKING:
    from ...models.store.catalog import Catalog
    from ...serving.loader import ModelLoader
    from ..scheduler.requests import RequestQueue

log = logging.getLogger(__name__)

MOST_LANES = 16
"""Most further lanes that run while others wait for the disk."""


class Runner:  # noqa: PLR0904 - what commands, reload and health ask of pipelines
    """Starts, changes and stops pipelines.

    UsageError is raised if something in the settings is missing or invalid.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        lanes: int,
        catalog: Callable[[], Catalog],
        loader: Callable[[], ModelLoader],
        stops: ShutdownQueue,
        timeline: Timeline,
        sinks: Sequence[Sink] = (),
        stages: Callable[..., ResultStage | None] | None = None,
        overrides: Overrides | None = None,
    ) -> None:
        """Open the parts that do not wait for others.

        *catalog* and *loader* are called when first needed. *stages* is `Common.stages` with this
        runner before its parameters. Without *overrides* they are read here.
        """
        self.settings = settings
        self.threads = ThreadGroup(stops)
        self.inbox = Inbox()
        topics = Topics(settings.broker.topic_root, settings.device_id)
        self.subscriptions = Subscriptions(topics, lambda: self.settings.groups)
        wall = WallClock(str(settings.state))
        identity = Identity(settings.device_id, str(uuid.uuid4()), topics, timeline, wall)
        board: Board[Model] = Board(
            max_delay=settings.batching.max_delay_ms / 1e3, lanes=lanes, starting=True
        )
        self.active = ActiveModels(
            board, catalog, loader, flows=self._feeds, stopping=self.stopping, asked=self._asked
        )
        client = self._make_client(settings, identity)
        self.learned = LearnedValues(settings.state)
        self.common = Common(
            identity,
            board,
            client,
            Sinks(MqttSink(client, identity), *sinks),
            SourceContext(decode=settings.decode, topics=client.feeds, clock_behind=wall.is_behind),
            self.active.load,
            partial(stages, self) if stages else lambda *_, **__: None,
            self.learned,
            DeviceMode(settings.state),
        )
        client.retained.register(
            topics.source(""), lambda: [topics.source(name) for name in list(self.pipelines)]
        )
        self.overrides = overrides or Overrides(settings.state / FILE)
        self.pipelines: dict[str, Pipeline] = {}
        board.lanes.add = self._add_lane
        self._lanes_added = 0
        self.arranging = threading.Lock()
        """Held while pipelines are added or removed, and while unused models are dropped."""
        self._accepted: list[tuple[RequestQueue[Model], list[Serving]]] = []
        """Queues of requests outside pipelines, and their models."""
        self._counted: dict[str, int] = {}
        """Last sequence numbers of removed pipelines."""
        self._waiting: list[Pipeline] = []
        """Pipelines whose sources are not opened yet."""
        self._cold: tuple[str, ...] = ()
        """Models that served when the first result was published."""
        for pipeline in settings.pipelines:
            self.add(pipeline)
        self.log_shadows()

    def _make_client(self, settings: Settings, identity: Identity) -> Client:
        return Client(
            settings.broker,
            f"edge-agent-{settings.device_id}",
            status_topic=identity.topics.status,
            status=partial(_status, identity.session),
            filters=self.subscriptions.filters,
            inbox=self.inbox,
            spool=settings.state / "spool.db",
            ledger=settings.state / LEDGER,
        )

    @property
    def board(self) -> Board[Model]:
        return self.common.board

    @property
    def client(self) -> Client:
        return self.common.client

    @property
    def sinks(self) -> Sinks:
        return self.common.sinks

    @property
    def identity(self) -> Identity:
        """The publisher of the messages."""
        return self.common.identity

    @property
    def topics(self) -> Topics:
        return self.common.identity.topics

    def stopping(self) -> bool:
        """Whether there is a reason to end the agent; nothing long must be begun then."""
        return self.threads.stopping

    def start(self, urgent: str | None = None) -> None:
        """Start the sources and the lanes.

        Sources of models other than *urgent* wait for `start_others`, because opening them would
        delay its first result. None: all start.
        """
        self._waiting = [
            pipeline
            for pipeline in self.pipelines.values()
            if urgent is not None and all(each.reference != urgent for each in pipeline.servings)
        ]
        self._start([each for each in self.pipelines.values() if each not in self._waiting])
        for number in range(self.board.lanes.most):
            self.threads.spawn(f"lane-{number}", partial(self._run_lane, first=number == 0))

    @property
    def reads_recording(self) -> bool:
        """Whether a started source is a recording."""
        waiting = self._waiting
        return any(not each.spec.live for each in self.pipelines.values() if each not in waiting)

    def start_others(self) -> None:
        """Start the sources that `start` left out, if any."""
        waiting, self._waiting = self._waiting, []
        self._start(waiting)

    def _start(self, pipelines: Iterable[Pipeline]) -> None:
        for pipeline in pipelines:
            if self.stopping():
                return
            pipeline.start(self.threads)

    def _run_lane(self, *, first: bool) -> None:
        if not first:
            # Two frames at a time would delay the very first result.
            self.board.settled.wait()
        lane.run(self.board)

    def _add_lane(self) -> None:
        """Start a lane in the place of one that waits for the disk, as each pipeline may."""
        if self._lanes_added < min(MOST_LANES, len(self.pipelines)) and not self.stopping():
            self._lanes_added += 1
            name = f"lane-{self.board.lanes.most + self._lanes_added - 1}"
            self.threads.spawn(name, partial(lane.run, self.board), patient=True)

    def halt(self) -> None:
        """Stop capturing."""
        self.common.client.feeds.halt()
        for pipeline in self.pipelines.values():
            pipeline.halt()
        for queue, _ in self._accepted:
            queue.close()

    def end_results(self) -> None:
        """Wait until no further result will be published; the board is closed."""
        self.board.end_results([pipeline.queue for pipeline in self.pipelines.values()])

    def watch(self) -> None:
        """Replace capture threads that hang, start those that wait; called about every second."""
        self.threads.start_waiting()
        for pipeline in self.pipelines.values():
            pipeline.watch(self.threads)
        self.common.client.feeds.release(self._is_read)

    def lanes_are_alive(self, limit: float) -> bool:
        """Whether no lane hangs: see `Lanes.are_alive`."""
        return self.board.lanes.are_alive(time.monotonic(), limit)

    # Pipelines

    def add(self, settings: PipelineSettings) -> Pipeline:
        """Create a pipeline without starting it."""
        try:
            spec = parse_source(settings.source, self.settings.base)
        except UsageError as problem:
            raise UsageError(f"pipelines[{settings.name}].source: {problem}") from None
        pipeline = Pipeline(
            self.overrides.applied(settings),
            spec,
            self._servings(settings, spec),
            [
                (stage, self.active.serving_for(parse_route(stage.model)[0], "picture"))
                for stage in settings.stages
            ],
            self.common,
        )
        for stage, serving in pipeline.seconds:
            serving.crops = max(serving.crops, stage.limit)
        # Sequence numbers are unique within a session, even if the pipeline is replaced.
        pipeline.queue.seq = self._counted.get(settings.name, 0)
        self.pipelines[settings.name] = pipeline
        if pipeline.settings.enabled:
            pipeline.expect(1)
        return pipeline

    def log_shadows(self) -> None:
        """Log what `set` and `configure` have kept in place of what the settings file has."""
        for settings in self.settings.pipelines:
            for line in self.overrides.shadows(settings):
                log.info("pipeline %s: %s", settings.name, line, extra=ANSWER)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Have the connection keep what sensors say while their pipelines are replaced."""
        before = list(self.pipelines.values())
        for pipeline in before:
            pipeline.expect(1)
        try:
            yield
        finally:
            for pipeline in before:
                pipeline.expect(-1)

    def _is_read(self, topic: str) -> bool:
        """Whether all pipelines have begun that read what the broker holds of a topic."""
        held = [p for p in self.pipelines.values() if p.spec.held and p.spec.name == topic]
        return all(p.source.is_open or p.state is not None for p in held if p.settings.enabled)

    def _servings(self, settings: PipelineSettings, spec: SourceSpec) -> list[Serving]:
        """Return the servings of a pipeline's first stage."""
        if settings.has_no_model:
            from ...inference.readings import Readings

            # Only for this pipeline: not part of loading, exchanging and reporting models.
            model = Readings(settings.sensor_spec, self.common.on_values)
            return [Serving(Arm(settings.model, None, 1), spec.kind, model)]
        return [self.active.serving_for(arm, spec.kind) for arm in settings.arms]

    def remove(self, name: str) -> None:
        """Stop and remove a pipeline."""
        gone = self.pipelines.pop(name)
        if gone.settings.enabled:
            gone.expect(-1)
        gone.stop()
        self._counted[name] = gone.queue.seq

    def silent_since(self, name: str) -> float:
        """Return since when a pipeline's sensor keeps silent; see `Pipeline.silent_since`."""
        pipeline = self.pipelines.get(name)
        return -inf if pipeline is None else pipeline.silent_since

    def is_unknown(self, name: str) -> bool:
        """Whether a pipeline's sensor has said since its latest result that it knows nothing."""
        pipeline = self.pipelines.get(name)
        return pipeline is not None and pipeline.errors.quiet_at > pipeline.stream.latest

    # Requests

    def accept(
        self, name: str, model: str, kind: Kind, *, room: int, priority: int = 0
    ) -> RequestQueue[Model]:
        """Accept requests outside pipelines, and load their model if it is not loaded yet.

        *name* is the name of their account; at most *room* of them may wait.
        """
        from ..scheduler.requests import RequestQueue

        arms = parse_route(model)
        with self.arranging:
            servings = [self.active.serving_for(arm, kind) for arm in arms]
            for serving in servings:
                serving.lazy = False
            split = Split(arms, servings)
            queue = RequestQueue(
                *(self.board, f"requests:{name}", split.choose, split.advance),
                room=room,
                priority=priority,
            )
            self._accepted.append((queue, servings))
        for serving in servings:
            self.active.load(serving)
        return queue

    def answering(self, queue: RequestQueue[Model]) -> list[Serving]:
        """List the servings that answer a queue's requests; empty after `refuse`."""
        return next((servings for each, servings in self._accepted if each is queue), [])

    def refuse(self, queue: RequestQueue[Model]) -> None:
        """Stop accepting these requests, and unload a model with no other use."""
        with self.arranging:
            queue.close()
            self._accepted = [each for each in self._accepted if each[0] is not queue]
            gone = self.active.forget({(s.reference, s.kind) for s in self.used()})
        for model in gone:
            self.active.retire(model)

    # Queries of others

    def used(self) -> list[Serving]:
        """List the servings that pipelines and requests use."""
        found: list[Serving] = []
        for pipeline in list(self.pipelines.values()):
            found += [*pipeline.servings, *(serving for _, serving in pipeline.seconds)]
        return found + [one for _, servings in list(self._accepted) for one in servings]

    def in_memory(self) -> frozenset[object]:
        """Return keys for the running sources and the models in memory."""
        pipelines = list(self.pipelines.values())
        running = {("source", id(p)) for p in pipelines if p.state in {None, "running"}}
        models = {("model", id(serving.model)) for serving in self.active.all()}
        return frozenset(running | models)

    def _asked(self) -> tuple[str, ...]:
        """Return the models that others may ask."""
        return self.settings.infer.models

    def _feeds(self, name: str) -> bool:
        """Whether a source that feeds a model's live version may still deliver something."""
        return any(
            pipeline.state in {None, "running"}
            and any(
                serving.arm.name == name and serving.arm.version is None
                for serving in (*pipeline.servings, *(second for _, second in pipeline.seconds))
            )
            for pipeline in list(self.pipelines.values())
        )

    def can_give_results(self) -> bool:
        """Whether a first result is still possible: some source delivers and has its models."""
        return any(
            pipeline.state in {None, "running"} and pipeline.served
            for pipeline in list(self.pipelines.values())
        )

    def is_blocked(self) -> bool:
        """Whether no result is possible until something is fixed, added or returns."""
        return all(
            pipeline.state in {"lost", "ended", "off"}
            or any(serving.problem is not None for serving in pipeline.servings)
            for pipeline in list(self.pipelines.values())
        )

    def check_thresholds(self) -> None:
        """Log which thresholds no result can reach; drop those that `set` has kept.

        The kinds of findings are known only once models are loaded.
        """
        given = {pipeline.name: pipeline.threshold for pipeline in self.settings.pipelines}
        for pipeline in list(self.pipelines.values()):
            kept = self.overrides.ignore_threshold(
                pipeline.name, partial(beyond_scores, pipeline.servings, by_label={})
            )
            if kept is not None and kept == pipeline.threshold:
                pipeline.threshold = given.get(pipeline.name)
            why = pipeline.threshold_problem()
            if why is not None:
                log.warning("pipeline %s: %s", pipeline.name, why)

    def lazy(self, *, wanted: bool) -> None:
        """Load the models of second stages when needed, or at once."""
        first = {id(s) for pipeline in self.pipelines.values() for s in pipeline.servings}
        first |= {id(one) for _, servings in self._accepted for one in servings}
        for pipeline in self.pipelines.values():
            for _, serving in pipeline.seconds:
                serving.lazy = wanted and id(serving) not in first

    def cold_start(self, model: Model) -> dict[str, float] | None:
        """Return the steps of the start, milliseconds, for a model of the first result."""
        steps = self.identity.timeline.steps
        if steps is None:
            return None
        if not self._cold:
            self._cold = tuple(s.model.id for s in self.active.all() if s.model is not None)
        return steps if model.id in self._cold else None


def _status(session: str, state: str, reason: str) -> bytes:
    return payloads.encode(
        {
            "schema": payloads.SCHEMA,
            "state": state,
            "session": session,
            "reason": reason,
            "time": payloads.iso(time.time_ns()),
        }
    )
