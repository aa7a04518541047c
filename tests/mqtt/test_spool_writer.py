"""Promises between memory and disk: who gives way to whom, and that none is ever forgotten."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.mqtt.inflight import ROOM, Inflight, InflightMessage
from edge_agent.mqtt.message import Channel
from edge_agent.mqtt.spool import Kind, Row, Spool
from edge_agent.mqtt.spool_writer import WRITE_RATE, SpoolWriter
from tests.helpers.mqtt_client import parcel
from tests.helpers.support import PATIENCE, wait_until


class Desk:
    """A backlog and a keeper at work, without a broker."""

    def __init__(self, spool: Spool) -> None:
        self.lock = threading.Condition()
        self.backlog = Inflight()
        self.keeper = SpoolWriter(spool, self.backlog, self.lock)
        self._wake, self._closing = threading.Event(), threading.Event()
        self.backlog.rouse = self._wake.set
        self._thread = threading.Thread(target=self.keeper.run, args=(self._wake, self._closing))
        self._thread.start()

    def send(self, channel: Channel, *numbers: int, event: bool = False, noise: int = 0) -> None:
        """Have messages wait, each with so many bytes that do not compress."""
        for number in numbers:
            more = {"noise": os.urandom(noise).hex()} if noise else {}
            with self.lock:
                promise = self.backlog.promise(parcel(channel, number, event=event, **more))
                self.backlog.keep(promise)

    def written(self) -> None:
        """Wait until nothing waits in memory only."""
        wait_until(lambda: self.in_memory() == 0, "all to be written")

    def in_memory(self) -> int:
        with self.lock:
            return len(self.backlog.unsaved())

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def desks() -> Iterator[list[Desk]]:
    """Keep desks to be closed after the test."""
    made: list[Desk] = []
    yield made
    for desk in made:
        desk.close()


def kept(path: Path) -> dict[Kind, list[int]]:
    """Give the numbers of the messages that lie in a file, in order, by kind."""
    found: dict[Kind, list[int]] = {kind: [] for kind in Kind}
    with closing(Spool(path)) as spool:
        for row in spool.open():
            read = spool.read(row)
            assert read is not None
            found[row.kind] += [json.loads(message)["n"] for message in read[0]]
    return found


def test_of_results_the_newest_are_kept(desks: list[Desk], tmp_path: Path) -> None:
    """A full spool lets go of its oldest results, counts them, and holds no more than it may."""
    path = tmp_path / "spool.db"
    desk = Desk(Spool(path, most=100))
    desks.append(desk)
    channel = Channel("p", 1, lossless=False)
    for first in range(0, 300, 20):
        desk.send(channel, *range(first, first + 20))
        desk.written()
    desk.close()
    left = kept(path)[Kind.RESULT]
    assert left == list(range(300 - len(left), 300))
    assert 80 <= len(left) <= 100
    assert desk.backlog.dropped == channel.lost == 300 - len(left)
    assert channel.pending == desk.backlog.waiting == len(left)


def test_events_and_what_is_lossless_outlive_results(desks: list[Desk], tmp_path: Path) -> None:
    """Results of live sources give way first, however new; the others stay as long as they can."""
    path = tmp_path / "spool.db"
    desk = Desk(Spool(path, most=60))
    desks.append(desk)
    live, folder = Channel("live", 1, lossless=False), Channel("folder", 1, lossless=True)
    desk.send(live, *range(20), event=True)
    desk.send(folder, *range(20))
    desk.written()
    for first in range(0, 200, 10):
        desk.send(live, *range(first, first + 10))
        desk.written()
    desk.close()
    left = kept(path)
    assert left[Kind.EVENT] == list(range(20))
    assert left[Kind.LOSSLESS] == list(range(20))
    assert left[Kind.RESULT] == list(range(180, 200))
    assert (live.lost, folder.lost) == (180, 0)


def test_what_is_less_important_than_all_on_disk_waits_in_memory(
    desks: list[Desk], tmp_path: Path
) -> None:
    """Results do not displace events from a full disk: they wait in memory, and make room there."""
    path = tmp_path / "spool.db"
    desk = Desk(Spool(path, most=50))
    desks.append(desk)
    channel = Channel("p", 1, lossless=False)
    desk.send(channel, *range(50), event=True)
    desk.written()
    desk.send(channel, *range(ROOM + 10))
    assert desk.in_memory() == ROOM
    assert (channel.lost, desk.backlog.dropped) == (10, 10)
    desk.send(channel, *range(50, 60), event=True)
    wait_until(lambda: channel.lost >= 20, "older events and results to give way")
    desk.close()
    events = kept(path)[Kind.EVENT]
    assert events[-10:] == list(range(50, 60))
    assert len(events) <= 50


def test_the_file_does_not_grow_beyond_its_bound(desks: list[Desk], tmp_path: Path) -> None:
    """In bytes too: what does not fit gives way, and the file stays as large as it may be."""
    path = tmp_path / "spool.db"
    bound = 200 * 1024
    desk = Desk(Spool(path, most_bytes=bound))
    desks.append(desk)
    channel = Channel("p", 1, lossless=False)
    for first in range(0, 100, 10):
        desk.send(channel, *range(first, first + 10), noise=5000)
        desk.written()
    assert desk.keeper.spool.bytes <= bound
    assert desk.backlog.dropped > 0
    desk.close()
    assert path.stat().st_size <= bound * 1.3
    left = kept(path)[Kind.RESULT]
    assert left == list(range(100 - len(left), 100))
    assert len(left) >= 10


def test_the_disk_is_not_written_faster_than_it_should(desks: list[Desk], tmp_path: Path) -> None:
    """Of more than the write rate allows the oldest go first; the rest follows, none is lost."""
    desk = Desk(Spool(tmp_path / "spool.db"))
    desks.append(desk)
    channel = Channel("p", 1, lossless=False)
    total, noise = 60, 10_000
    desk.send(channel, *range(total), noise=noise)
    wait_until(lambda: desk.in_memory() < total, "the first write")
    with desk.lock:
        unsaved = [promise.number for promise in desk.backlog.unsaved()]
    # A row more than the rate, at most; two writes of it where this thread was late.
    assert (total - len(unsaved)) * noise < 3 * (WRITE_RATE + 64 * 1024)
    assert unsaved == list(range(total - len(unsaved) + 1, total + 1))
    desk.written()
    assert desk.backlog.dropped == 0


def test_large_messages_do_not_fill_memory() -> None:
    """Where there is no disk, memory is bounded in bytes as well as in number."""
    backlog = Inflight()
    channel = Channel("p", 1, lossless=False)
    filler = "x" * 2**20
    for number in range(40):
        backlog.keep(backlog.promise(parcel(channel, number, filler=filler)))
    assert 10 <= backlog.waiting <= 16
    assert backlog.dropped == 40 - backlog.waiting


class BusySpool(Spool):
    """A disk that takes its time: things happen meanwhile."""

    def __init__(self, world: World) -> None:
        super().__init__(world.folder / "spool.db")
        self.meanwhile = False
        self._world = world

    def write(self, rows: Sequence[tuple[Row, bytes]], gone: Collection[int]) -> None:
        super().write(rows, gone)
        if self.meanwhile:
            self._world.acknowledge()

    def read(self, row: Row) -> tuple[list[bytes], float] | None:
        found = super().read(row)
        if self.meanwhile:
            self.meanwhile = False
            self._world.break_off()
            self._world.connect()
        return found


class World:
    """A link, a keeper and a broker, one step at a time; what was promised, and what was heard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[tuple[int, int, bool]] = []
        """Run, number, marked; in the order of arrival."""
        self.owed: set[tuple[int, int]] = set()
        self.run = -1
        self._start()

    def _start(self) -> None:
        self.run += 1
        self.number = self.message = 0
        self.flying: dict[int, tuple[InflightMessage, bool]] = {}
        self.connected = self.cut = False
        self.backlog = Inflight()
        self.spool = BusySpool(self)
        self.keeper = SpoolWriter(self.spool, self.backlog, threading.Condition())
        self.channel = Channel("p", 1, lossless=False)

    def send(self) -> None:
        for _ in range(2):
            promise = self.backlog.promise(parcel(self.channel, self.number, run=self.run))
            self.owed.add((self.run, self.number))
            self.number += 1
            if self.connected:
                self.backlog.overtaken()
                self._fly(promise)
            else:
                self.backlog.keep(promise)

    def _fly(self, promise: InflightMessage) -> None:
        body = json.loads(promise.parcel.render())
        promise.parcel.counted = True
        self.message += 1
        self.backlog.fly(self.message, promise)
        self.flying[self.message] = (promise, not self.cut)
        if not self.cut:
            self.heard.append((body["run"], body["n"], "replayed" in body))

    def connect(self) -> None:
        if not self.connected:
            self.connected, self.cut = True, False
            self.backlog.connected()

    def pull_the_cable(self) -> None:
        """From now on nothing arrives, which nobody has noticed yet."""
        self.cut = True

    def break_off(self) -> None:
        if self.connected:
            self.connected = False
            self.flying.clear()
            self.backlog.broke()

    def catch_up(self, most: int = 4) -> None:
        for _ in range(most if self.connected else 0):
            promise = self.backlog.next()
            if promise is None:
                return
            self._fly(promise)

    def acknowledge(self, most: int = 3) -> None:
        for message, (_, reached) in list(self.flying.items())[:most]:
            if reached:
                del self.flying[message]
                self.backlog.landed(message)

    def grow_late(self) -> None:
        """Let a second pass for what is under way."""
        for promise, _ in self.flying.values():
            promise.parcel.since -= 1.0

    def turn(self) -> None:
        self.keeper._turn(last=False)

    def turn_while_things_happen(self) -> None:
        """Have acknowledgements and a break come in while the disk is busy."""
        self.spool.meanwhile = True
        self.turn()
        self.spool.meanwhile = False

    def end(self) -> None:
        """End in good order, and begin again."""
        self.break_off()
        self.keeper._turn(last=True)
        self._start()

    def kill(self) -> None:
        """Die; what was in memory only is lost, and nothing else."""
        for promise in self.backlog.unsaved():
            self.owed.discard((self.run, promise.number - 1))
        self.keeper.spool.close()
        self._start()

    def finish(self) -> None:
        """Let everything arrive."""
        self.break_off()
        self.connect()
        for _ in range(100):
            self.turn()
            self.catch_up(1000)
            self.acknowledge(1000)
            if self.keeper.spool.exists() == self.keeper._opened and not self.backlog.waits:
                break
        self.keeper.spool.close()


