"""QoS 1 messages between memory and disk: which give way, and that none is ever forgotten."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.mqtt.inflight import ROOM, Batch, Inflight, InflightMessage
from edge_agent.mqtt.message import Channel
from edge_agent.mqtt.spool import Kind, Row, Spool
from edge_agent.mqtt.spool_writer import WRITE_RATE, SpoolWriter
from tests.helpers.mqtt_client import message
from tests.helpers.support import PATIENCE, wait_until


class Desk:
    """A spool writer at work, without a broker."""

    def __init__(self, path: Path, **bounds: int) -> None:
        self.lock = threading.Condition()
        self.inflight = Inflight()
        self.writer = SpoolWriter(path, self.inflight, self.lock, **bounds)
        self.inflight.on_work = self.writer.wake

    def send(self, channel: Channel, *numbers: int, event: bool = False, noise: int = 0) -> None:
        """Have messages wait, each with so many bytes that do not compress."""
        for number in numbers:
            more: dict[str, Any] = {"noise": os.urandom(noise).hex()} if noise else {}
            with self.lock:
                entry = self.inflight.add(message(channel, number, event=event, **more))
                self.inflight.enqueue(entry)

    def written(self) -> None:
        """Wait until nothing waits in memory only."""
        wait_until(lambda: self.in_memory() == 0, "all to be written")

    def in_memory(self) -> int:
        with self.lock:
            return len(self.inflight.unsaved())

    def close(self) -> None:
        self.writer.close(PATIENCE)


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
    desk = Desk(path, most=100)
    desks.append(desk)
    channel = Channel("p", 1, lossless=False)
    for first in range(0, 300, 20):
        desk.send(channel, *range(first, first + 20))
        desk.written()
    desk.close()
    left = kept(path)[Kind.RESULT]
    assert left == list(range(300 - len(left), 300))
    assert 80 <= len(left) <= 100
    assert desk.inflight.dropped == channel.lost == 300 - len(left)
    assert channel.pending == desk.inflight.waiting == len(left)


def test_events_and_what_is_lossless_outlive_results(desks: list[Desk], tmp_path: Path) -> None:
    """Results of live sources give way first, however new; the others stay as long as they can."""
    path = tmp_path / "spool.db"
    desk = Desk(path, most=60)
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
    desk = Desk(path, most=50)
    desks.append(desk)
    channel = Channel("p", 1, lossless=False)
    desk.send(channel, *range(50), event=True)
    desk.written()
    desk.send(channel, *range(ROOM + 10))
    assert desk.in_memory() == ROOM
    assert (channel.lost, desk.inflight.dropped) == (10, 10)
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
    desk = Desk(path, most_bytes=bound)
    desks.append(desk)
    channel = Channel("p", 1, lossless=False)
    for first in range(0, 100, 10):
        desk.send(channel, *range(first, first + 10), noise=5000)
        desk.written()
    assert desk.writer.bytes <= bound
    assert desk.inflight.dropped > 0
    desk.close()
    assert path.stat().st_size <= bound * 1.3
    left = kept(path)[Kind.RESULT]
    assert left == list(range(100 - len(left), 100))
    assert len(left) >= 10


def test_the_disk_is_not_written_faster_than_it_should(desks: list[Desk], tmp_path: Path) -> None:
    """Of more than the write rate allows the oldest go first; the rest follows, none is lost."""
    desk = Desk(tmp_path / "spool.db")
    desks.append(desk)
    channel = Channel("p", 1, lossless=False)
    total, noise = 60, 10_000
    desk.send(channel, *range(total), noise=noise)
    wait_until(lambda: desk.in_memory() < total, "the first write")
    with desk.lock:
        unsaved = [entry.number for entry in desk.inflight.unsaved()]
    # A row more than the rate, at most; two writes of it where this thread was late.
    assert (total - len(unsaved)) * noise < 3 * (WRITE_RATE + 64 * 1024)
    assert unsaved == list(range(total - len(unsaved) + 1, total + 1))
    desk.written()
    assert desk.inflight.dropped == 0


def test_large_messages_do_not_fill_memory() -> None:
    """Where there is no disk, memory is bounded in bytes as well as in number."""
    inflight = Inflight()
    channel = Channel("p", 1, lossless=False)
    filler = "x" * 2**20
    for number in range(40):
        inflight.enqueue(inflight.add(message(channel, number, filler=filler)))
    assert 10 <= inflight.waiting <= 16
    assert inflight.dropped == 40 - inflight.waiting


def test_no_event_goes_for_results_that_are_being_written() -> None:
    """A flood of one sensor's results took other pipelines' events, with the broker there."""
    inflight, events = Inflight(), Channel("e", 1, lossless=False)
    flood = Channel("p", 1, lossless=False)
    for number in range(ROOM):
        inflight.enqueue(inflight.add(message(flood, number)))
    for entry in inflight.unsaved():
        entry.saving = True
    for number in range(10):
        inflight.enqueue(inflight.add(message(events, number, event=True)))
    assert (events.lost, flood.lost) == (0, 0)
    for number in range(10):
        inflight.enqueue(inflight.add(message(flood, ROOM + number)))
    assert (events.lost, flood.lost) == (0, 10)


def test_an_event_waits_as_what_it_is_and_is_in_memory_only_until_it_is_written() -> None:
    """The journal keeps it until then, behind however much; a possible copy stays marked."""
    inflight, events = Inflight(), Channel("e", 1, lossless=False)
    others = Channel("p", 1, lossless=False)
    copy = message(events, 1, event=True)
    copy.replayed = True
    inflight.enqueue(inflight.add(message(others, 0)))
    inflight.enqueue(inflight.add(copy))
    assert copy.replayed
    assert inflight.unsaved_since(events) == copy.encoded_at
    entry = inflight.unsaved()[1]
    inflight.saved(Batch(Row(1, Kind.EVENT, "e", 1, 9), events), [entry])
    assert inflight.unsaved_since(events) == math.inf > inflight.unsaved_since(others)


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
    """Client, spool writer and broker, one step at a time: what is owed, and what was received."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[tuple[int, int, bool]] = []
        """Run, number, marked; in the order of arrival."""
        self.owed: set[tuple[int, int]] = set()
        self.run = -1
        self._start()

    def _start(self) -> None:
        self.run += 1
        self.number = self.mid = 0
        self.sent: dict[int, tuple[InflightMessage, bool]] = {}
        self.connected = self.cut = False
        self.inflight = Inflight()
        self.spool = BusySpool(self)
        self.writer = SpoolWriter(self.spool.path, self.inflight, threading.Condition())
        self.channel = Channel("p", 1, lossless=False)

    def send(self) -> None:
        for _ in range(2):
            entry = self.inflight.add(message(self.channel, self.number, run=self.run))
            self.owed.add((self.run, self.number))
            self.number += 1
            if self.connected:
                self.inflight.mark_overtaken()
                self._publish(entry)
            else:
                self.inflight.enqueue(entry)

    def _publish(self, entry: InflightMessage) -> None:
        body = json.loads(entry.message.payload())
        entry.message.counted = True
        self.mid += 1
        self.inflight.sent(self.mid, entry)
        self.sent[self.mid] = (entry, not self.cut)
        if not self.cut:
            self.heard.append((body["run"], body["n"], "replayed" in body))

    def connect(self) -> None:
        if not self.connected:
            self.connected, self.cut = True, False
            self.inflight.connected()

    def pull_the_cable(self) -> None:
        """From now on nothing arrives, which nobody has noticed yet."""
        self.cut = True

    def break_off(self) -> None:
        if self.connected:
            self.connected = False
            self.sent.clear()
            self.inflight.disconnected()

    def publish_waiting(self, most: int = 4) -> None:
        for _ in range(most if self.connected else 0):
            entry = self.inflight.take()
            if entry is None:
                return
            self._publish(entry)

    def acknowledge(self, most: int = 3) -> None:
        for mid, (_, reached) in list(self.sent.items())[:most]:
            if reached:
                del self.sent[mid]
                self.inflight.acknowledged(mid)

    def grow_late(self) -> None:
        """Let a second pass for what is under way."""
        for entry, _ in self.sent.values():
            entry.message.encoded_at -= 1.0

    def turn(self) -> None:
        self.writer._process(self.spool, last=False)

    def turn_while_things_happen(self) -> None:
        """Have acknowledgments and a break come in while the disk is busy."""
        self.spool.meanwhile = True
        self.turn()
        self.spool.meanwhile = False

    def end(self) -> None:
        """End in good order, and begin again."""
        self.break_off()
        self.writer._process(self.spool, last=True)
        self._start()

    def kill(self) -> None:
        """Die; what was in memory only is lost, and nothing else."""
        for entry in self.inflight.unsaved():
            self.owed.discard((self.run, entry.number - 1))
        self.spool.close()
        self._start()

    def finish(self) -> None:
        """Let everything arrive."""
        self.break_off()
        self.connect()
        for _ in range(100):
            self.turn()
            self.publish_waiting(1000)
            self.acknowledge(1000)
            if self.spool.exists() == self.writer._file.opened and not self.inflight.has_waiting:
                break
        self.spool.close()


