"""The health payload: counters, the device's state, and why it is degraded.

It reads the counters of other modules, and itself keeps only earlier values for comparison.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.errors import Unfit
from ..core.logs import Latch
from ..core.owners import foreign
from ..core.state_file import unwritten
from ..core.text import counted
from ..device import headroom, pressure
from ..device.resources import ROOT
from ..device.thermal import Thermometer
from ..inference.engines.registry import engine_words
from ..inference.model import Model
from ..mqtt import payloads
from ..mqtt.client import Client, Counters
from ..runtime.pipelines.pipeline import Pipeline
from ..runtime.pipelines.sinks import RECENT_SECONDS
from ..runtime.scheduler.board import Account, Board
from ..serving.active import Serving
from .throughput import Throughput

log = logging.getLogger(__name__)

CAMERA: Mapping[str, str] = {
    "dark": "dark: nothing is seen in its picture",
    "blurred": "blurred: nothing in its picture is sharp; is it dirty, covered or out of focus?",
    "frozen": "frozen: it repeats one picture; restart it",
    "turned": "turned: it shows another view than before, or something stands in front of it",
}
_SPOOL = ("waiting", "on_disk", "replayed", "dropped", "lost", "refused")
WATCHDOG_OFF: Mapping[str, Any] = {"enabled": False, "fed": 0}


class _Promises:
    """Detects dropped results with `qos = 1`."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[float, int, int]] = {}
        """Time, count before the losses began, and count, by pipeline."""

    def broken(self, pipeline: Pipeline, now: float) -> list[str]:
        """Return a reason if results were dropped within the last minute."""
        if pipeline.settings.qos != 1:
            return []
        lost = pipeline.stream.channel.lost
        at, before, seen = self._lost.get(pipeline.name, (now, 0, 0))
        if lost < seen or (lost == seen and now - at >= RECENT_SECONDS):
            at, before = now, lost  # the count restarted at 0, or no loss for long enough
        elif lost > seen:
            at = now
        self._lost[pipeline.name] = (at, before, lost)
        if lost == before:
            return []
        results, were = counted(lost - before, "result"), "was" if lost - before == 1 else "were"
        return [f"pipeline {pipeline.name}: {results} with qos = 1 {were} dropped"]


