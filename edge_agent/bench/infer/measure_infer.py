"""`edge-agent bench infer`: answers on demand over HTTP and MQTT, compared with a plain server.

Both are asked about the same picture, by callers that wait for each answer before asking again.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from ...config.settings import Broker
from ...core.bundled import bundled
from ...core.errors import AgentError, UsageError
from ...core.scratch import scratch_folder
from ...models.manifest import ModelFolder
from ...mqtt.connection import parse_object
from ...mqtt.loopback import Loopback, broker, free_port
from ...mqtt.one_shot import OneShotClient
from ...runtime.pipelines.draw import jpeg
from ..cold_start.truth import frames
from ..common.programs import DEVICE, START_SECONDS, Program, agent_command, playing
from ..common.report import Progress, p99, rounds, spread
from ..pipeline.measure_pipeline import checked

PLAIN, AGENT, MQTT = "plain", "agent", "agent over MQTT"
CALLERS = (1, 8)
FIGURES = ("requests_s", "p50_ms", "p99_ms", "cpu_ms")
ASK_SECONDS = 0.05
"""How long questions are asked between two checks whether the agent is stable."""
WARM_SECONDS = 1.0
PREPARE_ASKS = 2
NEEDED = ("starlette", "uvicorn", "httptools")
"""Libraries of the extra `http`."""

Asked = tuple[list[float], float]
"""The time of each request in ms, and the answers per second."""


@dataclass(frozen=True, slots=True)
class InferSetup:
    """The settings shared by all models."""

    runs: int
    seconds: float
    """How long each way is asked by each number of callers in a round."""
    picture: Path | None
    """The picture asked about; None: a frame of the bundled clip."""


@dataclass(slots=True)
class InferReport:
    """Measurements of one model."""

    model: str
    setup: InferSetup
    picture: str
    body: bytes = field(repr=False)
    """Bytes of the picture."""
    engine: str = ""
    loads: dict[tuple[str, int], list[dict[str, float]]] = field(default_factory=dict)
    """`FIGURES` by way and callers, round by round."""
    memory_mb: dict[str, list[float]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return all figures."""
        callers: dict[str, Any] = {}
        ratios: dict[str, Any] = {}
        for (way, count), loads in self.loads.items():
            found = {name: spread(load[name] for load in loads) for name in FIGURES}
            callers.setdefault(str(count), {})[way] = found
        for count in CALLERS:
            pairs = list(zip(self.loads[AGENT, count], self.loads[PLAIN, count], strict=True))
            ratios[str(count)] = {
                name: spread(agent[name] / plain[name] for agent, plain in pairs)
                for name in FIGURES
            }
        return {
            "model": self.model,
            "engine": self.engine,
            "picture_bytes": len(self.body),
            "runs": self.setup.runs,
            "callers": callers,
            "agent_over_plain": ratios,
            "memory_mb": {way: spread(found, 1) for way, found in self.memory_mb.items()},
        }


