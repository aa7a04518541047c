"""What tracks, zones, lines and rules cost a frame, beside the rest of its way."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...config.settings import Line, Pipeline, Rule, Zone
from ...core.types import Detections, Outcome, Sample, Timing
from ...rules.rule_engine import RuleEngine
from ...rules.totals import LineTotals

FRAMES = 300
WARM_UP = 60
RATE = 30.0
SIZE = (1920, 1080)
FEW, MANY = 5, 200
"""Objects."""
SHAPES = 8
"""Zones, and as many lines."""
RULES = 16


def following_ms() -> dict[str, float]:
    """Measure frames with few and with many objects, 8 zones, 8 lines and 16 rules, and without.

    Returns:
        The median of each, ms a frame. Without anything to follow a pipeline has no engine: what is
        left is asking for it, and the clock.
    """
    followed = _pipeline()
    nothing = replace(followed, zones=(), lines=(), rules=())
    figures = {f"{count} objects": _measure(followed, count) for count in (FEW, MANY)}
    return {**figures, f"{MANY} objects without any": _measure(nothing, MANY)}


def _measure(pipeline: Pipeline, count: int) -> float:
    rng = np.random.default_rng(count)
    engine = None
    if pipeline.needs_rule_engine:
        engine = RuleEngine(
            pipeline,
            lossless=False,
            name_event=lambda: "bench-1",
            emit=lambda _event: None,
            totals=LineTotals(None),
        )
    picture = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    labels = tuple(rng.choice(["person", "car"], count).tolist())
    place = rng.uniform((0, 0), (SIZE[0] - 80, SIZE[1] - 80), (count, 2))
    speed, sides = rng.uniform(-4, 4, (count, 2)), rng.uniform(30, 80, (count, 2))
    costs = []
    for frame in range(WARM_UP + FRAMES):
        place += speed
        speed = np.where((place < 0) | (place > np.array(SIZE) - 80), -speed, speed)
        boxes = np.concatenate([place, place + sides], axis=1) + rng.normal(0, 1, (count, 4))
        scores = rng.uniform(0.5, 1, count).astype(np.float32)
        found = Detections(boxes.astype(np.float32), scores, labels)
        sample = Sample(picture, frame, int(frame / RATE * 1e9), frame / RATE)
        outcome = Outcome("bench@1", "none", found, Timing(0.0, 0.0, 0.0))
        start = time.perf_counter()
        if engine is not None:
            outcome = engine.process(sample, outcome, None)
            engine.result("bench", sample, outcome)
        costs.append((time.perf_counter() - start) * 1e3)
    return round(statistics.median(costs[WARM_UP:]), 4)


def _pipeline() -> Pipeline:
    steps = [index / SHAPES for index in range(SHAPES + 1)]
    zones = tuple(
        Zone(name=f"zone-{index}", polygon=((x1, 0.2), (x2, 0.2), (x2, 0.8), (x1, 0.8)))
        for index, (x1, x2) in enumerate(pairwise(steps))
    )
    lines = tuple(
        Line(name=f"line-{index}", points=((x + 0.05, 0.0), (x + 0.05, 1.0)))
        for index, x in enumerate(steps[:-1])
    )
    kinds: list[dict[str, Any]] = [
        {"when": "enter"},
        {"when": "leave"},
        {"when": "dwell", "for_s": 1.0},
        {"when": "count", "above": 10},
        {"when": "absent"},
        {"when": "cross"},
    ]
    rules = []
    for index in range(RULES):
        kind = kinds[index % len(kinds)]
        place = f"{index % SHAPES}"
        where: dict[str, Any] = {"zone": f"zone-{place}"}
        if kind["when"] == "cross":
            where = {"line": f"line-{place}"}
        rules.append(Rule(name=f"rule-{index}", **kind, **where))
    return Pipeline(
        name="bench", source="dir:.", model="bench", zones=zones, lines=lines, rules=tuple(rules)
    )
