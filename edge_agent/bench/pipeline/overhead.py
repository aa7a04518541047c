"""What the agent's own part of a frame's way costs: board, order, JSON and publishing."""

from __future__ import annotations

import statistics
import threading
import time
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...config.settings import Arm, Broker
from ...config.settings import Pipeline as PipelineSettings
from ...core.errors import AgentError
from ...core.timeline import Timeline
from ...core.types import Array, Detections, Outcome, Request, Sample, Timing
from ...inference.cost import Cost
from ...models.manifest import Manifest
from ...mqtt import payloads
from ...mqtt.client import Client
from ...mqtt.loopback import Loopback
from ...mqtt.topics import Topics
from ...runtime.pipelines.lane import infer
from ...runtime.pipelines.mqtt_sink import MqttSink
from ...runtime.pipelines.pipeline import Common, Identity, Pipeline
from ...runtime.pipelines.sinks import Sinks
from ...runtime.scheduler.board import Board
from ...runtime.scheduler.queue import Servable
from ...runtime.serving.active import Serving
from ...sources.spec import parse_source

FRAMES = 1000


def _sample(picture: Array, since: float, seq: int) -> Sample:
    return Sample(picture, seq, time.time_ns(), since)


class _Nothing:
    """A model that costs nothing: what is left is the frame path itself."""

    def __init__(self, found: Detections) -> None:
        self.users = 0
        self.together = 1
        self.in_order = False
        self.id = "bench@1"
        self.folder = SimpleNamespace(usual=None)
        self.threshold = 0.5
        self.manifest = Manifest(name="bench", version="1", task="detection", file="model.onnx")
        self.cost = Cost()
        self.first_at: float | None = 0.0
        self._outcome = Outcome("bench@1", "none", found, Timing(0.0, 0.0, 0.0))

    def answer(self, _request: Request) -> Outcome:
        return self._outcome


def overhead(loopback: Loopback) -> float:
    """Measure the median of one lane with nothing else to do, ms a frame.

    Raises:
        AgentError: the broker went away.
    """
    topics = Topics("edge", "bench")
    boxes = np.tile(np.array([10.0, 20.0, 110.0, 220.0], np.float32), (5, 1))
    found = Detections(boxes, np.full(5, 0.9, np.float32), ("thing",) * 5)
    board: Board[Any] = Board()
    client = Client(
        Broker(url=loopback.url, protocol=loopback.protocol),
        "edge-agent-bench",
        status_topic=topics.status,
        status=lambda state, reason: payloads.encode({"state": state, "reason": reason}),
        filters=list,
        inbox=SimpleQueue(),
    )
    serving = Serving(Arm("bench", None, 1), "picture")
    servable: Servable = _Nothing(found)  # what the board asks of a model, as the types see it
    model: Any = servable
    serving.model = model
    identity = Identity("bench", "session", topics, Timeline())
    pipeline = Pipeline(
        PipelineSettings(name="bench", source="dir:none", model="bench"),
        parse_source("dir:none", Path.cwd()),
        [serving],
        [],
        Common(identity, board, client, Sinks(MqttSink(client, identity))),
    )
    board.add(pipeline.queue)
    connecting = threading.Thread(target=client.run, daemon=True)
    connecting.start()
    closing = threading.Event()
    if not client.wait_credit(pipeline.stream.channel, closing):
        raise AgentError("the bench's broker went away")
    picture = np.zeros((8, 8, 3), np.uint8)
    costs = []
    for _ in range(FRAMES):
        client.wait_credit(pipeline.stream.channel, closing)
        start = time.perf_counter()
        since = time.monotonic()
        board.put(pipeline.queue, partial(_sample, picture, since))
        job = board.take()
        if job is None:
            break
        infer(board, job)
        costs.append((time.perf_counter() - start) * 1e3)
    board.close()
    client.close()
    connecting.join(5)
    return statistics.median(costs)