class _Rates:
    """Frames per second of each pipeline, and processor use, since the previous payload."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last: dict[str, tuple[Pipeline, float, int]] = {}
        """Pipeline, time and number of inferred frames, by name."""
        self._gathered = self._began
        self._cpu = (time.monotonic(), _cpu_seconds())

    @property
    def uptime_s(self) -> float:
        """Seconds since the agent began reporting."""
        return round(time.monotonic() - self._began, 1)

    def fps(self, pipeline: Pipeline, inferred: int) -> float:
        """Return its inferred frames per second."""
        now = time.monotonic()
        known, before, count = self._last.get(pipeline.name, (None, 0.0, 0))
        if known is not pipeline:
            # New, or replaced by a reload: it counts from 0. Its first result may have come long
            # before this, or have waited for its model.
            began = pipeline.stream.began
            before, count = (self._gathered, 0) if began is None else (began, 1)
        self._last[pipeline.name] = (pipeline, now, inferred)
        # Its first result may have arrived since the account was copied.
        return round(max(0, inferred - count) / max(now - before, 1e-3), 2)

    def gathered(self, names: Collection[str]) -> None:
        """Record that a payload is complete; drop all other pipelines."""
        self._last = {name: each for name, each in self._last.items() if name in names}
        self._gathered = time.monotonic()

    def cpu_percent(self) -> float:
        """Return the percentage of one core since the last call, with children, like `top`."""
        now, used = time.monotonic(), _cpu_seconds()
        (before, had), self._cpu = self._cpu, (now, used)
        # A child may be reaped between the two sums, and is then missing from both.
        return round(100 * max(0.0, used - had) / max(now - before, 1e-3), 1)


def _cpu_seconds() -> float:
    return sum(os.times()[:4]) + headroom.children_cpu_seconds()


class _Machine:
    """Temperature, memory, and the disk of the state folder."""

    def __init__(self, root: Path, state_dir: Path) -> None:
        self._root = root
        self._state_dir = state_dir
        self._thermometer = Thermometer(root)
        self._clock_unset = Latch()
        self._said: set[str] = set()
        """What of the machine has been logged: "disk", "memory"."""

    def clock_problems(self, *, unset: bool) -> list[str]:
        # The day alone: with the time it would be another reason each time.
        day = payloads.iso(time.time_ns())[:10]
        words = f"clock: shows {day} and has not been set; times are not to be trusted"
        if self._clock_unset.begins(unset):
            log.warning("%s", words)
        return [words] if unset else []

    def celsius(self) -> float | None:
        """Return the temperature of the hottest sensor, or None."""
        return self._thermometer.read().celsius

    def disk_free_mb(self) -> int:
        """Return the free space, MB; 0 if unknown."""
        try:
            return shutil.disk_usage(self._state_dir).free // 2**20
        except OSError:
            return 0

    def problems(self) -> list[str]:
        """Return a line for each part that is too hot or too full; each part is logged once."""
        found = [
            *self._thermometer.read().problems(),
            *pressure.memory_problems(self._root),
            *pressure.disk_problems(self._state_dir),
        ]
        parts = {line.partition(":")[0]: line for line in found}
        for part in parts.keys() - self._said:
            log.warning("%s", parts[part])
        self._said = {*parts}
        if "disk" not in parts:  # these are logged as they occur
            found += [f"disk: {why}" for why in unwritten(self._state_dir)]
        return found

    def owner_problems(self, reasons: Sequence[str]) -> list[str]:
        """Return what belongs to another user, if something was denied."""
        place, why = str(self._state_dir), os.strerror(errno.EACCES)
        denied = any(why in reason and place in reason for reason in reasons)
        whose = foreign(self._state_dir) if denied else ""
        return [f"state_dir: {whose}"] if whose else []


class Health:
    """Builds the health payload."""

    def __init__(  # noqa: PLR0913 - the parts whose state it reports
        self,
        board: Board[Model],
        client: Client,
        pipelines: Callable[[], Sequence[Pipeline]],
        servings: Callable[[], Sequence[Serving]],
        state_dir: Path,
        *,
        malformed: Callable[[], int] = lambda: 0,
        credible: Callable[[], bool] = lambda: True,
        problems: Sequence[Callable[[], list[str]]] = (),
        events: Callable[[], Mapping[str, Any]] = dict,
        answers: Callable[[], Mapping[str, Any]] = dict,
        root: Path = ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the report of these parts."""
        self._clock = clock
        self._board = board
        self._client = client
        self._pipelines = pipelines
        self._servings = servings
        self._machine = _Machine(root, state_dir)
        self._throughput = Throughput()
        self._promises = _Promises()
        self._rates = _Rates()
        self._malformed = malformed
        self._credible = credible
        self._problems = problems
        self._events = events
        self._answers = answers
        self.latest: dict[str, Any] | None = None
        """The latest payload."""

    def problems(self) -> list[str]:
        """Return why the device is degraded, as texts; empty: it is not."""
        reasons = [problem for problems in self._problems for problem in problems()]
        reasons += self._machine.clock_problems(unset=not self._credible())
        now = self._clock()
        pipelines = self._pipelines()
        for serving in self._servings():
            users = [one.name for one in pipelines if serving in one.servings]
            where = f" (pipeline {', '.join(users)})" if users else ""
            reasons += _serving_problems(serving, where)
            _log_remark(serving, where)
        reasons += [why for each in pipelines for why in self._pipeline_problems(each, now)]
        deadlines = {one.name: one.settings.deadline_ms for one in pipelines}
        expected = self._expected()
        reasons += self._throughput.problems(
            {name: account for name, account in expected.items() if name in deadlines}, deadlines
        )
        reasons += _broker_problems(self._client.counters())
        reasons += self._machine.problems()
        reasons += self._machine.owner_problems(reasons)
        return [engine_words(reason) for reason in reasons]

    def _pipeline_problems(self, pipeline: Pipeline, now: float) -> list[str]:
        reasons = []
        if pipeline.state == "lost":
            reasons.append(f"source of {pipeline.name}: {pipeline.error}")
        if pipeline.camera:
            reasons.append(f"camera of {pipeline.name}: {CAMERA[pipeline.camera]}")
        latest = pipeline.errors.latest
        if latest is not None and now - latest[0] < RECENT_SECONDS:
            reasons.append(f"pipeline {pipeline.name}: {latest[1]}")
        problems = [pipeline.threshold_problem(), pipeline.split_problem(), *_unread(pipeline)]
        reasons += [f"pipeline {pipeline.name}: {problem}" for problem in problems if problem]
        # Of a message that was refused, the latest error may say the same.
        return list(dict.fromkeys(reasons)) + self._promises.broken(pipeline, now)

    def _expected(self) -> dict[str, Account]:
        """Return the accounts of the pipelines that should keep up with their source."""
        accounts = self._board.accounts()
        return {
            pipeline.name: accounts[pipeline.name]
            for pipeline in self._pipelines()
            if pipeline.name in accounts
            and not pipeline.spec.lossless
            and pipeline.state == "running"
            and all(serving.model is not None for serving in pipeline.servings)
        }

    def payload(self, watchdog: Mapping[str, Any] = WATCHDOG_OFF) -> dict[str, Any]:
        """Build the payload."""
        # In this order, so that an ended source is completely counted, and never more results are
        # reported as published than as inferred.
        states = [
            (p, p.state, p.stream.channel.published, p.stream.channel.lost)
            for p in self._pipelines()
        ]
        accounts = self._board.accounts()
        counters = self._client.counters()
        why = self.problems()
        payload: dict[str, Any] = {
            "schema": payloads.SCHEMA,
            "time": payloads.iso(time.time_ns()),
            "uptime_s": self._rates.uptime_s,
            "state": "degraded" if why else "ok",
            "why": why,
            "pipelines": {},
            "models": self._models(),
            "rss_mb": round(headroom.own_mb(), 1),
            "cpu_percent": self._rates.cpu_percent(),
            "disk_free_mb": self._machine.disk_free_mb(),
            "spool": {
                "bytes": counters.disk_bytes,
                **{key: getattr(counters, key) for key in _SPOOL},
            },
            "reconnects": counters.reconnects,
            "malformed": self._malformed(),
            "watchdog": dict(watchdog),
        }
        payload |= {**self._events(), **self._answers()}
        if not self._credible():
            payload["clock"] = payloads.UNSET
        temperature = self._machine.celsius()
        if temperature is not None:
            payload["temperature_c"] = round(temperature, 1)
        payload["pipelines"] = {
            pipeline.name: self._pipeline(pipeline, accounts[pipeline.name], state, results, lost)
            for pipeline, state, results, lost in states
            if pipeline.name in accounts
        }
        self._rates.gathered(accounts)
        self.latest = payload
        return payload

    def _pipeline(
        self, pipeline: Pipeline, account: Account, state: str | None, published: int, lost: int
    ) -> dict[str, Any]:
        """Return the figures of one pipeline."""
        made: dict[str, Any] = {
            "fps": self._rates.fps(pipeline, account.inferred),
            "captured": account.captured,
            "inferred": account.inferred,
            "published": published,
            "lost": lost,
            "waiting": account.waiting,
            "dropped": account.dropped,
            "latency_ms": payloads.percentiles(list(pipeline.stream.latency_ms)),
            "source": state or "opening",
        }
        if pipeline.errors.sinks:
            made["sink_errors"] = pipeline.errors.sinks
        if (camera := pipeline.camera) is not None:
            made["camera"] = camera or "ok"
        if (drift := pipeline.drift) is not None:
            made["drift"] = drift
        if pipeline.counts is not None:
            made["signal"] = asdict(pipeline.counts)
        return made

    def _models(self) -> dict[str, Any]:
        """Return the counts and timings of each serving model by id."""
        models = {id(s.model): s.model for s in self._servings() if s.model is not None}
        return {
            model.id: {
                "engine": model.engine.label,
                "inferred": model.stats.inferred,
                "errors": model.stats.errors,
                "infer_ms": payloads.percentiles(list(model.stats.infer_ms)),
            }
            for model in models.values()
        }


