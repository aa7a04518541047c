"""Sends a command to a device, or to every online member of a group, and prints the answers."""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ..core.text import printable
from ..mqtt import payloads
from ..mqtt.look import offline_since
from ..mqtt.one_shot import OneShotClient
from .broker_settings import broker_settings
from .fleet import Fleet, check_target, look_filters, online_targets, unheard
from .options import Options, add_broker, positive

TICK_SECONDS = 0.5
MOST_PENDING_SECONDS = 3600.0
"""Longest probation that is waited for: any member of a group may claim one."""


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options for the device or group, and how long to wait."""
    parser.add_argument("--device", required=True, metavar="ID|@GROUP")
    parser.add_argument("--wait", action="store_true", help="wait for a device that is offline")
    parser.add_argument("--timeout", type=positive, default=60.0, metavar="S", help="default 60")
    add_broker(parser)


def ask(
    options: Options,
    verb: str,
    body: Mapping[str, Any],
    *,
    done: Callable[[Mapping[str, Any]], str],
    late: str,
    follow: str = "",
) -> int:
    """Send a command and print each device's answer; 0 if all carried it out, 1 if one did not.

    Args:
        options: the options of `add_target`.
        verb: the command's name.
        body: its keys, without `id` and `time`.
        done: describes a device's result.
        late: what a device that has not answered in time may still do.
        follow: topic of the device that shows how long the answer may take.
    """
    target: str = options.device
    check_target(target)
    settings = broker_settings(options)
    root = settings.broker.topic_root
    request = uuid.uuid4().hex
    filters = look_filters(root, target, "info", "health", f"reply/{request}")
    with OneShotClient(settings.broker, filters) as client:
        fleet = Fleet(client, root)
        devices = online_targets(fleet, target, wait=options.wait, timeout=options.timeout)
        if follow:
            client.subscribe([f"{root}/{device}/{follow}" for device in devices])
        sent = {"id": request, "time": payloads.iso(time.time_ns()), **body}
        for device in devices:
            client.publish(f"{root}/{device}/in/command/{verb}", json.dumps(sent).encode())
        failed = _await(client, fleet, f"/reply/{request}", devices, options.timeout, done)
    silent = f"has not answered within {options.timeout:.0f} s; it may still {late}"
    gone = f"went offline before it had answered; it may still {late}"
    if target.startswith("@"):
        for device in fleet.members(target[1:]):
            if device not in devices:
                print(f"{device}: {offline_since(fleet.said(device))}; it was not asked")
    for device, why in failed.items():
        words = why or (
            f" {silent}{unheard(f'{root}/{device}/in/#')}" if fleet.online(device) else f" {gone}"
        )
        print(printable(f"edge-agent: device {device}{words}"), file=sys.stderr)
    return 1 if failed else 0


def _await(
    client: OneShotClient,
    fleet: Fleet,
    topic: str,
    devices: list[str],
    timeout: float,
    done: Callable[[Mapping[str, Any]], str],
) -> dict[str, str]:
    """Print each device's answer as it comes; return the problems of the others.

    A device that goes offline and is not back is not waited for.

    Returns:
        The problem by device, as text to follow its name; empty: it has not answered.
    """
    waiting, failed = set(devices), {}
    deadline = time.monotonic() + timeout
    while any(fleet.online(each) or fleet.may_return(each) for each in waiting):
        if (left := deadline - time.monotonic()) <= 0:
            break
        heard = client.next(min(left, TICK_SECONDS))
        if heard is None:
            continue
        fleet.take(heard.topic, heard.payload)
        if not heard.retained and _config_of(heard.topic) in waiting:
            pending = (heard.said("config") or {}).get("pending", {})
            span = min(pending.get("probation_s", 0.0), MOST_PENDING_SECONDS)
            deadline = max(deadline, time.monotonic() + (timeout + span if pending else 0.0))
        device = heard.topic.removesuffix(topic).rpartition("/")[2]
        if not heard.topic.endswith(topic) or device not in waiting:
            continue
        said = heard.said("reply")
        if said is None:
            continue
        waiting.remove(device)
        result = said.get("result")
        if not said.get("ok") or result is None:
            failed[device] = f": {said.get('error')}"
            continue
        print(printable(f"{device}: {done(result)}"), flush=True)
        warnings = result.get("warnings")
        for warning in warnings if isinstance(warnings, list) else ():
            print(printable(f"{device}: warning: {warning}"), file=sys.stderr)
    return failed | dict.fromkeys(sorted(waiting), "")


def _config_of(topic: str) -> str | None:
    """Return the device whose `config` topic this is."""
    above, _, kind = topic.rpartition("/")
    return above.rpartition("/")[2] if kind == "config" else None
