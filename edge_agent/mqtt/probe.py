"""Finds out what brokers do not announce: how they handle retained messages, what they refuse."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from ..config.settings import Broker
from ..core.errors import BrokerError
from .connecting import connect
from .connection import Hooks, Refusal
from .one_shot import OneShotClient, is_loss
from .subscribing import refused
from .subscriptions import Subscriptions
from .topics import Topics

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
        broker = replace(client.broker, protocol=client.protocol)
        if trouble := retained_trouble(broker, topic):
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
            except BrokerError as problem:
                if not is_loss(client, problem):
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


def refused_topics(
    broker: Broker, client_id: str, topics: Topics, groups: Iterable[str]
) -> list[str]:
    """Return how a broker refuses what the agent subscribes to, and what that costs.

    Raises:
        BrokerError: the broker cannot be reached.
    """
    inboxes = Subscriptions(topics, lambda: groups).filters()
    filters = [*inboxes, f"{topics.rollouts}/#"]
    answers: SimpleQueue[tuple[Refusal | None, ...]] = SimpleQueue()
    hooks = Hooks(subscribed=lambda _connection, _mid, refusals: answers.put(refusals))
    connection = connect(broker, client_id, hooks=hooks)
    try:
        connection.subscribe([(each, 1) for each in filters])
        deadline = time.monotonic() + RETAINED_SECONDS
        while answers.empty() and not connection.gone.wait(0.02) and time.monotonic() < deadline:
            pass
        if answers.empty():
            ends = f"ends the connection at a subscription to {' or '.join(filters)}"
            return [ends] if connection.gone.is_set() else []
        given = zip(filters, answers.get(), strict=False)
        return [refused(topic, why, own=True) for topic, why in given if why is not None]
    finally:
        connection.close()
