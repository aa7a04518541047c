"""What `bench pipeline` has measured, and the figures that follow from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...mqtt import payloads

AGENT, PLAIN, HANDMADE, ENGINE = "agent", "sequential", "pipelined", "engine"
MEANING = {
    AGENT: "edge-agent: the whole daemon, through the broker",
    PLAIN: "a plain script on ONNX Runtime: one step after the other",
    HANDMADE: "a script pipelined by hand (decoding beside inference), on whichever engine and "
    "number of threads is quickest for it",
    ENGINE: "the agent's engine alone on ready tensors, as many at a time as the agent has lanes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSetup:
    """What is the same for all models."""

    clip: Path
    """Or the recording."""
    runs: int
    """Rounds in which all take turns."""
    seconds: float
    """That each is watched in a round."""
    pipelines: tuple[int, ...]
    """Numbers of pipelines for the scaling table."""
    rate: float
    """Results a second of each stream that is to be carried; 0: not measured."""
    p99_ms: float
    """What the age of their results may come to."""
    recording: str = ""
    """The source that a sensor model plays for ever; empty: it is a clip."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One program, watched once."""

    fps: float
    cpu_ms: float = 0.0
    """Processor time of a frame, ms; 0: not measured."""
    ages: tuple[float, ...] = ()
    """Of the results, capture to publish, ms."""


@dataclass(frozen=True, slots=True)
class Idle:
    """What a pipeline costs whose source gives nothing."""

    pipelines: int
    cpu_percent: float
    """Of one core, for each pipeline."""
    memory_mb: float
    """Likewise."""


@dataclass(frozen=True, slots=True)
class Carried:
    """How many streams the device carries."""

    streams: int
    rate: float
    p99_ms: float
    """At that number; 0 where it is none."""
    bound_ms: float
    refused: int
    """The least number that was tried and was too many; 0: none was."""
    why: str
    """Why it was too many."""


@dataclass(slots=True)
class PipelineReport:
    """What was measured of one model."""

    model: str
    setup: PipelineSetup
    handmade: str = ""
    """Engine and threads of the script pipelined by hand."""
    engine: str = ""
    lanes: int = 0
    threads: int = 0
    turns: dict[str, list[Turn]] = field(init=False)
    """Of a recording nothing is pipelined by hand: there is next to nothing to decode."""
    steps: list[Mapping[str, float]] = field(default_factory=list)
    """Of a frame, one at a time with nothing else running, ms."""
    following_ms: list[Mapping[str, float]] = field(default_factory=list)
    """Of tracks, zones, lines and rules, by how many objects there are."""
    usual_ms: list[float] = field(default_factory=list)
    """Of preprocessing alone, by the lines that a plain script has for it."""
    cached_ms: list[Mapping[str, float]] = field(default_factory=list)
    """Likewise of the agent and by those lines, of a picture in the processor's cache."""
    floor_ms: list[float] = field(default_factory=list)
    """Processor time of decoding and of the engine on one thread, for a frame."""
    scaling: dict[int, list[tuple[Turn, Turn]]] = field(default_factory=dict)
    """By number of pipelines, round by round: what one did, and then so many."""
    idle: Idle | None = None
    carried: Carried | None = None

    def __post_init__(self) -> None:
        names = (AGENT, PLAIN, HANDMADE, ENGINE)
        self.turns = {name: [] for name in names if name != HANDMADE or not self.setup.recording}

    @property
    def others(self) -> tuple[str, ...]:
        """Return what the agent is compared with."""
        return tuple(name for name in self.turns if name != AGENT)

    def ratios(self, other: str) -> list[float]:
        """Return the agent's frames a second relative to another's, round by round."""
        pairs = zip(self.turns[AGENT], self.turns[other], strict=True)
        return [agent.fps / turn.fps for agent, turn in pairs]

    def cpu_ratios(self) -> list[float]:
        """Return the agent's processor time of a frame relative to decoding and engine alone."""
        pairs = zip(self.turns[AGENT], self.floor_ms, strict=True)
        return [agent.cpu_ms / floor for agent, floor in pairs]

    def step_ms(self) -> dict[str, float]:
        """Return the median of each step, ms."""
        return _medians(self.steps)

    def json(self) -> dict[str, Any]:
        """Return all figures as one JSON object."""
        ages = [age for turn in self.turns[AGENT] for age in turn.ages]
        figures: dict[str, Any] = {
            "model": self.model,
            "engine": self.engine,
            "lanes": self.lanes,
            "threads": self.threads,
            "clip": self.setup.clip.name,
            "runs": self.setup.runs,
            "fps": {name: spread(turn.fps for turn in turns) for name, turns in self.turns.items()},
            "ratio": {name: spread(self.ratios(name)) for name in self.others},
            "cpu_s_per_1000": {
                **{
                    name: spread(turn.cpu_ms for turn in self.turns[name])
                    for name in self.turns
                    if name != ENGINE
                },
                "decode_and_engine": spread(self.floor_ms),
            },
            "cpu_ratio": spread(self.cpu_ratios()),
            "age_ms": payloads.percentiles(ages),
            "step_ms": self.step_ms(),
        }
        if not self.setup.recording:
            figures |= {
                "pipelined_on": self.handmade,
                "following_ms": _medians(self.following_ms),
                "usual_preprocess_ms": round(statistics.median(self.usual_ms), 4),
                "cached_preprocess_ms": _medians(self.cached_ms),
            }
        if self.scaling:
            figures["scaling"] = [
                {
                    "pipelines": count,
                    "fps": spread(many.fps for _, many in rounds),
                    "ratio": spread(many.fps / one.fps for one, many in rounds),
                    "cpu_s_per_1000": spread(many.cpu_ms for _, many in rounds),
                    "age_ms": payloads.percentiles(
                        [age for _, many in rounds for age in many.ages]
                    ),
                }
                for count, rounds in sorted(self.scaling.items())
            ]
        if self.idle is not None:
            figures["idle_pipeline"] = {
                "cpu_percent": round(self.idle.cpu_percent, 4),
                "memory_mb": round(self.idle.memory_mb, 3),
                "of": self.idle.pipelines,
            }
        if self.carried is not None:
            figures["streams"] = {
                "carried": self.carried.streams,
                "rate": self.carried.rate,
                "p99_ms": round(self.carried.p99_ms, 2),
                "p99_bound_ms": self.carried.bound_ms,
                "too_many": self.carried.refused or None,
                "why": self.carried.why,
            }
        return figures


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(r[name] for r in rounds), 4) for name in rounds[0]}


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return the least, the median and the most."""
    ordered = sorted(values)
    return {
        "min": round(ordered[0], 4),
        "median": round(statistics.median(ordered), 4),
        "max": round(ordered[-1], 4),
    }


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return payloads.percentiles(list(values))["p99"]
