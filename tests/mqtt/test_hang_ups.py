"""Brokers that close the connection over a message, and networks that only seem to."""

from __future__ import annotations

import json
import logging
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.config.rules import Action
from edge_agent.mqtt import hang_ups, inflight, outbox
from edge_agent.mqtt.client import Client
from edge_agent.mqtt.connection import UNSPECIFIED, Refusal
from edge_agent.mqtt.hang_ups import HangUps
from edge_agent.mqtt.message import CREDIT
from edge_agent.rules import actions
from edge_agent.rules.actions import Actions
from tests.helpers.mqtt_client import RelayedClient, make_client, message, wait_arrived
from tests.helpers.scripted_brokers import ScriptedBroker, read_packet
from tests.helpers.support import Listener, Mosquitto, Relay, wait_until

DISCOVERY = "homeassistant/device/edge-agent_box/config"
OTHERS = 20
"""Small results behind the one that the broker does not take."""


class Hanging(ScriptedBroker):
    """Acknowledges each message a while after it, as RabbitMQ does, or ends the connection.

    What was published before and is not acknowledged yet is taken nevertheless.
    """

    def __init__(self, hangs_up: Callable[[str, bytes], bytes | None]) -> None:
        """Listen; *hangs_up* returns the last words over a message, None: it is taken."""
        self.breaks_at_barrier = False
        """Whether the next connection ends that asks what has arrived, once it is answered."""
        self.rounds = 0
        """After how many acknowledgments at once each connection ends, instead of another; 0: none
        does."""
        self.taken: list[tuple[str, bytes]] = []
        self._hangs_up = hangs_up
        super().__init__()

    def _talk(self, wire: socket.socket) -> None:
        owed, rounds = b"", 0
        wire.settimeout(0.02)
        while True:
            try:
                first = wire.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                rounds += bool(owed)
                if self.rounds and rounds > self.rounds:
                    return
                wire.sendall(owed)
                owed = b""
                continue
            if not first:
                return
            wire.settimeout(10)
            kind, body = read_packet(wire)
            wire.settimeout(0.02)
            match kind >> 4:
                case 1:
                    newest = body[6] == 5
                    wire.sendall(b"\x20\x03\x00\x00\x00" if newest else b"\x20\x02\x00\x00")
                case 3:
                    at = 2 + int.from_bytes(body[:2], "big")
                    topic, begin = body[2:at].decode(), at + newest + (2 if kind & 6 else 0)
                    payload = body[begin:]
                    words = self._hangs_up(topic, payload)
                    if words is not None:
                        wire.sendall(words)
                        return
                    self.taken.append((topic, payload))
                    owed += b"\x40\x02" + body[at : at + 2] if kind & 6 else b""
                case 8:
                    wire.sendall((b"\x90\x04%b\0\1" if newest else b"\x90\x03%b\1") % body[:2])
                case 10:
                    wire.sendall((b"\xb0\x04%b\0\x11" if newest else b"\xb0\x02%b") % body[:2])
                    if self.breaks_at_barrier:
                        self.breaks_at_barrier = False
                        return
                case 12:
                    wire.sendall(b"\xd0\x00")
                case 14:
                    return

    def on(self, topic: str) -> list[bytes]:
        """Return what was taken on a topic."""
        return [payload for where, payload in self.taken if where == topic]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Let careful connections begin and end sooner."""
    monkeypatch.setattr(hang_ups, "SETTLE", 0.2)
    monkeypatch.setattr(outbox, "CAREFUL_SECONDS", 2.0)
    monkeypatch.setattr(outbox, "CONTROL_SECONDS", 2.5)
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_result_over_which_mosquitto_hangs_up_is_dropped_and_the_others_arrive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, on_disk: bool
) -> None:
    """Over MQTT 3.1.1 one of 9 kB was sent for ever, and nothing behind it arrived."""
    broker = Mosquitto(tmp_path / "broker", "max_packet_size 6000\n")
    listener = Listener(broker.port)
    relayed = RelayedClient(
        Relay(broker.port), tmp_path / "spool.db" if on_disk else None, protocol=4
    )
    client = relayed.client
    belt, big = (client.open_channel(name, qos=1, lossless=False) for name in ("belt", "big"))
    relayed.start()
    relayed.up()
    if on_disk:
        relayed.break_off()
    client.publish_message(message(big, 0, x="x" * 9000))
    relayed.send(belt, *range(OTHERS))
    if on_disk:
        relayed.on_disk(OTHERS + 1)
        relayed.relay.open()
    wait_arrived(listener, "belt", OTHERS)
    wait_until(lambda: not (big.pending or belt.pending), "the end of all")
    counters = client.counters()
    assert (counters.dropped, big.lost, belt.lost) == (1, 1, 0)
    assert counters.forbidden.startswith("edge/box/result/big: the broker closes the connection")
    assert "90" in counters.forbidden.partition("(")[2]
    assert "device_id" not in caplog.text
    # What is like it is dropped at once, what is smaller arrives.
    connections = counters.reconnects
    client.publish_message(message(big, 1, x="x" * 9000))
    client.publish_message(message(big, 2))
    wait_arrived(listener, "big", 1)
    wait_until(lambda: not big.pending, "the end of both")
    assert (client.counters().reconnects, big.lost) == (connections, 2)
    assert [result["n"] for result in listener.on("edge/box/result/big")] == [2]
    relayed.close()
    listener.close()
    broker.stop()


def only_own(topic: str, _payload: bytes) -> bytes | None:
    """Hang up without a word over what is not below `edge/`."""
    return None if topic.startswith("edge/") else b""


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_retained_topic_that_may_not_be_written_ends_no_more_connections(
    run: Callable[[Client], Client], caplog: pytest.LogCaptureFixture, protocol: int
) -> None:
    """RabbitMQ hangs up over it: discovery by Home Assistant had kept all else from arriving."""
    broker = Hanging(only_own)
    client = make_client(broker.url, protocol=protocol)
    belt = client.open_channel("belt", qos=1, lossless=False)
    live = client.open_channel("live", qos=0, lossless=True)
    client.publish_retained(DISCOVERY, b'{"name": "box"}')
    client.publish_retained("edge/box/source/belt", b"{}")
    client.publish_retained("edge/box/source/gone", b"")
    for number in range(OTHERS):
        client.publish_message(message(belt, number))
        client.publish_message(message(live, number))
    run(client)
    wait_until(lambda: not belt.pending and not live.unconfirmed, "all acknowledgments")
    wait_until(lambda: bool(broker.on("edge/box/source/belt")), "the other retained topic")
    wait_until(lambda: broker.on("edge/box/source/gone") == [b""], "the topic to be cleared")
    for name in ("belt", "live"):
        numbers = {json.loads(body)["n"] for body in broker.on(f"edge/box/result/{name}")}
        assert numbers == set(range(OTHERS))
    assert belt.lost == 0
    wait_until(lambda: client.counters().forbidden != "", "the proof")
    assert client.counters().forbidden == f"{DISCOVERY}: {hang_ups.explain(15)}"
    assert f"{DISCOVERY}: not published for an hour" in caplog.text
    assert "device_id" not in caplog.text
    wait_until(lambda: client.connected, "the next connection")
    connections = broker.connections
    client._outbox.connection._client.socket().shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    wait_until(lambda: broker.connections > connections, "the next connection")
    client.publish_message(message(belt, OTHERS))
    wait_until(lambda: not belt.pending, "the acknowledgment")
    assert broker.connections == connections + 1
    broker.close()


def test_snapshots_of_several_sizes_that_are_too_large_end_no_more_connections(
    run: Callable[[Client], Client], caplog: pytest.LogCaptureFixture
) -> None:
    """The largest of them was the limit, so that smaller ones went on ending connections."""
    topic = "edge/box/snapshot/camera"
    ended: list[int] = []

    def hangs_up(where: str, payload: bytes) -> bytes | None:
        if where != topic or len(payload) < 6000:
            return None
        ended.append(len(payload))
        return b""

    broker = Hanging(hangs_up)
    client = run(make_client(broker.url, protocol=4))

    def is_proven() -> bool:
        client.publish(topic, bytes(9000 - 300 * (len(ended) % 3)))
        return "not published for an hour" in caplog.text

    wait_until(is_proven, "the proof", 60)
    least = min(ended[-hang_ups.PROOF - 1 :])
    assert f"{topic}: not published for an hour: {hang_ups.explain(least)}" in caplog.text
    wait_until(lambda: client.connected, "the connection that lasts")
    assert client.counters().forbidden == f"{topic}: {hang_ups.explain(least)}"
    ends = len(ended)
    for size in (9000, least, 7000, 5000):
        client.publish(topic, bytes(size))
    wait_until(lambda: bool(broker.on(topic)), "what the broker takes")
    assert [len(payload) for payload in broker.on(topic)] == [5000]
    assert len(ended) == ends
    broker.close()


def test_an_action_that_may_not_be_published_ends_no_more_connections(
    run: Callable[[Client], Client],
) -> None:
    """At each event it had ended two, and said that the connection broke."""
    broker = Hanging(only_own)
    client = run(make_client(broker.url, protocol=4))
    wait_until(lambda: client.connected, "a connection")
    acting = Actions(client.publish, lambda: "edge")

    def act(*topics: str) -> None:
        for topic in topics:
            acting.act(Action(publish=topic, payload="ON", qos=1), {"rule": "r", "state": "begin"})

    def is_over() -> bool:
        acting.flush()
        return not acting.undone() and acting.done + acting.failed == 2

    act("siren/set", "edge/lamp")
    wait_until(is_over, "both actions")
    assert (acting.done, acting.failed) == (1, 1)
    assert acting.problem({"siren/set"}) == f"publish siren/set: {hang_ups.explain(2)}"
    assert client.counters().forbidden == "", "it is the action that health names"
    connections = broker.connections
    act("siren/set", "edge/lamp")
    wait_until(lambda: acting.done == 2, "the lamp again")
    assert (acting.failed, broker.connections) == (2, connections)
    broker.close()


@pytest.mark.parametrize(
    "words",
    [
        b"\xe0\x02\x8b\x00",
        b"\xe0\x02\x8d\x00",
        b"\xe0\x02\x8e\x00",
        b"\xe0\x02\x98\x00",
        b"\x40\x03\x00\x01\xee",
    ],
    ids=["shutting down", "keepalive", "taken over", "administrator", "unreadable"],
)
def test_an_event_is_not_dropped_where_the_end_has_another_reason(
    run: Callable[[Client], Client], monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    """However often that happens when it is in flight."""
    monkeypatch.setattr("edge_agent.mqtt.connecting.TAKEN_OVER_PAUSE", 0.1)
    left = iter([words] * 3 * hang_ups.PROOF)
    broker = Hanging(lambda topic, _: next(left, None) if "/event/" in topic else None)
    client = run(make_client(broker.url))
    wait_until(lambda: client.connected, "a connection")
    channel = client.open_channel("belt", qos=1, lossless=False)
    client.publish_message(message(channel, 0, event=True))
    wait_until(lambda: bool(broker.on("edge/box/event/belt")), "the event")
    assert (channel.lost, client.counters().forbidden) == (0, "")
    broker.close()


class Breaking(Relay):
    """Breaks connections as it is told."""

    def __init__(self, target: int, breaks: list[str]) -> None:
        """Take the *breaks* in turn.

        "event" at one, "idle" after CONNACK, "away" before it, "quiet" when something has arrived.
        """
        self.breaks = breaks
        super().__init__(target)

    def _is_next(self, kind: str) -> bool:
        return self.breaks[:1] == [kind]

    def first_words(self, _words: bytes) -> bytes | None:
        if not self._is_next("away"):
            return None
        del self.breaks[0]
        return b""

    def pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        if self._is_next("event") and b"/event/" in data:
            del self.breaks[0]
            self.cut()
            return
        super().pass_on(data, source, sink)
        kinds = {0x20: "idle", 0x40: "quiet"}
        if data[0] in kinds and self._is_next(kinds[data[0]]):
            del self.breaks[0]
            self.cut()


@pytest.mark.parametrize(
    "other",
    [["idle"], ["away"] * 3],
    ids=["breaks idle connections, too", "is away in between"],
)
def test_an_event_is_not_dropped_on_a_network_that_breaks_often(
    broker: Mosquitto, tmp_path: Path, other: list[str]
) -> None:
    """Even if it breaks at the event again and again: something else happens in between."""
    first, at_event = ["event"] * hang_ups.CAREFUL_AFTER, ["event"] * (hang_ups.PROOF - 1)
    relay = Breaking(broker.port, [*first, *at_event, *other, *at_event, *other, *at_event])
    relayed = RelayedClient(relay, tmp_path / "spool.db")
    channel = relayed.client.open_channel("belt", qos=1, lossless=False)
    relayed.start()
    relayed.up()
    relayed.send(channel, 0, event=True)
    wait_until(lambda: not channel.pending, "the end of the event", 60)
    assert not relay.breaks
    assert (channel.lost, relayed.client.counters().forbidden) == (0, "")
    relayed.close()
    relay.shut()


@pytest.mark.parametrize("control", [["quiet"], []], ids=["go on", "end with the network's"])
@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_in_flight_whenever_a_network_breaks_is_not_lost(
    broker: Mosquitto,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    control: list[str],
    qos: int,
) -> None:
    """On a slow one that is the largest; as often as with one that the broker does not take."""
    breaks = ["event"] * (hang_ups.CAREFUL_AFTER + hang_ups.PROOF)
    relay = Breaking(broker.port, [*breaks, *control])
    relayed = RelayedClient(relay, tmp_path / "spool.db")
    belt, other = (
        relayed.client.open_channel(name, qos=qos, lossless=True) for name in ("belt", "other")
    )
    listener = Listener(broker.port)
    relayed.start()
    relayed.up()
    relayed.send(belt, 0, event=True)
    wait_until(lambda: relay.breaks == control, "the breaks at the event", 60)
    relayed.send(other, 0)
    wait_arrived(listener, "other", 1)
    wait_until(lambda: bool(listener.on("edge/box/event/belt")), "the event", 60)
    wait_until(lambda: not (belt.pending or belt.unconfirmed), "its acknowledgment", 60)
    assert not relay.breaks
    assert "edge/box/event/belt: held back" in caplog.text
    assert (belt.lost, relayed.client.counters().forbidden) == (0, "")
    relayed.close()
    relay.shut()
    listener.close()


def test_what_a_careful_connection_has_queued_is_not_taken_for_delivered(
    run: Callable[[Client], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of lossless results were lost in silence: a barrier went past them."""
    monkeypatch.setattr(outbox, "CAREFUL_SECONDS", 0.3)
    left = iter([b""] * hang_ups.CAREFUL_AFTER)
    broker = Hanging(lambda *_: next(left, None))
    client = make_client(broker.url)
    channel = client.open_channel("belt", qos=0, lossless=True)
    run(client)
    wait_until(lambda: bool(broker.on("edge/box/status")), "a connection that is careful")
    broker.breaks_at_barrier = True
    for number in range(CREDIT):
        client.publish_message(message(channel, number))

    def numbers() -> set[int]:
        return {json.loads(payload)["n"] for payload in broker.on("edge/box/result/belt")}

    wait_until(lambda: not (broker.breaks_at_barrier or channel.unconfirmed), "the barrier", 60)
    assert numbers() == set(range(CREDIT))
    broker.close()


