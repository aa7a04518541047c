"""Requests: a command is a record and a function, and whatever arrives finds its handler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest

from edge_agent.core.errors import RequestError
from edge_agent.core.frozen import record
from edge_agent.core.parameters import LABEL, Flag, Name, Version, items, number, parse, usage
from edge_agent.mqtt.client import Client
from edge_agent.mqtt.command_memory import MAX_AGE_SECONDS, MOST, SLACK, CommandMemory
from edge_agent.mqtt.connection import ReceivedMessage
from edge_agent.mqtt.inbox import Inbox
from edge_agent.mqtt.requests import (
    MAX_ANSWERED_BYTES,
    MAX_COMMAND_BYTES,
    Command,
    Later,
    Requests,
)
from edge_agent.mqtt.subscriptions import Subscriptions
from tests.helpers.idle_parts import TOPICS, offline_client

# The smallest command: a record, a function, and one line in a list.


@record
class Greet:
    """Return a greeting."""

    name: Name
    times: Annotated[float, number(1, 10)] | None = None


def greet(request: Greet) -> Mapping[str, Any]:
    """Greet as often as asked for."""
    return {"words": f"hello {request.name}" * int(request.times or 1)}


def greet_later(_: Greet) -> Later:
    """Begin a greeting that takes until the device ends."""
    return Later("the agent has ended")


COMMANDS = [Command("greet", Greet, greet), Command("greet-later", Greet, greet_later)]


class Device:
    """The requests of a device without a broker, and what it has answered."""

    def __init__(self, folder: Path) -> None:
        self.inbox = Inbox()
        self.client: Client = offline_client(self.inbox)
        self.subscriptions = Subscriptions(TOPICS, lambda: ("lab",))
        self.delivered: list[tuple[str, ...]] = []
        self.memory = folder / "commands.jsonl"
        self.now = 1_800_000_000.0
        self.jump = 0.0
        """By how much the clock is wrong."""
        self.credible = True
        self.may_be_behind = False

    def handle(self, *messages: tuple[str, bytes]) -> Requests:
        """Handle messages, given topic and payload."""
        requests = Requests(
            self.inbox,
            self.client,
            TOPICS,
            self.subscriptions,
            CommandMemory(
                self.memory,
                credible=lambda: self.credible,
                may_be_behind=lambda: self.may_be_behind,
                clock=lambda: self.now + self.jump,
                monotonic=lambda: self.now,
            ),
            commands=COMMANDS,
            deliveries=self._deliver,
        )
        for topic, payload in messages:
            self.inbox.put(ReceivedMessage(topic, payload, retained=False))
        self.inbox.put(None)
        requests.run()
        return requests

    def handle_over_jumps(self, *messages: tuple[float, tuple[str, bytes]]) -> None:
        """Handle messages in one run, each with the clock wrong by so much."""
        requests = self.handle()
        for jump, (topic, payload) in messages:
            self.jump = jump
            self.inbox.put(ReceivedMessage(topic, payload, retained=False))
            self.inbox.put(None)
            requests.run()

    def _deliver(self, levels: tuple[str, ...], _message: ReceivedMessage) -> bool:
        self.delivered.append(levels)
        return False

    @property
    def replies(self) -> list[dict[str, Any]]:
        """What waits to be published."""
        return [json.loads(reply.payload) for reply in self.client._outbox._replies]

    def time(self, ago: float = 0.0) -> str:
        """Return a time by this device's clock."""
        return datetime.fromtimestamp(self.now - ago, UTC).isoformat()


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """Make a device."""
    return Device(tmp_path)


def ask(verb: str = "greet", **body: Any) -> tuple[str, bytes]:
    """Make a command."""
    return f"edge/box/in/command/{verb}", json.dumps(body).encode()


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


@pytest.mark.parametrize("half", [rb'"\ud800"', b'"\xed\xa0\x80"', rb'{"\uDFFF": 1}'])
def test_half_of_a_letter_is_answered_and_nothing_done(device: Device, half: bytes) -> None:
    """It could be carried out, but never be encoded again; the text is named."""
    body = b'{"id": "r1", "name": "eve", "more": [%s]}' % half
    requests = device.handle((TOPICS.inbox + "/command/greet", body))
    (reply,) = device.replies
    assert (reply["id"], reply["ok"]) == ("r1", False)
    assert reply["error"].startswith("the payload holds half of a letter, \\ud")
    assert requests.malformed == 1


def test_an_escaped_letter_in_two_halves_is_whole(device: Device) -> None:
    """As JSON writes those beyond the first 65536."""
    body = rb'{"id": "r1", "name": "eve", "more": "\ud83d\ude00"}'
    device.handle((TOPICS.inbox + "/command/greet", body))
    assert device.replies[0]["ok"] is True