STEPS = (
    *("send", "send", "send", "send", "connect", "connect", "turn", "turn", "catch_up", "catch_up"),
    *("acknowledge", "grow_late", "pull_the_cable", "break_off", "break_off", "end", "kill"),
    "turn_while_things_happen",
)


@given(steps=st.lists(st.sampled_from(STEPS), min_size=10, max_size=60))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_what_was_kept_arrives(steps: list[str]) -> None:
    """In any order of events every promise arrives that no kill has caught in memory.

    Second copies say so, and live ones and replayed ones are each in the order of sending.
    """
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for step in steps:
            getattr(world, step)()
        world.finish()
    assert world.owed <= {(run, number) for run, number, _ in world.heard}
    assert world.backlog.waiting == 0
    assert world.channel.pending == 0
    assert world.backlog.dropped == 0
    for run in range(world.run + 1):
        mine = [(number, marked) for of, number, marked in world.heard if of == run]
        live = [number for number, marked in mine if not marked]
        assert live == sorted(set(live)), "a live result twice, or out of order"
        seen: dict[int, bool] = {}
        for number, marked in mine:
            assert marked or number not in seen, "a second copy that does not say so"
            seen.setdefault(number, marked)
        late = [number for number, marked in seen.items() if marked]
        assert late == sorted(late), "replayed ones out of order"


def test_what_is_on_disk_goes_before_what_is_in_memory(tmp_path: Path) -> None:
    """The oldest goes first, and what came later waits for it to be read."""
    world = World(tmp_path)
    world.send()
    world.turn()
    world.send()
    world.connect()
    world.catch_up()
    assert world.heard == []
    world.turn()
    world.catch_up()
    assert [number for _, number, _ in world.heard] == [0, 1, 2, 3]
    world.finish()


def test_what_was_overtaken_goes_first_the_next_time(tmp_path: Path) -> None:
    """After a break all goes in the order of sending, whatever had been tried before."""
    world = World(tmp_path)
    world.send()
    world.connect()
    world.pull_the_cable()
    world.send()
    world.break_off()
    world.connect()
    world.catch_up()
    assert world.heard == [(0, number, True) for number in range(4)]
    world.finish()
