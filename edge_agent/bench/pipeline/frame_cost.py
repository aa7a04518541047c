"""The costs of a frame in the agent's own code, besides decoding and the engine.

These are the board, the order, JSON, and publishing (`overhead`), and tracks, zones, lines, and
rules (`following_ms`). Runs in a separate process (`child`).
"""

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

from ...config.rules import Line, Rule, Zone
from ...config.settings import Arm, Broker
from ...config.settings import Pipeline as PipelineSettings
from ...core.errors import AgentError
from ...core.timeline import Timeline
from ...core.types import Array, Detections, Outcome, Request, Sample, Timing
from ...inference.statistics import Cost
from ...models.manifest import Manifest
from ...mqtt import payloads
from ...mqtt.client import Client
from ...mqtt.topics import Topics
from ...rules.rule_engine import RuleEngine
from ...rules.totals import LineTotals
from ...runtime.pipelines.lane import infer
from ...runtime.pipelines.mqtt_sink import MqttSink
from ...runtime.pipelines.pipeline import Pipeline
from ...runtime.pipelines.sinks import Sinks
from ...runtime.pipelines.status import Common, Identity
from ...runtime.scheduler.board import Board
from ...runtime.scheduler.queue import Servable
from ...serving.active import Serving
from ...sources.spec import parse_source

OVERHEAD_FRAMES = 1000
FRAMES = 300
WARM_UP = 60
RATE = 30.0
SIZE = (1920, 1080)
FEW, MANY = 5, 200
"""Numbers of objects."""
SHAPES = 8
"""Number of zones, and of lines."""
RULES = 16
KINDS: tuple[dict[str, Any], ...] = (
    {"when": "enter"},
    {"when": "leave"},
    {"when": "dwell", "for_s": 1.0},
    {"when": "count", "above": 10},
    {"when": "absent"},
    {"when": "cross"},
)
PIPELINE = partial(PipelineSettings, name="bench", source="dir:none", model="bench")


def _outcome(found: Detections) -> Outcome:
    return Outcome("bench@1", "none", found, Timing(0.0, 0.0, 0.0))


class _Nothing:
    """A model that costs nothing, so that only the frame path is measured."""

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
        self._outcome = _outcome(found)

    def answer(self, _request: Request) -> Outcome:
        return self._outcome


def overhead(url: str, protocol: int) -> float:
    """Return the median time per frame, in ms, of one lane with nothing else to do."""
    topics = Topics("edge", "bench")
    boxes = np.tile(np.array([10.0, 20.0, 110.0, 220.0], np.float32), (5, 1))
    found = Detections(boxes, np.full(5, 0.9, np.float32), ("thing",) * 5)
    board: Board[Any] = Board()
    client = Client(
        Broker(url=url, protocol=protocol),
        "edge-agent-bench",
        status_topic=topics.status,
        status=lambda state, reason: payloads.encode({"state": state, "reason": reason}),
        filters=list,
        inbox=SimpleQueue(),
    )
    serving = Serving(Arm("bench", None, 1), "picture")
    servable: Servable = _Nothing(found)  # for the type checker
    model: Any = servable
    serving.model = model
    identity = Identity("bench", "session", topics, Timeline())
    common = Common(identity, board, client, Sinks(MqttSink(client, identity)))
    source = parse_source("dir:none", Path.cwd())
    pipeline = Pipeline(PIPELINE(), source, [serving], [], common)
    board.add(pipeline.queue)
    connecting = threading.Thread(target=client.run, daemon=True)
    connecting.start()
    closing = threading.Event()
    if not client.wait_credit(pipeline.stream.channel, closing):
        raise AgentError("the bench's broker went away")
    picture = np.zeros((8, 8, 3), np.uint8)
    costs = []
    for _ in range(OVERHEAD_FRAMES):
        client.wait_credit(pipeline.stream.channel, closing)
        start = time.perf_counter()
        now = time.monotonic()
        board.put(pipeline.queue, partial(Sample, picture, time_ns=time.time_ns(), since=now))
        job = board.take()
        if job is None:
            break
        infer(board, job)
        costs.append((time.perf_counter() - start) * 1e3)
    board.close()
    client.close()
    connecting.join(5)
    return statistics.median(costs)


def following_ms() -> dict[str, float]:
    """Time frames with few and many objects, with 8 zones, 8 lines, and 16 rules, and without any.

    Returns:
        The median of each, in ms per frame. Without rules a pipeline has no rule engine, so that
        only the check for it, and the clock, are measured.
    """
    figures = {f"{count} objects": _measure(_followed(), count) for count in (FEW, MANY)}
    return {**figures, f"{MANY} objects without any": _measure(PIPELINE(), MANY)}


def _measure(pipeline: PipelineSettings, count: int) -> float:
    rng = np.random.default_rng(count)
    engine = None
    if pipeline.needs_rule_engine:
        engine = RuleEngine(
            pipeline,
            apart=None,
            name_event=lambda: "bench-1",
            emit=lambda _event: None,
            totals=LineTotals(None),
        )
    picture: Array = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    labels = tuple(rng.choice(["person", "car"], count).tolist())
    place = rng.uniform((0, 0), (SIZE[0] - 80, SIZE[1] - 80), (count, 2))
    speed, sides = rng.uniform(-4, 4, (count, 2)), rng.uniform(30, 80, (count, 2))
    costs = []
    for frame in range(WARM_UP + FRAMES):
        place += speed
        speed = np.where((place < 0) | (place > np.array(SIZE) - 80), -speed, speed)
        boxes = np.concatenate([place, place + sides], axis=1) + rng.normal(0, 1, (count, 4))
        scores = rng.uniform(0.5, 1, count).astype(np.float32)
        outcome = _outcome(Detections(boxes.astype(np.float32), scores, labels))
        sample = Sample(picture, frame, int(frame / RATE * 1e9), frame / RATE)
        start = time.perf_counter()
        if engine is not None:
            engine.process(sample, outcome, None)
        costs.append((time.perf_counter() - start) * 1e3)
    return round(statistics.median(costs[WARM_UP:]), 4)


def _followed() -> PipelineSettings:
    """Return a pipeline with zones side by side, a line in each, and rules on them."""
    zones, lines, rules = [], [], []
    for index in range(SHAPES):
        left, right = index / SHAPES, (index + 1) / SHAPES
        corners = ((left, 0.2), (right, 0.2), (right, 0.8), (left, 0.8))
        zones.append(Zone(name=f"zone-{index}", polygon=corners))
        points = ((left + 0.05, 0.0), (left + 0.05, 1.0))
        lines.append(Line(name=f"line-{index}", points=points))
    for index in range(RULES):
        kind = KINDS[index % len(KINDS)]
        where = "line" if kind["when"] == "cross" else "zone"
        place: dict[str, Any] = {where: f"{where}-{index % SHAPES}"}
        rules.append(Rule(name=f"rule-{index}", **kind, **place))
    return PIPELINE(zones=tuple(zones), lines=tuple(lines), rules=tuple(rules))
