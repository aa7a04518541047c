"""What commands do on a broker that sends nothing retained to wildcards, as RabbitMQ does."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from edge_agent.mqtt.payloads import iso
from tests.helpers.no_wildcards import NoWildcards
from tests.helpers.support import Listener, Mosquitto, call_cli

WITHHELD = "this broker sends no retained messages to wildcards: "


class Chatty(NoWildcards):
    """Has a device say something as soon as somebody has subscribed."""

    say: Callable[[], None]

    def pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        super().pass_on(data, source, sink)
        if data[0] == 0x90:  # SUBACK
            self.say()


@pytest.fixture
def listener(broker: Mosquitto, listen: Callable[..., Listener]) -> Listener:
    """Have a listener to two devices in a group."""
    listener = listen(broker.port)
    for device in ("silent", "chatty"):
        say(listener, device)
    return listener


@pytest.fixture
def relay(broker: Mosquitto, listener: Listener) -> Iterator[Chatty]:
    """Have a broker that passes on only what a device says meanwhile."""
    relay = Chatty(broker.port, opened=False)
    relay.say = lambda: say(listener, "chatty")
    relay.open()
    yield relay
    relay.shut()
    relay.cut()


def say(listener: Listener, device: str) -> None:
    """Publish as a device does that is back."""
    said = {
        "info": {"groups": ["lab"], "session": "s", "pipelines": []},
        "health": {"state": "ok", "time": iso(time.time_ns())},
        "status": {"state": "online", "reason": "reconnected", "session": "s"},
    }
    for topic, body in said.items():
        listener.publish(f"edge/{device}/{topic}", json.dumps(body), retain=True)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("status",), "1 device: 1 ok"),
        (("status", "--device", "@lab", "--json"), '"device": "chatty"'),
        (("models",), "chatty  online"),
        (("set", "door", "rate=3", "--device", "@lab"), ""),
        (("rollout", "status"), ""),
        (("rollout", "status", "level-2"), ""),
        (("rollout", "abort"), ""),
        (("rollout", "finish", "level-2"), ""),
    ],
)
def test_what_is_said_meanwhile_makes_no_look_complete(
    listener: Listener, relay: Chatty, words: tuple[str, ...], shown: str
) -> None:
    """Of two devices one was "1 device: 1 ok", and `set` asked that one alone and was done.

    Of roll-outs `status` said that there was none.
    """
    said = call_cli(*words, "--broker", relay.url)
    assert said.code == 1
    assert said.error.startswith(f"edge-agent: the look is not complete: {WITHHELD}")
    assert (shown in said.out) if shown else not said.out
    listener.catch_up()
    assert not [heard for heard in listener.heard if "/in/" in heard.topic]


def test_what_a_broker_does_not_show_is_not_forgotten_by_guess(
    listener: Listener, relay: Chatty
) -> None:
    """Of an online device that was not known as one, what it just said was cleared."""
    said = call_cli("models", "--forget", "silent", "--broker", relay.url)
    assert said.code == 1
    assert said.error.startswith(f"edge-agent: {WITHHELD}")
    assert said.error.endswith("nothing was cleared: clear each topic by its name")
    listener.catch_up()
    assert not [heard for heard in listener.heard if "silent" in heard.topic and not heard.payload]
