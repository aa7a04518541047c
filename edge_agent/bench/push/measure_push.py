"""`edge-agent bench push`: the rate of a push compared with its broker's, and its effect on frames.

First an agent with nothing else to do: raw rate and push in turn, with increasing versions and
every block new. Then an agent that plays a clip: how a push and its swap affect the age of results.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from ...config.settings import Broker
from ...core.errors import AgentError
from ...core.scratch import scratch_folder
from ...delivery.sender import Sender, block_bytes
from ...models.manifest import load
from ...models.packages.build import Package
from ...mqtt import payloads
from ...mqtt.loopback import Loopback, broker
from ...mqtt.one_shot import OneShotClient
from ..common.programs import DEVICE, Line, agent_command, endless, running
from ..common.report import Progress, rounds, spread
from .raw import Rates, rate
from .versions import OURS, generated, versions

PATIENCE_SECONDS = 300.0
QUIET_SECONDS = 5.0
"""How long the clip plays undisturbed before a push."""


@dataclass(frozen=True, slots=True)
class PushSetup:
    """The settings shared by all models."""

    runs: int
    protocol: int
    packet: int | None
    """The broker's packet size limit in bytes; None: its default."""
    clip: Path


@dataclass(slots=True)
class PushReport:
    """Measurements of one model; rates in bytes a second, times in seconds."""

    model: str
    size: int
    blocks: int
    raw: list[Rates] = field(default_factory=list)
    transfer: list[float] = field(default_factory=list)
    """Times from the offer until the device has everything."""
    total: list[float] = field(default_factory=list)
    """Times from the offer until the version serves, with nothing else to do."""
    clip: dict[str, Any] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        rates = [self.size / seconds / 1e6 for seconds in self.transfer]
        raw = [each.confirmed / 1e6 for each in self.raw]
        return {
            "model": self.model,
            "bytes": self.size,
            "blocks": self.blocks,
            "runs": len(raw),
            "raw_mb_s": spread(raw),
            "raw_arrival_mb_s": spread(each.arrived / 1e6 for each in self.raw),
            "push_mb_s": spread(rates),
            "ratio": spread(push / base for push, base in zip(rates, raw, strict=True)),
            "transfer_s": spread(self.transfer),
            "total_s": spread(self.total),
            "clip": self.clip,
        }


def measure(
    models: list[Path], sizes: list[int], setup: PushSetup, report_progress: Progress
) -> list[PushReport]:
    """Measure each model, and one with random weights for each of *sizes*, in MB."""
    with scratch_folder("bench") as place:
        made = [generated(place / f"{size}-mb", size) for size in sizes]
        limit = f"max_packet_size {setup.packet}\n" if setup.packet else ""
        with broker(place, limit) as found:
            loopback = replace(found, protocol=setup.protocol)
            return [
                _measure(model, place / f"run-{number}", loopback, setup, report_progress)
                for number, model in enumerate([*models, *made])
            ]


def _measure(
    model: Path, place: Path, loopback: Loopback, setup: PushSetup, report_progress: Progress
) -> PushReport:
    packages = versions(model, place, block_bytes(setup.packet, "edge", DEVICE))
    first = next(packages)
    name = first.header.name
    report = PushReport(name.removeprefix(OURS), first.header.size, first.header.blocks)
    with _agent(place / "alone", loopback, "") as client:
        _push(client, first)  # the first one has cold caches and no incumbent
        lengths = first.blocks.lengths  # the same for every version
        turns: dict[str, Callable[[], tuple[float, float]]] = {
            "raw": lambda: rate(loopback.port, setup.protocol, lengths),
            "push": lambda: _push(client, next(packages)),
        }
        for number, found in enumerate(rounds(setup.runs, turns, report.others), 1):
            raw, (transfer, total) = Rates(*found["raw"]), found["push"]
            report.raw.append(raw)
            report.transfer.append(transfer)
            report.total.append(total)
            report_progress(
                f"{report.model} {report.size / 1e6:.1f} MB, run {number} of "
                f"{setup.runs}: raw {raw.confirmed / 1e6:.0f} MB/s, "
                f"push {report.size / transfer / 1e6:.0f} MB/s, live after {total:.2f} s"
            )
    takes_pictures = not load(place / "versions" / "1").manifest.input.is_signal
    # A push can disturb frames of another model, too.
    serves = name if takes_pictures else "parts-inspection"
    pipeline = Line(endless(setup.clip, "real")).table("clip", serves)
    with _agent(place / "playing", loopback, pipeline) as client:
        _push(client, first)
        report.clip = _beside_a_clip(client, packages, loopback, setup)
    clip = report.clip
    report_progress(
        f"{report.model}: age of results p99 {clip['before_ms']['p99']:.1f} ms before, "
        f"{clip['during_ms']['p99']:.1f} ms during pushes"
    )
    return report


