"""Programs that play a clip through a model and publish, seen from outside as a user sees them.

The agent and the scripts it is measured against are all judged alike: by what a subscriber counts
between two moments, and by the processor time that the kernel says they took in between.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...config.settings import Broker
from ...core.errors import AgentError
from ...models.manifest import load
from ...mqtt.connection import ReceivedMessage
from ...mqtt.loopback import Loopback
from ...mqtt.one_shot import OneShotClient
from .pipeline_figures import PipelineSetup

START_SECONDS = 60.0
"""For the first result of every pipeline."""
SETTLE_SECONDS = 2.0
"""Without a change of engine and with no form being prepared: what runs now is what stays."""
PREPARE_SECONDS = 180.0
POLL_SECONDS = 0.25
TICKS = os.sysconf("SC_CLK_TCK")
DEVICE = "bench"


class SilentError(AgentError):
    """A program runs, but publishes no result."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen between two moments."""

    seconds: float
    frames: int
    cpu_seconds: float
    """Of the program and what it has started."""
    results: tuple[tuple[str, bytes], ...]
    """Topic and payload of each."""

    @property
    def fps(self) -> float:
        return self.frames / self.seconds

    @property
    def cpu_per_1000(self) -> float:
        """Processor seconds for 1,000 frames."""
        return 1e3 * self.cpu_seconds / max(1, self.frames)

    def of(self, *keys: str) -> list[Any]:
        """Look up a value in each result, key by key."""
        found = []
        for _, payload in self.results:
            value = json.loads(payload)
            for key in keys:
                value = value[key]
            found.append(value)
        return found


class Player:
    """A program that is running, and the subscriber that hears its results."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], client: OneShotClient) -> None:
        self.name = name
        self.process = process
        self.engine: str | None = None
        """That the latest result looked at has named."""
        self.prepared: str | None = None
        """What the agent says of the prepared form."""
        self._client = client

    def heard(self, seconds: float) -> Iterator[ReceivedMessage]:
        """Return the results that arrive within this many seconds.

        Raises:
            AgentError: the program has ended.
        """
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            heard = self._client.next(timeout=min(left, POLL_SECONDS))
            if heard is not None:
                yield heard
            elif self.process.poll() is not None:
                raise AgentError(
                    f"{self.name} ended with {self.process.returncode}: {self._words()}"
                )

    def _words(self) -> str:
        assert self.process.stderr is not None  # noqa: S101 - it was started with a pipe
        words = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        return words[-1] if words else "it said nothing"

    def begin(self, topics: Sequence[str]) -> None:
        """Wait for a result on each topic.

        Raises:
            SilentError: they do not come.
            AgentError: the program has ended.
        """
        missing = set(topics)
        for heard in self.heard(START_SECONDS):
            self._note(heard)
            missing.discard(heard.topic)
            if not missing:
                return
        raise SilentError(
            f"{self.name}: no result on {', '.join(sorted(missing))} for {START_SECONDS:.0f} s"
        )

    def settle(self, quiet: float = SETTLE_SECONDS) -> None:
        """Wait until the engine has stayed for so long, and the prepared form is there.

        Raises:
            AgentError: that takes too long, or the program has ended.
        """
        since = begun = time.perf_counter()
        while time.perf_counter() - begun < PREPARE_SECONDS:
            engine = self.engine
            for heard in self.heard(0.25):
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
        """Suspend the program for a while: it uses no processor time, and continues afterward."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def watch(self, seconds: float) -> Window:
        """Count what comes from now on.

        Raises:
            AgentError: the program has ended.
        """
        for _ in self.heard(0.001):
            pass  # what has been waiting since before
        taken, start = cpu_seconds(self.process.pid), time.perf_counter()
        # Nothing is read into what comes before all of it has come.
        came = [(h.topic, h.payload) for h in self.heard(seconds)]
        spent, took = cpu_seconds(self.process.pid) - taken, time.perf_counter() - start
        results = tuple((topic, payload) for topic, payload in came if "/result/" in topic)
        return Window(took, len(results), spent, results)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and all it has started have taken, seconds."""
    total, family = 0.0, [pid]
    while family:
        one = family.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            # utime, stime, and those of children that have ended: fields 14 to 17 in proc(5).
            total += sum(int(field) for field in fields[11:15]) / TICKS
            for task in Path(f"/proc/{one}/task").iterdir():
                family += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # ended meanwhile
    return total


def resident_mb(pid: int) -> float:
    """Return the anonymous memory of a process, MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(frozen=True, slots=True)
