"""Rule engines without an agent: boxes in, tracks, counts and events out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from edge_agent.config.rules import Line, Rule, Zone
from edge_agent.config.settings import Broker, Pipeline, Settings
from edge_agent.core.timeline import Timeline
from edge_agent.core.types import Detections, Findings, Outcome, Sample, Timing, Values
from edge_agent.mqtt.client import Client
from edge_agent.mqtt.topics import Topics
from edge_agent.rules.dispatcher import EventDispatcher
from edge_agent.rules.event import Event, Holds, always
from edge_agent.rules.rule_engine import RuleEngine
from edge_agent.rules.totals import LineTotals
from edge_agent.runtime.pipelines.mqtt_sink import MqttSink
from edge_agent.runtime.pipelines.sinks import Sinks
from edge_agent.runtime.pipelines.status import Identity

Box = tuple[str, float, tuple[float, float, float, float]]
"""Label, score, x1 y1 x2 y2."""


def box(x: float, y: float, side: float = 10, label: str = "a", score: float = 0.9) -> Box:
    """Make a square box of which the middle of the lower edge is at a place."""
    return (label, score, (x - side / 2, y - side, x + side / 2, y))


def detections(boxes: Sequence[Box]) -> Detections:
    """Make detections of boxes, best first."""
    best = sorted(boxes, key=lambda each: -each[1])
    return Detections(
        np.array([each[2] for each in best], np.float32).reshape(-1, 4),
        np.array([each[1] for each in best], np.float32),
        tuple(each[0] for each in best),
    )


def pipeline_of(
    zones: Mapping[str, Sequence[tuple[float, float]]] | None,
    lines: Mapping[str, Sequence[tuple[float, float]]] | None,
    rules: Iterable[Mapping[str, Any]],
    anchor: Any = "bottom",
    model: str = "m",
) -> Pipeline:
    """Make the settings of a pipeline with tracks."""
    return Pipeline(
        name="p",
        source="dir:.",
        model=model,
        track=True,
        zones=tuple(
            Zone(name=name, polygon=tuple(points), anchor=anchor)
            for name, points in (zones or {}).items()
        ),
        lines=tuple(
            Line(name=name, points=tuple(points), anchor=anchor)
            for name, points in (lines or {}).items()
        ),
        rules=tuple(Rule(**rule) for rule in rules),
    )


class Stage:
    """A rule engine for frames of 100 by 100 pixels, and the events it has emitted."""

    def __init__(
        self,
        *,
        zones: Mapping[str, Sequence[tuple[float, float]]] | None = None,
        lines: Mapping[str, Sequence[tuple[float, float]]] | None = None,
        rules: Iterable[Mapping[str, Any]] = (),
        rate: float = 25.0,
        apart: float | None = None,
        size: tuple[int, int] = (100, 100),
        anchor: Any = "bottom",
        holds: Holds = always,
        model: str = "m",
    ) -> None:
        self.events: list[Event] = []
        self.totals = LineTotals(None)
        self.period = 1 / rate
        self.now = 100.0
        self.seq = 0
        self.resize(size)
        names = count(1)
        self.engine = RuleEngine(
            pipeline_of(zones, lines, rules, anchor, model),
            apart=apart,
            name_event=lambda: f"e{next(names)}",
            emit=self.events.extend,
            totals=self.totals,
            holds=holds,
        )

    def resize(self, size: tuple[int, int]) -> None:
        """Make the next frames of another width and height, as some cameras do."""
        self._picture = np.zeros((size[1], size[0], 3), np.uint8)

    @property
    def crossed(self) -> Counter[tuple[str, str, str]]:
        """What the totals have counted, by line, way and label."""
        return Counter(
            {
                (line, way, label): number
                for line, ways in self.totals.content()["lines"].items()
                for way, counts in ways.items()
                for label, number in counts.items()
            }
        )

    def apply(
        self,
        *,
        zones: Mapping[str, Sequence[tuple[float, float]]] | None = None,
        lines: Mapping[str, Sequence[tuple[float, float]]] | None = None,
        rules: Iterable[Mapping[str, Any]] = (),
        told: bool = True,
    ) -> None:
        """Let the engine go on with other settings."""
        self.engine.apply(pipeline_of(zones, lines, rules), told=told)

    def show(self, *boxes: Box, weak: Sequence[Box] = (), wait: float | None = None) -> Detections:
        """Show boxes in the next frame; gives the detections as they are published."""
        found = self.give(detections(boxes), weak=weak, wait=wait)
        assert isinstance(found, Detections)
        return found

    def give(
        self,
        findings: Findings,
        *,
        weak: Sequence[Box] = (),
        wait: float | None = None,
        model: str = "m@1",
        follows: bool = True,
        **more: Any,
    ) -> Findings:
        """Give the findings of the next frame, and *more* of its outcome; *follows*: as there."""
        self.now += self.period if wait is None else wait
        self.seq += 1
        sample = Sample(
            self._picture,
            self.seq,
            int(self.now * 1e9),
            self.now,
            picture=not isinstance(findings, Values),
            follows=follows,
        )
        outcome = Outcome(model, "none", findings, Timing(0.0, 0.0, 0.0), **more)
        outcome = self.engine.process(sample, outcome, detections(weak) if weak else None)
        return outcome.findings

    def still(self, wait: float | None = None) -> None:
        """Give the next frame as one in which nothing moves, which is not inferred."""
        self.now += self.period if wait is None else wait
        self.seq += 1
        self.engine.advance_time(Sample(self._picture, self.seq, int(self.now * 1e9), self.now))

    def tick(self, wait: float, *, clock: float = 0.0, silent: bool = False) -> None:
        """Let time pass without a frame; *clock*: by how much the wall clock is ahead of it."""
        self.now += wait
        self.engine.tick(self.now, int((self.now + clock) * 1e9), silent=silent)

    def told(self) -> list[tuple[str, str]]:
        """Give rule and state of all events so far."""
        return [(event.rule, event.state) for event in self.events]


def make_dispatcher(client: Client, settings: Settings) -> EventDispatcher:
    """Make the dispatcher of an agent that publishes by a client."""
    topics = Topics("edge", settings.device_id)
    sinks = Sinks(MqttSink(client, Identity("box", "session", topics, Timeline())))
    return EventDispatcher(sinks, client, topics, "session", lambda: settings, lambda _time: True)


def dispatcher_without_broker(state: Path, device: str = "box", **keys: Any) -> EventDispatcher:
    """Make the dispatcher of an agent with these settings whose broker is away."""
    settings = Settings(device_id=device, state_dir=str(state), **keys)
    client = Client(
        Broker(),
        "edge-agent-box",
        status_topic="edge/box/status",
        status=lambda _state, _reason: b"{}",
        filters=list,
        inbox=SimpleQueue(),
    )
    return make_dispatcher(client, settings)
