"""`edge-agent status`: one look at all devices: a line per device and pipeline, and lags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict

from ...core.errors import AgentError, MalformedError
from ...core.names import is_version, version_key
from ...core.text import counted, printable
from ...delivery.plan import read
from ...mqtt.look import DeviceLook, PipelineLook, look_at, tables_in
from ...mqtt.one_shot import OneShotClient
from ...mqtt.topics import rollouts
from ..broker_settings import broker_settings
from ..fleet import NOBODY, Fleet, check_target, incomplete, look_filters, odd_words, unknown
from ..options import Options, add_broker
from ..terminal import printable_json, say

FEW = 50
"""With more devices, a terminal only lists those that are not ok."""
EXAMPLES = (
    "edge-agent status  all devices",
    "edge-agent status --not-well  only those that are not ok",
    'edge-agent status --device @lab --json || echo "something is wrong"',
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--device", metavar="ID|@GROUP", help="only this device, or this group")
    parser.add_argument(
        "--not-well", action="store_true", help="only devices that are not ok, after the sum of all"
    )
    words = f"every device, also on a terminal that shows more than {FEW}"
    parser.add_argument("--all", action="store_true", help=words)
    parser.add_argument("--json", action="store_true", help="one JSON object per device")
    add_broker(parser)


def main(options: Options) -> int:
    """Print the status; return 0 if all devices are ok."""
    target: str | None = options.device
    if target is not None:
        check_target(target)
    settings = broker_settings(options)
    root = settings.broker.topic_root
    filters = look_filters(root, target, "info", "health", "source/+", "rollout")
    filters.append(f"{rollouts(root)}/+")
    with OneShotClient(settings.broker, filters) as client:
        fleet = Fleet(client, root)
        fleet.look()
    names = fleet.named(target) if target else sorted(fleet.status)
    looks = [look_at(fleet.said(name)) for name in names if name in fleet.status]
    _find_lags(looks, fleet, by_group=bool(target and target.startswith("@")))
    if fleet.odd:
        print(printable(f"edge-agent: {odd_words(fleet)}"), file=sys.stderr)
    partial = incomplete(fleet) if fleet.gap and target not in fleet.status else ""
    if not looks:
        raise AgentError(partial or _nobody(fleet, target))
    if partial:
        print(printable(f"edge-agent: {partial}"), file=sys.stderr)
    color = sys.stdout.isatty()
    if not options.json:
        say(_sum(looks))
    short = color and len(looks) > FEW and not (options.all or options.json)
    for look in looks:
        if (options.not_well or short) and look.state == "ok" and not look.lags:
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
    """Count the devices in each state, those that are not ok first."""
    states = [look.state for look in looks]
    parts = [f"{n} {s}" for s in ("offline", "unknown", "degraded", "ok") if (n := states.count(s))]
    behind = sum(bool(look.lags) for look in looks)
    parts += [f"{behind} of them behind"] if behind else []
    return f"{counted(len(looks), 'device')}: {', '.join(parts)}"


def _find_lags(looks: list[DeviceLook], fleet: Fleet, *, by_group: bool) -> None:
    """Note how devices lag behind roll-outs; with *by_group* also behind each other."""
    plans = []
    for name, payload in fleet.plans.items():
        with suppress(MalformedError):
            plan = read(payload, None)
            if plan.id == name:  # devices refuse others, too
                plans.append(plan)
    newest: dict[str, str] = {}
    for look in looks if by_group else ():
        for name, version in _served(fleet, look.device).items():
            newest[name] = max(version, newest.get(name, version), key=version_key)
    for look in looks:
        served = _served(fleet, look.device)
        device = look.device
        groups, says = fleet.groups(device), fleet.rollouts.get(device, {})
        look.lags = [why for plan in plans if (why := plan.lag(device, groups, says))]
        look.lags += [
            f"{name}@{version} serves, elsewhere {newest[name]}"
            for name, version in served.items()
            if version_key(version) < version_key(newest.get(name, version))
        ]


def _served(fleet: Fleet, device: str) -> dict[str, str]:
    """Return a device's live versions of models that its settings do not pin."""
    found = {}
    for entry in tables_in(fleet.info.get(device, {}).get("models")):
        name, _, version = str(entry.get("serves")).rpartition("@")
        if name and name == entry.get("name") and is_version(version):
            found[name] = version
    return found


def _nobody(fleet: Fleet, target: str | None) -> str:
    if target is None:
        return NOBODY
    known = ", ".join(sorted(fleet.status)) or "none"
    if target.startswith("@"):
        return f"no device is in group {target}; known devices: {known}"
    return unknown(fleet, target)


def _lines(look: DeviceLook, *, color: bool) -> Iterator[str]:
    """Yield a line for a device and for each of its pipelines."""
    shade = {"ok": 32, "degraded": 33, "offline": 31, "unknown": 33}[look.state]
    state = f"\033[{shade}m{look.state}\033[0m" if color else look.state
    yield f"{printable(look.device)}  {state}  {printable(look.words)}"
    for lag in look.lags:
        yield printable(f"  behind: {lag}")
    width = max(map(len, look.pipelines), default=0)
    was = "was " if look.state == "offline" else ""
    for name, each in look.pipelines.items():
        parts = [each.error] if each.error else _figures(each)
        state = each.source if each.enabled else "off"
        yield printable(f"  {name:{width}}  {was}{state:7}  {', '.join(parts)}")
    if look.infer:
        counts = ", ".join(f"{count} {key}" for key, count in look.infer.items())
        yield printable(f"  {'@infer':{width}}  {was}{counts}")


def _figures(look: PipelineLook) -> list[str]:
    """List the figures of a pipeline without an error: its current rates, and the serving model."""
    figures = []
    if look.inferred == 0:
        figures = ["no result yet"]
    elif look.enabled and look.p99_ms is not None:
        # For one that is off, they are old.
        rate = "-" if look.fps is None else f"{look.fps:.1f}"
        figures = [f"{rate} a second", f"p99 {look.p99_ms:.0f} ms"]
    if look.enabled and look.learning is not None:
        figures.append(f"learning {look.learning:.0%}")
    if look.gaps:
        figures.append(counted(look.gaps, "gap"))
    return [*figures, look.model] if look.model else figures