def test_what_a_broker_has_hung_up_over_is_tried_again(
    run: Callable[[Client], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an hour: its access list may have been changed."""
    monkeypatch.setattr(hang_ups, "SHUT_OUT_SECONDS", 0.0)
    left = iter([b""] * (hang_ups.CAREFUL_AFTER + hang_ups.PROOF + 1))
    broker = Hanging(lambda topic, _: next(left, None) if topic == DISCOVERY else None)
    client = make_client(broker.url)
    client.publish_retained(DISCOVERY, b"{}")
    run(client)
    wait_until(lambda: bool(broker.on(DISCOVERY)), "it to be taken")
    assert client.counters().forbidden
    broker.close()


def test_a_device_that_stops_in_a_careful_connection_is_offline(
    run: Callable[[Client], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed "online" for ever: its last status waited behind all that was queued."""
    monkeypatch.setattr(outbox, "CAREFUL_SECONDS", 60.0)
    left = iter([b""] * hang_ups.CAREFUL_AFTER)
    broker = Hanging(lambda *_: next(left, None))
    client = make_client(broker.url)
    channel = client.open_channel("belt", qos=0, lossless=False)
    run(client)
    wait_until(lambda: bool(broker.on("edge/box/status")), "a connection that is careful")
    for number in range(500):
        client.publish_message(message(channel, number))
    client.close()
    assert json.loads(broker.on("edge/box/status")[-1])["state"] == "offline"
    broker.close()


def test_an_action_that_ends_every_connection_is_given_up(
    run: Callable[[Client], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a reason that says nothing of a message, as 0x82: it was sent again for ever."""
    monkeypatch.setattr(actions, "MESSAGE_SECONDS", 0.5)
    broker = Hanging(lambda topic, _: b"\xe0\x02\x82\x00" if topic == "siren/set" else None)
    client = run(make_client(broker.url))
    wait_until(lambda: client.connected, "a connection")
    acting = Actions(client.publish, lambda: "edge")
    acting.act(Action(publish="siren/set", payload="ON", qos=1), {"rule": "r", "state": "begin"})

    def is_given_up() -> bool:
        acting.flush()
        return acting.failed == 1

    wait_until(is_given_up, "the end of it")
    assert acting.undone() == []
    broker.close()


def test_two_messages_that_the_broker_does_not_take_are_both_found(
    run: Callable[[Client], Client], caplog: pytest.LogCaptureFixture
) -> None:
    """The one that came while the other was held back ended that connection, so again for ever."""
    taboo = {"edge/box/config", "edge/box/health"}
    broker = Hanging(lambda topic, _: b"" if topic in taboo else None)
    client = make_client(broker.url)
    client.publish_retained("edge/box/config", b"{}")
    run(client)

    def are_found() -> bool:
        client.publish("edge/box/health", b"{}")
        return all(f"{topic}: not published for an hour" in caplog.text for topic in taboo)

    wait_until(are_found, "the second one", 90)
    wait_until(lambda: client.connected, "the connection that lasts")
    ended = broker.connections
    client.publish_retained("edge/box/info", b"{}")
    wait_until(lambda: bool(broker.on("edge/box/info")), "what the broker takes")
    assert broker.connections == ended
    broker.close()


def test_an_action_of_qos_0_that_is_held_back_keeps_no_other_waiting(
    run: Callable[[Client], Client],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No lamp was switched for half a minute, over a connection that worked."""
    monkeypatch.setattr(outbox, "CONTROL_SECONDS", 60.0)
    held = Held(run, caplog, "siren/")
    acting = Actions(held.client.publish, lambda: "edge")

    def act(topic: str, qos: int) -> None:
        action = Action(publish=topic, payload="ON", qos=qos)
        acting.act(action, {"rule": "r", "state": "begin"})

    held.begin(lambda: held.client.publish("siren/set", b"ON"))
    act("siren/set", 0)
    act("lamp/set", 1)
    wait_until(lambda: held.broker.on("lamp/set") == [b"ON"], "the lamp")
    assert acting.failed == 1
    held.broker.close()


def test_an_answer_that_a_break_cuts_off_is_sent_again(run: Callable[[Client], Client]) -> None:
    """But not where the requester has chosen the topic: the broker may not take it.

    One that two connections had broken under was never sent: of 35 on a bad network 6.
    """
    left = Counter({"edge/box/reply/a": 2, "callers/me": 1})

    def hangs_up(topic: str, _: bytes) -> bytes | None:
        if left[topic]:
            left[topic] -= 1
            return b""
        return None

    broker = Hanging(hangs_up)
    client = run(make_client(broker.url))
    wait_until(lambda: client.connected, "a connection")
    client.publish_reply("edge/box/reply/a", b"{}")
    wait_until(lambda: broker.on("edge/box/reply/a") == [b"{}"], "the answer")
    assert broker.connections == 3
    client.publish_reply("callers/me", b"{}", foreign=True)
    wait_until(lambda: broker.connections == 4 and client.connected, "the next connection")
    client.publish_reply("edge/box/reply/b", b"{}")
    wait_until(lambda: bool(broker.on("edge/box/reply/b")), "what is sent behind it")
    assert broker.on("callers/me") == []
    broker.close()


def test_where_no_connection_lasts_nothing_is_held_back_and_all_arrives(
    run: Callable[[Client], Client], caplog: pytest.LogCaptureFixture
) -> None:
    """Each careful one was used up by the same retained topics, and no event arrived any more."""
    broker = Hanging(lambda *_: None)
    broker.rounds = 8
    client = make_client(broker.url)
    channel = client.open_channel("belt", qos=1, lossless=False)
    for number in range(30):
        client.publish_retained(f"edge/box/pipeline/{number}", b"{}")
    run(client)
    for number in range(60):
        client.publish_message(message(channel, number, event=True))
        wait_until(lambda: not channel.pending, "the acknowledgment")
    assert broker.connections > 2 * hang_ups.CAREFUL_AFTER
    assert "held back" not in caplog.text
    assert (channel.lost, client.counters().forbidden) == (0, "")
    broker.close()


class Held:
    """A client of which a topic is held back, which the broker takes after all."""

    def __init__(
        self,
        run: Callable[[Client], Client],
        caplog: pytest.LogCaptureFixture,
        part: str,
        spool: Path | None = None,
    ) -> None:
        """Hang up over topics with that *part* until they are held back."""
        left = iter([b""] * (hang_ups.CAREFUL_AFTER + hang_ups.PROOF))
        self.broker = Hanging(lambda topic, _: next(left, None) if part in topic else None)
        self.client = make_client(self.broker.url, spool=spool)
        self._caplog = caplog
        self._run = run

    def begin(self, offend: Callable[[], object]) -> None:
        """Connect, and *offend* again and again until the topic is held back."""
        self._run(self.client)

        def is_held() -> bool:
            if "held back" not in self._caplog.text:
                offend()
                return False
            return self.client.connected

        wait_until(is_held, "the topic to be held back", 60)


def test_snapshots_that_are_held_back_are_dropped_and_take_no_room(
    run: Callable[[Client], Client],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They filled the memory, and then all else was refused."""
    monkeypatch.setattr(outbox, "CONTROL_SECONDS", 60.0)
    held = Held(run, caplog, "/snapshot/")
    client, broker = held.client, held.broker
    channel = client.open_channel("belt", qos=0, lossless=False)
    held.begin(lambda: client.publish("edge/box/snapshot/camera", b"jpeg"))
    refused = client.counters().refused
    for _ in range(outbox.OUTSTANDING + 1):
        client.publish("edge/box/snapshot/camera", b"jpeg")
    assert client.counters().refused == refused + outbox.OUTSTANDING + 1
    client.publish_message(message(channel, 0))
    wait_until(lambda: bool(broker.on("edge/box/result/belt")), "the result")
    assert not broker.on("edge/box/snapshot/camera")
    broker.close()


def test_of_a_retained_topic_that_is_held_back_the_latest_state_is_published(
    run: Callable[[Client], Client], caplog: pytest.LogCaptureFixture
) -> None:
    """All of them were, one after the other."""
    held = Held(run, caplog, DISCOVERY)
    held.client.publish_retained(DISCOVERY, b"0")
    held.begin(lambda: None)
    for number in range(1, 4):
        held.client.publish_retained(DISCOVERY, b"%d" % number)
    wait_until(lambda: bool(held.broker.on(DISCOVERY)), "the state", 60)
    assert held.broker.on(DISCOVERY) == [b"3"]
    held.broker.close()


@pytest.mark.parametrize("on_disk", [False, True])
def test_results_that_are_held_back_take_no_room_from_others(
    run: Callable[[Client], Client],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    on_disk: bool,
) -> None:
    """They counted as in flight, and no event of another pipeline was published any more."""
    monkeypatch.setattr(inflight, "ROOM", 100)
    held = Held(run, caplog, "/big", tmp_path / "spool.db" if on_disk else None)
    client, broker = held.client, held.broker
    big, belt = (client.open_channel(name, qos=1, lossless=False) for name in ("big", "belt"))
    client.publish_message(message(big, 0))
    held.begin(lambda: None)
    for number in range(1, 150):
        client.publish_message(message(big, number))
        if on_disk and number == 75:
            wait_until(lambda: client.counters().on_disk == 76, "the disk")
    client.publish_message(message(belt, 0, event=True))
    wait_until(lambda: not belt.pending, "the event")
    assert not broker.on("edge/box/result/big")
    wait_until(lambda: not big.pending, "the results", 60)
    numbers = {json.loads(payload)["n"] for payload in broker.on("edge/box/result/big")}
    assert numbers == set(range(big.lost, 150))
    assert big.lost == (0 if on_disk else 50)
    broker.close()


def test_nothing_newer_goes_past_what_a_careful_connection_has_queued(
    run: Callable[[Client], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old state went out last, and stayed on the broker; an event ended before it began."""
    monkeypatch.setattr(outbox, "CAREFUL_SECONDS", 0.5)
    left = iter([b""] * hang_ups.CAREFUL_AFTER)
    broker = Hanging(lambda *_: next(left, None))
    client = make_client(broker.url)
    belt = client.open_channel("belt", qos=1, lossless=False)
    live = client.open_channel("live", qos=0, lossless=False)
    run(client)
    wait_until(lambda: bool(broker.on("edge/box/status")), "a connection that is careful")
    topics = ("edge/box/source/camera", "edge/box/event/belt", "edge/box/result/live")
    published = 0

    def publish() -> bool:
        nonlocal published
        client.publish_retained(topics[0], b'{"n": %d}' % published)
        client.publish_message(message(belt, published, event=True, series="one"))
        client.publish_message(message(live, published))
        published += 1
        return client._outbox._flight.window is None

    wait_until(publish, "the end of care")
    for _ in range(3):
        publish()
    wait_until(lambda: not belt.pending, "the last event")
    client.publish_message(message(live, published))
    wait_until(lambda: b'{"n": %d}' % published in broker.on(topics[2]), "the last result")
    for topic in topics:
        numbers = [json.loads(payload)["n"] for payload in broker.on(topic)]
        assert numbers == sorted(numbers)
    assert broker.on(topics[0])[-1] == b'{"n": %d}' % (published - 1)
    broker.close()


def test_an_action_without_a_place_is_not_said_to_be_done(
    run: Callable[[Client], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live results had taken all places of a careful connection: it was dropped, and counted."""
    monkeypatch.setattr(outbox, "CAREFUL_SECONDS", 60.0)
    left = iter([b""] * hang_ups.CAREFUL_AFTER)
    broker = Hanging(lambda *_: next(left, None))
    client = make_client(broker.url)
    channel = client.open_channel("belt", qos=0, lossless=False)
    run(client)
    wait_until(lambda: bool(broker.on("edge/box/status")), "a connection that is careful")
    acting = Actions(client.publish, lambda: "edge")
    for number in range(outbox.QUEUED):
        client.publish(f"edge/box/picture/{number}", b"x")
    acting.act(Action(publish="siren/set", payload="ON"), {"rule": "r", "state": "begin"})
    assert (acting.done, acting.failed) == (0, 0)
    client.publish_message(message(channel, 1))

    def is_done() -> bool:
        acting.flush()
        return acting.done == 1

    wait_until(is_done, "the action")
    wait_until(lambda: broker.on("siren/set") == [b"ON"], "its message")
    broker.close()


def test_what_is_refused_by_its_size_is_tried_again_once_a_connection_has_lasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size is exact, and the operator may have raised the limit."""
    found = HangUps()
    assert not found.answered("t", 2010, Refusal(0x95, "Packet too large"))
    sizes = [1990, 2009, 2010, 3000]
    why = [found.why_not("t", size, live=True) is not None for size in sizes]
    assert why == [False, False, True, True]
    assert found.why_not("other", 3000, live=False) is None
    found.ended(UNSPECIFIED, 1.0)
    assert found.why_not("t", 2010, live=False) is not None, "it may have closed the connection"
    found.ended(UNSPECIFIED, 60.0)
    assert found.why_not("t", 2010, live=False) is not None, "just now, too"
    monkeypatch.setattr(hang_ups, "SHORTLY", -1.0)
    found.ended(UNSPECIFIED, 60.0)
    assert found.why_not("t", 2010, live=False) is None