class Line:
    """A pipeline of the agent that is measured."""

    source: str
    rate: float | None = None


def endless(clip: Path, pace: str = "max") -> str:
    """Write a clip as a source that never ends."""
    return f"file:{quote(str(clip.resolve()))}?loop=1&pace={pace}"


def played(setup: PipelineSetup, pace: str = "max") -> str:
    """Write what is played as a source that never ends."""
    return setup.recording or endless(setup.clip, pace)


@contextmanager
def agent(
    model: Path, lines: Sequence[Line], loopback: Loopback, place: Path, device: str = DEVICE
) -> Iterator[Player]:
    """Run the daemon, one pipeline for each line, all through one model.

    *place* keeps settings and state from run to run, so that forms are prepared once.

    Raises:
        AgentError: it gives no results.
    """
    name = load(model).manifest.name
    blocks = [f'device_id = "{device}"\nstate_dir = "state"\nmodels_dirs = ["models"]\n']
    blocks.append(f'[broker]\nurl = "{loopback.url}"\nprotocol = {loopback.protocol}\n')
    for number, line in enumerate(lines):
        rate = "" if line.rate is None else f"rate = {line.rate}\n"
        blocks.append(
            f'[[pipelines]]\nname = "p{number}"\nsource = {json.dumps(line.source)}\n'
            f'model = "{name}"\n{rate}'
        )
    # Not touched where they are the same: the next start is then one from the plan of the last.
    settings, text = place / "edge-agent.toml", "".join(blocks)
    if not settings.exists() or settings.read_text() != text:
        settings.write_text(text)
    library = place / "models"
    library.mkdir(exist_ok=True)
    link = library / "model"
    if not link.exists():
        link.symlink_to(model.resolve(), target_is_directory=True)
    command = [sys.executable, "-m", "edge_agent", "run", "--config", str(settings)]
    topics = [f"edge/{device}/result/p{number}" for number in range(len(lines))]
    filters = [f"edge/{device}/{kind}/#" for kind in ("result", "model")]
    with _playing("the agent", command, filters, loopback) as player:
        player.begin(topics)
        yield player


@contextmanager
def script(module: str, arguments: Sequence[object], loopback: Loopback) -> Iterator[Player]:
    """Run one of the scripts beside this module, which plays for ever.

    The module's name becomes part of the topic that it is told to publish on, behind *arguments*.

    Raises:
        AgentError: it gives no results.
    """
    topic = f"{module}/result/clip"
    words = [*map(str, arguments), str(loopback.port), topic]
    command = [sys.executable, "-m", f"{__package__}.{module}", *words]
    with _playing(f"the {module} script", command, [topic], loopback) as player:
        player.begin([topic])
        yield player


@contextmanager
def _playing(
    name: str, command: list[str], filters: list[str], loopback: Loopback
) -> Iterator[Player]:
    broker = Broker(url=loopback.url, protocol=loopback.protocol)
    with OneShotClient(broker, filters) as client:
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            try:
                yield Player(name, process, client)
            finally:
                process.terminate()
                _reap(process)
        # What it has left retained is not to be taken for the next one's.
        for heard in iter(lambda: client.next(timeout=0.05), None):
            if heard.retained or "/model/" in heard.topic:
                client.publish(heard.topic, b"", retain=True)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


Progress = Callable[[str], None]
