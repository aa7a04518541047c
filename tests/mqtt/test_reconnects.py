"""What connections that have ended leave behind: nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from tests.helpers.mqtt_client import RelayedClient
from tests.helpers.support import Mosquitto, Relay, wait_until


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