def test_a_command_as_deep_as_the_parser_takes_is_no_error_of_the_agent(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    """The log shows it from deeper in the stack, where the same depth is too much."""
    bodies = [
        b'{"id": "r%d", "name": "eve", "more": %s}' % (depth, b"[" * depth + b"]" * depth)
        for depth in (99, 101, 900, 990)
    ]
    device.handle(*((TOPICS.inbox + "/command/greet", body) for body in bodies))
    assert caplog.text.count("'more' is not known") == 1
    assert caplog.text.count("the payload is not a JSON object") == 3
    assert "cannot be handled" not in caplog.text


def test_an_unknown_command_is_answered_with_those_there_are(device: Device) -> None:
    """Each is listed with its parameters."""
    device.handle(("edge/box/in/command/dance", b'{"id": "a"}'))
    (reply,) = device.replies
    assert reply["error"] == (
        "unknown command 'dance'; known: greet {name, times?}, greet-later {name, times?}"
    )


def test_a_repeated_request_is_answered_by_memory(device: Device) -> None:
    """Over a restart, too: the function is not called again; and only with the same body."""
    first, other = (ask(id="a", time=device.time(), name=name) for name in ("one", "two"))
    device.handle(first)
    device.handle(first, other)
    fresh, repeated, refused = device.replies
    assert repeated == {**fresh, "repeated": True}
    assert refused["error"].startswith("id: a was given to another command within the last 60 s")


def test_another_command_with_the_id_of_one_under_way_is_refused(device: Device) -> None:
    """A `set` with the id of a `configure` on probation was done, and undid it."""
    first = ask("greet-later", id="a", time=device.time(), name="one")
    device.handle(first, ask(id="a", time=device.time(), name="one"), first)
    refused, ended = device.replies
    assert refused["error"].startswith("id: a was given to another command within the last 60 s")
    assert ended["error"] == "the agent has ended"


def test_a_command_without_a_time_is_carried_out_each_time(device: Device) -> None:
    """And none is written down."""
    device.handle(ask(id="a", name="one"), ask(id="a", name="one"), ask(id="a", name="two"))
    words = [reply["result"]["words"] for reply in device.replies]
    assert words == ["hello one", "hello one", "hello two"]
    assert not device.memory.exists()


def test_no_more_than_a_minute_is_remembered(device: Device) -> None:
    """An id is free again once its command would be refused as expired; the file stays small."""
    for n in range(5 * SLACK):
        device.handle(ask(id=f"n{n}", time=device.time(), name="one"))
        device.now += 1.0
    assert len(device.memory.read_bytes().splitlines()) < 2 * MAX_AGE_SECONDS + 2 * SLACK
    device.handle(ask(id="n0", time=device.time(), name="two"))
    assert device.replies[-1]["result"]["words"] == "hello two"
    late = ask(id="late", time=device.time(MAX_AGE_SECONDS + 1), name="one")
    device.handle(late)
    assert device.replies[-1]["error"] == "expired: sent 61 s ago, taken for 60 s"


def test_a_clock_that_jumps_ahead_and_back_makes_no_command_repeat(device: Device) -> None:
    """A bad time server for some seconds, and a command in them: what was done was forgotten."""
    day = 24 * 3600.0
    first = ask(id="a", time=device.time(), name="one")
    amid = ask(id="b", time=device.time(-day), name="one")
    device.handle_over_jumps((0.0, first), (day, amid), (0.0, first))
    assert [reply.get("repeated", False) for reply in device.replies] == [False, False, True]


def test_a_time_ahead_of_the_clock_is_refused(device: Device) -> None:
    """It would have to be remembered for as long."""
    device.handle(ask(id="a", time=device.time(-7200), name="one"))
    assert "is 7200 s ahead of this device's clock" in device.replies[-1]["error"]
    device.credible = False
    device.handle(ask(id="a", time=device.time(-7200), name="one"))
    assert device.replies[-1]["ok"] is True


def test_a_clock_that_may_be_behind_refuses_only_what_is_too_old(device: Device) -> None:
    """After a boot it goes on from the last shutdown: the sender's clock was said to be wrong."""
    device.may_be_behind = True
    ahead, old = (
        ask(id="a", time=device.time(-7200), name="one"),
        ask(id="b", time=device.time(7200)),
    )
    device.handle(ahead, old)
    assert device.replies[0]["ok"] is True
    assert "expired" in device.replies[1]["error"]
    device.now += 300
    device.handle(ahead)
    assert device.replies[-1]["repeated"] is True, "as long as its age is not known"


def test_more_commands_than_can_be_remembered_are_refused(device: Device) -> None:
    """Only until the first of them are forgotten; with a clock that is unset the oldest go."""
    device.memory.write_text(
        "".join(
            json.dumps([f"n{number}", device.now, "digest", {"ok": True}]) + "\n"
            for number in range(MOST)
        )
    )
    more = ask(id="more", time=device.time(), name="one")
    device.handle(more)
    assert device.replies[-1]["error"].startswith(f"more than {MOST} commands")
    device.credible = False
    device.handle(more)
    assert device.replies[-1]["ok"] is True


def test_more_commands_without_time_are_refused_as_well(device: Device) -> None:
    """1,300 of `set` in five seconds were carried out."""
    device.handle(*(ask(id=f"n{number}", name="one") for number in range(MOST + 1)))
    assert device.replies[-2]["ok"] is True
    assert device.replies[-1]["error"].startswith(f"more than {MOST} commands")


def test_a_line_that_a_power_cut_has_torn_is_left_out(device: Device) -> None:
    """The lines before and behind it count."""
    first, second = (ask(id=name, time=device.time(), name=name) for name in ("a", "b"))
    device.handle(first)
    with device.memory.open("ab") as file:
        file.write(b'\n["torn", 18')
    device.handle(second)
    device.handle(first, second)
    assert [reply.get("repeated", False) for reply in device.replies] == [False, False, True, True]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"PRESS", "the payload is not a JSON object; send {} if there are no parameters"),
        (b"", "the payload is not a JSON object; send {} if there are no parameters"),
        (b'{"id": "no name"}', "id: 'no name' is not a name"),
        (b'{"name": "x", "time": "' + b"9" * 90 + b'"}', "time: '99999999999999999999999999999999"),
        (b'{"name": "x", "time": 5}', "time: 5 is not ISO 8601"),
        (b'{"name": "x", "time": "0001-01-01T00:00:00+23:59"}', "expired: "),
    ],
)
def test_what_has_no_id_is_answered_on_its_response_topic(
    device: Device, payload: bytes, error: str
) -> None:
    """And counted as malformed."""
    topic = "edge/box/in/command/greet"
    device.inbox.put(ReceivedMessage(topic, payload, retained=False, response_topic="caller/me"))
    requests = device.handle()
    (reply,) = device.replies
    assert (reply["id"], reply["ok"]) == (None, False)
    assert reply["error"].startswith(error)
    assert len(reply["error"]) < 200
    assert requests.malformed == 1