def _unread(pipeline: Pipeline) -> list[str]:
    """Return which of the values that the settings name are no numbers, in words."""
    unread = pipeline.errors.unread
    if not unread or pipeline.state != "running":
        return []
    named = pipeline.settings.named_values.union(pipeline.spec.options.get("field", ()))
    return [words for name in sorted(named) if (words := unread.get(name))]


def _serving_problems(serving: Serving, where: str) -> list[str]:
    model, reference = serving.model, serving.reference
    if model is None and serving.problem is not None:
        return [f"model {reference}: {serving.problem}"]
    if serving.stands_in is not None:
        return [f"model {serving.stands_in}"]
    faults = [why for why in serving.passed if not isinstance(why, Unfit)]
    if faults and model is not None:
        return [f"model {reference}: on {model.engine.label}, because {faults[0]}"]
    if model is not None and model.stats.doubt is not None:
        return [f"model {reference}: {model.stats.doubt}{where}"]
    return []


def _log_remark(serving: Serving, where: str) -> None:
    model = serving.model
    if model is None or (remark := model.stats.remark) is None:
        return
    if remark == model.stats.doubt:
        log.warning("%s: %s%s", model.id, remark, where)
    elif len(model.folder.labels) > 1:
        log.info("%s: %s%s", model.id, remark, where)
    else:
        return
    model.stats.remark = None


def _broker_problems(counters: Counters) -> list[str]:
    reasons = []
    if not counters.connected:
        reasons.append(f"broker: {counters.problem or 'not connected yet'}")
    elif counters.problem is not None:
        reasons.append(f"broker: {counters.problem}")
    elif counters.forbidden:
        reasons.append(
            "broker: refuses some of the messages of this device, the first on "
            f"{counters.forbidden}"
        )
    if counters.disk_problem is not None:
        reasons.append(f"spool: {counters.disk_problem}; until then what waits is in memory only")
    return reasons
