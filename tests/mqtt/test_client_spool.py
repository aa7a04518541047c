"""What was promised, through brokers that go away, killed processes and bad disks; all real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent.mqtt.client import Channel
from tests.helpers.mqtt_client import RelayedClient, arrived, message, wait_arrived
from tests.helpers.small_disk import fill, small_disk
from tests.helpers.support import CHECKOUT, PATIENCE, Listener, Mosquitto, Relay, wait_until

Listeners = Callable[..., Listener]
RelayedClients = Callable[..., RelayedClient]


@pytest.fixture
def relay(broker: Mosquitto) -> Iterator[Relay]:
    """Stand between client and broker."""
    relay = Relay(broker.port)
    yield relay
    relay.shut()
    relay.cut()


@pytest.fixture
def relayed_clients(relay: Relay, tmp_path: Path) -> Iterator[RelayedClients]:
    """Make links with a spool, one after the other; closed after the test."""
    made: list[RelayedClient] = []

    def make(spool: Path = tmp_path / "spool.db") -> RelayedClient:
        made.append(RelayedClient(relay, spool))
        return made[-1]

    yield make
    for relayed in made:
        relayed.close()


def begin(relayed: RelayedClient, *, qos: int = 1, lossless: bool = False) -> Channel:
    """Start it with one channel, and wait for the connection."""
    channel = relayed.client.open_channel("p", qos=qos, lossless=lossless)
    relayed.start()
    relayed.up()
    return channel


def wait_settled(relayed: RelayedClient) -> None:
    """Wait until nothing waits and nothing is under way."""
    wait_until(
        lambda: relayed.client.counters().waiting == 0 and relayed.client.counters().on_disk == 0,
        "all to be acknowledged",
    )


def acknowledged(relayed: RelayedClient, channel: Channel) -> bool:
    """Whether nothing of a channel is under way; counting takes note of what has come in."""
    return relayed.client.counters().waiting == 0 and channel.pending == 0


def marked(results: list[dict[str, Any]]) -> list[int]:
    """Give the numbers of those that say that they may be copies."""
    return [result["n"] for result in results if result.get("replayed")]


def unmarked(results: list[dict[str, Any]]) -> list[int]:
    """Give the numbers of those that do not."""
    return [result["n"] for result in results if not result.get("replayed")]


def test_what_is_acknowledged_at_once_costs_the_disk_nothing(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients, tmp_path: Path
) -> None:
    """With a broker that answers no file is made, however many results go out at QoS 1."""
    listener = listen(broker.port)
    relayed = relayed_clients()
    channel = begin(relayed)
    for number in range(60):
        relayed.send(channel, number)
        wait_until(lambda: acknowledged(relayed, channel), "the acknowledgment")
    assert wait_arrived(listener, "p", 60) == list(range(60))
    assert not list(tmp_path.glob("spool*"))


def test_what_waited_on_disk_comes_in_order_and_says_so(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients, tmp_path: Path
) -> None:
    """Results that waited arrive once, in order, as replayed; then nothing is left on disk."""
    listener = listen(broker.port)
    relayed = relayed_clients()
    channel = begin(relayed)
    relayed.send(channel, 0, 1, 2)
    wait_arrived(listener, "p", 3)
    wait_until(lambda: acknowledged(relayed, channel), "the acknowledgments")
    relayed.break_off()
    relayed.send(channel, *range(3, 150))
    relayed.on_disk(147)
    waiting = relayed.client.counters()
    assert (waiting.waiting, waiting.replayed, waiting.dropped) == (147, 0, 0)
    assert 0 < waiting.disk_bytes < 147 * 400
    relayed.relay.open()
    assert wait_arrived(listener, "p", 150) == list(range(150))
    assert unmarked(arrived(listener, "p")) == [0, 1, 2]
    wait_settled(relayed)
    assert (channel.published, channel.pending, channel.lost) == (150, 0, 0)
    assert relayed.client.counters().replayed == 147
    relayed.close()
    assert not list(tmp_path.glob("spool*"))


def test_live_results_go_ahead_of_what_waited(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients
) -> None:
    """With hundreds waiting, results sent after the reconnection overtake them, unmarked."""
    listener = listen(broker.port)
    relayed = relayed_clients()
    channel = begin(relayed)
    relayed.break_off()
    relayed.send(channel, *range(400))
    relayed.on_disk(400)
    relayed.relay.open()
    relayed.up()
    relayed.send(channel, *range(400, 410))
    wait_arrived(listener, "p", 410)
    heard = arrived(listener, "p")
    assert marked(heard) == list(range(400))
    assert unmarked(heard) == list(range(400, 410))
    order = [result["n"] for result in heard]
    assert order.index(409) < order.index(399)


def events(listener: Listener) -> list[int]:
    """Give the numbers of the events that were heard."""
    return [event["n"] for event in listener.on("edge/box/event/p")]


def test_an_end_does_not_overtake_its_begin(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients
) -> None:
    """What follows an event that waits goes behind it; other events go ahead of both."""
    listener = listen(broker.port)
    relayed = relayed_clients()
    channel = begin(relayed)
    relayed.break_off()
    relayed.send(channel, 0, event=True, series="door")
    relayed.send(channel, *range(1, 400))
    relayed.on_disk(400)
    relayed.relay.open()
    relayed.up()
    relayed.send(channel, 400, event=True, series="door", closes=True)
    relayed.send(channel, 401, event=True, series="gate")
    relayed.send(channel, 402, event=True, series="gate", closes=True)
    wait_settled(relayed)
    listener.wait_for(lambda _: len(events(listener)) >= 4, "the events")
    heard = listener.on("edge/box/event/p")
    assert [each["n"] for each in heard if each["n"] in {0, 400}] == [0, 400]
    assert marked(heard) == [0, 400]
    assert unmarked(heard) == [401, 402]
    assert [event["n"] for event in heard].index(401) < 3


def test_the_end_of_an_event_of_an_earlier_run_does_not_overtake_its_begin(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients
) -> None:
    """Its begin lies on disk when the next run, which has not looked there yet, ends it."""
    listener = listen(broker.port)
    first = relayed_clients()
    channel = begin(first)
    first.break_off()
    first.send(channel, 0, event=True, series="door")
    first.on_disk(1)
    first.close()
    first.relay.open()
    second = relayed_clients()
    channel = begin(second)
    end = message(channel, 1, event=True, series="door", closes=True)
    end.replayed = True
    second.client.publish_message(end)
    listener.wait_for(lambda _: len(events(listener)) >= 2, "the events")
    assert events(listener) == [0, 1]
    wait_settled(second)


def test_its_age_goes_on_while_it_waits(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients
) -> None:
    """A replayed result's `age_ms` counts the time on disk and in memory too."""
    listener = listen(broker.port)
    relayed = relayed_clients()
    channel = begin(relayed)
    relayed.break_off()
    relayed.send(channel, 0, timing={"age_ms": 5.0, "infer_ms": 1.0})
    sent = time.monotonic()
    relayed.on_disk(1)
    waited = time.monotonic() - sent
    relayed.relay.open()
    wait_arrived(listener, "p", 1)
    timing = arrived(listener, "p")[0]["timing"]
    assert timing["age_ms"] >= 5.0 + waited * 1e3
    assert timing["infer_ms"] == 1.0


