"""The compared ways to a first result: how each is started, and its cost."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...core.bundled import bundled
from ...mqtt.loopback import Loopback
from ..common.programs import DEVICE, Line, agent_command, endless
from ..common.report import cores, spread

Cold = Literal["nothing", "model", "everything"]
SCRIPT = Path(__file__).parents[1] / "common" / "start_script.py"
RESULTS = f"edge/{DEVICE}/result/clip"
AGENT = "agent"
STATE = "state"
"""Name of the agent's state folder, in its place."""
NONE, ORT, BEST = "none", "ort", "best"
ELSEWHERE = "ort-elsewhere"
SCRIPTS = (NONE, ORT, "openvino", "openvino-cache", BEST)
KINDS: Mapping[str, str] = {
    "first": f"{AGENT}-first",
    "settings": f"{AGENT}-settings",
    "reinstalled": f"{AGENT}-reinstalled",
    "prepared": AGENT,
}
"""The variant for each kind of start of the agent."""
VARIANTS = (*SCRIPTS, ELSEWHERE, *KINDS.values())
SCRIPT_STEPS = ("python", "imports", "model", "clip", "infer", "publish")
WHOLE = "first_publish"
"""The agent's entry that is the whole, not a part: from exec to the first result, by itself."""


@dataclass(frozen=True, slots=True)
class Start:
    """A way to a first result, which can be started repeatedly."""

    variant: str
    command: list[str]
    topic: str
    """Topic of its results."""
    place: Path | None = None
    """The agent's own folder, or None if it is a script."""
    ready: Callable[[], None] = lambda: None
    """Called before each start, untimed."""
    cwd: Path | None = None


def starts(model: Mapping[str, Any], setup: ColdStartSetup, loopback: Loopback) -> list[Start]:
    """Prepare all variants for a model, as returned by `truth.look`.

    The files that each needs are written below the model's place.
    """
    place = Path(model["place"])
    made = []
    for variant in setup.scripts:
        topic = f"{DEVICE}/{variant}"
        cache = place / variant if variant == "openvino-cache" else None
        how = {
            **model["how"],
            "model": model["best"] if variant == BEST else model["network"],
            "optimized": variant == BEST,
            "cache": str(cache) if cache else None,
            "clip": str(setup.clip),
            "port": loopback.port,
            "topic": topic,
        }
        settings = place / f"{variant}.json"
        settings.write_text(json.dumps(how))
        engine = variant.partition("-")[0]
        python = str(setup.python) if variant == ELSEWHERE else sys.executable
        made.append(Start(variant, [python, str(SCRIPT), engine, str(settings)], topic))
    made += [_agent(kind, model, setup.clip, loopback) for kind in setup.kinds]
    return made


def _agent(kind: str, model: Mapping[str, Any], clip: Path, loopback: Loopback) -> Start:
    place = Path(model["place"]) / KINDS[kind]
    pipeline = Line(endless(clip, "real")).table("clip", model["name"])
    command = agent_command(place, loopback, pipeline, Path(model["folder"]))
    settings = place / "edge-agent.toml"
    text = settings.read_text()
    numbers = itertools.count(1)

    def changed() -> None:
        settings.write_text(f"{text}rate = {1000 + next(numbers)}\n")

    def emptied() -> None:
        shutil.rmtree(place / STATE, ignore_errors=True)

    copies = [place / "program-a", place / "program-b"]

    def exchanged() -> None:
        (place / "program").unlink(missing_ok=True)
        (place / "program").symlink_to(copies[next(numbers) % 2])

    if kind == "reinstalled":
        for copy in copies:
            _copy_program(copy)
        exchanged()
        return Start(KINDS[kind], command, RESULTS, place, exchanged, place / "program")
    ready = {"first": emptied, "settings": changed}.get(kind, lambda: None)
    return Start(KINDS[kind], command, RESULTS, place, ready)


def _copy_program(place: Path) -> None:
    """Copy the program and its bundled files, but not the environment."""
    package = Path(sys.modules["edge_agent"].__path__[0])
    shutil.copytree(package, place / package.name)
    for kind in ("device_profiles", "models"):
        if (folder := bundled(kind)).parent == package.parent:
            shutil.copytree(folder, place / kind)


