"""`edge-agent bench cameras`: the cost of a camera by part, and how many this device carries.

The agent and two scripts read streams that are made here: the scripts are a bare loop over PyAV,
and one with FFmpeg as a child for each camera.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...core.scratch import scratch_folder
from ...mqtt import payloads
from ...mqtt.loopback import broker
from ..common.child import call
from ..common.programs import Line, Program, Window, endless, script
from ..common.report import Progress, cores, medians, rounds, spread
from ..pipeline.measure_pipeline import checked, prepare
from ..pipeline.streams import SERVED, Place, carried, judged, watched
from .streams import FPS, Stream, make, served

AGENT, LOOP, CHILDREN, FOUR = "agent", "loop", "ffmpeg", "four"
MODELS = 4
"""Number of models on one camera in the last turn; all are the same model."""
STEPS = "edge_agent.bench.pipeline.steps"
READING = ("receive", "decode", "convert")


@dataclass(frozen=True, slots=True)
class CamerasSetup:
    """The settings shared by all models and streams."""

    streams: tuple[tuple[str, tuple[int, int]], ...]
    """Codec, and width and height, of each."""
    rate: float
    """Results per second from each camera."""
    runs: int
    seconds: float
    """How long each is watched in a round."""
    most: int
    """Most cameras that are tried; 0: how many are carried is not measured."""
    p99_ms: float


@dataclass(slots=True)
class CamerasReport:
    """Measurements of one model with one stream."""

    model: str
    stream: Stream
    setup: CamerasSetup
    engine: str = ""
    turns: dict[str, list[Window]] = field(default_factory=dict)
    parts: list[Mapping[str, float]] = field(default_factory=list)
    """By round: see `steps.measure_camera`; and `publish`."""
    carried: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    def parts_ms(self) -> dict[str, float]:
        """Return each part's cost per result; reading includes all frames since the last one."""
        frames = {"receive": FPS / self.setup.rate, "decode": FPS / self.setup.rate}
        found = medians(self.parts).items()
        return {name: round(took * frames.get(name, 1), 4) for name, took in found}

    def _over(self, name: str, floor: Sequence[float]) -> dict[str, float]:
        """Return a way's share of a core relative to a floor, round by round."""
        taken = map(core_percent, self.turns[name])
        return spread(percent / least for percent, least in zip(taken, floor, strict=True))

    def json(self) -> dict[str, Any]:
        """Return all figures."""
        parts, rate = self.parts_ms(), self.setup.rate
        read = sum(took for name, took in parts.items() if name in READING)
        rest = sum(parts.values()) - read
        four_parts = (read + MODELS * rest) * rate / 10
        scripts = [name for name in self.turns if name in {LOOP, CHILDREN}]
        return {
            "model": self.model,
            "engine": self.engine,
            "codec": self.stream.codec,
            "size": f"{self.stream.width}x{self.stream.height}",
            "fps": FPS,
            "served": "rtsp" if self.stream.address else "file",
            "rate": rate,
            "runs": self.setup.runs,
            "parts_ms": parts,
            "parts_core_percent": {n: round(ms * rate / 10, 3) for n, ms in parts.items()},
            "core_percent": {n: spread(map(core_percent, t)) for n, t in self.turns.items()},
            "cpu_ms_per_result": {n: spread(w.cpu_ms for w in t) for n, t in self.turns.items()},
            "age_ms": {
                name: payloads.percentiles([a for w in turns for a in w.of("timing", "age_ms")])
                for name, turns in self.turns.items()
            },
            "agent_over": {
                n: self._over(AGENT, list(map(core_percent, self.turns[n]))) for n in scripts
            },
            "four_over_four_times_one": self._over(
                FOUR, [MODELS * core_percent(turn) for turn in self.turns[AGENT]]
            ),
            "four_over_parts": self._over(FOUR, [four_parts] * len(self.turns[FOUR])),
            **({"carried": self.carried} if self.carried else {}),
        }


def core_percent(window: Window) -> float:
    """Return a program's share of one core, percent."""
    return 100 * window.cpu_seconds / window.seconds


