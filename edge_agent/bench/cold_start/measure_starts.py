"""`edge-agent bench cold-start`: from the exec of a process to its first correct result over MQTT.

The agent beside what plain scripts get, fresh processes every time, in turn within each round.
This process times and imports nothing large: what it had mapped, the timed ones would not have to
read.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...config.settings import Broker
from ...core.errors import AgentError, UsageError
from ...mqtt.connection import ReceivedMessage
from ...mqtt.loopback import Loopback, broker, find_mosquitto
from ...mqtt.one_shot import OneShotClient
from ..common import child
from ..common.places import cache_folder
from .page_cache import drop_all, ensure_droppable, evict, holders, read_rate
from .slow_disk import slow_disk
from .start_figures import ColdStartReport, ColdStartSetup, Run
from .starts import (
    BEST,
    DEVICE,
    KINDS,
    NONE,
    STATE,
    Progress,
    Start,
    script_steps,
    starts,
)

PATIENCE_SECONDS = 300.0
"""For a first result; a slow disk takes its time over the libraries."""
PREPARE_SECONDS = 180.0
"""For the agent to prepare what it likes, before anything is timed."""
SAYS_SECONDS = 5.0
"""For the agent to say where its time went, after its first result."""
LIBRARY_PLACES = (Path(sys.prefix), Path(sys.base_prefix))
LIBRARIES = ("onnxruntime", "openvino", "cv2", "numpy")
WARM_RUNS = 3
"""Of the best whole-model load, for the floor."""


def measure(
    models: list[str], setup: ColdStartSetup, report_progress: Progress, config: str | None = None
) -> list[ColdStartReport]:
    """Measure each model.

    Args:
        models: folders, or names of the agent's or of generated models.
        setup: what is the same for all.
        report_progress: takes a line about how far it is.
        config: settings of the agent whose models they are; None: the usual ones.

    Raises:
        UsageError: a model, or a right that is asked for, is not there.
        AgentError: a run failed, or gave a wrong answer.
    """
    if find_mosquitto() is None:
        raise UsageError(
            "bench cold-start needs a broker: install mosquitto (apt install mosquitto)"
        )
    if setup.cold == "everything":
        ensure_droppable()
    with (
        TemporaryDirectory(prefix="cold-start-", dir=cache_folder()) as name,
        broker(Path(name)) as loopback,
    ):
        if setup.disk_mbps is not None:
            with slow_disk([Path(name), *LIBRARY_PLACES], setup.disk_mbps * 1e6):
                pass  # what cannot be is said before minutes have passed
        found = child.call(
            f"{__package__}.prepare_models", "look", models=models, place=name, config=config
        )
        return [_Bench(model, loopback, setup, report_progress).measure() for model in found]


class _Bench:
    """Measures one model."""

    def __init__(
        self,
        model: dict[str, Any],
        loopback: Loopback,
        setup: ColdStartSetup,
        report_progress: Progress,
    ) -> None:
        self._model = model
        self._loopback = loopback
        self._setup = setup
        self._progress = report_progress
        self._place = Path(model["place"])
        self._log = self._place / "process.log"
        self._sessions: set[str] = set()
        """Of agents that have ended: what they said may still be on its way."""
        self._says_steps = True
        self._told = False

    def measure(self) -> ColdStartReport:
        """Prepare, run all rounds, check all answers."""
        variants = self._setup.variants
        ways = starts(self._model, self._setup.clip, self._loopback, self._setup.kinds)
        filters = [f"{DEVICE}/#", f"edge/{DEVICE}/result/#", f"edge/{DEVICE}/model/#"]
        settings = Broker(url=self._loopback.url, protocol=self._loopback.protocol)
        with OneShotClient(settings, filters) as client:
            report = self._prepare(client, ways)
            with self._disk():
                for number in range(self._setup.runs):
                    # Each has another before it in every round.
                    turn = number % len(ways)
                    for start in ways[turn:] + ways[:turn]:
                        start.ready()
                        self._evict()
                        report.runs[start.variant].append(self._run(client, start))
                    self._progress(
                        f"{report.model} round {number + 1} of {self._setup.runs}: "
                        + ", ".join(f"{name} {report.runs[name][-1].ms:.0f}" for name in variants)
                        + " ms"
                    )
        self._check([run for name in variants for run in report.runs[name]])
        return report

    def _prepare(self, client: OneShotClient, ways: Sequence[Start]) -> ColdStartReport:
        """Run everything once untimed, and measure what bounds a load."""
        prepared: str | None = "none is wanted"
        state: Path | None = None
        for start in ways:  # the agent last: what the scripts tell of the model comes sooner
            self._progress(f"{self._model['id']}: preparing {start.variant}")
            start.ready()
            if start.place is not None and start.variant != KINDS["first"]:
                if state is None:
                    prepared = self._let_prepare(client, start)
                    state = start.place / STATE
                else:
                    shutil.copytree(state, start.place / STATE)
            self._check([self._run(client, start)])
        best = next(start for start in ways if start.variant == BEST)
        warm = [self._run(client, best).steps for _ in range(WARM_RUNS)]
        rate = self._setup.disk_mbps
        return ColdStartReport(
            self._model["id"],
            self._model["bytes"],
            self._setup,
            prepared,
            read_rate(Path(self._model["weights"])) if rate is None else rate * 1e6,
            min(steps["model"] for steps in warm),
            min(steps["infer"] for steps in warm),
        )

    def _let_prepare(self, client: OneShotClient, start: Start) -> str | None:
        """Run the agent until it says what became of the prepared form; give that.

        "ready", or "no: " and why; None where it does not say in time.
        """
        topic = f"edge/{DEVICE}/model/{self._model['name']}"
        deadline = time.monotonic() + PREPARE_SECONDS
        said: str | None = None
        with self._process(start) as (process, _):
            while (left := deadline - time.monotonic()) > 0:
                heard = client.next(min(left, 1.0))
                if heard is None and process.poll() is not None:
                    raise AgentError(f"{self._model['id']}: the agent ended: {self._last_words()}")
                if heard is None or heard.retained or heard.topic != topic or not heard.payload:
                    continue
                said = json.loads(heard.payload).get("prepared")
                if said is not None and (said == "ready" or said.startswith("no")):
                    break
            else:
                said = None
        if said != "ready":
            why = said or f"it did not say within {PREPARE_SECONDS:.0f} s that one is ready"
            self._progress(f"{self._model['id']}: timed without a prepared form: {why}")
        return said

    def _run(self, client: OneShotClient, start: Start) -> Run:
        """Start a process; time its first result."""
        while client.next(0) is not None:
            pass
        with self._process(start) as (process, begun):
            payload, ended = self._first_result(client, start, process)
            if start.place is not None:
                self._sessions.add(payload["session"])
                if payload["model"] != self._model["id"]:
                    raise AgentError(
                        f"{self._model['id']}: the agent ran {payload['model']} instead"
                    )
                steps = self._cold_start(client) or {}
            else:
                steps = script_steps(payload["marks"], begun, ended)
                process.wait(PATIENCE_SECONDS)
        return Run((ended - begun) * 1e3, steps, {"variant": start.variant, **payload})

    def _first_result(
        self, client: OneShotClient, start: Start, process: subprocess.Popen[bytes]
    ) -> tuple[dict[str, Any], float]:
        """Wait for a result; return it, and when it was here."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            heard = client.next(1.0)
            ended = time.monotonic()
            if heard is not None and heard.topic == start.topic:
                payload: dict[str, Any] = json.loads(heard.payload)
                if payload.get("session") not in self._sessions:
                    return payload, ended
            elif heard is None and process.poll() is not None:
                break
        raise AgentError(
            f"{self._model['id']}: {start.variant} gave no result: {self._last_words()}"
        )

    def _last_words(self) -> str:
        words = self._log.read_text(errors="replace").strip().splitlines()
        return words[-1] if words else "it says nothing"

    def _cold_start(self, client: OneShotClient) -> dict[str, float] | None:
        """Hear where the agent's time went; None where it does not say."""
        deadline = time.monotonic() + SAYS_SECONDS
        while self._says_steps and (left := deadline - time.monotonic()) > 0:
            heard = client.next(left)
            steps = _steps_in(heard)
            if steps is not None:
                return steps
        self._says_steps = False  # not waited for again and again
        return None

    @contextmanager
    def _process(self, start: Start) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
        """Run a process, and end it; return when it began, by the monotonic clock."""
        with self._log.open("wb") as output:
            begun = time.monotonic()
            process = subprocess.Popen(
                start.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                cwd=start.cwd,
            )
        try:
            yield process, begun
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _disk(self) -> Any:
        rate = self._setup.disk_mbps
        if rate is None:
            return nullcontext()
        places = [Path(self._model["folder"]), self._place, self._setup.clip]
        return slow_disk([*places, *LIBRARY_PLACES], rate * 1e6)

    def _evict(self) -> None:
        """Put out of memory what is to be cold."""
        if self._setup.cold == "everything":
            self._tell_holders()
            drop_all()
        elif self._setup.cold == "model":
            evict([Path(self._model["folder"]), self._place])

    def _tell_holders(self) -> None:
        """Report once which process keeps its libraries in memory, whatever is dropped here."""
        found = [] if self._told else holders(LIBRARIES)
        if found:
            self._told = True
            self._progress(
                f"{self._model['id']}: not everything is cold: libraries that are measured are "
                f"held in memory by {', '.join(found)}; end these for true figures"
            )

    def _check(self, runs: Sequence[Run]) -> None:
        """Check that every answer is right.

        Raises:
            AgentError: one is not.
        """
        claims = [run.claim for run in runs if run.claim["variant"] != NONE]
        if not claims:
            return
        wrong = child.call(
            "edge_agent.bench.common.truth",
            "check",
            model=self._model,
            clip=str(self._setup.clip),
            claims=claims,
        )
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise AgentError(f"wrong answer: {wrong[0]}{more}")


def _steps_in(heard: ReceivedMessage | None) -> dict[str, float] | None:
    if heard is None or "/model/" not in heard.topic or heard.retained or not heard.payload:
        return None
    steps: dict[str, float] | None = json.loads(heard.payload).get("cold_start")
    return steps


def _environment() -> dict[str, str]:
    """Return the user's environment, without what this program has set for its own cameras."""
    own = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
    return {name: value for name, value in os.environ.items() if name != own}