def test_a_lossless_pipeline_is_held_up_by_what_lies_on_disk(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients
) -> None:
    """Results on disk count against a lossless pipeline's credit until they are acknowledged."""
    listener = listen(broker.port)
    relayed = relayed_clients()
    channel = begin(relayed, lossless=True)
    relayed.break_off()
    relayed.send(channel, *range(256))
    relayed.on_disk(256)
    assert not channel.has_credit
    relayed.relay.open()
    assert wait_arrived(listener, "p", 256) == list(range(256))
    wait_settled(relayed)
    assert channel.has_credit


def test_a_broker_that_does_not_answer_is_not_relied_on(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients
) -> None:
    """What a frozen broker has been handed goes to disk too; acknowledged later it is no copy."""
    listener = listen(broker.port)
    relayed = relayed_clients()
    channel = begin(relayed)
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    try:
        relayed.send(channel, *range(20))
        relayed.on_disk(20)
        assert relayed.client.counters().connected
    finally:
        broker.process.send_signal(signal.SIGCONT)
    wait_settled(relayed)
    assert wait_arrived(listener, "p", 20) == list(range(20))
    assert not marked(arrived(listener, "p"))


def test_an_orderly_end_keeps_what_is_left(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients
) -> None:
    """Closed without a broker, a client leaves all that waits to the next, oldest run first."""
    listener = listen(broker.port)
    first = relayed_clients()
    channel = begin(first)
    first.break_off()
    first.send(channel, *range(50), session="a")
    first.close()
    second = relayed_clients()
    channel = second.client.open_channel("p", qos=1, lossless=False)
    second.start()
    second.send(channel, *range(100, 120), session="b")
    second.on_disk(70)
    second.relay.open()
    assert wait_arrived(listener, "p", 70) == [*range(50), *range(100, 120)]
    assert [result["session"] for result in arrived(listener, "p")] == ["a"] * 50 + ["b"] * 20
    assert len(marked(arrived(listener, "p"))) == 70
    # The broker's word on the last of them comes after they have.
    wait_until(lambda: channel.published == 20, "all to be counted")
    wait_settled(second)


