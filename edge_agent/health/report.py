"""Says how the device is: counters and facts gathered into one payload.

Reads what others count; counts nothing itself but the past it compares with.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..device import pressure
from ..device.resources import ROOT
from ..device.thermal import Thermometer
from ..inference.model import Model
from ..mqtt import payloads
from ..mqtt.client import Client, Counters
from ..runtime.pipelines.pipeline import Pipeline
from ..runtime.scheduler.board import Account, Board
from ..runtime.serving.active import Serving
from .lateness import Lateness

RECENT_SECONDS = 60.0
"""How long an error keeps the device degraded."""


class Health:
    """Makes the health payload."""

    def __init__(
        self,
        board: Board[Model],
        client: Client,
        pipelines: Callable[[], Sequence[Pipeline]],
        servings: Callable[[], Sequence[Serving]],
        state_dir: Path,
        *,
        root: Path = ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            board: has the accounts.
            client: has the counters of what is published.
            pipelines: those there are at the moment.
            servings: likewise.
            state_dir: whose disk counts.
            root: where /sys and /proc are found.
            clock: monotonic seconds.

        """
        self._clock = clock
        self._board = board
        self._client = client
        self._pipelines = pipelines
        self._servings = servings
        self._state_dir = state_dir
        self._began = time.monotonic()
        self._root = root
        self._thermometer = Thermometer(root)
        self._lateness = Lateness()
        self._lost: dict[str, tuple[float, int, int]] = {}
        """Of pipelines whose results are promised: when, how many since when it began, how many."""
        self._last: dict[str, tuple[float, int]] = {}
        self._cpu = (time.monotonic(), sum(os.times()[:4]))
        self.malformed = 0
        self.watchdog: dict[str, Any] = {"enabled": False, "fed": 0}
        self.notes: list[str] = []
        """Why the device is not as it should be, beyond what is seen here."""
        self.credible: Callable[[], bool] = lambda: True
        """Whether this machine's clock shows the time."""
        self.others: list[Callable[[], list[str]]] = []
        """Who else knows reasons."""
        self.latest: dict[str, Any] | None = None
        """What was last said."""

    def why(self) -> list[str]:
        """Say in words what is not as it should be; empty: all is well."""
        reasons = list(self.notes)
        for other in self.others:
            reasons += other()
        if not self.credible():
            shown = payloads.iso(time.time_ns())
            reasons.append(
                f"clock: shows {shown} and has not been set; times are not to be trusted"
            )
        for serving in self._servings():
            if serving.model is None and serving.problem is not None:
                reasons.append(f"model {serving.reference}: {serving.problem}")
            elif serving.passed and serving.model is not None:
                reasons.append(
                    f"model {serving.reference}: on {serving.model.engine.label}, "
                    f"because {serving.passed[0]}"
                )
        now = self._clock()
        for pipeline in self._pipelines():
            if pipeline.state == "lost":
                reasons.append(f"source of {pipeline.name}: {pipeline.error}")
            if (
                pipeline.last_problem is not None
                and now - pipeline.last_problem[0] < RECENT_SECONDS
            ):
                reasons.append(f"pipeline {pipeline.name}: {pipeline.last_problem[1]}")
            unfit = pipeline.unfit()
            if unfit is not None:
                reasons.append(f"pipeline {pipeline.name}: {unfit}")
            reasons += self._broken_promises(pipeline, now)
        deadlines = {one.name: one.settings.deadline_ms for one in self._pipelines()}
        expected = self._expected()
        reasons += self._lateness.why(
            {name: account for name, account in expected.items() if name in deadlines}, deadlines
        )
        counters = self._client.counters()
        if not counters.connected:
            reasons.append(f"broker: {counters.problem or 'not connected yet'}")
        elif counters.unauthorized:
            reasons.append("broker: does not take all that we publish")
        if counters.disk_problem is not None:
            reasons.append(
                f"spool: {counters.disk_problem}; until then what waits is in memory only"
            )
        reasons += self._thermometer.read().why()
        reasons += pressure.memory_why(self._root)
        reasons += pressure.disk_why(self._state_dir)
        return reasons

    def _broken_promises(self, pipeline: Pipeline, now: float) -> list[str]:
        """Say that results with `qos = 1` were given up within the last minute."""
        if pipeline.settings.qos != 1:
            return []
        lost = pipeline.channel.lost
        at, before, seen = self._lost.get(pipeline.name, (now, 0, 0))
        if lost < seen or (lost == seen and now - at >= RECENT_SECONDS):
            at, before = now, lost  # counted anew, or quiet for long enough
        elif lost > seen:
            at = now
        self._lost[pipeline.name] = (at, before, lost)
        if lost == before:
            return []
        return [f"pipeline {pipeline.name}: {lost - before} results with qos = 1 were dropped"]

    def _expected(self) -> dict[str, Account]:
        """Give the accounts of the pipelines that ought to keep up with their source."""
        accounts = self._board.accounts()
        return {
            pipeline.name: accounts[pipeline.name]
            for pipeline in self._pipelines()
            if pipeline.name in accounts
            and not pipeline.spec.lossless
            and pipeline.state == "running"
            and all(serving.model is not None for serving in pipeline.servings)
        }

    def payload(self) -> dict[str, Any]:
        """Gather everything."""
        import psutil

        # In this order: of a source that is said to have ended all is counted, and no more is said
        # to be published than to be inferred.
        states = [(p, p.state, p.channel.published, p.channel.lost) for p in self._pipelines()]
        accounts = self._board.accounts()
        counters = self._client.counters()
        why = self.why()
        process = psutil.Process()
        payload: dict[str, Any] = {
            "schema": payloads.SCHEMA,
            "time": payloads.iso(time.time_ns()),
            "uptime_s": round(time.monotonic() - self._began, 1),
            "state": "degraded" if why else "ok",
            "why": why,
            "pipelines": {},
            "models": {},
            "rss_mb": round(process.memory_info().rss / 2**20, 1),
            "cpu_percent": self._cpu_percent(),
            "disk_free_mb": self._disk_free(),
            "spool": _spool(counters),
            "reconnects": counters.reconnects,
            "malformed": self.malformed,
            "watchdog": dict(self.watchdog),
        }
        if not self.credible():
            payload["clock"] = payloads.UNSET
        temperature = self._thermometer.read().celsius
        if temperature is not None:
            payload["temperature_c"] = round(temperature, 1)
        for pipeline, state, published, lost in states:
            account = accounts.get(pipeline.name)
            if account is None:
                continue
            payload["pipelines"][pipeline.name] = {
                "fps": self._fps(pipeline.name, account.inferred),
                "captured": account.captured,
                "inferred": account.inferred,
                "published": published,
                "lost": lost,
                "waiting": account.waiting,
                "dropped": dict(account.dropped),
                "latency_ms": payloads.percentiles(list(pipeline.latency_ms)),
                "source": state or "opening",
            }
        for model in {
            id(s.model): s.model for s in self._servings() if s.model is not None
        }.values():
            payload["models"][model.id] = {
                "engine": model.engine.label,
                "inferred": model.inferred,
                "errors": model.errors,
                "infer_ms": payloads.percentiles(list(model.infer_ms)),
            }
        self.latest = payload
        return payload

    def _fps(self, name: str, inferred: int) -> float:
        now = time.monotonic()
        before, count = self._last.get(name, (self._began, 0))
        self._last[name] = (now, inferred)
        return round((inferred - count) / max(now - before, 1e-3), 2)

    def _cpu_percent(self) -> float:
        """Of one core, since the last time; with the children's, as `top` has it."""
        now, used = time.monotonic(), sum(os.times()[:4])
        (before, had), self._cpu = self._cpu, (now, used)
        return round(100 * (used - had) / max(now - before, 1e-3), 1)

    def _disk_free(self) -> int:
        try:
            return shutil.disk_usage(self._state_dir).free // 2**20
        except OSError:
            return 0


def _spool(counters: Counters) -> dict[str, Any]:
    """Say what waits for the broker, and what has become of it."""
    return {
        "waiting": counters.waiting,
        "on_disk": counters.on_disk,
        "bytes": counters.disk_bytes,
        "replayed": counters.replayed,
        "dropped": counters.dropped,
        "lost": counters.lost,
        "refused": counters.refused,
    }
