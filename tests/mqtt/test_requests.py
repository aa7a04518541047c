"""Requests: a command is a record and a function, and whatever arrives finds its handler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest

from edge_agent.core.errors import RequestError
from edge_agent.core.frozen import record
from edge_agent.core.parameters import Flag, Name, Number, Version, parse, usage
from edge_agent.mqtt.client import Client
from edge_agent.mqtt.connection import ReceivedMessage
from edge_agent.mqtt.inbox import Inbox
from edge_agent.mqtt.requests import Command, ReplyMemory, Requests
from edge_agent.mqtt.subscriptions import Subscriptions
from tests.helpers.idle_parts import TOPICS, offline_client

# The smallest command: a record, a function, and one line in a list.


@record
class Greet:
    """Return a greeting."""

    name: Name
    times: Annotated[float, Number(1, 10)] | None = None


def greet(request: Greet) -> Mapping[str, Any]:
    """Greet as often as asked for."""
    return {"words": f"hello {request.name}" * int(request.times or 1)}


COMMANDS = [Command("greet", Greet, greet)]


class Device:
    """The requests of a device without a broker, and what it has answered."""

    def __init__(self, folder: Path) -> None:
        self.inbox = Inbox()
        self.client: Client = offline_client(self.inbox)
        self.subscriptions = Subscriptions(TOPICS, lambda: ("lab",))
        self.delivered: list[tuple[str, ...]] = []
        self._memory = folder / "requests.json"

    def handle(self, *messages: tuple[str, bytes]) -> Requests:
        """Handle messages, given topic and payload."""
        requests = Requests(
            self.inbox,
            self.client,
            TOPICS,
            self.subscriptions,
            ReplyMemory(self._memory),
            commands=COMMANDS,
            deliveries=self._deliver,
        )
        for topic, payload in messages:
            self.inbox.put(ReceivedMessage(topic, payload, retained=False))
        self.inbox.put(None)
        requests.run()
        return requests

    def _deliver(self, levels: tuple[str, ...], _message: ReceivedMessage) -> bool:
        self.delivered.append(levels)
        return False

    @property
    def replies(self) -> list[dict[str, Any]]:
        """What waits to be published."""
        return [json.loads(body) for _, body, _ in self.client._outbox._replies]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """Make a device."""
    return Device(tmp_path)


def ask(**body: Any) -> tuple[str, bytes]:
    """Make a command."""
    return "edge/box/in/command/greet", json.dumps(body).encode()


def test_a_command_is_a_record_and_a_function(device: Device) -> None:
    """What its function returns is the result; a parameter that is not there has its default."""
    device.handle(ask(id="a", name="box"), ask(id="b", name="box", times=2, more="unknown"))
    assert [reply["result"]["words"] for reply in device.replies] == [
        "hello box",
        "hello boxhello box",
    ]


def test_what_does_not_fit_the_record_is_answered(device: Device) -> None:
    """The reply names the parameter, what was expected, and what came."""
    device.handle(ask(id="a"), ask(id="b", name="no name"), ask(id="c", name="n", times=11))
    assert [reply["error"] for reply in device.replies] == [
        "name: is missing; a text is expected",
        "name: 'no name' is not a name",
        "times: expected a number from 1 to 10, found 11",
    ]


def test_an_unknown_command_is_answered_with_those_there_are(device: Device) -> None:
    """Each is listed with its parameters."""
    device.handle(("edge/box/in/command/dance", b'{"id": "a"}'))
    (reply,) = device.replies
    assert reply["error"] == "unknown command 'dance'; known: greet {name, times?}"


def test_a_repeated_request_is_answered_by_memory(device: Device) -> None:
    """Over a restart, too: the function is not called again."""
    device.handle(ask(id="a", name="one"))
    device.handle(ask(id="a", name="two"))
    assert [reply["result"]["words"] for reply in device.replies] == ["hello one", "hello one"]


def test_other_topics_of_an_inbox_are_delivered(device: Device) -> None:
    """Of the device and of its groups; those of other groups are counted."""
    requests = device.handle(
        ("edge/box/in/model", b"x"),
        ("edge/@lab/in/push/t/abort", b""),
        ("edge/@x/in/model", b""),
    )
    assert device.delivered == [("model",), ("push", "t", "abort")]
    assert requests.malformed == 1


def test_a_prefix_is_registered_with_one_line(device: Device) -> None:
    """A topic outside the device's own is subscribed to, and what arrives goes to its handler."""
    received: list[tuple[tuple[str, ...], bytes]] = []

    def handler(levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        received.append((levels, message.payload))
        return False

    device.subscriptions.register("homeassistant/status", handler)
    assert device.subscriptions.filters() == [
        "edge/box/in/#",
        "edge/@lab/in/#",
        "homeassistant/status/#",
    ]
    device.handle(("homeassistant/status", b"online"), ("homeassistant/status/x", b""))
    assert received == [((), b"online"), (("x",), b"")]
    assert device.delivered == []


@record
class Everything:
    """One parameter of each kind."""

    name: Name
    version: Version
    sure: Flag = False
    rate: Annotated[float, Number(0.5, 2)] | None = None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"version": "1"}, "name: is missing; a text is expected"),
        ({"name": "", "version": "1"}, "name: is missing; a text is expected"),
        ({"name": ["n"], "version": "1"}, "name: is missing; a text is expected"),
        ({"name": "n", "version": "x"}, "version: 'x' is not a version (dot-separated integers)"),
        ({"name": "n", "version": "1", "sure": 1}, "sure: expected true or false, found 1"),
        ({"name": "n", "version": "1", "rate": True}, "rate: expected a number, found True"),
        ({"name": "n", "version": "1", "rate": -1}, "rate: expected a number above 0, found -1"),
        (
            {"name": "n", "version": "1", "rate": 3},
            "rate: expected a number from 0.5 to 2, found 3",
        ),
    ],
)
def test_each_kind_of_parameter_refuses_what_it_is_not(body: dict[str, Any], error: str) -> None:
    """With the parameter, what was expected, and what came."""
    with pytest.raises(RequestError) as refused:
        parse(Everything, body)
    assert str(refused.value).startswith(error)


def test_null_is_as_good_as_absent() -> None:
    """Where there is a default; and a whole number is a number."""
    body = {"name": "n", "version": "1.2", "sure": None, "rate": 1}
    assert parse(Everything, body) == Everything("n", "1.2", sure=False, rate=1.0)
    assert usage(Everything) == "{name, version, sure?, rate?}"
