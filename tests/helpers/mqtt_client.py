"""A client to a real broker, alone, and what is heard of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from edge_agent.config.settings import Broker
from edge_agent.core.backoff import Backoff
from edge_agent.mqtt.client import Channel, Client, Message
from edge_agent.mqtt.connection import ReceivedMessage
from tests.helpers.support import PATIENCE, Listener, Relay, wait_until

STATUS = "edge/box/status"


def make_client(
    url: str | tuple[str, ...],
    inbox: SimpleQueue[ReceivedMessage | None] | None = None,
    spool: Path | None = None,
    filters: Sequence[str] = ("edge/box/in/#",),
    **settings: Any,
) -> Client:
    """Make a client that is quick to connect again."""
    return Client(
        Broker(url=url, **settings),
        "edge-agent-box",
        status_topic=STATUS,
        status=lambda state, reason: json.dumps({"state": state, "reason": reason}).encode(),
        filters=lambda: filters,
        inbox=inbox or SimpleQueue(),
        backoff=Backoff(0.02, 0.1),
        spool=spool,
    )


def message(
    channel: Channel,
    number: int,
    *,
    event: bool = False,
    series: str = "",
    closes: bool = False,
    on_published: Any = None,
    **more: Any,
) -> Message:
    """Make a result or event that consists of a number and *more*, and says when it is a copy."""

    def encode(replayed: bool) -> bytes:
        marks = {"replayed": True} if replayed else {}
        return json.dumps({"n": number, **more, **marks}).encode()

    topic = f"edge/box/{'event' if event else 'result'}/{channel.name}"
    return Message(channel, topic, encode, on_published, event=event, series=series, closes=closes)


class RelayedClient:
    """A client that runs, and a relay that can keep it from the broker."""

    def __init__(self, relay: Relay, spool: Path | None = None, **settings: Any) -> None:
        self.relay = relay
        self.inbox: SimpleQueue[ReceivedMessage | None] = SimpleQueue()
        self.client = make_client(relay.url, self.inbox, spool, **settings)
        self._thread = threading.Thread(target=self.client.run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def up(self) -> None:
        """Wait until there is a connection."""
        wait_until(lambda: self.client.connected, "a connection")

    def break_off(self) -> None:
        """Break the connection and keep the next one from coming about."""
        self.relay.shut()
        self.relay.cut()
        wait_until(lambda: not self.client.connected, "the connection to break")

    def send(self, channel: Channel, *numbers: int, **more: Any) -> None:
        """Send results that consist of a number and *more*."""
        for number in numbers:
            self.client.publish_message(message(channel, number, **more))

    def on_disk(self, count: int) -> None:
        """Wait until so many messages lie on disk."""
        wait_until(lambda: self.client.counters().on_disk == count, f"{count} messages on disk")

    def close(self) -> None:
        self.client.close()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def arrived(listener: Listener, name: str) -> list[dict[str, Any]]:
    """Give all results of a channel that were heard."""
    return listener.on(f"edge/box/result/{name}")


def wait_arrived(listener: Listener, name: str, number: int) -> list[int]:
    """Wait for so many different results; gives all numbers in the order of arrival."""

    def look(_: object) -> bool:
        return len({result["n"] for result in arrived(listener, name)}) >= number

    listener.wait_for(look, f"{number} results of {name}")
    return [result["n"] for result in arrived(listener, name)]
