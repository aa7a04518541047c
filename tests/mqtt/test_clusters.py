"""Brokers that are several nodes: results of QoS 1 go through a node that goes, and its return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import tomli_w

from edge_agent.config.settings import Broker
from edge_agent.mqtt.connection import ReceivedMessage
from edge_agent.mqtt.one_shot import OneShotClient
from tests.helpers.mqtt_client import make_client
from tests.helpers.nats import Nats
from tests.helpers.small_models import brightness, plain, write_pictures
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Lacking,
    Listener,
    Mosquitto,
    Relay,
    agent_settings,
    run_cli,
    wait_until,
)

Agents = Callable[..., AgentProcess]
RESULTS = "edge/box/result/p"
BRIDGE = """\
persistence true
persistence_location {folder}/
connection pair
address 127.0.0.1:{other}
topic edge/# both 1
cleansession false
restart_timeout 1
"""


def settings(folder: Path, urls: list[str], **more: Any) -> str:
    """Write those of an agent that loses no picture by itself: each has its number."""
    brightness(folder / "models" / "light")
    pictures = write_pictures(folder / "pictures", [plain(gray) for gray in (50, 200)])
    pipeline = {"name": "p", "source": f"{pictures}/?loop=1&rate=10", "model": "light", "qos": 1}
    models = [str(folder / "models")]
    assert run_cli("keygen", str(folder / "push.key")).returncode == 0
    more |= {"groups": ["lab"], "trust": {"keys": [str(folder / "push.key.pub")]}}
    broker = {"url": urls}
    return agent_settings("box", urls[0], [pipeline], models_dirs=models, broker=broker, **more)


def numbers(listener: Listener) -> set[int]:
    """Give the numbers of the results that have come."""
    return {says["seq"] for says in listener.on(RESULTS)}


def more(listener: Listener, count: int = 20) -> int:
    """Wait for results beyond those that have come; give the highest number."""
    least = max(numbers(listener), default=-1) + count
    listener.wait_for(lambda _h: max(numbers(listener), default=-1) >= least, "results", 90)
    return max(numbers(listener))


def all_up_to(listener: Listener, last: int) -> None:
    """Wait until not one result is missing up to a number."""
    wanted = set(range(last + 1))
    listener.wait_for(lambda _h: numbers(listener) >= wanted, f"all up to {last}", 60)


def test_a_broker_that_stores_keeps_what_it_has_acknowledged(tmp_path: Path) -> None:
    """Over a restart while the receiver is away: what these tests and the soak of kills count on.

    Started by root it had stored nothing, and what it then lost was laid to the agent.
    """
    broker = Mosquitto(
        tmp_path / "broker", f"persistence true\npersistence_location {tmp_path}/broker/\n"
    )
    try:
        Listener(broker.port, client_id="receiver", clean_session=False).close()
        sender = Listener(broker.port)
        sender.publish("edge/box/event/p", "{}")
        sender.close()
        broker.stop()
        broker.start()
        receiver = Listener(broker.port, client_id="receiver", clean_session=False)
        receiver.wait_for(lambda heard: heard, "what was sent meanwhile")
        receiver.close()
    finally:
        broker.stop()


def test_a_bridged_pair_loses_nothing_as_a_node_goes(tmp_path: Path, agent: Agents) -> None:
    """What the one had taken comes when it is back; meanwhile the agent is with the other."""
    other = Mosquitto(tmp_path / "other", "persistence false\n")
    bridge = BRIDGE.format(folder=tmp_path / "one", other=other.port)
    one = Mosquitto(tmp_path / "one", bridge)
    listener = Listener(other.port)
    try:
        one_and_other = [one.url, other.url]
        wait_until(lambda: bridged(one, other), "the bridge")
        running = agent(settings(tmp_path, one_and_other), "box")
        more(listener)
        assert f"connected to {one.url}" in running.words()
        looked = run_cli("status", "--broker", other.url)
        assert "1 device" in looked.stdout, looked.stderr
        one.stop()
        more(listener)
        assert f"connected to {other.url}" in running.words()
        one.start()
        last = more(listener)
        all_up_to(listener, last)
    finally:
        listener.close()
        one.stop()
        other.stop()


def test_a_bridged_pair_carries_no_command_out_twice(tmp_path: Path, agent: Agents) -> None:
    """The node that was left had kept for the device what it was told over the other one.

    After a rolling update of both a camera was off, though its last command was ON.
    """
    other = Mosquitto(tmp_path / "other", "persistence false\n")
    bridge = BRIDGE.format(folder=tmp_path / "one", other=other.port)
    one = Mosquitto(tmp_path / "one", bridge)
    listener = Listener(other.port)
    try:
        wait_until(lambda: bridged(one, other), "the bridge")
        running = agent(settings(tmp_path, [one.url, other.url]), "box")
        more(listener)
        one.stop()
        wait_until(lambda: f"connected to {other.url}" in running.words(), "the other node")
        one.start()
        wait_until(lambda: bridged(one, other), "the bridge again")
        for state in ("OFF", "ON"):
            listener.publish("edge/box/in/set/p/enabled", state)
            listener.wait_state("edge/box/pipeline/p", enabled=state)
        other.stop()
        back = Listener(one.port)
        more(back)
        back.publish("edge/box/in/set/p/rate", "7")
        assert back.wait_state("edge/box/pipeline/p", rate=7.0)["enabled"] == "ON"
        back.close()
    finally:
        listener.close()
        one.stop()
        other.stop()


def test_nodes_that_share_sessions_keep_what_is_said_amid_a_move(broker: Mosquitto) -> None:
    """Two ways to one broker: the session that they share is resumed after each move."""
    one, two = Relay(broker.port), Relay(broker.port)
    inbox: SimpleQueue[ReceivedMessage | None] = SimpleQueue()
    client = make_client((one.url, two.url), inbox)
    running = threading.Thread(target=client.run, daemon=True)
    running.start()
    wait_until(lambda: client.connected, "a connection")
    with OneShotClient(Broker(url=broker.url), []) as sender:

        def comes() -> bool:
            sender.wait_published([sender.publish("edge/box/in/set/p/enabled", b"OFF")])
            return not inbox.empty()

        wait_until(comes, "the session to have its subscriptions")
        for number, (left, taken) in enumerate([(one, two), (two, one), (one, two)]):
            taken.shut()
            left.shut()
            left.cut()
            wait_until(lambda: not client.connected, "the connection to break")
            topic = f"edge/box/in/set/p{number}/enabled"
            sender.wait_published([sender.publish(topic, b"OFF")])
            taken.open()
            while (heard := inbox.get(timeout=PATIENCE)) is None or heard.topic != topic:
                continue  # an earlier one, which nobody has acknowledged
            wait_until(lambda: client.connected, "the other node")
    client.close()
    running.join()
    for relay in (one, two):
        relay.shut()
        relay.cut()


def bridged(one: Mosquitto, other: Mosquitto) -> bool:
    """Whether a retained message passes."""
    near, far = (Broker(url=broker.url) for broker in (one, other))
    with OneShotClient(near, []) as sender, OneShotClient(far, []) as reader:
        sender.wait_published([sender.publish("edge/mark", b"1", retain=True)])
        return reader.read("edge/mark", 1) is not None


def is_seen(url: str) -> bool:
    """Whether a node has what the device has left retained."""
    return "1 device" in run_cli("status", "--broker", url).stdout


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    """Run three nodes."""
    cluster = Nats(tmp_path / "nats")
    yield cluster
    for number in range(3):
        cluster.kill(number)


def test_nats_loses_nothing_as_a_node_is_killed(tmp_path: Path, nats: Nats, agent: Agents) -> None:
    """The agent goes on by another node; commands work over any, and `check` says what lacks."""
    listener = Listener(nats.ports[2], clean_session=True)
    config = settings(tmp_path, nats.urls)
    running = agent(config, "box")
    more(listener)
    assert f"connected to {nats.urls[0]}, MQTT 3.1.1" in running.words()
    for url in nats.urls:
        wait_until(lambda url=url: is_seen(url), f"the device at {url}")  # type: ignore[misc]
    nats.kill(0)
    more(listener)
    nats.start(0)
    for url in nats.urls:
        wait_until(lambda url=url: is_seen(url), f"the device at {url}")  # type: ignore[misc]
    checked = run_cli("check", "--config", str(running.config))
    assert "MQTT 3.1.1" in checked.stdout, checked.stdout
    dotted = run_cli(
        "check", "--config", str(running.config), environ={"EDGE_AGENT_DEVICE_ID": "box.1"}
    )
    assert "NATS takes no '.': choose another device_id" in dotted.stdout, dotted.stdout
    patch = tmp_path / "patch.json"
    patch.write_text('{"p": {"threshold": 0.5}}')
    signed = ("--persist", "--key", str(tmp_path / "push.key"), "--broker", nats.urls[2])
    done = run_cli("configure", str(patch), "--device", "@lab", *signed)
    assert "@lab: 1 device: 1 live\n" in done.stdout, done.stdout + done.stderr
    all_up_to(listener, more(listener))
    listener.close()


def test_an_agent_leaves_a_node_that_lacks_a_new_package(
    tmp_path: Path, nats: Nats, agent: Agents
) -> None:
    """It asked the same node again until that had the package, and the wave was paused."""
    node = Lacking(nats.ports[0], b"/@package/")
    listener = Listener(nats.ports[2], clean_session=True)
    config = settings(
        *(tmp_path, [node.url, *nats.urls[1:]]),
        trial={"shadow_frames": 3, "probation_s": 2},
    )
    running = agent(config, "box")
    more(listener)
    assert f"connected to {node.url}, MQTT 3.1.1" in running.words()
    look = ("status", "--device", "@lab", "--broker", nats.urls[2])
    wait_until(lambda: "1 device" in run_cli(*look).stdout, "the member of the group")
    brightness(tmp_path / "light", "2")
    plan = tmp_path / "plan.toml"
    waves, gate = [{"group": "lab"}], {"hold_s": 1, "timeout_s": 120}
    plan.write_text(tomli_w.dumps({"package": "light", "waves": waves, "gate": gate}))
    key = ("--key", str(tmp_path / "push.key"), "--broker", nats.urls[2])
    done = run_cli("rollout", "start", str(plan), *key)
    assert done.returncode == 0, done.stdout + done.stderr
    said = running.words()
    assert "has sent nothing of a retained package for 30 s" in said
    assert f"connected to {nats.urls[1]}, MQTT 3.1.1" in said
    all_up_to(listener, more(listener))
    listener.close()
    node.shut()
    node.cut()
