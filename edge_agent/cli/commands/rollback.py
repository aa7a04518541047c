"""`edge-agent rollback`: back to the version before."""

from __future__ import annotations

import argparse
import json
import time
import uuid

from ...core.errors import AgentError, UsageError
from ...core.names import NAME_RULE, is_name
from ...core.text import printable
from ...mqtt import payloads
from ...mqtt.one_shot import OneShotClient
from ..options import Options, add_broker, broker_settings, positive
from .push import World


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", metavar="NAME", help="of the model")
    parser.add_argument("--device", required=True, metavar="ID")
    parser.add_argument("--timeout", type=positive, default=60.0, metavar="S", help="default 60")
    add_broker(parser)


def main(options: Options) -> int:
    """Ask, and wait for the answer."""
    for key, given in (("NAME", options.name), ("--device", options.device)):
        if not is_name(given):
            raise UsageError(f"{key}: {given!r} is not a name ({NAME_RULE})")
    settings = broker_settings(options)
    root, device = settings.broker.topic_root, options.device
    request = uuid.uuid4().hex
    filters = [f"{root}/{device}/status", f"{root}/{device}/reply/{request}"]
    with OneShotClient(settings.broker, filters) as client:
        world = World(client, root)
        world.look()
        if not world.online(device):
            raise AgentError(
                f"device {device} is {'offline' if device in world.status else 'unknown'}"
            )
        body = {"id": request, "time": payloads.iso(time.time_ns()), "model": options.name}
        client.publish(f"{root}/{device}/in/command/rollback", json.dumps(body).encode())
        deadline = time.monotonic() + options.timeout
        while (left := deadline - time.monotonic()) > 0:
            heard = client.next(left)
            if heard is None or not heard.topic.endswith(f"/reply/{request}"):
                continue
            reply = heard.body
            if reply is None:
                continue
            result = reply.get("result")
            if not reply.get("ok") or not isinstance(result, dict):
                raise AgentError(str(reply.get("error")))
            version = printable(str(result.get("version")))
            print(f"{device}: {options.name} is back at version {version}")
            return 0
    raise AgentError(f"device {device} has not answered within {options.timeout:.0f} s")
