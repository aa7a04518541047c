"""`edge-agent bench cold-start`: from the exec of a process to its first correct result over MQTT.

The agent is compared with plain scripts, in new processes every time. This process does the timing
and imports nothing large: files that it maps would not have to be read by the timed ones.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...config.settings import Broker
from ...core.errors import AgentError, UsageError
from ...mqtt.loopback import broker, find_mosquitto
from ...mqtt.one_shot import OneShotClient
from ..common import child
from ..common.programs import DEVICE, Program, running
from ..common.report import Progress, cache_folder, rounds
from .disk import drop_all, ensure_droppable, evict, holders, read_rate, slow_disk
from .starts import (
    BEST,
    KINDS,
    NONE,
    STATE,
    ColdStartReport,
    ColdStartSetup,
    Run,
    Start,
    script_steps,
    starts,
)

TRUTH = f"{__package__}.truth"
PATIENCE_SECONDS = 300.0
"""Time limit for a first result; a slow disk takes long to read the libraries."""
PREPARE_SECONDS = 180.0
"""Time for the agent to prepare its models, before anything is timed."""
SAYS_SECONDS = 5.0
"""Time for the agent to report its steps after its first result."""
LIBRARIES = ("onnxruntime", "openvino", "cv2", "numpy")
WARM_RUNS = 3
"""Runs of the best whole-model load, for the floor."""


def measure(
    models: list[str], setup: ColdStartSetup, report_progress: Progress, config: str | None = None
) -> list[ColdStartReport]:
    """Measure each model, given as a folder, or as the name of an agent's or a generated model."""
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
            with slow_disk([Path(name), *_library_places(setup)], setup.disk_mbps * 1e6):
                pass  # so that errors are reported before minutes have passed
        found = child.call(TRUTH, "look", models=models, place=name, config=config)
        filters = [f"{DEVICE}/#", f"edge/{DEVICE}/result/#", f"edge/{DEVICE}/model/#"]
        settings = Broker(url=loopback.url, protocol=loopback.protocol)
        reports = []
        for model in found:
            with OneShotClient(settings, filters) as client:
                ways = starts(model, setup, loopback)
                reports.append(_Bench(model, client, setup, report_progress).measure(ways))
        return reports


def _library_places(setup: ColdStartSetup) -> list[Path]:
    """Return the folders from which the timed processes load their libraries."""
    places = [Path(sys.prefix), Path(sys.base_prefix)]
    return places if setup.python is None else [*places, setup.python.parent.parent]