def test_what_an_earlier_run_left_follows_the_first_result(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients
) -> None:
    """A client that is connected from the start sends what it finds once it has sent something."""
    listener = listen(broker.port)
    first = relayed_clients()
    first.relay.shut()
    channel = first.client.open_channel("p", qos=1, lossless=False)
    first.start()
    first.send(channel, *range(5))
    first.close()
    first.relay.open()
    second = relayed_clients()
    channel = begin(second)
    assert second.client.counters().on_disk == 0
    second.send(channel, 5)
    assert wait_arrived(listener, "p", 6) == [5, 0, 1, 2, 3, 4]


def test_without_promises_an_earlier_file_is_left_alone(
    relayed_clients: RelayedClients, tmp_path: Path
) -> None:
    """Where no pipeline has `qos = 1` the file is not even looked into."""
    (tmp_path / "spool.db").write_bytes(b"whatever")
    relayed = relayed_clients()
    channel = begin(relayed, qos=0)
    relayed.send(channel, *range(10))
    relayed.close()
    assert (tmp_path / "spool.db").read_bytes() == b"whatever"


def test_a_damaged_file_is_set_aside(
    broker: Mosquitto,
    listen: Listeners,
    relayed_clients: RelayedClients,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file that is no database is moved away and said once; results are kept in a new one."""
    listener = listen(broker.port)
    path = tmp_path / "spool.db"
    path.write_bytes(b"scratch" * 2000)
    relayed = relayed_clients()
    channel = begin(relayed)
    relayed.break_off()
    relayed.send(channel, *range(30))
    relayed.on_disk(30)
    assert (tmp_path / "spool.db.damaged").read_bytes() == b"scratch" * 2000
    words = "damaged; set aside as spool.db.damaged, starting a new file"
    assert [record.message for record in caplog.records if "set aside" in record.message] == [
        f"{path}: file is not a database: {words}"
    ]
    assert relayed.client.counters().disk_problem is None
    relayed.relay.open()
    assert wait_arrived(listener, "p", 30) == list(range(30))


def test_a_full_disk_stops_nothing(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients, tmp_path: Path
) -> None:
    """On a full disk results wait in memory and the reason is said; then on disk again."""
    listener = listen(broker.port)
    with small_disk(tmp_path / "disk", "1m") as folder:
        relayed = relayed_clients(folder / "spool.db")
        channel = begin(relayed)
        relayed.break_off()
        relayed.send(channel, *range(100))
        relayed.on_disk(100)
        filler = fill(folder)
        # More than the pages that SQLite's log has left, also when it is compressed.
        for number in range(100, 200):
            relayed.send(channel, number, noise=os.urandom(2000).hex())
        wait_until(lambda: relayed.client.counters().disk_problem is not None, "the reason")
        problem = relayed.client.counters().disk_problem
        assert problem == f"{folder}/spool.db: the disk is full; free some space"
        assert relayed.client.counters().waiting == 200
        filler.unlink()
        relayed.on_disk(200)
        wait_until(
            lambda: relayed.client.counters().disk_problem is None, "the disk to be used again"
        )
        relayed.relay.open()
        assert wait_arrived(listener, "p", 200) == list(range(200))
        assert relayed.client.counters().lost == 0
        relayed.close()


def test_a_read_only_disk_does_not_hold_up_what_is_in_memory(
    broker: Mosquitto, listen: Listeners, relayed_clients: RelayedClients, tmp_path: Path
) -> None:
    """What cannot be read back for now follows when it can; the rest, and live ones, flow."""
    listener = listen(broker.port)
    with small_disk(tmp_path / "disk", "1m") as folder:
        relayed = relayed_clients(folder / "spool.db")
        channel = begin(relayed)
        relayed.break_off()
        relayed.send(channel, *range(20))
        relayed.on_disk(20)
        # As after an error of the medium: whoever has the file open is cut off, too.
        relayed.close()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        other = relayed_clients(folder / "spool.db")
        channel = other.client.open_channel("p", qos=1, lossless=False)
        other.start()
        other.send(channel, *range(20, 40))
        wait_until(lambda: other.client.counters().disk_problem is not None, "the reason")
        assert "the disk is read-only" in str(other.client.counters().disk_problem)
        other.relay.open()
        assert sorted(wait_arrived(listener, "p", 20)) == list(range(20, 40))
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
        assert sorted(set(wait_arrived(listener, "p", 40))) == list(range(40))
        wait_until(lambda: other.client.counters().disk_problem is None, "the reason to be gone")
        other.close()


class Case:
    """A client in a process of its own."""

    def __init__(self, url: str, spool: Path, session: str, rate: float = 30) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.spool_case", url, str(spool), session, str(rate)],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.sent = -1
        self.on_disk = self.waiting = 0

    def until(self, claim: Callable[[], bool]) -> None:
        """Read what it says until that holds."""
        deadline = time.monotonic() + PATIENCE
        assert self.process.stdout is not None
        while not claim():
            assert time.monotonic() < deadline, "waited in vain"
            self._hear(self.process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL, and hear its last words; once."""
        if self.process.returncode is not None:
            return
        self.process.kill()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._hear(line)
        self.process.wait()
        self.process.stdout.close()

    def _hear(self, line: str) -> None:
        assert line, "it has ended by itself"
        if line.endswith("\n"):
            self.sent, self.on_disk, self.waiting = (int(word) for word in line.split())


def test_a_killed_process_loses_the_last_write_at_most(
    broker: Mosquitto, listen: Listeners, relay: Relay, tmp_path: Path
) -> None:
    """Broker killed, process killed, both started again: only what was not yet written is missing.

    Whatever the process had seen on disk arrives, without a gap; every second copy says so; those
    replayed and those live are each in the order of sending.
    """
    listener = listen(broker.port)
    spool = tmp_path / "spool.db"
    cases = [Case(relay.url, spool, "a")]
    try:
        cases[0].until(lambda: cases[0].sent >= 20)
        relay.shut()
        listener.catch_up()
        broker.stop(signal.SIGKILL)
        cases[0].until(lambda: cases[0].sent >= 120 and cases[0].on_disk > 60)
        cases[0].kill()
        cases.append(Case(relay.url, spool, "b"))
        cases[1].until(lambda: cases[1].on_disk > cases[0].on_disk + 30)
        subscribed = listener.subscribed
        broker.start()
        wait_until(lambda: listener.subscribed > subscribed, "the listener to be back")
        relay.open()
        cases[1].until(lambda: cases[1].on_disk == 0)
        after = cases[1].sent + 10
        cases[1].until(lambda: cases[1].sent > after)
        last = {"n": after, "session": "b"}
        listener.wait_for(lambda heard: any(h.json == last for h in heard[-500:]), "the last")
    finally:
        for case in cases:
            case.kill()
    heard = {
        name: [result for result in arrived(listener, "p") if result["session"] == name]
        for name in "ab"
    }
    first = sorted({result["n"] for result in heard["a"]})
    assert first == list(range(len(first)))
    # The broker was gone: what waited and was not on disk when it died, no more, is missing.
    assert cases[0].sent + 1 - len(first) <= cases[0].waiting - cases[0].on_disk
    assert {result["n"] for result in heard["b"]} >= set(range(after + 1))
    for results in heard.values():
        live = unmarked(results)
        assert live == sorted(set(live)), "a live result twice, or out of order"
        copies = list(dict.fromkeys(marked(results)))
        assert copies == sorted(copies)
        seen: set[int] = set()
        for result in results:
            assert result["n"] not in seen or result.get("replayed"), "a copy that says nothing"
            seen.add(result["n"])


def test_a_start_loads_nothing_of_it() -> None:
    """SQLite and the spool are imported neither with the client nor with a pipeline's `qos = 1`."""
    script = (
        "import sys, edge_agent.mqtt.client, edge_agent.mqtt.spool_writer\n"
        "late = {'sqlite3', 'zlib', 'edge_agent.mqtt.spool'}\n"
        "print(sorted(late & sys.modules.keys()))\n"
    )
    command = [sys.executable, "-S", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.strip() == "[]"
