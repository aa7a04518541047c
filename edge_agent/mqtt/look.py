"""Derives a device's state from its topics: ok, degraded, offline or unknown, and why.

Payloads are not checked; code that shows them must expect any JSON.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.text import span
from ..inference.engines.registry import engine_words
from . import payloads
from .payloads import moment

USUAL_INTERVAL = 10.0
"""Seconds between health messages of a device that does not report its interval."""
FIRST_SECONDS = 2.0
"""Seconds that an agent must have run before its rate is meaningful."""
MISSED = 3
"""Health messages that may be missing before the latest counts as old."""
WRONG_SECONDS = 10.0
"""Difference between a device's clock and ours beyond which one of them is wrong."""


class Said(NamedTuple):
    """The content of a device's retained topics."""

    device: str
    status: Mapping[str, Any]
    info: Mapping[str, Any]
    health: Mapping[str, Any]
    sources: Mapping[str, Mapping[str, Any]]
    """Source topics by pipeline."""
    ahead: float | None = None
    """Seconds that its clock was ahead of ours as its health came; None: none has come yet."""


@dataclass
class PipelineLook:
    """The state of a pipeline."""

    source: str
    """opening, running, lost, ended …"""
    enabled: bool = True
    """False: it is switched off, and its source is closed."""
    inferred: int | None = None
    """Number of frames since it began."""
    model: str | None = None
    """The model that serves, "face@3 on openvino:CPU", or else the model in the settings."""
    fps: float | None = None
    p99_ms: float | None = None
    learning: float | None = None
    """Progress in learning its threshold or its drift, 0 to 1; None: nothing is being learned."""
    gaps: int = 0
    """Gaps in a signal."""
    error: str | None = None


@dataclass
class DeviceLook:
    """The state of a device; `--json` prints all of it except `words`."""

    device: str
    state: str
    """ok, degraded, offline, or unknown: online, but without current health."""
    words: str = ""
    """The text after the device's name."""
    why: list[str] = field(default_factory=list)
    """Reasons given in its latest health, however old, and what is wrong with its clock."""
    health_age_s: float | None = None
    pipelines: dict[str, PipelineLook] = field(default_factory=dict)
    lags: list[str] = field(default_factory=list)
    """Models that other devices have or roll-outs need, and this device lacks."""
    infer: dict[str, int] = field(default_factory=dict)
    """Counts of clients' requests by outcome; empty if requests are off."""


def look_at(said: Said) -> DeviceLook:
    """Derive a device's state from its retained topics."""
    health, status = said.health, said.status
    look = DeviceLook(said.device, "unknown", why=texts_in(health.get("why")))
    look.pipelines = dict(_pipelines(said))
    counts = health.get("infer")
    for key in ("asked", "answered", "failed", "refused", "waiting"):
        count = number_in(counts.get(key)) if isinstance(counts, dict) else None
        if count is not None:
            look.infer[key] = int(count)
    age, clock = _age(said)
    look.why += clock
    old = ""
    if age is not None and age < -WRONG_SECONDS:
        old = "of unknown age: "
    elif age is not None:
        look.health_age_s = round(max(0.0, age), 1)
        old = f"{span(age)} old: "
    last = f"its last health, {old}{'; '.join([str(health.get('state')), *look.why])}"
    if status.get("state") != "online":
        look.state, look.words = "offline", offline_since(said).removeprefix("offline ")
        look.words += f"; {last}" if health else ""
    elif not health:
        look.words = "online, but has sent no health yet"
    elif age is not None and _is_old(age, health, status):
        look.words = f"online, but {last}"
    else:
        # A source reports its loss at once, health only at its interval.
        broken = any(each.error for each in look.pipelines.values())
        look.state = "ok" if health.get("state") == "ok" and not broken else "degraded"
        up = number_in(health.get("uptime_s")) or 0.0
        since = look.health_age_s or 0.0
        look.words = "; ".join(look.why) or f"up {span(up + since)}"
    return look