class _Bench:
    """Measures one model."""

    def __init__(
        self,
        model: dict[str, Any],
        client: OneShotClient,
        setup: ColdStartSetup,
        report_progress: Progress,
    ) -> None:
        self._model = model
        self._id: str = model["id"]
        self._client = client
        self._setup = setup
        self._progress = report_progress
        self._place = Path(model["place"])
        self._sessions: set[str] = set()
        """Sessions of agents that have ended, whose messages may still arrive."""
        self._says_steps = True
        self._told = False

    def measure(self, ways: Sequence[Start]) -> ColdStartReport:
        """Prepare, run all rounds, and check all answers."""
        report = self._prepare(ways)
        turns = {start.variant: partial(self._timed, start) for start in ways}
        with self._disk():
            measured = rounds(self._setup.runs, turns, report.others)
            for number, found in enumerate(measured, 1):
                for variant, run in found.items():
                    report.runs[variant].append(run)
                took = ", ".join(f"{name} {run.ms:.0f}" for name, run in found.items())
                self._progress(f"{self._id} round {number} of {self._setup.runs}: {took} ms")
        self._check([run for runs in report.runs.values() for run in runs])
        return report

    def _prepare(self, ways: Sequence[Start]) -> ColdStartReport:
        """Run everything once untimed, and measure the lower bounds of a load."""
        prepared: str | None = "none is wanted"
        state: Path | None = None
        for start in ways:  # the agent last: scripts report problems of the model sooner
            self._progress(f"{self._id}: preparing {start.variant}")
            start.ready()
            if start.place is not None and start.variant != KINDS["first"]:
                if state is None:
                    prepared = self._let_prepare(start)
                    state = start.place / STATE
                else:
                    shutil.copytree(state, start.place / STATE)
            self._check([self._run(start)])
        best = next(start for start in ways if start.variant == BEST)
        warm = [self._run(best).steps for _ in range(WARM_RUNS)]
        rate = self._setup.disk_mbps
        return ColdStartReport(
            self._id,
            self._model["bytes"],
            self._setup,
            prepared,
            read_rate(Path(self._model["weights"])) if rate is None else rate * 1e6,
            min(steps["model"] for steps in warm),
            min(steps["infer"] for steps in warm),
        )

    def _let_prepare(self, start: Start) -> str | None:
        """Run the agent until it reports the state of the prepared form, and return it.

        "ready", or "no: " and why; None if it does not report in time.
        """
        topic = f"edge/{DEVICE}/model/{self._model['name']}"
        said: str | None = None
        with self._running(start) as program:
            for heard in program.heard(PREPARE_SECONDS):
                if heard.topic == topic and not heard.retained:
                    said = (heard.body or {}).get("prepared")
                    if said is not None and (said == "ready" or said.startswith("no")):
                        break
            else:
                said = None
        if said != "ready":
            why = said or f"it did not say within {PREPARE_SECONDS:.0f} s that one is ready"
            self._progress(f"{self._id}: timed without a prepared form: {why}")
        return said

    def _timed(self, start: Start) -> Run:
        start.ready()
        self._evict()
        return self._run(start)

    def _run(self, start: Start) -> Run:
        """Start a process; time its first result."""
        while self._client.next(0) is not None:
            pass
        with self._running(start) as program:
            payload, ended = self._first_result(program, start)
            if start.place is not None:
                self._sessions.add(payload["session"])
                if payload["model"] != self._id:
                    raise AgentError(f"{self._id}: the agent ran {payload['model']} instead")
                steps = self._cold_start(program) or {}
            else:
                steps = script_steps(payload["marks"], program.begun, ended)
                program.process.wait(PATIENCE_SECONDS)
        taken = (ended - program.begun) * 1e3
        return Run(taken, steps, {"variant": start.variant, **payload})

    def _running(self, start: Start) -> AbstractContextManager[Program]:
        return running(f"{self._id}: {start.variant}", start.command, self._client, start.cwd)

    def _first_result(self, program: Program, start: Start) -> tuple[dict[str, Any], float]:
        """Wait for a result; return it, and when it arrived."""
        for heard in program.heard(PATIENCE_SECONDS):
            ended = time.monotonic()
            if heard.topic == start.topic:
                payload: dict[str, Any] = json.loads(heard.payload)
                if payload.get("session") not in self._sessions:
                    return payload, ended
        raise AgentError(f"{program.name} gave no result: {program.last_words()}")

    def _cold_start(self, program: Program) -> dict[str, float] | None:
        """Return the times of the agent's steps, or None if it does not report them."""
        for heard in program.heard(SAYS_SECONDS) if self._says_steps else ():
            steps = (heard.body or {}).get("cold_start") if "/model/" in heard.topic else None
            if steps is not None and not heard.retained:
                return dict(steps)
        self._says_steps = False  # so that it is not waited for again
        return None

    def _disk(self) -> AbstractContextManager[None]:
        rate = self._setup.disk_mbps
        if rate is None:
            return nullcontext()
        places = [Path(self._model["folder"]), self._place, self._setup.clip]
        return slow_disk([*places, *_library_places(self._setup)], rate * 1e6)

    def _evict(self) -> None:
        """Evict files that must be cold; report once which processes keep libraries in memory."""
        if self._setup.cold == "model":
            evict([Path(self._model["folder"]), self._place])
        elif self._setup.cold == "everything":
            if not self._told and (found := holders(LIBRARIES)):
                self._told = True
                self._progress(
                    f"{self._id}: not everything is cold: libraries that are measured are "
                    f"held in memory by {', '.join(found)}; end these for true figures"
                )
            drop_all()

    def _check(self, runs: Sequence[Run]) -> None:
        """Check that every answer is correct."""
        claims = [run.claim for run in runs if run.claim["variant"] != NONE]
        if not claims:
            return
        wrong = child.call(
            TRUTH, "check", model=self._model, clip=str(self._setup.clip), claims=claims
        )
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise AgentError(f"wrong answer: {wrong[0]}{more}")