STEPS = (
    *("send", "send", "send", "send", "connect", "connect", "turn", "turn"),
    *("publish_waiting", "publish_waiting", "acknowledge", "grow_late", "pull_the_cable"),
    *("break_off", "break_off", "end", "kill", "turn_while_things_happen"),
)


@given(steps=st.lists(st.sampled_from(STEPS), min_size=10, max_size=60))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_what_was_kept_arrives(steps: list[str]) -> None:
    """In any order of events every message arrives that no kill has caught in memory.

    Second copies say so, and live ones and replayed ones are each in the order of publishing.
    """
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for step in steps:
            getattr(world, step)()
        world.finish()
    assert world.owed <= {(run, number) for run, number, _ in world.heard}
    assert world.inflight.waiting == 0
    assert world.channel.pending == 0
    assert world.inflight.dropped == 0
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
    world.publish_waiting()
    assert world.heard == []
    world.turn()
    world.publish_waiting()
    assert [number for _, number, _ in world.heard] == [0, 1, 2, 3]
    world.finish()


def test_what_was_overtaken_goes_first_the_next_time(tmp_path: Path) -> None:
    """After a break all goes in the order of publishing, whatever had been tried before."""
    world = World(tmp_path)
    world.send()
    world.connect()
    world.pull_the_cable()
    world.send()
    world.break_off()
    world.connect()
    world.publish_waiting()
    assert world.heard == [(0, number, True) for number in range(4)]
    world.finish()