def measure(
    models: list[Path], setup: CamerasSetup, report_progress: Progress
) -> list[CamerasReport]:
    """Measure each model with each stream."""
    folders = [checked(model) for model in models]
    if shutil.which("ffmpeg") is None:
        report_progress("no ffmpeg on the PATH: measured without it (apt install ffmpeg)")
    reports = []
    with scratch_folder("bench") as place, broker(place) as loopback:
        report_progress("the streams are being made")
        streams = [make(codec, size, place) for codec, size in setup.streams]
        for number, folder in enumerate(folders):
            own = Place(folder.path, loopback, place / f"model-{number}")
            prepare(own, endless(streams[0].file, "real"))
            for stream in streams:
                report = CamerasReport(folder.manifest.id, stream, setup)
                reports.append(report)
                _Cameras(own, report, report_progress).measure()
    return reports


class _Cameras:
    """Measures one model with one stream."""

    def __init__(self, place: Place, report: CamerasReport, report_progress: Progress) -> None:
        self._place, self._report = place, report
        self._setup = report.setup
        self._name = f"{report.model} {report.stream.name}"
        self._progress = report_progress

    def measure(self) -> None:
        """Run the turns, then find how many cameras are carried."""
        report, setup = self._report, self._setup
        names = [AGENT, LOOP, *([CHILDREN] if shutil.which("ffmpeg") else []), FOUR]
        turns = {way: partial(self._turn, way) for way in names}
        for number, found in enumerate(rounds(setup.runs, turns, report.others), 1):
            for way, window in found.items():
                report.turns.setdefault(way, []).append(window)
            report.parts.append(self._parts())
            shown = ", ".join(f"{way} {core_percent(found[way]):.1f}" for way in names)
            self._progress(f"{self._name} round {number} of {setup.runs}, % of a core: {shown}")
        for way in names[:-1] if setup.most else ():
            # On a busy machine a short turn may have had no processor time at all.
            used = max(1.0, *(core_percent(turn) for turn in report.turns[way]))
            report.carried[way] = carried(
                partial(self._attempt, way),
                max(1, int(80 * cores() / used)),
                f"{self._name} {way}:",
                (setup.rate, setup.p99_ms),
                self._progress,
                setup.most,
            )

    @contextmanager
    def _playing(self, way: str, count: int = 1) -> Iterator[Program]:
        """Play *count* cameras, or four models on one."""
        rate, place = self._setup.rate, self._place
        with served(self._report.stream, self._progress) as stream:
            self._report.stream = stream
            program: AbstractContextManager[Program]
            if way in {AGENT, FOUR}:
                line = Line(stream.source, rate, share=way == FOUR)
                program = place.agent([line] * (MODELS if way == FOUR else count))
            else:
                size = stream.width, stream.height, FPS
                arguments = [way, place.model, rate, stream.opened, *size, count]
                module = f"{__package__}.plain_cameras"
                program = script(module, arguments, place.loopback, count)
            with program as playing:
                yield playing

    def _turn(self, way: str) -> Window:
        with self._playing(way) as program:
            program.settle(self._setup.seconds)  # a start has work left after its first result
            window = program.watch(self._setup.seconds)
        if way == AGENT:
            self._report.engine = window.of("engine")[-1]
        return window

    def _parts(self) -> dict[str, float]:
        stream = self._report.stream
        # From separate servers: GStreamer's may stall for a client that comes as another one goes.
        with served(stream, self._progress) as first, served(stream, self._progress) as second:
            found: dict[str, float] = call(
                STEPS,
                "measure_camera",
                model=str(self._place.model),
                engine=self._report.engine,
                state=str(self._place.folder / "state"),
                stream=[first.source, second.opened],
                seconds=self._setup.seconds,
            )
        return {**found, "publish": self._place.overhead()}

    def _attempt(self, way: str, count: int) -> tuple[float, str]:
        """Play *count* cameras; see `carried`."""
        seconds = max(self._setup.seconds, 3.0 / self._setup.rate)
        # A start has work left after its first result, and with other settings it is a first start.
        window = watched(self._playing(way, count), seconds, settled_for=seconds)
        age, problem = judged(window, count, self._setup.rate, self._setup.p99_ms)
        if problem or isinstance(window, str):
            return age, problem
        return age, "frames are read too late" if behind(window, self._setup.rate) else ""


def behind(window: Window, rate: float) -> bool:
    """Whether fewer frames of any camera were read than it sent, so that results are silently late.

    The number of a result counts all frames that were read before it.
    """
    numbers: dict[str, list[int]] = {}
    for (topic, _), seq in zip(window.results, window.of("seq"), strict=True):
        numbers.setdefault(topic, []).append(seq)
    # At either end, a result may be late by one frame or slot.
    return any(
        seen[-1] - seen[0] < SERVED * FPS * (len(seen) - 2) / rate for seen in numbers.values()
    )
