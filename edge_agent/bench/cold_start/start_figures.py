"""What `bench cold-start` has measured, and the figures that follow from it."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .starts import KINDS, NONE, ORT, SCRIPTS

Cold = Literal["nothing", "model", "everything"]


@dataclass(frozen=True, slots=True)
class ColdStartSetup:
    """What is the same for all models."""

    runs: int
    clip: Path
    cold: Cold
    """What is not in memory when a process starts."""
    disk_mbps: float | None
    """A limit on reading, MB a second; None: the disk's own rate."""
    kinds: tuple[str, ...] = ("prepared",)
    """Of starts of the agent, in the order of `KINDS`."""

    @property
    def variants(self) -> tuple[str, ...]:
        return (*SCRIPTS, *(KINDS[kind] for kind in self.kinds))


@dataclass(frozen=True, slots=True)
class Run:
    """One start: what its first result says and how long it took to be here, ms."""

    ms: float
    steps: dict[str, float]
    claim: dict[str, Any]


@dataclass(slots=True)
class ColdStartReport:
    """What was measured of one model."""

    model: str
    size: int
    setup: ColdStartSetup
    prepared: str | None
    """What the agent said of the model's prepared form before it was timed: "ready", or why there
    is none; None: nothing."""
    device: float
    """Bytes a second at which the model can be read."""
    preparation: float
    """Of the weights, on one core; ms."""
    compute: float
    """The first inference, ms."""
    runs: dict[str, list[Run]] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = {name: [] for name in self.setup.variants}

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        where = {
            "nothing": "all in memory",
            "model": "the model not in memory",
            "everything": "nothing in memory",
        }[self.setup.cold]
        rate = self.setup.disk_mbps
        limit = "" if rate is None else f", disk limited to {rate:g} MB/s"
        return f"{self.model}, {self.size / 1e6:.1f} MB, {where}{limit}, {self.setup.runs} rounds"

    def median(self, variant: str) -> float:
        """Return a variant's median, ms."""
        return statistics.median(run.ms for run in self.runs[variant])

    def middle(self, variant: str) -> Run:
        """Return the run that is nearest to a variant's median."""
        median = self.median(variant)
        return min(self.runs[variant], key=lambda run: abs(run.ms - median))

    def load(self, variant: str) -> float:
        """Return what a variant takes beyond a script with no model, ms."""
        return self.median(variant) - self.median(NONE)

    def ratio(self, variant: str) -> float | None:
        """Return a variant's load cost as a share of the plain ONNX Runtime script's."""
        plain = self.load(ORT)
        return self.load(variant) / plain if plain > 0 else None

    def of_ort(self, variant: str) -> float:
        """Return a variant's time as a share of the plain ONNX Runtime script's."""
        return self.median(variant) / self.median(ORT)

    @property
    def noise(self) -> float:
        """Milliseconds by which one start differs from the next with no model: the device's."""
        taken = [run.ms for run in self.runs[NONE]]
        return max(taken) - min(taken)

    def steps(self, variant: str) -> dict[str, float]:
        """Return the median of each step, ms, in order."""
        names = list(dict.fromkeys(step for run in self.runs[variant] for step in run.steps))
        return {
            name: statistics.median(
                run.steps[name] for run in self.runs[variant] if name in run.steps
            )
            for name in names
        }

    @property
    def read(self) -> float:
        """Milliseconds that the device takes to give the model's bytes."""
        return self.size / self.device * 1e3

    @property
    def shared_preparation(self) -> float:
        """Milliseconds that all cores together take to prepare the weights."""
        return self.preparation / cores()

    @property
    def floor(self) -> float:
        """What no load can be quicker than, ms; what is in memory need not be read."""
        read = 0.0 if self.setup.cold == "nothing" else self.read
        return max(read, self.shared_preparation, self.compute)

    def json(self) -> dict[str, Any]:
        """Return all figures; times in ms."""
        variants = {}
        for name in self.setup.variants:
            taken = [run.ms for run in self.runs[name]]
            ratio = self.ratio(name)
            variants[name] = {
                "ms": {"min": min(taken), "median": self.median(name), "max": max(taken)},
                "each_ms": taken,
                "load_ms": self.load(name),
                "ratio": None if name == NONE else ratio,
                "of_ort": self.of_ort(name),
                "steps_ms": self.steps(name),
            }
        figures = {
            "model": self.model,
            "bytes": self.size,
            "clip": self.setup.clip.name,
            "runs": self.setup.runs,
            "cold": self.setup.cold,
            "disk_mbps": self.setup.disk_mbps,
            "prepared": self.prepared,
            "noise_ms": self.noise,
            "variants": variants,
            "floor": {
                "ms": self.floor,
                "read_ms": self.read,
                "device_mb_s": self.device / 1e6,
                "preparation_ms": self.shared_preparation,
                "cores": cores(),
                "compute_ms": self.compute,
            },
        }
        rounded: dict[str, Any] = _rounded(figures)
        return rounded


def _rounded(value: Any) -> Any:
    match value:
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list():
            return [_rounded(each) for each in value]
        case float():
            return round(value, 3)
    return value


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0))