def script_steps(marks: Mapping[str, float], begun: float, ended: float) -> dict[str, float]:
    """Return the duration of each step of a script in ms, in order; they add up to the whole."""
    times = {step: marks[step] for step in SCRIPT_STEPS if step in marks} | {"publish": ended}
    steps, before = {}, begun
    for step, at in times.items():
        steps[step] = (at - before) * 1e3
        before = at
    return steps


@dataclass(frozen=True, slots=True)
class ColdStartSetup:
    """The settings shared by all models."""

    runs: int
    clip: Path
    cold: Cold
    """The files that are not in memory when a process starts."""
    disk_mbps: float | None
    """A limit on reading, in MB per second; None: the disk's own rate."""
    kinds: tuple[str, ...] = ("prepared",)
    """Kinds of starts of the agent, in the order of `KINDS`."""
    python: Path | None = None
    """Another installation's Python, which also runs the plain ONNX Runtime script."""

    @property
    def scripts(self) -> tuple[str, ...]:
        return SCRIPTS if self.python is None else (*SCRIPTS, ELSEWHERE)

    @property
    def variants(self) -> tuple[str, ...]:
        return (*self.scripts, *(KINDS[kind] for kind in self.kinds))


@dataclass(frozen=True, slots=True)
class Run:
    """One start: its first result, and the time until that arrived, in ms."""

    ms: float
    steps: dict[str, float]
    claim: dict[str, Any]


@dataclass(slots=True)
class ColdStartReport:
    """Measurements of one model."""

    model: str
    size: int
    setup: ColdStartSetup
    prepared: str | None
    """The agent's report on the model's prepared form before timing: "ready", or why there is none;
    None: it did not report."""
    device: float
    """Bytes per second at which the model can be read."""
    preparation: float
    """Time to prepare the weights on one core, ms."""
    compute: float
    """Time of the first inference, ms."""
    runs: dict[str, list[Run]] = field(init=False)
    others: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runs = {name: [] for name in self.setup.variants}

    @property
    def title(self) -> str:
        """A one-line title for the measurement."""
        where = {
            "nothing": "all in memory",
            "model": "the model not in memory",
            "everything": "nothing in memory",
        }[self.setup.cold]
        rate = self.setup.disk_mbps
        limit = "" if rate is None else f", disk limited to {rate:g} MB/s"
        return f"{self.model}, {self.size / 1e6:.1f} MB, {where}{limit}, {self.setup.runs} rounds"

    def taken(self, variant: str) -> list[float]:
        """Return the time of each run of a variant in ms."""
        return [run.ms for run in self.runs[variant]]

    def median(self, variant: str) -> float:
        """Return a variant's median in ms."""
        return statistics.median(self.taken(variant))

    def middle(self, variant: str) -> Run:
        """Return the run nearest to a variant's median."""
        median = self.median(variant)
        return min(self.runs[variant], key=lambda run: abs(run.ms - median))

    def load(self, variant: str) -> float:
        """Return a variant's median minus that of a script without a model, in ms."""
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
        """Milliseconds by which starts without a model differ: the device's own variation."""
        return max(self.taken(NONE)) - min(self.taken(NONE))

    def steps(self, variant: str) -> dict[str, float]:
        """Return the median of each step in ms, in order."""
        names = list(dict.fromkeys(step for run in self.runs[variant] for step in run.steps))
        return {
            name: statistics.median(
                run.steps[name] for run in self.runs[variant] if name in run.steps
            )
            for name in names
        }

    @property
    def read(self) -> float:
        """Milliseconds that the disk takes to read the model's bytes."""
        return self.size / self.device * 1e3

    @property
    def shared_preparation(self) -> float:
        """Milliseconds that all cores together take to prepare the weights."""
        return self.preparation / cores()

    @property
    def floor(self) -> float:
        """Lower bound of any load, ms; files in memory need not be read."""
        read = 0.0 if self.setup.cold == "nothing" else self.read
        return max(read, self.shared_preparation, self.compute)

    def json(self) -> dict[str, Any]:
        """Return all figures; times in ms."""
        variants = {
            name: {
                "ms": spread(self.taken(name), 3),
                "each_ms": self.taken(name),
                "load_ms": self.load(name),
                "ratio": None if name == NONE else self.ratio(name),
                "of_ort": self.of_ort(name),
                "steps_ms": self.steps(name),
            }
            for name in self.setup.variants
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
