"""Programs that are measured, observed from outside as a user would.

The agent and the scripts that it is compared with are all judged in the same way: by what a
subscriber counts between two moments, and by the processor time that the kernel reports for it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import quote

import psutil

from ...config.settings import Broker
from ...core.child import last_line
from ...core.errors import AgentError
from ...models.manifest import load
from ...mqtt.connection import ReceivedMessage
from ...mqtt.loopback import Loopback
from ...mqtt.one_shot import OneShotClient

START_SECONDS = 60.0
"""Time limit for the first result of every pipeline."""
SETTLE_SECONDS = 2.0
"""Time without a change of engine, and with no form being prepared, after which it is stable."""
PREPARE_SECONDS = 180.0
END_SECONDS = 20.0
POLL_SECONDS = 0.25
DEVICE = "bench"


@dataclass(frozen=True, slots=True)
class Window:
    """Observations between two moments."""

    seconds: float
    cpu_seconds: float
    """Processor time of the program and its children."""
    results: tuple[tuple[str, bytes], ...]
    """Topic and payload of each result."""

    @property
    def fps(self) -> float:
        return len(self.results) / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Processor time per result in ms, which is also seconds per 1,000 results."""
        return 1e3 * self.cpu_seconds / max(1, len(self.results))

    def of(self, *keys: str) -> list[Any]:
        """Return the value at a path of keys from each result."""
        found = []
        for _, payload in self.results:
            value = json.loads(payload)
            for key in keys:
                value = value[key]
            found.append(value)
        return found