def _beside_a_clip(
    client: OneShotClient, packages: Iterator[Package], loopback: Loopback, setup: PushSetup
) -> dict[str, Any]:
    """Push while a clip plays; compare the results before and during pushes."""
    ages: dict[str, list[float]] = {"before": [], "during": []}
    missing = {"missing_before": 0, "missing_during": 0}
    dropped = 0
    swaps: list[float] = []
    totals: list[float] = []
    topic = f"edge/{DEVICE}/result/clip"
    for _ in range(max(1, min(setup.runs, 3))):
        with OneShotClient(_settings(loopback), [topic]) as listener:
            _rest(client, QUIET_SECONDS)
            package = next(packages)
            began = time.time()
            details: dict[str, Any] = {}
            totals.append(_push(client, package, details)[1])
            after = time.time()
            _rest(client, 1.0)
            results = [json.loads(h.payload) for h in iter(partial(listener.next, 0.0), None) if h]
        dropped += int(details.get("frames_dropped") or 0)
        swaps.append(float(details.get("swap_ms") or 0.0))
        seq: int | None = None
        for result in results:
            at = datetime.fromisoformat(result["time"]).timestamp()
            phase = "before" if at < began else "during" if at <= after + 0.5 else ""
            if phase:
                ages[phase].append(result["timing"]["age_ms"])
                missing[f"missing_{phase}"] += 0 if seq is None else result["seq"] - seq - 1
            seq = result["seq"]
    if not ages["before"] or not ages["during"]:
        raise AgentError("the clip gave no results; see whether the model takes pictures")
    return {
        "results_before": len(ages["before"]),
        "results_during": len(ages["during"]),
        "before_ms": payloads.percentiles(ages["before"]),
        "during_ms": payloads.percentiles(ages["during"]),
        **missing,
        "frames_dropped": dropped,
        "swap_ms": spread(swaps),
        "total_s": spread(totals),
    }


def _rest(client: OneShotClient, seconds: float) -> None:
    """Let time pass, discarding messages meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        client.next(0.2)


def _push(
    client: OneShotClient, package: Package, details: dict[str, Any] | None = None
) -> tuple[float, float]:
    """Push as `edge-agent push` does; return seconds until it has arrived, and until it serves."""
    client.subscribe([f"edge/+/push/{package.transfer}"])
    sender = Sender(client, "edge", DEVICE, [DEVICE], package)
    progress = sender.progress[DEVICE]
    start = time.perf_counter()
    arrived = math.nan
    sender.offer()
    while not sender.done:
        sender.step(0.2)
        now = time.perf_counter()
        if math.isnan(arrived) and progress.state not in {"offered", "need"}:
            arrived = now - start
        if now - start > PATIENCE_SECONDS:
            raise AgentError(f"the push did not end within {PATIENCE_SECONDS:.0f} s")
    if progress.state == "rejected":
        raise AgentError(f"the push was rejected: {progress.why}")
    if details is not None:
        details |= progress.details
    return arrived, time.perf_counter() - start


@contextmanager
def _agent(place: Path, loopback: Loopback, pipelines: str) -> Iterator[OneShotClient]:
    """Run an agent with a new state_dir; yield a connection to its broker once it listens."""
    tables = (
        "[trust]\nallow_unsigned = true\n[trial]\nprobation_s = 0\n"
        f"[health]\ninterval_s = 1\n{pipelines}"
    )
    command = agent_command(place, loopback, tables, None)
    with (
        OneShotClient(_settings(loopback), [f"edge/{DEVICE}/status"]) as client,
        running("the agent", command, client) as program,
    ):
        for heard in program.heard(PATIENCE_SECONDS):
            if not heard.retained and (heard.body or {}).get("state") == "online":
                break
        else:
            raise AgentError(f"the agent does not start: {program.last_words()}")
        yield client
    shutil.rmtree(place)


def _settings(loopback: Loopback) -> Broker:
    return Broker(url=loopback.url, protocol=loopback.protocol)
