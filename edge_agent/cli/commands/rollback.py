"""`edge-agent rollback`: back to the previous version."""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid

from ...core.errors import UsageError
from ...core.names import NAME_RULE, is_name
from ...core.text import printable
from ...mqtt import payloads
from ...mqtt.look import offline_since
from ...mqtt.one_shot import OneShotClient
from ..fleet import Fleet, check_target, look_filters, online_targets
from ..options import Options, add_broker, broker_settings, positive

EXAMPLES = (
    "edge-agent rollback parts --device edge-01",
    "edge-agent rollback parts --device @lab  every device of the group",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", metavar="NAME", help="of the model")
    parser.add_argument("--device", required=True, metavar="ID|@GROUP")
    parser.add_argument("--wait", action="store_true", help="wait for a device that is offline")
    parser.add_argument("--timeout", type=positive, default=60.0, metavar="S", help="default 60")
    add_broker(parser)


def main(options: Options) -> int:
    """Ask every device that is online; 0 if all of them went back, 1 if one did not."""
    if not is_name(options.name):
        raise UsageError(f"NAME: {options.name!r} is not a name ({NAME_RULE})")
    target: str = options.device
    check_target(target)
    settings = broker_settings(options)
    root = settings.broker.topic_root
    request = uuid.uuid4().hex
    filters = look_filters(root, target, "info", "health", f"reply/{request}")
    with OneShotClient(settings.broker, filters) as client:
        fleet = Fleet(client, root)
        devices = online_targets(fleet, target, wait=options.wait, timeout=options.timeout)
        body = {"id": request, "time": payloads.iso(time.time_ns()), "model": options.name}
        for device in devices:
            client.publish(f"{root}/{device}/in/command/rollback", json.dumps(body).encode())
        failed = _await(client, root, request, devices, options)
    if target.startswith("@"):
        for device in fleet.members(target[1:]):
            if device not in devices:
                print(f"{device}: {offline_since(fleet.said(device))}; it was not asked")
    for why in failed:
        print(printable(f"edge-agent: {why}"), file=sys.stderr)
    return 1 if failed else 0


def _await(
    client: OneShotClient, root: str, request: str, devices: list[str], options: Options
) -> list[str]:
    """Print each device's success as it is told; return what went wrong on the others."""
    waiting, failed = set(devices), []
    deadline = time.monotonic() + options.timeout
    while waiting and (left := deadline - time.monotonic()) > 0:
        heard = client.next(left)
        if heard is None or not heard.topic.endswith(f"/reply/{request}"):
            continue
        device = heard.topic.removeprefix(f"{root}/").partition("/")[0]
        reply = heard.body
        if reply is None or device not in waiting:
            continue
        waiting.remove(device)
        result = reply.get("result")
        if not reply.get("ok") or not isinstance(result, dict):
            failed.append(f"device {device}: {reply.get('error')}")
            continue
        version = result.get("version")
        print(printable(f"{device}: {options.name} is back at version {version}"), flush=True)
    silent = f"has not answered within {options.timeout:.0f} s; it may still go back"
    return failed + [f"device {device} {silent}" for device in sorted(waiting)]
