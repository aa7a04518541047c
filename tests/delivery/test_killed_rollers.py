"""Whoever leads a roll-out or changes one is killed, at twenty messages; others go on."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tomli_w

from edge_agent.delivery.plan import read
from edge_agent.models.packages.build import open_package
from tests.helpers.boxes import Boxes
from tests.helpers.push import model_folder
from tests.helpers.support import PATIENCE, Heard, Listener, Mosquitto, Relay, call_cli

WAVES = 5
EACH = 2
"""Devices of a wave."""
GATE = {"hold_s": 0.1, "timeout_s": 60}
KEPT = 8192
"""Bytes that a message may have begun before."""


class RollOut(Relay):
    """A roll-out, and the way to the broker of those who lead it: one is killed at a message.

    It is dead before the broker, or it, is given that message.
    """

    def __init__(self, folder: Path, broker: Mosquitto, number: int) -> None:
        self.name = f"level-{number}"
        self.waves = [
            [f"box-{(number * WAVES + wave) * EACH + each:04}" for each in range(EACH)]
            for wave in range(WAVES)
        ]
        self.devices = {name for wave in self.waves for name in wave}
        made = model_folder(folder / self.name, "2", self.name, hidden=60)
        tar = folder / f"{self.name}.tar"
        key = ("--key", str(folder / "push.key"))
        assert call_cli("pack", str(made), "-o", str(tar), *key).code == 0
        package = open_package(tar)
        assert package is not None
        self.bytes = sum(package.blocks.lengths)
        self.blocks = len(package.blocks)
        self.file = folder / f"{self.name}.toml"
        waves = [{"devices": wave} for wave in self.waves]
        self.file.write_text(tomli_w.dumps({"package": tar.name, "waves": waves, "gate": GATE}))
        self.id = ""
        self._recent: dict[socket.socket, bytes] = {}
        self._key = key
        self._moment: re.Pattern[bytes] | None = None
        self._process: subprocess.Popen[str] | None = None
        super().__init__(broker.port)

    def pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        sent = any(source is client for client, _ in self._pairs)
        recent = self._recent[source] = self._recent.get(source, b"")[-KEPT:] + data
        if self._moment is not None and self._moment.search((b">" if sent else b"<") + recent):
            assert self._process is not None
            self._moment = None
            self._process.kill()
            self._process.wait()
        if sent and (found := re.search(rb"@rollout/(level-[\w-]{8})", recent)):
            self.id = found[1].decode()
        super().pass_on(data, source, sink)

    def run(self, verb: str, *more: str, until: bytes | None = None) -> str:
        """Run a command to its end, or kill it at a message; give what it has said."""
        what = str(self.file) if verb == "start" else self.id
        command = [sys.executable, "-m", "edge_agent", "rollout", verb, what, *more, *self._key]
        self._process = subprocess.Popen(
            [*command, "--broker", self.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._moment = None if until is None else re.compile(until, re.DOTALL)
        said, _ = self._process.communicate(timeout=PATIENCE)
        assert (self._process.returncode == -9) == (until is not None), said
        return said

    def plan(self, wave: int, state: str = "running") -> bytes:
        """When a command has it go so far."""
        return rf'^>.*@rollout/{self.name}-.*"{state}\\", \\"wave\\": {wave},'.encode()

    def word(self, wave: int, nth: int, state: str) -> bytes:
        """When the nth device of a wave says so."""
        return rf'^<.*/{self.waves[wave][nth]}/rollout[^}}]*"{state}"'.encode()

    def check(self, heard: list[Heard]) -> None:
        """See that no wave began before its plan, and none twice."""
        begun, wave = Counter[str](), -1
        for each in heard:
            if each.topic == f"edge/@rollout/{self.id}" and each.payload:
                plan = read(each.payload, None)
                assert wave <= plan.wave <= wave + 1
                wave = plan.wave
            elif each.topic.endswith("/rollout") and each.json["id"] == self.id:
                assert each.json["wave"] <= wave or each.json["state"] == "aborted"
                begun[each.topic] += each.json["state"] == "receiving"
        assert set(begun.values()) <= {0, 1}


def senders(it: RollOut) -> set[str]:
    """Kill five who send a package; give the devices that are to have it."""
    parts = "list/0", "block/0", f"block/{it.blocks - 1}", "offer"
    for part in parts:
        it.run("start", until=rf"^>.*@package/\w*/{part}".encode())
    it.run("start", until=it.plan(0))
    assert "is through" in it.run("resume")
    return it.devices


def leaders(it: RollOut) -> set[str]:
    """Kill five who lead, as a wave begins and within it."""
    it.run("start", until=it.plan(1))
    words = it.word(2, 0, "receiving"), it.word(3, 0, "live"), it.word(4, 1, "live")
    for moment in (it.plan(1), *words):
        it.run("resume", until=moment)
    assert "is through" in it.run("resume")
    return it.devices


def deciders(it: RollOut) -> set[str]:
    """Kill five who lead, pause, and take it back."""
    it.run("start", until=it.word(0, 1, "live"))
    it.run("resume", until=it.word(1, 0, "receiving"))
    it.run("pause", until=it.plan(1, "paused"))
    it.run("resume", until=it.word(2, 1, "live"))
    it.run("abort", "--back", until=it.plan(2, "aborted"))
    return set()


def finishers(it: RollOut) -> set[str]:
    """Kill five, of whom three remove it."""
    it.run("start", until=it.word(1, 1, "receiving"))
    it.run("resume", until=it.plan(4))
    assert "is through" in it.run("resume")
    it.run("finish", until=it.plan(4, "paused"))
    it.run("finish", until=rb"^>.*@package/\w*/block/0")
    it.run("finish", until=rb"^>.*/offer.*@rollout/")
    return it.devices


def test_rollers_killed_at_twenty_messages_are_followed_by_others(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """Each device begins once, in its wave, draws the package once, and has the right version.

    Four roll-outs at the same time, of which none disturbs another.
    """
    assert call_cli("keygen", str(tmp_path / "push.key")).code == 0
    ways = senders, leaders, deciders, finishers
    outs = [RollOut(tmp_path, broker, number) for number in range(len(ways))]
    listener = Listener(broker.port)
    with Boxes(broker.port, len(ways) * WAVES * EACH) as boxes, ThreadPoolExecutor() as threads:
        updated = list(threads.map(lambda way, it: way(it), ways, outs))
        list(threads.map(lambda it: it.run("finish"), outs))
        listener.catch_up()
        for it, wanted in zip(outs, updated, strict=True):
            it.check(listener.heard)
            live = {name: boxes.all[name].live for name in it.devices}
            assert live == {name: "2" if name in wanted else "1" for name in it.devices}
            assert {boxes.all[name].received for name in wanted} <= {it.bytes}
        left = {each.topic: each.payload for each in listener.heard if "/@" in each.topic}
        assert not any(left.values())
    listener.close()
    for it in outs:
        it.shut()
