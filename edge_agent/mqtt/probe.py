"""Finds out how a broker handles retained messages, since brokers do not announce that."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress

from ..config.settings import Broker
from ..core.errors import BrokerError
from .one_shot import OneShotClient

LIVE_SECONDS = 2.0
RETAINED_SECONDS = 5.0
WITHOUT = "status and models of all devices, groups and roll-outs do not work there"
"""What such a broker is no good for."""


def blindness(client: OneShotClient, root: str) -> str:
    """Return why a broker shows no device but by its name; "": it would show them, or unknown."""
    if not client.retains:
        return f"this broker keeps no retained messages: {WITHOUT}"
    with suppress(BrokerError):
        topic = f"{root}/edge-agent-cli/reply/{uuid.uuid4().hex}"
        if trouble := retained_trouble(client.broker, topic):
            return f"this broker {trouble}"
    return ""


def retained_trouble(broker: Broker, topic: str) -> str:
    """Return how a broker withholds retained messages from others; "": it does not, or unknown.

    *topic* is the device's own, below a topic that a wildcard can select.

    Raises:
        BrokerError: the broker cannot be reached, or refuses the message.
    """
    # A reply to whoever reads them all.
    said = {"schema": 1, "id": topic.rpartition("/")[2], "ok": True}
    mark = json.dumps({**said, "result": {"mark": uuid.uuid4().hex}}).encode()
    with OneShotClient(broker, [topic]) as client:
        try:
            client.publish(topic, mark, retain=True)
            try:
                heard = client.next(LIVE_SECONDS)
            except BrokerError:
                if not client.gone:
                    raise
                return "ends the connection at a retained message; allow them there"
            if heard is None or heard.payload != mark:
                return ""  # an access list lets us write there and not read
            for by, words in (
                (topic, "keeps retained messages from other connections (by node?)"),
                (f"{topic.rpartition('/')[0]}/+", "sends no retained messages to wildcards"),
            ):
                with OneShotClient(broker, []) as other:
                    if other.read(topic, RETAINED_SECONDS, by) != mark:
                        return f"{words}: {WITHOUT}"
            return ""
        finally:
            if not client.gone:
                client.wait_published([client.publish(topic, b"", retain=True)])