def test_a_reply_never_becomes_a_reading(device: Device) -> None:
    """Whoever may send commands could have made a sensor say so."""
    device.client.feeds.open("plant/t", lambda _: None, held=False)
    topic = "edge/box/in/command/greet"
    for asked in ("plant/t", "plant/u"):
        body = json.dumps({"id": asked[-1], "name": "x"}).encode()
        device.inbox.put(ReceivedMessage(topic, body, retained=False, response_topic=asked))
    device.handle()
    assert [(reply["id"], reply["ok"]) for reply in device.replies] == [
        ("t", True),
        ("u", True),
        ("u", True),
    ]


def test_a_command_that_is_too_large_is_answered_by_its_id(device: Device) -> None:
    """Up to a size that may be read for it; nothing of it is carried out."""
    body = {"name": "one", "more": "x" * MAX_COMMAND_BYTES}
    endless = "x" * MAX_ANSWERED_BYTES
    requests = device.handle(
        ask(id="a", **body), ask(more=["["] * 30_000, id="b"), ask(id="c", name="one", more=endless)
    )
    assert [(reply["id"], reply.get("error")) for reply in device.replies] == [
        ("a", "larger than 65536 bytes"),
        ("b", "larger than 65536 bytes"),
    ]
    assert requests.malformed == 3


def test_an_error_of_ours_does_not_end_the_thread(device: Device) -> None:
    """It is answered, and the next command is carried out."""

    def fail(_request: Greet) -> Mapping[str, Any]:
        raise KeyError("surprise")

    COMMANDS.append(Command("fail", Greet, fail))
    try:
        device.handle(("edge/box/in/command/fail", b'{"id": "a", "name": "x"}'), ask(name="x"))
    finally:
        COMMANDS.pop()
    (reply,) = device.replies
    assert reply["error"].startswith("failed by an error of the agent: KeyError('surprise')")


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
    rate: Annotated[float, number(0.5, 2)] | None = None
    of: Annotated[tuple[str, ...], items(LABEL)] = ()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"version": "1"}, "name: is missing; a text is expected"),
        ({"name": "", "version": "1"}, "name: expected a text, found ''"),
        ({"name": ["n"], "version": "1"}, "name: expected a text, found ['n']"),
        ({"name": "n", "version": "x"}, "version: 'x' is not a version (dot-separated integers)"),
        ({"name": "n", "version": "1", "sure": 1}, "sure: expected true or false, found 1"),
        ({"name": "n", "version": "1", "of": ["x" * 257]}, "of: 'xxxxx"),
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
    assert usage(Everything) == "{name, version, sure?, rate?, of?}"
