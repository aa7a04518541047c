"""`edge-agent status`: one look at all devices; a line a device, a line a pipeline."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...core.errors import AgentError
from ...core.text import counted, printable
from ...inference.engines.registry import engine_words
from ...mqtt import payloads
from ...mqtt.one_shot import OneShotClient
from ..fleet import Fleet, check_target, incomplete, look_filters, offline_since, unknown
from ..options import Options, add_broker, broker_settings
from ..terminal import moment, printable_json, say, span

USUAL_INTERVAL = 10.0
"""Seconds between two health messages of a device that does not say."""
FIRST_SECONDS = 2.0
"""Before an agent has run for so long, it has no rate that says something."""
MISSED = 3
"""Health messages that may be missing before the latest counts as old."""


@dataclass
class PipelineLook:
    """What is known of a pipeline."""

    source: str
    """opening, running, lost, ended …"""
    enabled: bool = True
    """False: it is switched off, so that its source is closed."""
    inferred: int | None = None
    """Frames since it began."""
    model: str | None = None
    """What serves: "face@3 on openvino:CPU"; or, where nothing does, what the settings name."""
    fps: float | None = None
    p99_ms: float | None = None
    learning: float | None = None
    """How far its threshold or its drift has been learned, 0 to 1; None: nothing is learned."""
    gaps: int = 0
    """Breaks in a signal."""
    error: str | None = None


@dataclass
class DeviceLook:
    """What is known of a device; `--json` prints it, but for `words`."""

    device: str
    state: str
    """ok, degraded, offline, or unknown: online, but without health of now."""
    words: str = ""
    """The rest of its line."""
    why: list[str] = field(default_factory=list)
    """What its latest health says of it, however old."""
    health_age_s: float | None = None
    pipelines: dict[str, PipelineLook] = field(default_factory=dict)


EXAMPLES = (
    "edge-agent status  all devices",
    "edge-agent status --not-well  only those that are not ok",
    'edge-agent status --device @lab --json || echo "something is wrong"',
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--device", metavar="ID|@GROUP", help="only this one, or this group's")
    parser.add_argument(
        "--not-well", action="store_true", help="only devices that are not ok, after the sum of all"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a device")
    add_broker(parser)


def main(options: Options) -> int:
    """Look; 0 if all is well."""
    target: str | None = options.device
    if target is not None:
        check_target(target)
    settings = broker_settings(options)
    root = settings.broker.topic_root
    filters = look_filters(root, target, "info", "health", "source/+")
    with OneShotClient(settings.broker, filters) as client:
        fleet = Fleet(client, root)
        fleet.look()
    names = fleet.named(target) if target else sorted(fleet.status)
    looks = [_look(fleet, name) for name in names if name in fleet.status]
    partial = fleet.gap and target not in fleet.status
    if partial:
        print(printable(f"edge-agent: {incomplete(fleet)}"), file=sys.stderr)
    if not looks:
        raise AgentError(_nobody(fleet, target))
    color = sys.stdout.isatty()
    if not options.json:
        say(_sum(looks))
    for look in looks:
        if options.not_well and look.state == "ok":
            continue
        if options.json:
            shown = asdict(look)
            del shown["words"]
            print(printable_json({"schema": 1, **shown}))
        else:
            for line in _lines(look, color=color):
                say(line)
    return 0 if all(look.state == "ok" for look in looks) and not partial else 1


def _sum(looks: list[DeviceLook]) -> str:
    """Count the devices of each state, those that are not well first."""
    states = [look.state for look in looks]
    parts = [f"{n} {s}" for s in ("offline", "unknown", "degraded", "ok") if (n := states.count(s))]
    return f"{counted(len(looks), 'device')}: {', '.join(parts)}"


def _nobody(fleet: Fleet, target: str | None) -> str:
    known = ", ".join(sorted(fleet.status)) or "none"
    if target is None:
        return "this broker knows of no device; is it the right one, and does an agent run?"
    if target.startswith("@"):
        return f"no device is in group {target}; known devices: {known}"
    return unknown(fleet, target)


def _look(fleet: Fleet, device: str) -> DeviceLook:
    """Judge a device by what it has left on its topics."""
    health, status = fleet.health.get(device, {}), fleet.status[device]
    look = DeviceLook(device, "unknown", why=_texts(health.get("why")))
    look.pipelines = dict(_pipelines(fleet, device))
    said = moment(health)
    if said is not None and health.get("clock") != payloads.UNSET:
        look.health_age_s = round(max(0.0, time.time() - said), 1)
    age = look.health_age_s
    old = "" if age is None else f"{span(age)} old: "
    last = f"its last health, {old}{'; '.join([str(health.get('state')), *look.why])}"
    if not fleet.online(device):
        look.state, look.words = "offline", offline_since(fleet, device).removeprefix("offline ")
        look.words += f"; {last}" if health else ""
    elif not health:
        look.words = "online, but has told no health yet"
    elif age is not None and _is_old(age, health, status):
        look.words = f"online, but {last}"
    else:
        # A source says at once that it is lost, health at its interval.
        broken = any(each.error for each in look.pipelines.values())
        look.state = "ok" if health.get("state") == "ok" and not broken else "degraded"
        up = _number(health.get("uptime_s")) or 0.0
        look.words = "; ".join(look.why) or f"up {span(up)}"
    return look


def _is_old(age: float, health: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether health is of an earlier run of the agent, or newer ones are missing."""
    if age > MISSED * (_number(health.get("interval_s")) or USUAL_INTERVAL):
        return True
    said, joined = moment(health), moment(status)
    return status.get("reason") == "started" and (said or 0) < (joined or 0)


