"""Roll-outs to real agents over a real mosquitto: waves, gates, who comes late, and strangers."""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import tomli_w

from edge_agent.cli.commands.rollout_start import read_plan
from edge_agent.core.errors import UsageError
from edge_agent.delivery.plan import Plan, read, seal
from edge_agent.models.packages.keys import load_private
from edge_agent.mqtt.payloads import iso
from tests.helpers.push import Box, golden, model_folder, start_box
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Heard,
    Listener,
    Mosquitto,
    run_cli,
    wait_until,
)

Agents = Callable[..., AgentProcess]
Listening = Callable[..., Listener]
CONFIGURE = (
    *(sys.executable, "-m", "edge_agent"),
    *("configure", "--device", "@lab", "--persist"),
)
GATE = {"hold_s": 0.2, "timeout_s": 60}


class Fleet:
    """Agents that trust one key, and what is done with roll-outs to them."""

    def __init__(self, folder: Path, broker: Mosquitto, listener: Listener, agent: Agents) -> None:
        self.folder = folder
        self.broker = broker
        self.listener = listener
        self._agent = agent
        self.key = self.make_key("push")
        (folder / "trust").mkdir()
        shutil.copy(f"{self.key}.pub", folder / "trust")

    def make_key(self, name: str) -> Path:
        path = self.folder / f"{name}.key"
        assert run_cli("keygen", str(path)).returncode == 0
        return path

    def box(self, device: str, **settings: Any) -> Box:
        """Start an agent, of which the broker knows its groups."""
        groups = settings.setdefault("groups", ["lab"])
        box = start_box(
            self.folder / device,
            self.broker,
            self.listener,
            self._agent,
            device,
            trust={"keys": [str(self.folder / "trust")]},
            **settings,
        )
        self.listener.wait_state(box.topic("info"), groups=groups)
        return box

    def package(self, version: str, **how: Any) -> Path:
        """Make a signed package that the agents accept, or with `bad` reject in their trial."""
        bad = how.pop("bad", False)
        folder = model_folder(self.folder / version, version, **how)
        if bad:
            golden(folder, {"scores": np.array([[0, 0, 1]], np.float32)})
        tar = self.folder / f"{version}.tar"
        done = run_cli("pack", str(folder), "-o", str(tar), "--key", str(self.key))
        assert done.returncode == 0, done.stderr
        return tar

    def plan(self, package: Path, *waves: dict[str, Any], **more: Any) -> Path:
        """Write a plan."""
        file = package.with_suffix(".toml")
        tables = {"package": package.name, "waves": list(waves), "gate": GATE, **more}
        file.write_text(tomli_w.dumps(tables))
        return file

    def roll(self, verb: str, *more: str) -> Any:
        """Run `edge-agent rollout`."""
        key = () if verb == "status" else ("--key", str(self.key))
        return run_cli("rollout", verb, *more, *key, "--broker", self.broker.url)

    def start(self, verb: str, *more: str) -> subprocess.Popen[str]:
        """Begin to run `edge-agent rollout`."""
        command = [sys.executable, "-m", "edge_agent", "rollout", verb, *more]
        return subprocess.Popen(
            [*command, "--key", str(self.key), "--broker", self.broker.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sealed(self) -> list[bytes]:
        """Give what was put on topics of roll-outs, in order."""
        return [h.payload for h in self.listener.heard if "/@rollout/" in h.topic and h.payload]

    def last_plan(self) -> Plan:
        return read(self.sealed()[-1], None)


@pytest.fixture
def fleet(tmp_path: Path, broker: Mosquitto, agent: Agents, listen: Listening) -> Fleet:
    """Give a broker, a listener to all, and a key that agents will trust."""
    return Fleet(tmp_path, broker, listen(broker.port), agent)


def test_waves_go_through_and_late_devices_are_caught_up(fleet: Fleet) -> None:
    """First the device that is named, then the group; one that was away has it when it is back.

    The package is sent once, and `finish` leaves nothing of it on the broker.
    """
    one, two = fleet.box("edge-01"), fleet.box("edge-02")
    three = fleet.box("edge-03", protocol=4)
    assert three.agent.stop() == 0
    plan = fleet.plan(fleet.package("2", best=2), {"devices": ["edge-01"]}, {"group": "lab"})
    done = fleet.roll("start", str(plan))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wave 1 of 2 (edge-01): 1 device: 1 waiting" in done.stdout
    assert "1 live, 1 offline" in done.stdout
    for box in (one, two):
        box.results_go_on("2")
        word = fleet.listener.last(box.topic("rollout"))
        assert word is not None
        assert (word["state"], word["from"], word["version"]) == ("live", "1", "2")
    first = [h.topic.split("/")[1] for h in fleet.listener.heard if h.topic.endswith("/rollout")]
    assert first.index("edge-01") < first.index("edge-02")
    blocks = [h.topic for h in fleet.listener.heard if "/block/" in h.topic]
    assert len(blocks) == len(set(blocks)), "a block was sent twice"

    three.agent.restart()
    three.wait_live("2")
    name = fleet.last_plan().id
    shown = fleet.roll("status", "--json")
    says = json.loads(shown.stdout)
    assert (says["id"], says["state"]) == (name, "done")
    fleet.listener.wait_state(three.topic("rollout"), state="live")
    assert json.loads(fleet.roll("status", "--json").stdout)["waves"][1]["states"] == {"live": 2}
    refused = fleet.roll("finish", fleet.last_plan().transfer)
    assert (refused.returncode, refused.stdout) == (1, ""), "taken off those who need it"
    assert "is of a roll-out" in refused.stderr
    done = fleet.roll("finish", name)
    assert done.returncode == 0, done.stderr
    assert "no roll-out is on this broker" in fleet.roll("status").stdout
    left = Listener(fleet.broker.port, "edge/@package/#")
    left.publish("edge/@package/mark", b"{}")
    left.wait_for(lambda heard: heard, "the mark")
    left.close()
    assert [heard.topic for heard in left.heard] == ["edge/@package/mark"]


def test_a_wave_of_nobody_online_is_gone_on_without(fleet: Fleet) -> None:
    """Also the last one, which was led again and again; who comes back has the version."""
    one, two = fleet.box("edge-01"), fleet.box("edge-02")
    assert two.agent.stop() == 0
    waves = [{"devices": [device]} for device in ("edge-01", "edge-02")]
    plan = fleet.plan(fleet.package("2", best=2), *waves, gate={**GATE, "timeout_s": 5})
    done = fleet.roll("start", str(plan))
    assert done.returncode == 1
    assert "paused: after 5 s no device of the wave is online; resume --next goes on" in done.stdout
    one.results_go_on("2")
    done = fleet.roll("resume", "--next")
    assert done.returncode == 0, done.stderr
    assert "is through; devices that were away are caught up" in done.stdout
    two.agent.restart()
    two.wait_live("2")


def test_a_version_that_no_pipeline_runs_is_live_with_that_reason(fleet: Fleet) -> None:
    """Where the only pipeline named another version, it was live in silence, and seen by nobody."""
    box = fleet.box("edge-01", pipelines=[{"name": "door", "model": "level@1"}])
    package = fleet.package("2", best=2)
    done = fleet.roll("start", str(fleet.plan(package, {"group": "lab"})))
    assert done.returncode == 0, done.stdout + done.stderr
    why = "nothing runs it: what uses the model names level@1"
    assert f"  1 device live: {why} (edge-01)" in done.stdout
    word = box.listener.wait_state(box.topic("rollout"), state="live")
    assert word["why"] == why
    for target in ("edge-01", "@lab"):
        pushed = run_cli("push", str(package), "--device", target, "--broker", fleet.broker.url)
        assert f"edge-01: live already: {why}\n" in pushed.stdout, pushed.stderr
    newer = ("push", str(fleet.package("3", best=2)), "--device", "edge-01", "--until", "live")
    pushed = run_cli(*newer, "--broker", fleet.broker.url)
    assert re.search(f"edge-01: live, .*: {why}\n", pushed.stdout), pushed.stdout
    box.results_go_on("1")


def test_what_was_rolled_back_by_hand_is_not_said_to_be_live(fleet: Fleet) -> None:
    """Nor is it installed again; a device that was restarted meanwhile said so for ever."""
    box = fleet.box("edge-01")
    plan = fleet.plan(fleet.package("2", best=2), {"group": "lab"})
    assert fleet.roll("start", str(plan)).returncode == 0
    box.wait_live("2")
    back = run_cli("rollback", "level", "--device", "edge-01", "--broker", fleet.broker.url)
    assert back.returncode == 0, back.stderr
    assert box.agent.stop() == 0
    box.agent.restart()
    word = fleet.listener.wait_state(box.topic("rollout"), state="rolled-back")
    assert word["why"] == "level@1 serves again"
    box.results_go_on("1")


def test_what_an_operator_installs_again_is_not_taken_back(fleet: Fleet) -> None:
    """Whoever rolled back by hand, and pushed it again, lost that to `abort --back`."""
    box = fleet.box("edge-01")
    package = fleet.package("2", best=2)
    assert fleet.roll("start", str(fleet.plan(package, {"group": "lab"}))).returncode == 0
    at = ("--device", "edge-01", "--broker", fleet.broker.url)
    assert run_cli("rollback", "level", *at).returncode == 0
    fleet.listener.wait_state(box.topic("rollout"), state="rolled-back")
    assert run_cli("push", str(package), *at, "--until", "live").returncode == 0
    assert fleet.roll("abort", "--back").returncode == 0
    box.health()
    box.results_go_on("2")


def test_a_wave_that_fails_takes_all_back_and_nobody_installs_it_later(fleet: Fleet) -> None:
    """Who had it goes back; who was away finds it aborted, and follows no older state of it."""
    one = fleet.box("edge-01")
    fleet.box("edge-02", trial={"min_agreement": 0.9})
    three = fleet.box("edge-03")
    assert three.agent.stop() == 0
    waves = ({"devices": ["edge-01"]}, {"group": "lab", "share": 1.0})
    plan = fleet.plan(fleet.package("2", best=2), *waves, on_failure="back")
    done = fleet.roll("start", str(plan))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 1 device rejected it, at most 5% may" in done.stdout
    assert re.search(r"1 device rejected: .*agrees on 0% .* \(edge-02\)", done.stdout), done.stdout
    one.results_go_on("1")
    word = fleet.listener.wait_state(one.topic("rollout"), state="rolled-back")
    assert "rejected it" in word["why"]
    went = one.wait_settled(outcome="rolled-back", version="2")["last"]["why"]
    assert re.match(r"roll-out level-\w+ was aborted: 1 of 1 device rejected it", went), went
    three.agent.restart()
    fleet.listener.wait_state(three.topic("rollout"), state="aborted")
    running = next(sealed for sealed in fleet.sealed() if read(sealed, None).wave == 1)
    topic = f"edge/@rollout/{fleet.last_plan().id}"
    fleet.listener.publish(topic, running, retain=True)
    fleet.listener.wait_for(lambda _h: three.health()["malformed"] == 1, "it to be refused")
    three.results_go_on("1")
    assert three.stored()["incoming"] == set()

    unsigned = run_cli("rollout", "abort", "--broker", fleet.broker.url)
    assert (unsigned.returncode, unsigned.stdout) == (1, "")
    assert "it is signed; give the key with --key" in unsigned.stderr
    assert fleet.roll("finish").returncode == 0
    assert fleet.roll("abort").returncode == 1
    assert "not on this broker" in fleet.roll("pause", "level-000000").stderr


def test_what_was_taken_back_does_not_serve_when_a_later_version_goes_back(fleet: Fleet) -> None:
    """The roll-out of 2 is aborted while 3 serves, and then that of 3: 1 serves again, not 2."""
    box = fleet.box("edge-01")
    names = []
    for version in ("2", "3"):
        plan = fleet.plan(fleet.package(version, best=int(version) % 3), {"group": "lab"})
        assert fleet.roll("start", str(plan)).returncode == 0
        box.wait_live(version)
        names.append(fleet.last_plan().id)
    for name, serves in zip(names, ("3", "1"), strict=True):
        assert fleet.roll("abort", name, "--back").returncode == 0
        fleet.listener.wait_state(box.topic("rollout"), id=name, state="rolled-back")
        box.wait_live(serves)
    box.results_go_on("1")
    assert "level@2: nothing goes back to it: roll-out" in box.agent.words()


def test_what_strangers_write_makes_no_device_do_anything(fleet: Fleet) -> None:
    """Neither install nor go back nor abort: by other keys, none, another id, or damaged."""
    box = fleet.box("edge-01")
    plan = fleet.plan(fleet.package("2", best=2), {"group": "lab"})
    assert fleet.roll("start", str(plan)).returncode == 0
    box.wait_live("2")
    word = fleet.listener.wait_state(box.topic("rollout"), state="live")
    good = fleet.sealed()[-1]
    done = read(good, None)
    later = replace(done, serial=done.serial + 1, state="aborted", back=True)
    stranger = load_private(fleet.make_key("stranger"))
    other = json.loads(seal(later, stranger))
    own = json.loads(good)
    topics = {
        f"edge/@rollout/{done.id}": [
            seal(later, stranger),
            seal(later, None),
            json.dumps({**own, "signed": other["signed"]}).encode(),
            json.dumps({**own, "signature": base64.b64encode(bytes(64)).decode()}).encode(),
            json.dumps({"schema": 1, "signed": {}, "signature": 7}).encode(),
            b"\x00\xff",
            b"[" * 70_000,
        ],
        f"edge/@rollout/{done.id}x": [good],
        "edge/@rollout/a/b": [good],
        "edge/@rollout/new-000000": [seal(replace(done, id="new-000000"), stranger)],
        f"edge/@package/{done.transfer}/block/0": [b"x"],
        "edge/@package/offer": [b"x"],
    }
    before = box.health()["malformed"]
    for topic, payloads in topics.items():
        for payload in payloads:
            fleet.listener.publish(topic, payload, retain=True)
    sent = sum(len(payloads) for topic, payloads in topics.items() if "/@rollout/" in topic)
    fleet.listener.wait_for(
        lambda _h: (fleet.listener.last(box.topic("health")) or {})["malformed"] - before == sent,
        "all of them to be counted",
    )
    box.results_go_on("2")
    told = fleet.listener.wait_for(
        lambda _h: (now := fleet.listener.last(box.topic("rollout")) or {}).get("others") and now,
        "why not",
    )
    (refused,) = told["others"]
    assert told == {**word, "others": [refused], "time": ANY}
    why = "it is signed by no key that is trusted here"
    assert (refused["id"], refused["state"], refused["why"]) == ("new-000000", "waiting", why)
    shown = fleet.roll("status", "new-000000").stdout
    assert f"1 device waiting: {why} (edge-01)" in shown
    # What is no roll-out can be removed, and the package stays for who puts a good one there.
    assert (
        fleet.roll("finish", done.id).stdout == f"roll-out {done.id} is removed from the broker\n"
    )
    fleet.listener.publish(f"edge/@rollout/{done.id}", good, retain=True)
    assert fleet.roll("finish", done.id).returncode == 0


def test_a_plan_that_names_another_version_than_its_package_is_rejected(fleet: Fleet) -> None:
    """A plan made by hand reported a version as live that no device had."""
    box = fleet.box("edge-01")
    plan = fleet.plan(fleet.package("2", best=2), {"group": "lab"})
    assert fleet.roll("start", str(plan)).returncode == 0
    box.wait_live("2")
    done = fleet.last_plan()
    by_hand = replace(done, id="by-hand", version="9", state="running", created=iso(time.time_ns()))
    fleet.listener.publish(
        "edge/@rollout/by-hand", seal(by_hand, load_private(fleet.key)), retain=True
    )
    word = fleet.listener.wait_state(box.topic("rollout"), id="by-hand", state="rejected")
    assert word["why"] == "the roll-out is of level@9, but its package is level@2; start a new one"
    box.results_go_on("2")


def test_who_leads_is_told_at_once_why_a_device_does_not_begin(fleet: Fleet) -> None:
    """With a key that no device trusts a wave waits for an hour; the reason comes at its begin."""
    fleet.box("edge-01")
    fleet.key = fleet.make_key("stranger")
    plan = fleet.plan(fleet.package("2", best=2), {"group": "lab"})
    leading = fleet.start("start", str(plan))
    assert leading.stderr is not None
    why = "  1 device waiting: it is signed by no key that is trusted here (edge-01)"
    said = []
    for line in leading.stderr:
        said.append(line.rstrip())
        if said[-1] == why:
            break
    leading.send_signal(signal.SIGINT)
    leading.communicate(timeout=PATIENCE)
    assert said[-1] == why, said


def test_a_later_roll_out_holds_though_the_clock_of_the_one_before_was_ahead(fleet: Fleet) -> None:
    """It was said to be through, and no device had it. One that is superseded is not through.

    What is wrong with a device is said once, however long a wave is held.
    """
    one, two = fleet.box("edge-01"), fleet.box("edge-02")
    waves = ({"devices": ["edge-01"]}, {"group": "lab"})
    plan = fleet.plan(fleet.package("2", best=2), *waves, gate={**GATE, "hold_s": 600})
    leading = fleet.start("start", str(plan))
    one.wait_live("2")
    leading.kill()
    leading.communicate()
    early = fleet.last_plan()
    ahead = iso(time.time_ns() + 2 * 86400 * 10**9)
    sealed = seal(replace(early, serial=early.serial + 1, created=ahead), load_private(fleet.key))
    fleet.listener.publish(f"edge/@rollout/{early.id}", sealed, retain=True)
    later = fleet.plan(fleet.package("3", best=1), {"group": "lab"}, gate={**GATE, "hold_s": 2})
    done = fleet.roll("start", str(later))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  2 devices: 2 live\n" in done.stdout
    assert done.stderr.count("agree") == 1, done.stderr
    for box in (one, two):
        box.results_go_on("3")
    resumed = fleet.roll("resume", early.id, "--next")
    assert resumed.returncode == 1, resumed.stdout
    assert "is paused: a later roll-out supersedes it on every device" in resumed.stdout

    rate = configure(fleet, fleet.key, rate=10)
    assert rate.returncode == 0, rate.stderr
    settings = fleet.last_plan()
    sealed = seal(replace(settings, created=ahead), load_private(fleet.key))
    fleet.listener.publish(f"edge/@rollout/{settings.id}", sealed, retain=True)
    assert configure(fleet, fleet.key, rate=12, threshold=0.2).returncode == 0
    for box in (one, two):
        fleet.listener.wait_state(box.topic("pipeline", "door"), rate=12, threshold=0.2)


def test_what_the_broker_has_lost_supersedes_nothing(fleet: Fleet) -> None:
    """No command got out of it: what was in the way could be neither seen nor aborted."""
    box = fleet.box("edge-01")
    plan = fleet.plan(fleet.package("2", best=2), {"group": "lab"})
    assert fleet.roll("start", str(plan)).returncode == 0
    early, ahead = fleet.last_plan(), iso(time.time_ns() + 2 * 86400 * 10**9)
    sealed = seal(replace(early, serial=early.serial + 1, created=ahead), load_private(fleet.key))
    fleet.listener.publish(f"edge/@rollout/{early.id}", sealed, retain=True)
    known = box.state / "rollouts.json"
    wait_until(
        lambda: json.loads(known.read_text())[early.id]["serial"] > early.serial, "it to be heard"
    )
    fleet.broker.stop()
    fleet.broker.start()
    fleet.listener.wait_state(box.topic("status"), state="online", reason="reconnected")
    fleet.listener.wait_state(box.topic("info"), groups=["lab"])
    later = fleet.plan(fleet.package("3", best=1), {"group": "lab"})
    done = fleet.roll("start", str(later))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  1 device: 1 live\n" in done.stdout
    box.results_go_on("3")


@pytest.mark.parametrize(
    ("wave", "why"),
    [
        ({"devices": []}, "waves.0.devices: names no device"),
        ({"group": ""}, "waves.0: '' is no name"),
        ({"devices": ["edge-01"], "group": "lab"}, "waves.0: either devices, or group"),
        ({"share": 0.0}, "waves[0].share: expected a number above 0"),
    ],
)
def test_a_wave_of_nobody_is_no_wave_of_all(tmp_path: Path, wave: Any, why: str) -> None:
    """An empty list of canaries had begun with all devices."""
    file = tmp_path / "plan.toml"
    file.write_text(tomli_w.dumps({"package": "2.tar", "waves": [wave]}))
    with pytest.raises(UsageError) as problem:
        read_plan(file)
    assert why in str(problem.value)


def test_an_expired_roll_out_is_not_led_again(fleet: Fleet) -> None:
    """A broker of MQTT 3.1.1 keeps it; a wave of it waited for an hour."""
    box = fleet.box("edge-01")
    plan = fleet.plan(fleet.package("2", best=2), {"group": "lab"})
    assert fleet.roll("start", str(plan)).returncode == 0
    box.wait_live("2")
    late = replace(fleet.last_plan(), state="paused", expires=iso(time.time_ns() - 10**9))
    sealed = seal(late, load_private(fleet.key))
    fleet.listener.publish(f"edge/@rollout/{late.id}", sealed, retain=True)
    resumed = fleet.roll("resume")
    assert (resumed.returncode, "has expired at" in resumed.stderr) == (1, True), resumed.stderr


def test_any_roller_may_die_and_another_goes_on(fleet: Fleet) -> None:
    """The killed one is followed by `resume`; one that lives ends when somebody else leads."""
    one, two = fleet.box("edge-01"), fleet.box("edge-02")
    gate = {**GATE, "hold_s": 600}
    waves = ({"devices": ["edge-01"]}, {"group": "lab"})
    plan = fleet.plan(fleet.package("2", best=2), *waves, gate=gate)
    first = fleet.start("start", str(plan))
    one.wait_live("2")
    first.kill()
    first.wait()
    name = fleet.last_plan().id
    second = fleet.start("resume", name)
    fleet.listener.wait_for(lambda _h: len(fleet.sealed()) > 1, "the second to lead")
    third = fleet.start("resume", name, "--next")
    _, words = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "leads it now; it is running" in words
    two.wait_live("2")
    paused = fleet.roll("pause", name)
    assert "is paused: by " in paused.stdout, paused.stderr
    _, words = third.communicate(timeout=60)
    assert "leads it now; it is paused" in words
    back = fleet.roll("abort", "--back")
    assert back.returncode == 0, back.stderr
    for box in (one, two):
        fleet.listener.wait_state(box.topic("rollout"), state="rolled-back")
        box.results_go_on("1")
    assert fleet.roll("abort").returncode == 0
    assert fleet.last_plan().back, "who was away would keep it"
    again = fleet.roll("resume")
    assert again.returncode == 1
    assert "is aborted; start another one" in again.stderr


def test_a_device_and_a_broker_that_are_killed_lose_nothing(fleet: Fleet) -> None:
    """A device goes on with the blocks that it has; a broker that forgets all is given it again."""
    one, two = fleet.box("edge-01"), fleet.box("edge-02")
    package = fleet.package("2", best=2, hidden=4000)
    waves = ({"devices": ["edge-01"]}, {"group": "lab"})
    plan = fleet.plan(package, *waves, gate={**GATE, "hold_s": 1})
    roller = fleet.start("start", str(plan))
    transfer = fleet.listener.wait_for(
        lambda heard: next((h.topic for h in heard if "/push/" in h.topic and _have(h) >= 40), ""),
        "forty blocks",
    )
    one.agent.process.kill()
    one.agent.wait()
    before = len(fleet.listener.on(transfer))
    one.agent.restart()
    one.wait_live("2")
    assert fleet.listener.on(transfer)[before]["have"] >= 40
    fleet.broker.stop()
    subscribed = fleet.listener.subscribed
    fleet.broker.start()
    fleet.listener.wait_for(lambda _h: fleet.listener.subscribed > subscribed, "the broker")
    two.wait_live("2")
    said, words = roller.communicate(timeout=60)
    assert roller.returncode == 0, said + words
    assert "trying again" in words
    shown = fleet.roll("status")
    assert shown.stdout.count("1 device: 1 live") == 2, shown.stdout


def test_what_was_aborted_while_a_device_was_off_is_not_installed_before_it_hears_so(
    fleet: Fleet,
) -> None:
    """A trial that the end of the agent cut off went on before the broker could be reached."""
    box = fleet.box("edge-01", trial={"shadow_frames": 100_000, "timeout_s": 600})
    roller = fleet.start("start", str(fleet.plan(fleet.package("2", best=2), {"group": "lab"})))
    box.listener.wait_state(box.topic("rollout"), state="shadow")
    box.agent.signal(signal.SIGKILL)
    box.agent.wait()
    assert fleet.roll("abort").returncode == 0
    roller.communicate(timeout=60)
    settings = box.agent.config
    settings.write_text(settings.read_text().replace("shadow_frames = 100000", "shadow_frames = 1"))
    broker = fleet.broker.process
    assert broker is not None
    broker.send_signal(signal.SIGSTOP)
    try:
        box.agent.restart()
        waits = "level@2: waits until this device has seen its roll-out again"
        wait_until(lambda: waits in box.agent.words(), "the candidate to be held")
    finally:
        broker.send_signal(signal.SIGCONT)
    box.listener.wait_state(box.topic("rollout"), state="aborted")
    state = box.wait_settled(outcome="rejected", version="2")
    assert state["last"]["why"] == "the roll-out was aborted"
    box.results_go_on("1")
    assert "level@2 is live" not in box.agent.words()


def test_a_push_of_what_waits_for_a_roll_out_that_is_finished_goes_on(
    fleet: Fleet,
) -> None:
    """Its sender heard the same state for ever, and the version could not be installed."""
    box = fleet.box("edge-01", trial={"shadow_frames": 100_000, "timeout_s": 600})
    package = fleet.package("2", best=2)
    roller = fleet.start("start", str(fleet.plan(package, {"group": "lab"})))
    box.listener.wait_state(box.topic("rollout"), state="shadow")
    box.agent.signal(signal.SIGKILL)
    box.agent.wait()
    roller.kill()
    roller.communicate(timeout=60)
    assert fleet.roll("finish").returncode == 0
    settings = box.agent.config
    settings.write_text(settings.read_text().replace("shadow_frames = 100000", "shadow_frames = 1"))
    box.agent.restart()
    waits = "level@2: waits until this device has seen its roll-out again"
    wait_until(lambda: waits in box.agent.words(), "the candidate to be held")
    done = run_cli("push", str(package), "--device", "edge-01", "--broker", fleet.broker.url)
    assert done.returncode == 0, done.stdout + done.stderr
    box.wait_live("2")


def test_who_pushes_to_a_group_may_leave_before_it_is_drawn(fleet: Fleet) -> None:
    """A killed sender leaves the package for its members; the same push again clears it."""
    box = fleet.box("edge-01")
    package = fleet.package("2", best=2, hidden=4000)
    command = [sys.executable, "-m", "edge_agent", "push", str(package), "--device", "@lab"]
    sender = subprocess.Popen([*command, "--broker", fleet.broker.url])
    fleet.listener.wait_for(
        lambda heard: any("/push/" in h.topic and "/in/" not in h.topic for h in heard),
        "a word of the device",
    )
    sender.kill()
    sender.wait()
    box.wait_live("2")
    offers = [h for h in fleet.listener.heard if "/@package/" in h.topic and "/offer" in h.topic]
    assert offers[-1].payload
    again = run_cli(*command[3:], "--broker", fleet.broker.url)
    assert "edge-01: live already" in again.stdout, again.stderr
    fleet.listener.catch_up()
    offers = [h for h in fleet.listener.heard if "/@package/" in h.topic and "/offer" in h.topic]
    assert not offers[-1].payload


def test_a_package_stays_on_the_broker_until_the_last_roll_out_of_it_expires(fleet: Fleet) -> None:
    """A push took it off within the hour, and a second roll-out when that one expired."""
    box = fleet.box("edge-01")
    package = fleet.package("2", best=2)
    plan = fleet.plan(package, {"group": "lab"})
    assert fleet.roll("start", str(plan)).returncode == 0
    box.wait_live("2")
    look = ["mosquitto_sub", "-V", "5", "-p", str(fleet.broker.port), "-C", "1", "-F", "%E"]

    def lasts(level: str) -> int:
        there = subprocess.check_output([*look, "-t", f"edge/@package/+/{level}"], timeout=30)
        return int(there)

    pushed = run_cli("push", str(package), "--device", "@lab", "--broker", fleet.broker.url)
    assert pushed.returncode == 0, pushed.stderr
    assert min(lasts("block/0"), lasts("list/0"), lasts("offer")) > 13 * 86400
    shorter = fleet.plan(package, {"group": "lab"}, expires="1h")
    assert fleet.roll("start", str(shorter)).returncode == 0
    assert min(lasts("block/0"), lasts("list/0"), lasts("offer")) > 13 * 86400


def test_a_push_leaves_the_package_of_a_roll_out_that_begins_meanwhile(fleet: Fleet) -> None:
    """Devices that came back later waited for it, in vain."""
    box = fleet.box("edge-01")
    package = fleet.package("2", best=2)
    box.agent.signal(signal.SIGSTOP)
    command = [sys.executable, "-m", "edge_agent", "push", str(package), "--device", "@lab"]
    sender = subprocess.Popen([*command, "--broker", fleet.broker.url])
    fleet.listener.wait_for(
        lambda heard: any("/in/push/" in h.topic for h in heard), "the offer to the group"
    )
    roller = fleet.start("start", str(fleet.plan(package, {"group": "lab"})))
    fleet.listener.wait_for(lambda _h: fleet.sealed(), "the plan")
    box.agent.signal(signal.SIGCONT)
    assert sender.wait(60) == 0
    said, words = roller.communicate(timeout=60)
    assert roller.returncode == 0, said + words
    fleet.listener.catch_up()
    assert all(h.payload for h in fleet.listener.heard if "/@package/" in h.topic)


def _have(heard: Heard) -> int:
    return int(heard.json.get("have", 0)) if heard.json.get("state") == "need" else 0


def configure(fleet: Fleet, key: Path | None, *more: str, **keys: Any) -> Any:
    """Change settings of `door` for the group, for good."""
    signed = ("--key", str(key)) if key else ()
    file = str(configure_file(fleet, **keys))
    return run_cli(*CONFIGURE[3:], file, "--broker", fleet.broker.url, *signed, *more)


def configure_file(fleet: Fleet, **keys: Any) -> Path:
    """Write settings of `door`."""
    file = fleet.folder / "patch.toml"
    file.write_text(tomli_w.dumps({"pipelines": [{"name": "door", **keys}]}))
    return file


def status(fleet: Fleet, *more: str) -> Any:
    return run_cli("status", "--device", "@lab", "--broker", fleet.broker.url, *more)


def test_settings_of_a_group_reach_who_was_away(fleet: Fleet) -> None:
    """Signed, they lie on the broker: each takes them over once, the oldest first."""
    one, two, three = fleet.box("edge-01"), fleet.box("edge-02"), fleet.box("edge-03", protocol=4)
    assert three.agent.stop() == 0
    done = configure(fleet, fleet.key, rate=20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "@lab: 3 devices: 2 live, 1 offline\nsettings-" in done.stdout
    look = ["mosquitto_sub", "-V", "5", "-p", str(fleet.broker.port), "-t", "edge/@rollout/+"]
    lasts = subprocess.check_output([*look, "-C", "1", "-F", "%E"], timeout=30)
    assert int(lasts) > 13 * 86400, "the broker is not told when they expire"
    for box in (one, two):
        fleet.listener.wait_state(box.topic("pipeline", "door"), rate=20)
    shown = status(fleet).stdout
    assert ", 1 of them behind\n" in shown
    assert shown.splitlines()[-2].startswith("  behind: settings of door (settings-"), shown

    # Of the same keys only the last change lies there; one of other keys is another.
    assert configure(fleet, fleet.key, rate=10).returncode == 0
    assert configure(fleet, fleet.key, threshold=0.2, rate=12).returncode == 0
    one.agent.process.kill()
    one.agent.wait()
    before = len(fleet.listener.on(one.topic("config")))
    one.agent.restart()
    three.agent.restart()
    fleet.listener.wait_state(three.topic("pipeline", "door"), rate=12, threshold=0.2)
    fleet.listener.wait_state(three.topic("rollout"), state="live")
    fleet.listener.wait_state(one.topic("pipeline", "door"), rate=12)
    held = fleet.listener.on(one.topic("config"))[before:]
    assert not any("pending" in says for says in held), "it was taken over twice"
    rates = [says["rate"] for says in fleet.listener.on(three.topic("pipeline", "door"))]
    assert rates.index(10) < rates.index(12)
    assert len({h.topic for h in fleet.listener.heard if "/@rollout/" in h.topic}) == 2
    assert "behind" not in status(fleet).stdout


def has_said(listener: Listener, topic: str, wanted: dict[str, Any]) -> bool:
    """Whether something with these keys was said on a topic."""
    return any(
        wanted.items() <= {k: each.get(k) for k in wanted}.items() for each in listener.on(topic)
    )


def test_who_joins_a_group_later_gets_what_later_settings_of_others_have_left(fleet: Fleet) -> None:
    """One key in common, and all other settings of the group never came; it was said to be ok."""
    one, two = fleet.box("edge-01"), fleet.box("edge-02", groups=["lab", "shop"])
    shop, ids = ("--device", "@shop"), []
    for whom, keys in (
        (shop, {"rate": 20, "threshold": 0.3, "thresholds": {"low": 0.3, "mid": 0.4}}),
        (shop, {"snapshot": True}),
        ((), {"rate": 10, "thresholds": {"low": 0.2}, "snapshot": False}),
    ):
        done = configure(fleet, fleet.key, *whom, **keys)
        assert done.returncode == 0, done.stdout + done.stderr
        ids += re.findall("settings-[0-9a-f]{12}", done.stderr)
    first, second, later = ids
    config = one.agent.config
    config.write_text(config.read_text().replace('"lab"', '"lab", "shop"'))
    assert one.agent.stop() == 0
    one.agent.restart()
    less = f"without what {later} has set since"
    for name, state, why in ((first, "live", less), (second, "superseded", f"by {later}")):
        wanted = {"id": name, "state": state, "why": why}
        wait_until(partial(has_said, fleet.listener, one.topic("rollout"), wanted), str(wanted))
    held, others = (fleet.listener.on(box.topic("config"))[-1]["pipelines"] for box in (one, two))
    assert held["door"] == {**others["door"], "source": held["door"]["source"]}
    assert (held["door"]["rate"], held["door"]["threshold"]) == (10, 0.3)
    assert held["door"]["thresholds"] == {"low": 0.2, "mid": 0.4}
    shown = fleet.roll("status").stdout
    assert f"live: {less} (edge-01)" in shown, shown


@pytest.mark.parametrize("then", ["finish", "abort", "update"])
def test_who_joins_a_group_later_keeps_later_settings_that_are_live(
    fleet: Fleet, then: str
) -> None:
    """Once these were finished or aborted, the older ones of the other group overrode them."""
    one = fleet.box("edge-01")
    two = fleet.box("edge-02", groups=["shop"])
    older = configure(fleet, fleet.key, "--device", "@shop", rate=20, threshold=0.3)
    later = configure(fleet, fleet.key, rate=10)
    assert (older.returncode, later.returncode) == (0, 0), older.stderr + later.stderr
    first, second = re.findall("settings-[0-9a-f]{12}", older.stderr + later.stderr)
    assert two.agent.stop() == one.agent.stop() == 0
    if then == "update":  # from an agent that did not note it
        file = one.state / "rollouts.json"
        content = json.loads(file.read_text())
        assert content.pop("@held")[second][1] == {"door": {"rate": None}}
        file.write_text(json.dumps(content))
    else:
        assert fleet.roll(then, second).returncode == 0
    config = one.agent.config
    config.write_text(config.read_text().replace('"lab"', '"lab", "shop"'))
    one.agent.restart()
    why = f"without what {second} has set since"
    wanted = {"id": first, "state": "live", "why": why}
    wait_until(partial(has_said, fleet.listener, one.topic("rollout"), wanted), str(wanted))
    held = fleet.listener.on(one.topic("config"))[-1]["pipelines"]["door"]
    assert (held["rate"], held["threshold"]) == (10, 0.3)


def test_settings_of_a_clock_ahead_do_not_hold_later_ones_off(fleet: Fleet) -> None:
    """Finished, they still kept the group's same keys from being changed until that time came."""
    box = fleet.box("edge-01")
    assert configure(fleet, fleet.key, rate=10).returncode == 0
    plan = fleet.last_plan()
    ahead = replace(plan, created=iso(time.time_ns() + 2 * 86_400 * 10**9))
    sealed = seal(ahead, load_private(fleet.key))
    fleet.listener.publish(f"edge/@rollout/{plan.id}", sealed, retain=True)
    wanted = {"id": plan.id, "state": "live", "created": ahead.created}
    wait_until(partial(has_said, fleet.listener, box.topic("rollout"), wanted), str(wanted))
    assert fleet.roll("finish", plan.id).returncode == 0
    done = configure(fleet, fleet.key, rate=12, threshold=0.2)
    assert (done.returncode, "without what" in done.stdout) == (0, False), done.stdout + done.stderr
    assert fleet.listener.on(box.topic("config"))[-1]["pipelines"]["door"]["rate"] == 12


def test_settings_are_not_through_where_a_device_is_lost_amid_their_probation(
    fleet: Fleet,
) -> None:
    """A member that was online and has not ended is a failure, and is named."""
    one = fleet.box("edge-01", trial={"probation_s": 60})
    file = configure_file(fleet, rate=20)
    asking = subprocess.Popen(
        [*CONFIGURE, file, "--broker", fleet.broker.url, "--key", fleet.key],
        stderr=subprocess.PIPE,
        text=True,
    )
    fleet.listener.wait_state(one.topic("rollout"), state="probation")
    one.agent.process.kill()
    one.agent.wait()
    _, said = asking.communicate(timeout=60)
    assert asking.returncode == 1
    assert "device edge-01 was lost meanwhile" in said


def no_source(fleet: Fleet, box: Box, seen: int) -> None:
    """Wait until the source of `door` is lost, after what was heard before."""
    topic = box.topic("source", "door")
    fleet.listener.wait_for(
        lambda _h: any(says["state"] == "lost" for says in fleet.listener.on(topic)[seen:]),
        "a source that is lost",
    )


def test_settings_that_were_kept_are_live_though_the_agent_was_killed_before_it_said_so(
    fleet: Fleet,
) -> None:
    """They held, and were said to be rolled back where an earlier try had ended in a kill, too."""
    one = fleet.box("edge-01", remote={"may": ["source"]}, trial={"probation_s": 60})
    topic, source = one.topic("source", "door"), "v4l2:/dev/video99"
    file = configure_file(fleet, source=source)
    asking = subprocess.Popen([*CONFIGURE, file, "--broker", fleet.broker.url, "--key", fleet.key])
    no_source(fleet, one, 0)
    one.agent.process.kill()
    one.agent.wait()
    seen = len(fleet.listener.on(topic))
    one.agent.restart()
    no_source(fleet, one, seen)
    one.agent.process.kill()
    one.agent.wait()
    asking.kill()
    asking.wait()
    # The file as it is once they have passed the second time.
    overrides = one.agent.folder / "state" / "overrides.json"
    content = json.loads(overrides.read_text())
    content["@probation"]["kept"] = True
    overrides.write_text(json.dumps(content | {"@configure": {"door": {"source": source}}}))
    one.agent.restart()
    word = fleet.listener.wait_state(one.topic("rollout"), state="live")
    assert word["id"].startswith("settings-")
    fleet.listener.wait_for(
        lambda _h: "@probation" not in json.loads(overrides.read_text()), "the note to be cleared"
    )
    states = {says["state"] for says in fleet.listener.on(one.topic("rollout"))}
    assert states == {"probation", "live"}


def test_settings_that_do_no_good_are_taken_back(fleet: Fleet) -> None:
    """`status` names who is behind and why; what another has signed moves nobody."""
    may, trial = ["rate", "source"], {"probation_s": 1.5}
    one = fleet.box("edge-01", remote={"may": may}, trial=trial)
    two = fleet.box("edge-02", trial=trial)
    bad = configure(fleet, fleet.key, source="v4l2:/dev/video99")
    assert bad.returncode == 1
    assert "@lab: 2 devices: 1 rejected, 1 rolled-back\n" in bad.stdout, bad.stdout
    assert "rolled-back: door: gave results before and none within 1.5 s" in bad.stdout
    assert "does not name 'source'" in bad.stdout
    looked = status(fleet, "--not-well", "--json").stdout.splitlines()
    lags = {says["device"]: says["lags"][0] for says in map(json.loads, looked)}
    assert lags.keys() == {"edge-01", "edge-02"}
    assert "rolled-back" in lags["edge-01"]
    one.results_go_on("1")
    name = lags["edge-01"].split("(")[1].split(")")[0]
    assert "settings do not go back so" in fleet.roll("abort", name, "--back").stderr
    assert two.agent.stop() == 0
    two.agent.restart()  # what was refused is not tried again
    fleet.listener.wait_state(two.topic("rollout"), state="rejected")
    assert fleet.roll("finish", name).returncode == 0

    # Killed amid the probation, it tries once more: what ends it would do so for ever.
    seen = len(fleet.listener.on(one.topic("source", "door")))
    file = configure_file(fleet, source="v4l2:/dev/video99")
    asking = subprocess.Popen([*CONFIGURE, file, "--broker", fleet.broker.url, "--key", fleet.key])
    for _ in range(2):
        no_source(fleet, one, seen)
        one.agent.process.kill()
        one.agent.wait()
        seen = len(fleet.listener.on(one.topic("source", "door")))
        one.agent.restart()
    assert asking.wait(60) == 1
    word = fleet.listener.wait_state(one.topic("rollout"), state="rolled-back")
    assert "each time the agent has ended" in word["why"]

    other = configure(fleet, fleet.make_key("stranger"), "--timeout", "2", rate=1)
    assert (other.returncode, "has not ended within" in other.stderr) == (1, True)
    assert "waiting: it is signed by no key that is trusted here" in other.stdout
    unsigned = configure(fleet, None, rate=11)
    assert unsigned.returncode == 0
    assert "offline do not get it later: sign it with --key" in unsigned.stderr
    assert "edge-01: door changed" in unsigned.stdout
