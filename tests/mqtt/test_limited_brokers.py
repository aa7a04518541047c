"""Brokers that can less than others, or send what no broker should."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from queue import SimpleQueue
from select import select

import pytest

from edge_agent.cli import fleet as looks
from edge_agent.cli.fleet import Fleet
from edge_agent.config.rules import Action
from edge_agent.config.settings import Broker
from edge_agent.mqtt import client as client_module
from edge_agent.mqtt import flight, paho_client, subscribing
from edge_agent.mqtt.client import Client
from edge_agent.mqtt.connecting import connect
from edge_agent.mqtt.connection import (
    Abilities,
    Hooks,
    ReceivedMessage,
    Will,
    is_acknowledged,
)
from edge_agent.mqtt.message import CREDIT
from edge_agent.mqtt.one_shot import OneShotClient
from edge_agent.mqtt.paho_client import MOST_PACKET, largest_packet, session_options
from edge_agent.rules.actions import MESSAGES, Actions
from tests.helpers.mqtt_client import STATUS, make_client, message
from tests.helpers.scripted_brokers import CONNECTED, ScriptedBroker, read_packet
from tests.helpers.support import (
    PATIENCE,
    Listener,
    Mosquitto,
    Relay,
    free_port,
    run_cli,
    wait_until,
)

Listeners = Callable[..., Listener]


def publish(topic: bytes, payload: bytes, properties: bytes = b"") -> bytes:
    """Return a PUBLISH of QoS 0."""
    body = len(topic).to_bytes(2, "big") + topic + bytes([len(properties)]) + properties + payload
    return bytes([0x30, len(body)]) + body


ONLINE = b"\x31" + publish(b"edge/box/status", b'{"state": "online"}')[1:]
"""A retained message."""


@pytest.fixture
def dead_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.ExceptHookArgs]:
    """Collect threads that die; in an agent each of them is its end."""
    dead: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", dead.append)
    return dead


def test_a_topic_that_is_not_utf_8_ends_nothing(
    dead_threads: list[threading.ExceptHookArgs], run: Callable[[Client], Client]
) -> None:
    """It is handed on as a topic that nobody knows; the connection stays."""
    broker = ScriptedBroker(
        publish(b"edge/box/in/\xff\xfe", b"1") + publish(b"edge/box/in/command/ping", b"2")
    )
    inbox: SimpleQueue[ReceivedMessage | None] = SimpleQueue()
    run(make_client(broker.url, inbox))
    first, second = inbox.get(timeout=10), inbox.get(timeout=10)
    broker.close()
    assert first is not None
    assert second is not None
    assert (first.topic, first.payload) == (r"b'edge/box/in/\xff\xfe'", b"1")
    assert (second.topic, second.payload) == ("edge/box/in/command/ping", b"2")
    assert broker.connections == 1
    assert not dead_threads


@pytest.mark.parametrize(
    "properties",
    [b"\xff\xff\xff", b"\x08\x00\x02\xff\xfe", b"\x01\x02", b"\x26\x00\x01a\x00\x03\xef\xbb\xbf"],
    ids=["unknown", "no UTF-8", "payload format 2", "byte order mark"],
)
def test_properties_that_cannot_be_read_cost_themselves_only(
    properties: bytes, run: Callable[[Client], Client]
) -> None:
    """Over such a message the connection ended, and the broker sent it again at the next one."""
    broker = ScriptedBroker(
        publish(b"edge/box/in/x", b"1", properties) + publish(b"edge/box/in/x", b"2")
    )
    inbox: SimpleQueue[ReceivedMessage | None] = SimpleQueue()
    run(make_client(broker.url, inbox))
    for payload in (b"1", b"2"):
        message = inbox.get(timeout=PATIENCE)
        assert message is not None
        assert message.payload == payload
    broker.close()
    assert broker.connections == 1


@pytest.mark.parametrize(
    "said",
    [
        b"\x30\x01\x00",
        b"\x40\x03\x00\x01\xee",
        b"\xf0\x00",
        b"\xe0\x01\xee",
    ],
    ids=["cut off", "reason", "auth", "disconnect"],
)
def test_what_cannot_be_read_ends_the_connection_only(
    said: bytes, dead_threads: list[threading.ExceptHookArgs], run: Callable[[Client], Client]
) -> None:
    """The next connection is made as after any other loss."""
    broker = ScriptedBroker(said)
    run(make_client(broker.url))
    wait_until(lambda: broker.connections >= 2, "another connection")
    broker.close()
    assert not dead_threads


def test_a_broker_that_never_acknowledges_is_a_problem(
    run: Callable[[Client], Client], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and health has it."""
    broker = ScriptedBroker(acknowledges=False)
    client = run(make_client(broker.url))
    wait_until(lambda: client.counters().problem is not None, "the problem", 30)
    assert "has not acknowledged a message for 10 s" in str(client.counters().problem)
    broker.close()
    assert sum("acknowledged" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("owed", [1, 30])
def test_lost_acknowledgments_are_a_reason_to_connect_again(
    run: Callable[[Client], Client], monkeypatch: pytest.MonkeyPatch, owed: int
) -> None:
    """A bad middlebox lost some: twenty of them, and nothing was sent any more, for ever."""
    monkeypatch.setattr(client_module, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(client_module, "GIVE_UP_SECONDS", 1.0)
    broker = ScriptedBroker(owed=owed)
    client = run(make_client(broker.url))
    channel = client.open_channel("cam", qos=1, lossless=False)
    for number in range(40):
        client.publish_message(message(channel, number))
    wait_until(lambda: broker.connections > 1, "the next connection", 30)
    wait_until(lambda: channel.pending == 0, "all acknowledgments", 30)
    wait_until(lambda: client.counters().problem is None, "the end of the problem")
    broker.close()


def test_a_suback_that_never_comes_is_a_problem_and_a_reason_to_connect_again(
    run: Callable[[Client], Client],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No command would arrive, and results go out: health has it until a broker has answered."""
    monkeypatch.setattr(subscribing, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(subscribing, "RECONNECT_SECONDS", 1.0)
    broker = ScriptedBroker(grants=[None, None])
    client = run(make_client(broker.url))
    wait_until(lambda: client.counters().problem is not None, "the problem")
    assert client.connected
    problem = str(client.counters().problem)
    assert problem.startswith("has not answered the subscription to edge/box/in/# for ")
    assert "commands and pushes do not arrive; look at the broker's log" in problem
    wait_until(lambda: broker.connections == 3, "the next connections")
    wait_until(lambda: client.connected and client.counters().problem is None, "the answer")
    broker.close()
    assert broker.connections == 3
    assert sum("has not answered" in record.message for record in caplog.records) == 1


def test_a_refused_subscription_is_asked_for_again(
    run: Callable[[Client], Client],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection stays, results go out on it; an access list that is mended shows."""
    monkeypatch.setattr(subscribing, "AGAIN_SECONDS", 0.5)
    broker = ScriptedBroker(grants=[0x87, 0x87, 0x87])
    client = run(make_client(broker.url))
    wait_until(lambda: client.counters().problem is not None, "the problem")
    assert client.counters().problem == (
        "refused the subscription to edge/box/in/#: Not authorized; commands and pushes do not "
        "arrive; see its access list"
    )
    wait_until(lambda: client.counters().problem is None, "the grant")
    broker.close()
    assert broker.connections == 1
    assert sum("refused the subscription" in record.message for record in caplog.records) == 1


def dynamic_security(rights: Path) -> str:
    """Give the settings of a mosquitto that refuses SUBSCRIBE by this file."""
    plugin = next(iter(Path("/usr/lib").glob("*/mosquitto_dynamic_security.so")), None)
    if plugin is None:
        pytest.skip("mosquitto's dynamic security is not installed")
    return f"plugin {plugin}\nplugin_opt_config_file {rights}\n"


@pytest.mark.parametrize(
    ("refused", "effect"),
    [
        ("@rollout/#", "roll-outs and settings of groups do not arrive"),
        ("@lab/in/#", "commands and pushes to @lab do not arrive"),
        ("box/in/#", "commands and pushes do not arrive"),
    ],
)
def test_what_a_refused_subscription_costs_is_said_by_health_and_check(
    tmp_path: Path,
    run: Callable[[Client], Client],
    refused: str,
    effect: str,
) -> None:
    """Of any of them it was said that commands and pushes do not arrive; `check` said nothing."""
    rights = tmp_path / "rights.json"
    denied = {"acltype": "subscribePattern", "topic": f"edge/{refused}", "allow": False}
    access = ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe")
    role = {"rolename": "all", "acls": [denied]}
    groups = [{"groupname": "all", "roles": [{"rolename": "all"}]}]
    rules = {"defaultACLAccess": dict.fromkeys(access, True), "roles": [role], "groups": groups}
    rights.write_text(json.dumps({**rules, "anonymousGroup": "all"}))
    broker = Mosquitto(tmp_path / "broker", dynamic_security(rights))
    topics = [f"edge/{each}" for each in ("box/in/#", "@lab/in/#", "@rollout/#")]
    try:
        client = run(make_client(broker.url, filters=topics))
        said = f"refused the subscription to edge/{refused}: Not authorized; {effect}"
        wait_until(lambda: said in str(client.counters().problem), "the problem")
        settings = tmp_path / "settings.toml"
        settings.write_text(
            'device_id = "box"\nstate_dir = "state"\ngroups = ["lab"]\n'
            f'broker.url = "{broker.url}"\n'
        )
        done = run_cli("check", "--config", str(settings))
        (line,) = [line for line in done.stdout.splitlines() if " broker: " in line]
        assert line.endswith(f"MQTT 5; it {said}; see its access list")
    finally:
        broker.stop()


@pytest.mark.parametrize("protocol", [5, 4])
def test_a_subscription_that_mosquitto_refuses_stays_a_problem_until_it_is_granted(
    tmp_path: Path, run: Callable[[Client], Client], protocol: int
) -> None:
    """Its dynamic security is what refuses SUBSCRIBE; another start of it grants them."""
    rights = tmp_path / "rights.json"
    access = {"publishClientSend": True, "publishClientReceive": True, "unsubscribe": True}

    def write(*, subscribe: bool) -> None:
        rights.write_text(json.dumps({"defaultACLAccess": access | {"subscribe": subscribe}}))

    write(subscribe=False)
    broker = Mosquitto(tmp_path / "broker", dynamic_security(rights))
    client = run(make_client(broker.url, protocol=protocol))
    wait_until(lambda: client.counters().problem is not None, "the problem")
    assert "refused the subscription to edge/box/in/#" in str(client.counters().problem)
    assert client.connected
    broker.stop()
    write(subscribe=True)
    broker.start()
    wait_until(lambda: client.connected and client.counters().problem is None, "the grant")
    broker.stop()


class TwoNodes(Relay):
    """Leads one connection after the other to brokers in turn that share nothing."""

    def __init__(self, *targets: int) -> None:
        self._nodes = cycle(targets)
        super().__init__(targets[0])

    def first_words(self, _words: bytes) -> bytes | None:
        self._target = next(self._nodes)
        return None


def test_check_says_what_a_broker_does_with_retained_messages(
    broker: Mosquitto, tmp_path: Path
) -> None:
    """One that keeps them by node, and one that ends the connection; nothing of one that can."""
    settings = tmp_path / "settings.toml"
    settings.write_text('device_id = "box"\nstate_dir = "state"\n')

    def checked(url: str, protocol: int) -> str:
        environ = {"EDGE_AGENT_BROKER__URL": url, "EDGE_AGENT_BROKER__PROTOCOL": str(protocol)}
        done = run_cli("check", "--config", str(settings), environ=environ)
        (line,) = [line for line in done.stdout.splitlines() if " broker: " in line]
        return line

    assert checked(broker.url, 5).endswith("MQTT 5")
    second = Mosquitto(tmp_path / "second", "retain_available false\n")
    relay = TwoNodes(broker.port, second.port)
    try:
        assert "keeps no retained messages" in checked(second.url, 5)
        assert "ends the connection at a retained message" in checked(second.url, 4)
        second.stop()
        second.conf.write_text(second.conf.read_text().replace("retain_available false", ""))
        second.start()
        assert "keeps retained messages from other connections" in checked(relay.url, 5)
    finally:
        relay.shut()
        relay.cut()
        second.stop()


@pytest.mark.parametrize("protocol", [5, 4])
@pytest.mark.parametrize(
    ("extra", "abilities", "limits"),
    [
        ("max_qos 0\n", Abilities(qos=0), ["takes QoS 0 only"]),
        ("retain_available false\n", Abilities(retain=False), ["keeps no retained messages"]),
        (
            "max_qos 0\nretain_available false\n",
            Abilities(qos=0, retain=False),
            ["takes QoS 0 only", "keeps no retained messages"],
        ),
    ],
)
def test_a_broker_without_qos_1_or_retain_is_used_as_far_as_it_goes(  # noqa: PLR0917 - the parts of one fact
    tmp_path: Path,
    listen: Listeners,
    run: Callable[[Client], Client],
    caplog: pytest.LogCaptureFixture,
    extra: str,
    abilities: Abilities,
    limits: list[str],
    protocol: int,
) -> None:
    """The will is published all the same, replies come, and the log says what is lacking."""
    caplog.set_level(logging.WARNING)
    broker = Mosquitto(tmp_path / "broker", extra)
    listener = listen(broker.port)
    client = run(make_client(broker.url, protocol=protocol))
    listener.wait_state(STATUS, state="online")
    client.publish_retained("edge/box/source/a", b'{"state": "running"}')
    client.publish_reply("edge/box/reply/a", b'{"ok": true}')
    listener.wait_state("edge/box/source/a", state="running")
    listener.wait_state("edge/box/reply/a", ok=True)
    said = [record.message for record in caplog.records if record.message.startswith("broker: ")]
    if protocol == 5:
        assert len(said) == len(limits)
        assert all(words in line for words, line in zip(limits, said, strict=True))
    else:
        assert said, "3.1.1 does not tell which of them it is"
    with_will = connect(
        Broker(url=broker.url, protocol=protocol),
        "another",
        hooks=Hooks(),
        will=Will("edge/box/will", b'{"state": "gone"}'),
    )
    if protocol == 5:
        assert with_will.abilities == abilities
    with_will._client.socket().close()  # type: ignore[union-attr]
    listener.wait_state("edge/box/will", state="gone")
    broker.stop()


def test_a_small_packet_size_is_said_once_for_a_topic(
    tmp_path: Path, run: Callable[[Client], Client], caplog: pytest.LogCaptureFixture
) -> None:
    """Health is published every few seconds: each one is counted, the first one is logged."""
    broker = Mosquitto(tmp_path / "broker", "max_packet_size 2000\n")
    client = run(make_client(broker.url))
    wait_until(lambda: client.connected, "a connection")
    for _ in range(5):
        client.publish("edge/box/health", json.dumps({"x": "x" * 3000}).encode(), retain=True)
    # What a requester wants back counts as well: each such reply had cost the connection.
    client.publish_reply("callers/me", b"{}", bytes(1950), foreign=True)
    client.publish_reply("callers/me", b"{}", bytes(1900), foreign=True)
    wait_until(lambda: not client._outbox._flight.answered, "the reply that fits")
    broker.stop()
    assert client.counters().refused == 6
    lines = [r.message for r in caplog.records if "not published" in r.message]
    assert [line.partition(":")[0] for line in lines] == ["edge/box/health", "callers/me"]


def test_a_refused_reply_is_no_problem_of_the_device(
    tmp_path: Path, run: Callable[[Client], Client]
) -> None:
    """A requester's response topic that the access list forbids does not count as unauthorized."""
    rights = tmp_path / "rights"
    rights.write_text("topic readwrite edge/#\n")
    broker = Mosquitto(tmp_path / "broker", f"acl_file {rights}\n")
    client = run(make_client(broker.url))
    wait_until(lambda: client.connected, "a connection")
    client.publish_reply("callers/me", b"{}", foreign=True)
    wait_until(lambda: client.counters().waiting == 0, "nothing to wait")
    client.publish_reply("edge/box/reply/a", b"{}")
    wait_until(lambda: not client._outbox._flight.answered, "the refusal")
    assert client.counters().forbidden == ""
    client.publish_reply("forbidden/too", b"{}")
    wait_until(lambda: client.counters().forbidden != "", "a refusal that counts")
    broker.stop()


def test_it_is_closed_though_the_broker_has_just_gone(tmp_path: Path) -> None:
    """What finds no connection any more is no error at the end."""
    broker = Mosquitto(tmp_path / "broker")
    connection = connect(Broker(url=broker.url), "box", hooks=Hooks())
    broker.stop()
    wait_until(connection.gone.is_set, "the end of the connection")
    receipt = connection.publish("edge/box/status", b"{}", 1, retain=True)
    assert not is_acknowledged(receipt)
    connection.close()


def test_a_message_does_not_take_all_memory_of_a_small_device(tmp_path: Path) -> None:
    """One of 256 MB had taken 1.2 GB while it was read; a broker of MQTT 5 is told the limit."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:  1048576 kB\n")
    assert largest_packet(tmp_path) == 2**27
    asked = session_options(keep=True)["properties"].MaximumPacketSize
    assert asked == largest_packet() <= MOST_PACKET


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_message_that_is_too_large_is_read_and_not_kept(
    broker: Mosquitto, listen: Listeners, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    """Brokers of 3.1.1 are told of no limit: one of 200 MB took 820, and came again after the end.

    Nor does every broker of MQTT 5 keep to it. The connection goes on with the next message.
    """
    monkeypatch.setattr(paho_client, "largest_packet", lambda: 5000)
    monkeypatch.setattr(
        paho_client, "session_options", lambda *, keep, **_: {"clean_start": not keep}
    )
    heard: SimpleQueue[ReceivedMessage] = SimpleQueue()
    ready = threading.Event()
    hooks = Hooks(message=heard.put, subscribed=lambda *_: ready.set())
    settings = Broker(url=broker.url)
    connection = connect(settings, "box", hooks=hooks, protocol=protocol, session=True)
    connection.subscribe([("to/box", 1)])
    assert ready.wait(PATIENCE)
    sender = listen(broker.port)
    for payload in (bytes(4000), bytes(1_500_000), b"small"):
        sender.publish("to/box", payload)
        message = heard.get(timeout=PATIENCE)
        message.ack()
        assert message.topic == "to/box"
        assert message.payload == (payload if len(payload) < 5000 else b"")
        assert bool(message.too_large) == (len(payload) > 5000)
    connection.close()


def test_a_look_that_a_node_refuses_is_taken_over_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster refuses subscriptions while it does without a node that was lost."""
    monkeypatch.setattr(looks, "AGAIN_SECONDS", 0.0)
    one, other = ScriptedBroker(grants=[0x80]), ScriptedBroker(ONLINE)
    with OneShotClient(Broker(url=(one.url, other.url)), ["edge/+/status"]) as client:
        fleet = Fleet(client, "edge")
        fleet.look()
    one.close()
    other.close()
    assert (fleet.gap, fleet.online("box")) == ("", True)


def test_what_is_lossless_is_confirmed_where_no_unsubscribe_is_answered(
    run: Callable[[Client], Client],
) -> None:
    """On rumqttd the pipeline stood still for ever at 256 results, and came again each minute."""
    broker = ScriptedBroker(forgets=True)
    client = run(make_client(broker.url))
    channel, closing = client.open_channel("belt", qos=0, lossless=True), threading.Event()
    for number in range(3 * CREDIT):
        assert client.wait_credit(channel, closing)
        client.publish_message(message(channel, number))
    wait_until(lambda: client.counters().waiting == 0, "all to be confirmed")
    broker.close()
    assert broker.connections == 1


def test_a_look_is_complete_where_no_unsubscribe_is_answered() -> None:
    """On rumqttd each took 30 s, and said that a subscription was not granted."""
    broker = ScriptedBroker(ONLINE, forgets=True)
    with OneShotClient(Broker(url=broker.url), ["edge/+/status"]) as client:
        fleet = Fleet(client, "edge")
        fleet.look()
    broker.close()
    assert (fleet.gap, fleet.online("box")) == ("", True)


def test_a_node_that_takes_less_than_another_did_is_not_stayed_with(
    tmp_path: Path, run: Callable[[Client], Client], caplog: pytest.LogCaptureFixture
) -> None:
    """Over 3.1.1 a node that is not ready closes the connection as one that refuses a will."""
    one = Mosquitto(tmp_path / "one")
    other = Mosquitto(tmp_path / "other", "retain_available false\n")
    client = run(make_client((one.url, other.url), protocol=4))
    wait_until(lambda: client.connected, "the connection")
    one.stop()
    wait_until(lambda: "was not ready" in caplog.text, "the other to be left")
    one.start()
    wait_until(lambda: client.connected, "the first node")
    assert "keeps no retained messages" not in caplog.text
    one.stop()
    other.stop()


def act(client: Client, *topics: str) -> Actions:
    """Return actions that have each published a message of QoS 1."""
    acting = Actions(client.publish, lambda: "edge")
    for topic in topics:
        acting.act(Action(publish=topic, payload="ON", qos=1), {"rule": "r", "state": "begin"})
    return acting


def test_an_action_that_the_broker_refuses_is_not_done(
    tmp_path: Path, run: Callable[[Client], Client]
) -> None:
    """An access list without the siren's topic: the count of actions had said done."""
    rights = tmp_path / "rights"
    rights.write_text("topic readwrite edge/#\ntopic readwrite plant/#\n")
    broker = Mosquitto(tmp_path / "broker", f"acl_file {rights}\nmax_packet_size 2000\n")
    client = run(make_client(broker.url))
    wait_until(lambda: client.connected, "a connection")
    acting = act(client, "siren/set", "plant/lamp")

    def is_lit() -> bool:
        acting.flush()  # mosquitto 2.0.11 sometimes ends the connection as well
        return acting.done == 1

    wait_until(is_lit, "the lamp")
    assert acting.failed == 1
    # The lamp's success is none of the siren's.
    assert acting.problem({MESSAGES, "siren/set"}) == (
        "publish siren/set: the broker refuses it: Not authorized (see its access list)"
    )
    assert acting.problem({MESSAGES, "plant/lamp"}) is None, "no rule publishes it any more"
    rights.write_text("topic readwrite #\n")
    assert broker.process is not None
    broker.process.send_signal(signal.SIGHUP)
    siren = Action(publish="siren/set", payload="ON", qos=1)

    def is_loud() -> bool:
        acting.act(siren, {"rule": "r", "state": "begin"})
        return acting.done > 1

    wait_until(is_loud, "the siren")
    assert acting.problem({MESSAGES, "siren/set"}) is None
    acting = act(client, "siren/set")
    wait_until(lambda: acting.done == 1, "the siren again")
    large = Action(publish="plant/lamp", payload="x" * 3000, qos=1)
    acting.act(large, {"rule": "r", "state": "begin"})
    assert (acting.done, acting.failed) == (1, 1)
    assert "more than the broker accepts" in (acting.problem({"plant/lamp"}) or "")
    assert client.counters().forbidden == ""
    broker.stop()


def test_actions_of_a_broken_connection_are_published_again_in_order(
    tmp_path: Path, run: Callable[[Client], Client]
) -> None:
    """A broker that died with them had counted as one that has them."""
    broker = Mosquitto(tmp_path / "broker")
    client = run(make_client(broker.url))
    wait_until(lambda: client.connected, "a connection")
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    acting = act(client, "plant/lamp", "plant/siren", "plant/door")
    broker.stop(signal.SIGKILL)
    wait_until(lambda: not client.connected, "the connection to break")
    broker.start()
    listener = Listener(broker.port, "plant/#")
    wait_until(lambda: client.connected, "the next connection")
    acting.flush()
    wait_until(lambda: acting.done == 3, "the acknowledgments")
    listener.wait_for(lambda heard: len(heard) == 3, "the messages")
    heard = [message.topic for message in listener.heard]
    listener.close()
    broker.stop()
    assert heard == ["plant/lamp", "plant/siren", "plant/door"]
    assert acting.failed == 0


class CountingBroker(ScriptedBroker):
    """Takes a few unacknowledged messages, and acknowledges once no more come."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.violations = 0
        self.taken = 0
        super().__init__()

    def _talk(self, wire: socket.socket) -> None:
        owed: list[bytes] = []
        while True:
            if owed and not select([wire], [], [], 0.02)[0]:
                for packet_id in owed:
                    wire.sendall(b"\x40\x02" + packet_id)
                self.taken += len(owed)
                owed.clear()
            first, body = read_packet(wire)
            match first >> 4:
                case 1:
                    wire.sendall(b"\x20\x06\x00\x00\x03\x21" + self._most.to_bytes(2, "big"))
                case 3 if first & 6:
                    topic = int.from_bytes(body[:2], "big")
                    owed.append(body[2 + topic : 4 + topic])
                    if len(owed) > self._most:
                        self.violations += 1
                        wire.sendall(b"\xe0\x02\x93\x00")
                        return
                case 8:
                    wire.sendall(b"\x90\x04" + body[:2] + b"\x00\x01")
                case 12:
                    wire.sendall(b"\xd0\x00")


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_is_in_flight_than_the_broker_says_to_receive(
    most: int, run: Callable[[Client], Client]
) -> None:
    """A broker with a small receive maximum ended each connection: nothing ever arrived."""
    broker = CountingBroker(most)
    client = run(make_client(broker.url))
    channel = client.open_channel("belt", qos=1, lossless=False)
    for number in range(30):
        client.publish_message(message(channel, number))
    wait_until(lambda: bool(broker.violations) or broker.taken > 30, "the results and the status")
    broker.close()
    assert (broker.violations, broker.connections) == (0, 1)


class RefusingBroker(ScriptedBroker):
    """Answers results of QoS 1 with one reason code on its first connection, then takes them."""

    def __init__(self, code: int) -> None:
        self._code = code
        self.refused: list[bytes] = []
        self.taken: list[bytes] = []
        super().__init__()

    def _talk(self, wire: socket.socket) -> None:
        while True:
            first, body = read_packet(wire)
            match first >> 4:
                case 1:
                    wire.sendall(CONNECTED)
                case 3 if first & 6:
                    at = 2 + int.from_bytes(body[:2], "big")
                    refuses = b"/result/" in body[:at] and self.connections == 1
                    (self.refused if refuses else self.taken).append(body[at + 3 :])
                    code = self._code if refuses else 0
                    wire.sendall(b"\x40\x04" + body[at : at + 2] + bytes([code, 0]))
                case 8:
                    wire.sendall(b"\x90\x04" + body[:2] + b"\x00\x01")
                case 10:
                    wire.sendall(b"\xb0\x04" + body[:2] + b"\x00\x11")
                case 12:
                    wire.sendall(b"\xd0\x00")


def test_what_a_broker_refuses_for_the_moment_is_published_again(
    run: Callable[[Client], Client],
) -> None:
    """Over its quota, it had lost events and results that nothing counted."""
    broker = RefusingBroker(0x97)
    client = run(make_client(broker.url))
    channel = client.open_channel("belt", qos=1, lossless=False)
    wait_until(lambda: client.connected, "a connection")
    for number in range(5):
        client.publish_message(message(channel, number))
    wait_until(lambda: channel.pending == 0, "the acknowledgments")
    broker.close()
    numbers = [json.loads(body)["n"] for body in broker.taken if b'"n"' in body]
    assert broker.refused
    assert numbers == [0, 1, 2, 3, 4]
    assert (broker.connections, channel.lost) == (2, 0)
    assert client.counters().forbidden == ""


def test_what_a_broker_refuses_for_good_is_counted_as_lost(run: Callable[[Client], Client]) -> None:
    """And the reason is the broker's own, not an access list that has nothing to do with it."""
    broker = RefusingBroker(0x80)
    client = run(make_client(broker.url))
    channel = client.open_channel("belt", qos=1, lossless=False)
    wait_until(lambda: client.connected, "a connection")
    client.publish_message(message(channel, 0))
    wait_until(lambda: channel.pending == 0, "the refusal")
    broker.close()
    counters = client.counters()
    assert (channel.lost, counters.lost) == (1, 1)
    assert counters.forbidden == "edge/box/result/belt: Unspecified error"


def test_a_message_above_the_limit_of_mosquitto_ends_no_connection(
    run: Callable[[Client], Client], listen: Listeners, tmp_path: Path
) -> None:
    """It is refused with 0x95, for which paho closed the connection: it was sent again for ever."""
    port = free_port()
    conf = f"listener {port} 127.0.0.1\nallow_anonymous true\nmessage_size_limit 20000\n"
    broker = Mosquitto(tmp_path, conf, port)
    heard = listen(port, "edge/box/#")
    client = run(make_client(broker.url, spool=tmp_path / "spool"))
    channel = client.open_channel("belt", qos=1, lossless=False)
    wait_until(lambda: client.connected, "a connection")
    client.publish_message(message(channel, 0, more="x" * 60_000))
    client.publish_message(message(channel, 1, event=True))
    heard.wait_for(lambda said: [h for h in said if h.topic == "edge/box/event/belt"], "the event")
    wait_until(lambda: channel.pending == 0, "the refusal")
    counters = client.counters()
    assert (channel.lost, counters.problem) == (1, None)
    assert counters.forbidden.startswith("edge/box/result/belt: Packet too large (see the broker's")
    states = [h.json["state"] for h in heard.heard if h.topic == STATUS]
    assert states == ["online"], "one connection"
    client.publish_message(message(channel, 2, more="x" * 60_000))
    wait_until(lambda: channel.lost == 2, "the next one, which is not published")
    assert client.counters().forbidden
    broker.stop()


class SlowRelay(Relay):
    """A network that carries little from its clients."""

    def pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        if source.getsockname()[1] == self.port:
            threading.Event().wait(len(data) / 500_000)
        super().pass_on(data, source, sink)


def test_a_network_that_carries_less_than_is_published_is_said(
    broker: Mosquitto,
    listen: Listeners,
    run: Callable[[Client], Client],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Snapshots piled up until the keepalive ended the connection, and nobody said why."""
    monkeypatch.setattr(flight, "BEHIND_FOR", 1.0)
    monkeypatch.setattr(flight, "LASTING", 1.0)
    relay, listener = SlowRelay(broker.port), listen(broker.port)
    client = run(make_client(relay.url))
    wait_until(lambda: client.connected, "a connection")
    channel = client.open_channel("belt", qos=0, lossless=False)
    picture, sent = bytes(300_000), 0

    def is_behind() -> bool:
        nonlocal sent
        sent += 1
        client.publish("edge/box/snapshot/camera", picture)
        return client.counters().problem == flight.TOO_SLOW

    wait_until(is_behind, "the reason")
    assert 0 < client.counters().refused < sent
    assert caplog.text.count(flight.TOO_SLOW) == 1
    wait_until(lambda: client.counters().problem is None, "the end of it")

    def arrives() -> bool:
        client.publish_message(message(channel, 1))
        return bool(listener.on("edge/box/result/belt"))

    wait_until(arrives, "a result")
    assert client.counters().reconnects == 0
