"""`edge-agent models`: lists the models that each device has, runs, and is trying."""

from __future__ import annotations

import argparse
import sys

from ...config.settings import Settings
from ...core.errors import AgentError, UsageError
from ...core.names import NAME_RULE, is_name
from ...core.text import counted, printable
from ...delivery.protocol import agreement_words
from ...mqtt.look import offline_since
from ...mqtt.one_shot import OneShotClient
from ..broker_settings import broker_settings
from ..fleet import NOBODY, Fleet, absence, check_target, incomplete, look_filters, odd_words
from ..options import Options, add_broker
from ..terminal import printable_json

EXAMPLES = (
    "edge-agent models --device @lab --json",
    "edge-agent models --forget edge-07  a device that is gone for good",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--device", metavar="ID|@GROUP", help="only this device, or this group")
    parser.add_argument("--json", action="store_true", help="one JSON object per device")
    parser.add_argument(
        "--forget",
        metavar="ID",
        help="clear what a scrapped device left retained; of an online one what it lacks",
    )
    add_broker(parser)


def main(options: Options) -> int:
    """Print a line per model, or forget a device."""
    target: str | None = options.device
    if target is not None:
        check_target(target)
    if options.forget is not None and not is_name(options.forget):
        raise UsageError(f"{options.forget!r} is not a name ({NAME_RULE})")
    settings = broker_settings(options)
    root = settings.broker.topic_root
    if options.forget:
        return _forget(settings, options.forget)
    filters = look_filters(root, target, "info", "health", "model/+", "source/+")
    with OneShotClient(settings.broker, filters) as client:
        fleet = Fleet(client, root)
        fleet.look()
    if fleet.odd:
        print(printable(f"edge-agent: {odd_words(fleet)}"), file=sys.stderr)
    names = fleet.named(target) if target else sorted(fleet.status)
    if target and not any(name in fleet.status for name in names):
        raise AgentError(absence(fleet, target))
    if not names and not fleet.gap:
        print(f"edge-agent: {NOBODY}", file=sys.stderr)
    for name in names:
        if options.json:
            shown = {"schema": 1, "device": name, "online": fleet.online(name)}
            print(printable_json({**shown, "models": fleet.models.get(name, {})}))
            continue
        state = "online" if fleet.online(name) else offline_since(fleet.said(name))
        about = fleet.info.get(name, {}).get("profile")
        profile = about.get("name", "?") if isinstance(about, dict) else "?"
        print(printable(f"{name}  {state}  profile {profile}"))
        had = fleet.present(name) if fleet.online(name) else None
        for model, says in sorted(fleet.models.get(name, {}).items()):
            gone = had is not None and had[1] is not None and model not in had[1]
            line = f"left over, `models --forget {name}` clears it" if gone else _line(says)
            print(printable(f"  {model}: {line}"))
    if fleet.gap:
        raise AgentError(incomplete(fleet))
    return 0


def _line(says: dict[str, object]) -> str:
    parts = [f"live {says.get('live') or 'none'}"]
    if says.get("previous"):
        parts.append(f"previous {says['previous']}")
    versions = says.get("versions")
    if isinstance(versions, list):
        parts.append(f"has {', '.join(str(version) for version in versions) or 'none'}")
    candidate = says.get("candidate")
    if isinstance(candidate, dict):
        parts.append(
            f"{candidate.get('phase')} {candidate.get('version')} {candidate.get('percent')}%"
        )
    last = says.get("last")
    if isinstance(last, dict):
        why = f" ({last['why']})" if last.get("why") else ""
        parts.append(f"last: {last.get('version')} {last.get('outcome')}{why}")
        agreed, low = agreement_words(last)
        if agreed is not None and low and last.get("outcome") == "live":
            parts.append(agreed.replace(" it ", " the version before ", 1))
    if says.get("error"):
        parts.append(str(says["error"]))
    return "; ".join(parts)


def _forget(settings: Settings, device: str) -> int:
    """Clear the retained topics of a scrapped device, or what an online one does not have."""
    from ..forgetting import forget

    cleared, online, gap = forget(settings, device)
    if not cleared:
        raise AgentError(f"device {device} is unknown: nothing is retained of it")
    what = " of pipelines and models that it does not have" if online else ""
    print(f"{device}: {counted(cleared, 'retained topic')}{what} cleared")
    if gap:
        raise AgentError(f"{gap}; run it again")
    return 0