def measure(models: list[Path], setup: InferSetup, report_progress: Progress) -> list[InferReport]:
    """Measure each model."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(
            f"bench infer needs {missing[0]}; install it with: "
            f"{sys.executable} -m pip install {' '.join(NEEDED)}"
        )
    folders = [checked(model) for model in models]
    if setup.picture is not None:
        name, body = setup.picture.name, setup.picture.read_bytes()
    else:
        clip = bundled("models") / "media" / "conveyor.mp4"
        ((_, frame),) = frames(str(clip), {0})
        name, body = f"a frame of {clip.name}", jpeg(frame)
    reports = []
    with scratch_folder("bench") as place, broker(place) as loopback:
        for number, folder in enumerate(folders):
            report = InferReport(folder.manifest.id, setup, name, body)
            reports.append(report)
            servers = _Servers(folder, place / f"model-{number}", loopback, report)
            report_progress(f"{report.model}: the agent prepares it")
            servers.prepare()
            turns: dict[str, Callable[[], None]] = {PLAIN: servers.plain, AGENT: servers.agent}
            for done, _ in enumerate(rounds(setup.runs, turns, report.others), 1):
                latest = [(*key, loads[-1]["requests_s"]) for key, loads in report.loads.items()]
                shown = ", ".join(f"{way} {count}: {rate:.1f}" for way, count, rate in latest)
                report_progress(
                    f"{report.model} round {done} of {setup.runs}, requests a second by callers, "
                    f"{shown}"
                )
    return reports


class _Servers:
    """The servers for one model, and the questions to them."""

    def __init__(
        self, folder: ModelFolder, place: Path, loopback: Loopback, report: InferReport
    ) -> None:
        self._folder, self._place, self._loopback = folder, place, loopback
        self._report = report
        self._name = folder.manifest.name
        self._port = 0

    def plain(self) -> None:
        """Measure the plain server."""
        self._port = free_port(8081)
        module = f"{__package__}.plain_server"
        command = [sys.executable, "-m", module, str(self._folder.path), str(self._port)]
        with playing("the plain server", command, ["plain/#"], self._loopback) as program:
            self._wait(program)
            self._load(PLAIN, program, self._over_http)

    def agent(self) -> None:
        """Measure the agent."""
        with self._running() as program:
            program.settle()
            self._load(AGENT, program, self._over_http)
            self._load(MQTT, program, self._over_mqtt)

    def prepare(self) -> None:
        """Have the agent prepare the model's form and choose its engine, which needs questions."""
        for _ in range(2):  # whether the form is best is only known after a start from it
            with self._running() as program:
                for _ in range(PREPARE_ASKS):
                    self._over_http(1, WARM_SECONDS)
                    program.settle(ask=lambda: self._over_http(1, ASK_SECONDS))

    @contextmanager
    def _running(self) -> Iterator[Program]:
        self._port = free_port(8081)
        tables = (
            f'[infer]\nmodels = ["{self._name}"]\nper_s = 100000\n'
            f'[http]\nlisten = "127.0.0.1:{self._port}"\n'
        )
        command = agent_command(self._place, self._loopback, tables, self._folder.path)
        with playing("the agent", command, [f"edge/{DEVICE}/model/#"], self._loopback) as program:
            self._report.engine = self._wait(program)
            yield program

    def _wait(self, program: Program) -> str:
        """Ask until there is an answer; return the engine named in it."""
        deadline, said = monotonic() + START_SECONDS, "nothing listens"
        while monotonic() < deadline:
            program.check()
            with closing(self._connection()) as connection:
                try:
                    status, answer = self._ask(connection)
                except OSError:
                    sleep(0.1)
                    continue
            if status == 200:
                return str((parse_object(answer) or {}).get("engine", ""))
            said = answer.decode(errors="replace")
            sleep(0.5)
        raise AgentError(f"{program.name} gives no answer: {said}")

    def _load(self, way: str, program: Program, ask: Callable[[int, float], Asked]) -> None:
        """Measure one way with each number of callers."""
        for count in CALLERS:
            ask(count, min(WARM_SECONDS, self._report.setup.seconds))
            before = program.cpu_seconds()
            took, rate = ask(count, self._report.setup.seconds)
            spent = program.cpu_seconds() - before
            figures = rate, sorted(took)[len(took) // 2], p99(took), 1e3 * spent / len(took)
            found = dict(zip(FIGURES, figures, strict=True))
            self._report.loads.setdefault((way, count), []).append(found)
        self._report.memory_mb.setdefault(way, []).append(program.resident_mb())

    def _connection(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self._port, timeout=START_SECONDS)

    def _ask(self, connection: HTTPConnection) -> tuple[int, bytes]:
        connection.request("POST", f"/predict/{self._name}", self._report.body)
        response = connection.getresponse()
        return response.status, response.read()

    def _over_http(self, callers: int, seconds: float) -> Asked:
        """Ask from one thread per caller, each on its own connection."""
        took: list[float] = []
        wrong: list[str] = []
        begun = perf_counter()

        def call() -> None:
            with closing(self._connection()) as connection:
                while perf_counter() < begun + seconds and not wrong:
                    start = perf_counter()
                    try:
                        status, answer = self._ask(connection)
                    except OSError as problem:
                        status, answer = 0, str(problem).encode()
                    if status != 200:
                        wrong.append(answer.decode(errors="replace"))
                    took.append((perf_counter() - start) * 1e3)

        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if wrong:
            raise AgentError(f"a request was not answered: {wrong[0]}")
        return took, len(took) / (perf_counter() - begun)

    def _over_mqtt(self, callers: int, seconds: float) -> Asked:
        """Ask over the broker, with one question of each caller in progress."""
        took: list[float] = []
        sent: dict[str, float] = {}
        numbers = map(str, itertools.count())
        settings = Broker(url=self._loopback.url, protocol=self._loopback.protocol)
        with OneShotClient(settings, [f"edge/{DEVICE}/reply/#"]) as client:

            def ask() -> None:
                number = next(numbers)
                sent[number] = perf_counter()
                client.publish(f"edge/{DEVICE}/in/infer/{self._name}/{number}", self._report.body)

            begun = perf_counter()
            for _ in range(callers):
                ask()
            while sent:
                heard = client.next(START_SECONDS)
                body = {} if heard is None else heard.body or {}
                if heard is None or not body.get("ok"):
                    raise AgentError(f"a question was not answered: {body.get('error')}")
                took.append((perf_counter() - sent.pop(heard.topic.rpartition("/")[2])) * 1e3)
                if perf_counter() < begun + seconds:
                    ask()
        return took, len(took) / (perf_counter() - begun)