def _age(said: Said) -> tuple[float | None, list[str]]:
    """Return the age of a device's health, if known, and what is wrong with its clock.

    The age is negative where that clock is ahead of ours, and nobody knows by how much.
    """
    at, is_set = moment(said.health), said.health.get("clock") != payloads.UNSET
    if at is None or (said.ahead is None and not is_set):
        return None, []
    ahead, least = said.ahead or 0.0, ""
    age = time.time() + ahead - at
    if age < -WRONG_SECONDS:
        ahead, least = ahead - age, "at least "
    if abs(ahead) <= WRONG_SECONDS or not is_set:
        return age, []
    which = "ahead of" if ahead > 0 else "behind"
    return age, [f"its clock is {least}{span(abs(ahead))} {which} this machine's"]


def _is_old(age: float, health: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether health is from an earlier run, or newer may be missing for longer than that shows."""
    if abs(age) > MISSED * (number_in(health.get("interval_s")) or USUAL_INTERVAL):
        return True
    said, joined = moment(health), moment(status)
    return status.get("reason") == "started" and (said or 0) < (joined or 0)


def _pipelines(said: Said) -> Iterator[tuple[str, PipelineLook]]:
    """Combine the topics about each pipeline, in the order of the settings."""
    info, health = said.info, said.health
    figures = table_in(health.get("pipelines"))
    listed = [entry for entry in tables_in(info.get("pipelines")) if entry.get("name")]
    serving = {str(entry.get("name")): entry for entry in tables_in(info.get("models"))}
    for entry in listed:
        name = str(entry["name"])
        figure, source = table_in(figures.get(name)), said.sources.get(name, {})
        look = PipelineLook(str(source.get("state") or figure.get("source") or "opening"))
        look.enabled = source.get("enabled") is not False
        inferred = number_in(figure.get("inferred"))
        look.inferred = None if inferred is None else int(inferred)
        model = serving.get(str(entry.get("model")), {})
        look.model = str(entry.get("model"))
        if model.get("serves"):
            look.model = f"{model['serves']} on {engine_words(str(model.get('engine')))}"
        # At first it would only reflect a few frames that had waited.
        if (number_in(health.get("uptime_s")) or 0.0) >= FIRST_SECONDS:
            look.fps = number_in(figure.get("fps"))
        look.learning = number_in(table_in(figure.get("drift")).get("learning"))
        look.gaps = int(number_in(table_in(figure.get("signal")).get("gaps")) or 0)
        look.p99_ms = number_in(table_in(figure.get("latency_ms")).get("p99"))
        if source.get("error") or look.source == "lost":
            look.error = str(source.get("error", "lost"))
        elif model.get("problem"):
            look.error = str(model["problem"])
        yield name, look


def offline_since(said: Said) -> str:
    """Return since when a device is offline, and whether it was stopped or lost.

    The last will of a lost device has the time when it connected, so the time of its latest
    message is the best estimate.
    """
    stopped = said.status.get("reason") == "stopped"
    heard = [said.status, said.health, *said.sources.values()]
    times = [at for says in heard[: 1 if stopped else None] if (at := moment(says)) is not None]
    if not times:
        return "offline"
    last = max(times) - (said.ahead or 0.0)
    ago = time.time() - last
    shown = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(last))
    shown += " by its clock" if ago < -WRONG_SECONDS else f", {span(ago)} ago"
    return (
        f"offline since {shown} (stopped)" if stopped else f"offline (lost), last heard of {shown}"
    )


# Payloads may contain anything


def table_in(value: object) -> dict[str, Any]:
    """Return *value* if it is an object, or else {}."""
    return value if isinstance(value, dict) else {}


def tables_in(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; empty if *value* is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def texts_in(value: object) -> list[str]:
    """Return the items of a list as texts; empty if *value* is not a list."""
    return [str(each) for each in value] if isinstance(value, list) else []


def number_in(value: object) -> float | None:
    """Return *value* if it is a finite number, or else None."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None  # JSON's integers may have any size
