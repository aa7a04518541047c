"""An abort or a pause that crosses what the one who leads does at the same moment."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from edge_agent.delivery.plan import Plan, read, seal
from edge_agent.models.packages.keys import load_private
from tests.delivery.test_fleet import packed, rollout, stock
from tests.helpers.boxes import Boxes
from tests.helpers.support import PATIENCE, Called, Listener, Mosquitto, Relay, run_cli, wait_until

__all__ = ["stock"]
KEPT = 8192
"""Bytes that a message may have begun before."""
WAVE_2 = rb'"running\\", \\"wave\\": 1,'
DONE = rb'"done\\", \\"wave\\": 1,'


class Way(Relay):
    """The way of the one who leads to the broker, on which a message is held while others act."""

    def __init__(self, broker: Mosquitto) -> None:
        self._recent = {True: b"", False: b""}
        self._moments: dict[bool, tuple[re.Pattern[bytes], Callable[[], None]]] = {}
        self._decided = threading.Event()
        self._decided.set()
        super().__init__(broker.port)

    def at(self, pattern: bytes, call: Callable[[], None], *, sent: bool) -> None:
        """Hold a message until a call has ended; *sent*: by the leader, not to it."""
        self._moments[sent] = re.compile(pattern, re.DOTALL), call

    def bar_until_the_leader_has_decided(self) -> None:
        """Pass nothing more on to the leader until it writes, or reads, the plan."""
        self._decided.clear()
        self.at(rb"@rollout/", self._decided.set, sent=True)

    def pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        sent = any(source is client for client, _ in self._pairs)
        if not sent:
            assert self._decided.wait(PATIENCE)
        self._recent[sent] = self._recent[sent][-KEPT:] + data
        if sent in self._moments and self._moments[sent][0].search(self._recent[sent]):
            _, call = self._moments.pop(sent)
            self._recent[sent] = b""
            call()
        super().pass_on(data, source, sink)


class Scene:
    """A roll-out of two waves; of the second, one device is away."""

    def __init__(self, folder: Path, broker: Mosquitto, boxes: Boxes) -> None:
        self.key = folder / "push.key"
        self._folder = folder
        self._boxes = boxes
        self._broker = broker
        self._listener = Listener(broker.port)
        self.way = Way(broker)
        self._plan = folder / "plan.toml"
        waves = [{"devices": ["box-0000"]}, {"group": "lab"}]
        tables = {"waves": waves, "gate": {"hold_s": 0.0, "timeout_s": 5}}
        self._plan.write_text(tomli_w.dumps({**tables, "package": packed(folder, "2").name}))
        boxes.do(lambda: boxes.remove(["box-0002"]))

    def lead(self, monkeypatch: pytest.MonkeyPatch) -> Called:
        """Lead it to its end."""
        monkeypatch.setenv("EDGE_AGENT_BROKER__URL", self.way.url)
        led = rollout("start", self._folder, str(self._plan))
        self._listener.catch_up()
        return led

    def plans(self) -> list[Plan]:
        """Give what was put on the topic of the roll-out, all of it retained, in order."""
        heard = list(self._listener.heard)
        return [read(h.payload, None) for h in heard if "/@rollout/" in h.topic and h.payload]

    def abort(self) -> None:
        """Have an operator abort it, by another way to the broker."""
        key = ("--key", str(self.key))
        done = run_cli("rollout", "abort", *key, "--broker", self._broker.url)
        assert "is aborted: by " in done.stdout, done.stderr

    def decide(self, state: Any, later_by: int, **more: Any) -> None:
        """Have an operator change the state, with a serial above the last that could be seen."""
        last = self.plans()[-1]
        serial = last.serial + later_by
        plan = replace(last, serial=serial, state=state, by="jo@desk", why="by jo@desk", **more)
        sealed = seal(plan, load_private(self.key))
        self._listener.publish(f"edge/@rollout/{last.id}", sealed, retain=True)
        self._listener.catch_up()

    def come_back(self) -> None:
        """Have the device that was away come back, and see that it installs nothing."""
        boxes, name = self._boxes, self.plans()[-1].id
        boxes.do(lambda: boxes.add(["box-0002"]))
        box = boxes.all["box-0002"]
        wait_until(lambda: name in box.words, "a word of the device that was away")
        assert (box.words[name]["state"], box.live) == ("aborted", "1")

    def close(self) -> None:
        self._listener.close()
        self.way.shut()


def test_a_leader_that_stood_still_amid_an_abort_begins_no_wave(
    tmp_path: Path, stock: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever went on with `fg` overrode it, and a device that came back later installed it."""
    with Boxes(stock.port, 3) as boxes:
        scene = Scene(tmp_path, stock, boxes)

        def stand_still() -> None:
            scene.abort()
            scene.way.bar_until_the_leader_has_decided()

        scene.way.at(rb'/box-0000/rollout[^}]*"live"', stand_still, sent=False)
        led = scene.lead(monkeypatch)
        plans = scene.plans()
        assert (plans[-1].state, {plan.wave for plan in plans}) == ("aborted", {0}), led
        assert (led.code, "leads it now; it is aborted" in led.err) == (1, True), led
        scene.come_back()
        scene.close()


@pytest.mark.parametrize("later_by", [1, 1000], ids=["clock-behind", "clock-ahead"])
@pytest.mark.parametrize(
    ("moment", "state"), [(WAVE_2, "aborted"), (DONE, "aborted"), (DONE, "paused")]
)
def test_what_an_operator_decides_while_a_plan_of_the_leader_is_on_its_way_holds(
    tmp_path: Path,
    stock: Mosquitto,
    monkeypatch: pytest.MonkeyPatch,
    moment: bytes,
    state: str,
    later_by: int,
) -> None:
    """The leader's link stood still: its plan came last, and both said that it is aborted."""
    with Boxes(stock.port, 3) as boxes:
        scene = Scene(tmp_path, stock, boxes)
        scene.way.at(moment, lambda: scene.decide(state, later_by), sent=True)
        led = scene.lead(monkeypatch)
        last = scene.plans()[-1]
        assert (last.state, last.by) == (state, "jo@desk"), led
        assert last.serial == max(plan.serial for plan in scene.plans())
        assert f"jo@desk leads it now; it is {state}" in led.err
        assert led.code == 1
        if state == "aborted":
            scene.come_back()
        scene.close()


def test_an_abort_by_a_clock_that_is_behind_reaches_devices(
    tmp_path: Path, stock: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came last, but devices had seen a later plan: all said "aborted", and they went on."""
    with Boxes(stock.port, 3) as boxes:
        scene = Scene(tmp_path, stock, boxes)
        scene.way.at(WAVE_2, lambda: scene.decide("aborted", -5), sent=False)
        led = scene.lead(monkeypatch)
        last = scene.plans()[-1]
        assert (last.state, last.by) == ("aborted", "jo@desk"), led
        assert last.serial == max(plan.serial for plan in scene.plans())
        assert (led.code, "jo@desk leads it now; it is aborted" in led.err) == (1, True), led
        scene.come_back()
        scene.close()


def test_the_abort_of_another_roll_out_that_a_stranger_copies_ends_no_leader(
    tmp_path: Path, stock: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is signed with the same key, and lies there for all to read."""
    with Boxes(stock.port, 3) as boxes:
        scene = Scene(tmp_path, stock, boxes)
        copied = partial(scene.decide, "aborted", 1000, id="level-000000")
        scene.way.at(WAVE_2, copied, sent=True)
        led = scene.lead(monkeypatch)
        assert led.code == 0, led
        assert "somebody else writes on its topic" in led.err
        assert scene.plans()[-1].state == "done"
        scene.close()