class Program:
    """A running program, and the subscriber to its results."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], client: OneShotClient, output: IO[bytes]
    ) -> None:
        self.name = name
        self.process = process
        self.begun = 0.0
        """When it began, monotonic time."""
        self.engine: str | None = None
        """The engine named in the last result that was checked."""
        self.prepared: str | None = None
        """The agent's report on the prepared form."""
        self._client = client
        self._output = output

    def heard(self, seconds: float) -> Iterator[ReceivedMessage]:
        """Yield messages that arrive within *seconds*."""
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            heard = self._client.next(timeout=min(left, POLL_SECONDS))
            if heard is not None:
                yield heard
            else:
                self.check()

    def check(self) -> None:
        """Check that it runs."""
        if self.process.poll() is not None:
            ended = f"{self.name} ended with {self.process.returncode}"
            raise AgentError(f"{ended}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the last line of its output."""
        handle = self._output.fileno()
        written = os.pread(handle, os.fstat(handle).st_size, 0)
        return last_line(written) or "it said nothing"

    def begin(self, topics: Sequence[str]) -> None:
        """Wait for a result on each topic."""
        missing = set(topics)
        for heard in self.heard(START_SECONDS):
            self._note(heard)
            missing.discard(heard.topic)
            if not missing:
                return
        raise AgentError(
            f"{self.name}: no result on {', '.join(sorted(missing))} for {START_SECONDS:.0f} s"
        )

    def settle(
        self, quiet: float = SETTLE_SECONDS, ask: Callable[[], object] | None = None
    ) -> None:
        """Wait until the engine is stable for *quiet* seconds, and no form is being prepared.

        *ask* gives an agent without pipelines inputs on which to compare its form.
        """
        since = begun = time.perf_counter()
        while time.perf_counter() - begun < PREPARE_SECONDS:
            engine = self.engine
            if ask is not None:
                ask()
            for heard in self.heard(POLL_SECONDS):
                self._note(heard)
            if self.engine != engine or self.prepared == "preparing":
                since = time.perf_counter()
            if time.perf_counter() - since >= quiet:
                return
        raise AgentError(f"{self.name}: is not settled after {PREPARE_SECONDS:.0f} s")

    def _note(self, heard: ReceivedMessage) -> None:
        payload = heard.body or {}
        if "/model/" in heard.topic:
            self.prepared = payload.get("prepared", self.prepared)
        elif "engine" in payload:
            self.engine = payload["engine"]

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Suspend the program inside the `with` block; it continues afterward."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def watch(self, seconds: float) -> Window:
        """Count the results that come from now on."""
        for _ in self.heard(0.001):
            pass  # messages that were already waiting
        taken, start = self.cpu_seconds(), time.perf_counter()
        # Messages are not parsed before all of them have come.
        came = [(h.topic, h.payload) for h in self.heard(seconds)]
        spent, took = self.cpu_seconds() - taken, time.perf_counter() - start
        return Window(took, spent, tuple(each for each in came if "/result/" in each[0]))

    def cpu_seconds(self) -> float:
        """Return the processor time of it and all its children, in seconds."""
        total, root = 0.0, psutil.Process(self.process.pid)
        for one in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # ended meanwhile
                total += sum(one.cpu_times()[:4])  # its own, and that of ended children
        return total

    def resident_mb(self) -> float:
        """Return its resident memory in MB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6


@dataclass(frozen=True, slots=True)
class Line:
    """A pipeline of the measured agent."""

    source: str
    rate: float | None = None
    share: bool = True

    def table(self, name: str, model: str) -> str:
        """Return it as a table of the settings."""
        rate = "" if self.rate is None else f"rate = {self.rate}\n"
        return (
            f'[[pipelines]]\nname = "{name}"\nsource = {json.dumps(self.source)}\n'
            f'model = "{model}"\nshare = {str(self.share).lower()}\n{rate}'
        )


def endless(clip: Path, pace: str = "max") -> str:
    """Return a source that repeats a clip forever."""
    return f"file:{quote(str(clip.resolve()))}?loop=1&pace={pace}"


def agent_command(
    place: Path, loopback: Loopback, tables: str, model: Path | None, device: str = DEVICE
) -> list[str]:
    """Write an agent's settings; return the command that runs it.

    *place* keeps settings and state from run to run, so that forms are prepared only once; *tables*
    are the settings that differ between agents; *model* is a folder to make available to it.
    """
    place.mkdir(parents=True, exist_ok=True)
    text = (
        f'device_id = "{device}"\nstate_dir = "state"\nmodels_dirs = ["models"]\n'
        f'[broker]\nurl = "{loopback.url}"\nprotocol = {loopback.protocol}\n{tables}'
    )
    # Not written if they are unchanged, so that the next start uses the plan of the last.
    settings, library = place / "edge-agent.toml", place / "models"
    if not settings.exists() or settings.read_text() != text:
        settings.write_text(text)
    library.mkdir(exist_ok=True)
    if model is not None and not (library / "model").exists():
        (library / "model").symlink_to(model.resolve(), target_is_directory=True)
    return [sys.executable, "-m", "edge_agent", "run", "--config", str(settings)]


@contextmanager
def agent(
    model: Path, lines: Sequence[Line], loopback: Loopback, place: Path, device: str = DEVICE
) -> Iterator[Program]:
    """Run the daemon with one pipeline per line, all through one model."""
    name = load(model).manifest.name
    tables = "".join(line.table(f"p{number}", name) for number, line in enumerate(lines))
    command = agent_command(place, loopback, tables, model, device)
    topics = [f"edge/{device}/result/p{number}" for number in range(len(lines))]
    filters = [f"edge/{device}/{kind}/#" for kind in ("result", "model")]
    with playing("the agent", command, filters, loopback) as program:
        program.begin(topics)
        yield program


@contextmanager
def script(
    module: str, arguments: Sequence[object], loopback: Loopback, count: int = 1
) -> Iterator[Program]:
    """Run a script that plays forever, with the broker's port and a topic after its arguments.

    It publishes on *count* topics: that topic with a number from 0 appended.
    """
    name = module.rpartition(".")[2]
    topic = f"{name}/result/p"
    command = [sys.executable, "-m", module, *map(str, arguments), str(loopback.port), topic]
    with playing(f"the {name} script", command, [f"{name}/result/#"], loopback) as program:
        program.begin([f"{topic}{number}" for number in range(count)])
        yield program


@contextmanager
def playing(
    name: str, command: list[str], filters: list[str], loopback: Loopback
) -> Iterator[Program]:
    """Run a program with its own subscriber, and clear its retained messages afterward."""
    with OneShotClient(Broker(url=loopback.url, protocol=loopback.protocol), filters) as client:
        with running(name, command, client) as program:
            yield program
        # Its retained messages must not be mistaken for the next program's.
        for heard in iter(lambda: client.next(timeout=0.05), None):
            if heard.retained or "/model/" in heard.topic:
                client.publish(heard.topic, b"", retain=True)


@contextmanager
def running(
    name: str, command: list[str], client: OneShotClient, cwd: Path | None = None
) -> Iterator[Program]:
    """Run a program inside the `with` block, then end it; its output is kept for errors."""
    with TemporaryFile() as output:
        # An installed program is compiled; in a checkout, it would be compiled at every start.
        env = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        begun = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, env=env
        )
        program = Program(name, process, client, output)
        program.begun = begun
        try:
            yield program
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
