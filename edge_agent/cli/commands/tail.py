"""`edge-agent tail`: follows the messages of devices, one line each."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from itertools import chain

from ...config.settings import Broker
from ...core.backoff import Backoff
from ...core.errors import AgentError, UsageError
from ...core.names import NAME_RULE, is_name
from ...core.text import printable
from ...mqtt.connection import ReceivedMessage, parse_object
from ...mqtt.one_shot import OneShotClient
from ..broker_settings import broker_settings
from ..fleet import LOOK_SECONDS, Fleet, absence, look_filters
from ..options import Options, add_broker, positive, positive_int
from ..terminal import message_line, printable_json

TOPICS = {
    "result": ("result/+",),
    "event": ("event/+",),
    "answer": ("answer/+",),
    "health": ("health",),
    "status": ("status", "source/+"),
    "model": ("model/+",),
    "all": (
        "result/+",
        "event/+",
        "answer/+",
        "count/+",
        "pipeline/+",
        "health",
        "status",
        "source/+",
        "model/+",
        "info",
        "push/+",
        "reply/+",
    ),
}


EXAMPLES = (
    "edge-agent tail                                results of all devices",
    "edge-agent tail --device edge-01 --kind event  what happened, in sentences",
    "edge-agent tail --kind health --json -n 1 | jq .state",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--device", metavar="ID", help="only this device")
    parser.add_argument(
        "--kind",
        choices=tuple(TOPICS),
        default="result",
        help="default: result",
    )
    parser.add_argument("--json", action="store_true", help="payloads unchanged, one per line")
    parser.add_argument(
        "-n", type=positive_int, dest="count", metavar="N", help="end after N messages"
    )
    parser.add_argument(
        "--timeout", type=positive, metavar="S", help="end after S seconds; 1 where N are missing"
    )
    add_broker(parser)


def main(options: Options) -> int:
    """Print until enough messages have come, or until told to stop, which is success, too."""
    if options.device is not None and not is_name(options.device):
        raise UsageError(f"--device: {options.device!r} is not a name ({NAME_RULE})")
    settings = broker_settings(options)
    root, device = settings.broker.topic_root, options.device or "+"
    filters = [f"{root}/{device}/{topic}" for topic in TOPICS[options.kind]]
    try:
        with OneShotClient(settings.broker, filters) as client:
            whole = _follow(client, settings.broker, options)
    except KeyboardInterrupt:
        whole = False
    return 0 if whole or options.count is None else 1


def _follow(client: OneShotClient, broker: Broker, options: Options) -> bool:
    """Print messages; return whether there were as many as requested."""
    until = time.monotonic() + (options.timeout or math.inf)
    look_until = time.monotonic() + LOOK_SECONDS
    first = next(_heard(client, look_until), None) if options.device else None
    if options.device and first is None and not client.gone:
        _warn_of_absence(broker, options.device)
    seen = 0
    for heard in chain([] if first is None else [first], _heard(client, until)):
        if not heard.payload:
            continue  # a retained topic was cleared
        line = _line(heard.topic, broker.topic_root, heard.payload, as_json=options.json)
        print(line, flush=True)
        seen += 1
        if options.count is not None and seen >= options.count:
            return True
    if options.count is not None:
        _say(f"{seen} of {options.count} messages came within {options.timeout:g} s")
    return False


def _heard(client: OneShotClient, until: float) -> Iterator[ReceivedMessage]:
    """Yield messages until a monotonic time, connecting again whenever the connection is lost."""
    backoff, lost = Backoff(most=30.0), ""
    while (left := until - time.monotonic()) > 0:
        try:
            if lost:
                client.reconnect()
                _say("connected again")
                lost = ""
            message = client.next(min(left, 1.0))
        except AgentError as problem:  # or a certificate that is just being replaced
            if str(problem) != lost:
                lost = str(problem)
                _say(f"{lost}; connecting again")
            time.sleep(min(left, backoff.pause()))
            continue
        if message is not None:
            backoff.reset()
            yield message


def _say(words: str) -> None:
    print(printable(f"edge-agent: {words}"), file=sys.stderr, flush=True)


def _warn_of_absence(broker: Broker, device: str) -> None:
    """Warn on stderr if a device is unknown or offline; it may still appear."""
    root = broker.topic_root
    with OneShotClient(broker, look_filters(root, device)) as client:
        fleet = Fleet(client, root)
        fleet.look()
    if not fleet.online(device):
        _say(f"{absence(fleet, device)}; waits for it")


def _line(topic: str, root: str, data: bytes, *, as_json: bool) -> str:
    payload = parse_object(data)
    if payload is None:
        text = data.decode("utf-8", "backslashreplace")
        if as_json:
            return json.dumps({"topic": topic, "payload": text})
        return printable(f"{topic}: {text}")
    if as_json:
        return printable_json({"topic": topic, **payload})
    try:
        return printable(message_line(topic, root, payload))
    except (KeyError, TypeError, ValueError, AttributeError):
        # A payload from another version or program is shown unchanged.
        return f"{printable(topic)}: {printable_json(payload)}"
