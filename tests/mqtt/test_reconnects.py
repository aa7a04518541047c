"""What connections that have ended leave behind: nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import paho.mqtt.client as paho
import pytest

from edge_agent.mqtt import hang_ups
from tests.helpers.mqtt_client import RelayedClient, wait_arrived
from tests.helpers.support import Listener, Mosquitto, Relay, wait_until


@pytest.fixture
def relayed(broker: Mosquitto, tmp_path: Path) -> Iterator[RelayedClient]:
    """Make a client of a broker behind a relay."""
    relay = Relay(broker.port)
    made = RelayedClient(relay, tmp_path / "spool.db")
    yield made
    made.close()
    relay.shut()
    relay.cut()


def clients() -> int:
    """Count paho's clients; each has two sockets of its own until it is gone."""
    return sum(isinstance(each, paho.Client) for each in gc.get_objects())


def test_a_rival_is_a_problem_while_connected_until_a_connection_settles(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was forgotten with each new connection, so health was ok between two losses."""
    ours, rival = (
        RelayedClient(Relay(broker.port), tmp_path / f"{name}.db") for name in ("ours", "rival")
    )
    for each in (ours, rival):
        each.start()

    def said() -> str | None:
        counters = ours.client.counters()
        return counters.problem if counters.connected else None

    wait_until(lambda: "this device_id" in (said() or ""), "it to be said while connected", 90)
    rival.close()
    ours.up()
    monkeypatch.setattr("edge_agent.mqtt.connecting.SETTLED", 0.1)
    wait_until(lambda: ours.client.connected and said() is None, "the connection to settle", 90)
    ours.close()
    for each in (ours, rival):
        each.relay.shut()
        each.relay.cut()


def test_a_broken_connection_is_gone_without_a_garbage_collection(relayed: RelayedClient) -> None:
    """After five breaks there is one client, not six waiting for the next full collection."""
    gc.collect()
    before = clients()
    gc.disable()
    try:
        relayed.start()
        relayed.up()
        for _ in range(5):
            relayed.break_off()
            relayed.relay.open()
            relayed.up()
        wait_until(lambda: clients() <= before + 1, "the old clients to be gone", 5)
    finally:
        gc.enable()


def test_the_result_of_what_a_broker_had_held_is_published(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reading that came right behind CONNACK was inferred and its live result dropped."""
    # Careful, so that there is a while between that and the use of the connection.
    monkeypatch.setattr(hang_ups, "CAREFUL_AFTER", 0)
    listener = listen(broker.port)
    relayed = RelayedClient(Relay(broker.port), tmp_path / "spool.db")
    channel = relayed.client.open_channel("fridge", qos=0, lossless=False)
    readings: SimpleQueue[bytes | None] = SimpleQueue()

    def infer() -> None:
        while (reading := readings.get()) is not None:
            relayed.send(channel, int(reading))

    threading.Thread(target=infer, daemon=True).start()
    feeds = relayed.client.feeds
    feeds.expect("lab/fridge")
    relayed.start()
    relayed.up()
    feeds.open("lab/fridge", readings.put, held=True)
    wait_until(lambda: "lab/fridge" in relayed.client.subscribing.granted, "the subscription")
    relayed.break_off()
    listener.publish("lab/fridge", b"7")
    relayed.relay.open()
    assert wait_arrived(listener, "fridge", 1) == [7]
    assert channel.lost == 0
    readings.put(None)
    relayed.close()
    relayed.relay.shut()
    relayed.relay.cut()
