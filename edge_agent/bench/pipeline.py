"""`edge-agent bench pipeline`: the whole way from clip to broker, beside a plain script."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import numpy as np

from .. import wire
from ..board import Board
from ..cli.loopback import Loopback, broker
from ..client import BrokerClient
from ..errors import AgentError, UsageError
from ..link import Link
from ..manifest import load
from ..pipeline import Identity, Pipeline
from ..records import Array, Detections, Outcome, Sample, Timing
from ..serving import Serving
from ..settings import Arm, Broker
from ..settings import Pipeline as PipelineSettings
from ..sources import parse_source
from ..start.clock import Clock

RUN_SECONDS = 300.0
OVERHEAD_FRAMES = 3000


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of a clip."""

    frames: int
    fps: float
    ages: tuple[float, ...] = ()
    steps: tuple[tuple[float, float, float], ...] = ()
    """preprocess, infer, postprocess, ms."""
    engine: str = ""
    captured: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured of one model."""

    model: str
    engine: str
    frames: int
    agent_fps: tuple[float, ...]
    plain_fps: tuple[float, ...]
    age_ms: dict[str, float]
    step_ms: dict[str, float]
    overhead_ms: tuple[float, ...]

    def json(self) -> dict[str, Any]:
        ratios = [a / p for a, p in zip(self.agent_fps, self.plain_fps, strict=True)]
        return {
            "model": self.model,
            "engine": self.engine,
            "frames": self.frames,
            "runs": len(ratios),
            "agent_fps": spread(self.agent_fps),
            "plain_fps": spread(self.plain_fps),
            "ratio": spread(ratios),
            "age_ms": self.age_ms,
            "step_ms": self.step_ms,
            "overhead_ms": spread(self.overhead_ms),
        }


def spread(values: Any) -> dict[str, float]:
    """Give the least, the median and the most."""
    ordered = sorted(values)
    return {
        "min": round(ordered[0], 4),
        "median": round(statistics.median(ordered), 4),
        "max": round(ordered[-1], 4),
    }


def measure(models: list[Path], clip: Path, runs: int, say: Callable[[str], None]) -> list[Report]:
    """Measure each model, agent and plain script in turn.

    Raises:
        AgentError: a run failed.

    """
    reports = []
    with TemporaryDirectory(prefix="edge-agent-bench-") as place, broker(Path(place)) as loopback:
        overhead = [_overhead(loopback) for _ in range(runs)]
        say(f"overhead of the frame path: {statistics.median(overhead):.3f} ms a frame")
        for model in models:
            folder = load(model)
            if folder.manifest.input.is_signal or folder.network.suffix != ".onnx":
                raise UsageError(
                    f"{model}: bench pipeline takes picture models as .onnx, "
                    "which the plain script can run too"
                )
            agents, plains = [], []
            for number in range(runs):
                plains.append(_plain(clip, model, loopback))
                agents.append(_agent(clip, model, loopback, Path(place)))
                say(
                    f"{folder.manifest.id} pair {number + 1} of {runs}: "
                    f"agent {agents[-1].fps:.1f}, "
                    f"plain script {plains[-1].fps:.1f} frames a second"
                )
            ages = [age for run in agents for age in run.ages]
            steps = list(zip(*[step for run in agents for step in run.steps], strict=True))
            names = ("preprocess", "infer", "postprocess")
            reports.append(
                Report(
                    folder.manifest.id,
                    agents[0].engine,
                    agents[0].frames,
                    tuple(run.fps for run in agents),
                    tuple(run.fps for run in plains),
                    wire.percentiles(ages),
                    {
                        name: round(statistics.median(step), 3)
                        for name, step in zip(names, steps, strict=True)
                    },
                    tuple(overhead),
                )
            )
    return reports


def _agent(clip: Path, model: Path, loopback: Loopback, place: Path) -> Run:
    """Let the daemon play the clip once."""
    device = "bench"
    source = f"file:{quote(str(clip.resolve()))}?pace=max"
    settings = place / "edge-agent.toml"
    settings.write_text(
        f'device_id = "{device}"\nstate_dir = "state"\nmodels_dirs = ["models"]\n'
        f'[broker]\nurl = "{loopback.url}"\nprotocol = {loopback.protocol}\n'
        "[health]\ninterval_s = 1\n"
        f'[[pipelines]]\nname = "clip"\nsource = {json.dumps(source)}\n'
        f'model = "{load(model).manifest.id}"\n'
    )
    library = place / "models"
    library.mkdir(exist_ok=True)
    link = library / "model"
    link.unlink(missing_ok=True)
    link.symlink_to(model.resolve(), target_is_directory=True)
    filters = [f"edge/{device}/result/clip", f"edge/{device}/source/clip"]
    arrived: list[tuple[float, dict[str, Any]]] = []
    with BrokerClient(Broker(url=loopback.url, protocol=loopback.protocol), filters) as client:
        agent = subprocess.Popen(
            [sys.executable, "-m", "edge_agent", "run", "--config", str(settings)],
            stderr=subprocess.PIPE,
        )
        try:
            for heard in _until(client, agent):
                payload = json.loads(heard.payload) if heard.payload else {}
                if heard.topic.endswith("/result/clip"):
                    arrived.append((time.perf_counter(), payload))
                elif payload.get("state") == "ended" and arrived and not heard.retained:
                    break
        finally:
            agent.terminate()
            _, words = agent.communicate(timeout=20)
    if len(arrived) < 2:
        raise AgentError(
            f"the agent gave {len(arrived)} results: {words.decode(errors='replace')[-300:]}"
        )
    client_fps = (len(arrived) - 1) / (arrived[-1][0] - arrived[0][0])
    timings = [payload["timing"] for _, payload in arrived]
    return Run(
        len(arrived),
        client_fps,
        tuple(timing["age_ms"] for timing in timings),
        tuple((t["preprocess_ms"], t["infer_ms"], t["postprocess_ms"]) for t in timings),
        arrived[0][1]["engine"],
    )


def _plain(clip: Path, model: Path, loopback: Loopback) -> Run:
    """Let the plain script play the clip once."""
    topic = "plain/result"
    with BrokerClient(
        Broker(url=loopback.url, protocol=loopback.protocol), [f"{topic}/#"]
    ) as client:
        script = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "edge_agent.bench.plain",
                str(clip),
                str(model),
                str(loopback.port),
                topic,
            ],
            stderr=subprocess.PIPE,
        )
        times = []
        try:
            for heard in _until(client, script):
                if heard.topic.endswith("/end"):
                    break
                times.append(time.perf_counter())
        finally:
            _, words = script.communicate(timeout=60)
    if len(times) < 2:
        raise AgentError(
            f"the plain script gave {len(times)} results: {words.decode(errors='replace')[-300:]}"
        )
    return Run(len(times), (len(times) - 1) / (times[-1] - times[0]))


def _until(client: BrokerClient, process: subprocess.Popen[bytes]) -> Any:
    """Give messages until the process has ended and nothing more comes."""
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        heard = client.next(timeout=1.0)
        if heard is not None:
            yield heard
        elif process.poll() is not None:
            return
    raise AgentError(f"the run took more than {RUN_SECONDS:.0f} s")


def _sample(picture: Array, since: float, seq: int) -> Sample:
    return Sample(picture, seq, time.time_ns(), since)


class _Nothing:
    """A model that costs nothing: what is left is the frame path itself."""

    def __init__(self, found: Detections) -> None:
        self.users = 0
        self._outcome = Outcome("bench@1", "none", found, Timing(0.0, 0.0, 0.0))

    def infer(self, _sample: Sample, **_options: Any) -> Outcome:
        return self._outcome


def _overhead(loopback: Loopback) -> float:
    """Measure board, order, JSON and publishing: ms a frame of one lane with nothing else to do."""
    topics = wire.Topics("edge", "bench")
    boxes = np.tile(np.array([10.0, 20.0, 110.0, 220.0], np.float32), (5, 1))
    found = Detections(boxes, np.full(5, 0.9, np.float32), ("thing",) * 5)
    board: Board[Any] = Board()
    link = Link(
        Broker(url=loopback.url, protocol=loopback.protocol),
        "edge-agent-bench",
        status_topic=topics.status,
        status=lambda state, reason: wire.encode({"state": state, "reason": reason}),
        inboxes=list,
        inbox=SimpleQueue(),
    )
    serving = Serving(Arm("bench", None, 1), "picture")
    model: Any = _Nothing(found)
    serving.model = model
    pipeline = Pipeline(
        PipelineSettings(name="bench", source="dir:none", model="bench"),
        parse_source("dir:none", Path.cwd()),
        [serving],
        [],
        identity=Identity("bench", "session", topics, Clock()),
        board=board,
        link=link,
    )
    board.add(pipeline.slot)
    connecting = threading.Thread(target=link.run, daemon=True)
    connecting.start()
    closing = threading.Event()
    if not link.ready(pipeline.channel, closing):
        raise AgentError("the bench's broker went away")
    picture = np.zeros((8, 8, 3), np.uint8)
    costs = []
    for _ in range(OVERHEAD_FRAMES):
        link.ready(pipeline.channel, closing)
        start = time.perf_counter()
        since = time.monotonic()
        board.put(pipeline.slot, partial(_sample, picture, since))
        job = board.take()
        if job is None:
            break
        pipeline.process(job)
        costs.append((time.perf_counter() - start) * 1e3)
    board.close()
    link.close()
    connecting.join(5)
    return statistics.median(costs)
