"""The measurements of `bench pipeline`, and figures computed from them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...mqtt import payloads
from ..common.programs import Window, endless
from ..common.report import medians, spread

AGENT, PLAIN, HANDMADE, ENGINE = "agent", "sequential", "pipelined", "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSetup:
    """The settings shared by all models."""

    clip: Path
    """The clip or the recording."""
    runs: int
    """Number of rounds in which all take turns."""
    seconds: float
    """How long each is watched in a round."""
    pipelines: tuple[int, ...]
    """Numbers of pipelines for the scaling table."""
    rate: float
    """Results per second for each carried stream; 0: how many are carried is not measured."""
    p99_ms: float
    """Limit for the age of their results."""
    recording: str = ""
    """The source that repeats a recording forever, for a sensor model; empty: it is a clip."""

    def source(self, pace: str = "max") -> str:
        """Return the source to play, which never ends."""
        return self.recording or endless(self.clip, pace)


@dataclass(frozen=True, slots=True)
class Turn:
    """One program, watched once."""

    fps: float
    cpu_ms: float = 0.0
    """Processor time per frame in ms; 0: not measured."""
    ages: tuple[float, ...] = ()
    """Ages of the results from capture to publishing, ms."""

    @classmethod
    def of(cls, window: Window, *, ages: bool = False) -> Turn:
        """Make a turn from observations of a program."""
        return cls(window.fps, window.cpu_ms, tuple(window.of("timing", "age_ms")) if ages else ())


@dataclass(slots=True)
class PipelineReport:
    """Measurements of one model."""

    model: str
    setup: PipelineSetup
    handmade: str = ""
    """Engine and threads of the script pipelined by hand."""
    engine: str = ""
    turns: dict[str, list[Turn]] = field(init=False)
    """Turns by program; none is pipelined by hand for a recording, which needs little decoding."""
    alone: list[Mapping[str, Any]] = field(default_factory=list)
    """Results of `steps.measure`, with `publish` as another step, and of `following_ms`."""
    scaling: dict[int, list[tuple[Turn, Turn]]] = field(default_factory=dict)
    """By number of pipelines, for each round: the turn of one, and of that many."""
    idle: Mapping[str, float] | None = None
    carried: Mapping[str, Any] | None = None
    others: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = (AGENT, PLAIN, HANDMADE, ENGINE)
        self.turns = {name: [] for name in names if name != HANDMADE or not self.setup.recording}

    @property
    def where(self) -> str:
        """The engine, lanes, and threads of the model."""
        latest = self.alone[-1]
        return f"{self.engine}, {latest['lanes']} lane(s) of {latest['threads']} thread(s)"

    def ratios(self, other: str) -> list[float]:
        """Return the agent's frames per second relative to another's, for each round."""
        pairs = zip(self.turns[AGENT], self.turns[other], strict=True)
        return [agent.fps / turn.fps for agent, turn in pairs]

    def floor_ms(self) -> list[float]:
        """Return the processor time per frame of decoding and of the engine on one thread."""
        return [each["decode_cpu_ms"] + each["engine_cpu_ms"] for each in self.alone]

    def cpu_ratios(self) -> list[float]:
        """Return the agent's processor time per frame relative to decoding and engine alone."""
        pairs = zip(self.turns[AGENT], self.floor_ms(), strict=True)
        return [agent.cpu_ms / floor for agent, floor in pairs]

    def json(self) -> dict[str, Any]:
        """Return all figures as one JSON object."""
        ages = [age for turn in self.turns[AGENT] for age in turn.ages]
        timed = {name: turns for name, turns in self.turns.items() if name != ENGINE}
        cpu = {name: spread(turn.cpu_ms for turn in turns) for name, turns in timed.items()}
        figures: dict[str, Any] = {
            "model": self.model,
            "engine": self.engine,
            "lanes": self.alone[-1]["lanes"],
            "threads": self.alone[-1]["threads"],
            "clip": self.setup.clip.name,
            "runs": self.setup.runs,
            "fps": {name: spread(turn.fps for turn in turns) for name, turns in self.turns.items()},
            "ratio": {name: spread(self.ratios(name)) for name in self.turns if name != AGENT},
            "cpu_s_per_1000": {**cpu, "decode_and_engine": spread(self.floor_ms())},
            "cpu_ratio": spread(self.cpu_ratios()),
            "age_ms": payloads.percentiles(ages),
            "step_ms": self._medians("step_ms"),
        }
        if not self.setup.recording:
            usual = statistics.median(each["usual_preprocess_ms"] for each in self.alone)
            figures |= {
                "pipelined_on": self.handmade,
                "following_ms": self._medians("following_ms"),
                "usual_preprocess_ms": round(usual, 4),
                "cached_preprocess_ms": self._medians("cached_preprocess_ms"),
            }
        if self.scaling:
            figures["scaling"] = [
                {
                    "pipelines": count,
                    "fps": spread(many.fps for _, many in measured),
                    "ratio": spread(many.fps / one.fps for one, many in measured),
                    "cpu_s_per_1000": spread(many.cpu_ms for _, many in measured),
                    "age_ms": payloads.percentiles(
                        [age for _, many in measured for age in many.ages]
                    ),
                }
                for count, measured in sorted(self.scaling.items())
            ]
        if self.idle is not None:
            figures["idle_pipeline"] = self.idle
        if self.carried is not None:
            figures["streams"] = self.carried
        return figures

    def _medians(self, name: str) -> dict[str, float]:
        return medians([each[name] for each in self.alone])