LIMITED = """
import resource, sys, threading
from pathlib import Path
from edge_agent.mqtt.inflight import Inflight
from edge_agent.mqtt.message import Channel
from edge_agent.mqtt.spool_writer import SpoolWriter
from tests.helpers.mqtt_client import message
from tests.helpers.support import PATIENCE, wait_until

path, lock, inflight = Path(sys.argv[1]), threading.Condition(), Inflight()
writer = SpoolWriter(path, inflight, lock)
inflight.on_work = writer.wake

def limit(size):
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

def ticks(claim):
    with lock:
        writer.tick(adopt=False)
    return claim()

threading.stack_size(2**20)
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit(pages * resource.getpagesize() + int(sys.argv[2]))
with lock:
    inflight.enqueue(inflight.add(message(Channel("p", 1, lossless=False), 1)))
wait_until(lambda: ticks(lambda: writer.problem), "a problem")
print(writer.problem)
limit(resource.RLIM_INFINITY)
wait_until(lambda: ticks(lambda: not inflight.unsaved()), "it to be written")
wait_until(lambda: writer.problem is None, "no more problem")
writer.close(PATIENCE)
"""


@pytest.mark.parametrize("room", [0, 3 * 2**19], ids=["no thread", "no memory"])
def test_where_memory_is_limited_messages_wait_for_it_and_nothing_ends(
    room: int, tmp_path: Path
) -> None:
    """Under `ulimit -v` the agent ended with "spool died" as soon as the broker went away."""
    path = tmp_path / "spool.db"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(room)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    why = "allows no further thread" if room == 0 else f"{path}: cannot be written: "
    assert why in done.stdout
    assert "Traceback" not in done.stderr
    assert kept(path)[Kind.RESULT] == [1]