def _pipelines(fleet: Fleet, device: str) -> Iterator[tuple[str, PipelineLook]]:
    """Put together what topics say of each pipeline; the settings' order."""
    info, health = fleet.info.get(device, {}), fleet.health.get(device, {})
    figures = _table(health.get("pipelines"))
    listed = [entry for entry in _tables(info.get("pipelines")) if entry.get("name")]
    serving = {str(entry.get("name")): entry for entry in _tables(info.get("models"))}
    for entry in listed:
        name = str(entry["name"])
        figure, source = _table(figures.get(name)), fleet.sources.get(device, {}).get(name, {})
        look = PipelineLook(str(source.get("state") or figure.get("source") or "opening"))
        look.enabled = source.get("enabled") is not False
        inferred = _number(figure.get("inferred"))
        look.inferred = None if inferred is None else int(inferred)
        model = serving.get(str(entry.get("model")), {})
        look.model = str(entry.get("model"))
        if model.get("serves"):
            look.model = f"{model['serves']} on {engine_words(str(model.get('engine')))}"
        # Over the first instants it would be of a few frames that had waited.
        if (_number(health.get("uptime_s")) or 0.0) >= FIRST_SECONDS:
            look.fps = _number(figure.get("fps"))
        look.learning = _number(_table(figure.get("drift")).get("learning"))
        look.gaps = int(_number(_table(figure.get("signal")).get("gaps")) or 0)
        look.p99_ms = _number(_table(figure.get("latency_ms")).get("p99"))
        if source.get("error") or look.source == "lost":
            look.error = str(source.get("error", "lost"))
        elif model.get("problem"):
            look.error = str(model["problem"])
        yield name, look


def _lines(look: DeviceLook, *, color: bool) -> Iterator[str]:
    """Write a device and its pipelines, a line each."""
    shade = {"ok": 32, "degraded": 33, "offline": 31, "unknown": 33}[look.state]
    state = f"\033[{shade}m{look.state}\033[0m" if color else look.state
    yield f"{printable(look.device)}  {state}  {printable(look.words)}"
    width = max(map(len, look.pipelines), default=0)
    was = "was " if look.state == "offline" else ""
    for name, each in look.pipelines.items():
        parts = [each.error] if each.error else _figures(each)
        state = each.source if each.enabled else "off"
        yield printable(f"  {name:{width}}  {was}{state:7}  {', '.join(parts)}")


def _figures(look: PipelineLook) -> list[str]:
    """Write how a pipeline without an error does: what it does now, and what serves."""
    figures = []
    if look.inferred == 0:
        figures = ["no result yet"]
    elif look.enabled and look.p99_ms is not None:
        # Of one that is off they are of a while ago.
        rate = "-" if look.fps is None else f"{look.fps:.1f}"
        figures = [f"{rate} a second", f"p99 {look.p99_ms:.0f} ms"]
    if look.enabled and look.learning is not None:
        figures.append(f"learning {look.learning:.0%}")
    if look.gaps:
        figures.append(counted(look.gaps, "gap"))
    return [*figures, look.model] if look.model else figures


# Payloads may hold anything


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
