"""`edge-agent status`: one look at all devices, from what they have left on their topics."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from edge_agent.core.names import safe_name
from edge_agent.mqtt import payloads
from tests.helpers.no_wildcards import NoWildcards
from tests.helpers.push import start_box
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Called,
    Listener,
    Mosquitto,
    call_cli,
    free_port,
    run_cli,
)
from tests.helpers.tiny_networks import constant_outputs


def iso(ago: float) -> str:
    """Give the time so many seconds ago."""
    return payloads.iso(time.time_ns() - round(ago * 1e9))


class Device:
    """What a device has left retained."""

    def __init__(self, listener: Listener, topic: str, **info: Any) -> None:
        self.listener = listener
        self.topic = topic
        self.say("info", pipelines=[{"name": "door", "model": "face"}], **info)
        self.say("status", state="online", reason="started", session="s", time=iso(7200))

    def say(self, topic: str, **payload: Any) -> None:
        body = json.dumps({"schema": 1, **payload})
        self.listener.publish(f"{self.topic}/{topic}", body, retain=True)

    def healthy(self, ago: float = 2, **more: Any) -> None:
        """Leave health of so many seconds ago."""
        figures = {"fps": 25.0, "latency_ms": {"p99": 9.1}, "source": "running"}
        said = {"state": "ok", "why": [], "uptime_s": 7190, "pipelines": {"door": figures}}
        self.say("health", **{**said, "time": iso(ago), **more})


@pytest.fixture
def device(
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Device]:
    """Make devices in a corner of the broker of their own."""
    root = safe_name(request.node.name)
    monkeypatch.setenv("EDGE_AGENT_BROKER__TOPIC_ROOT", root)
    monkeypatch.setenv("EDGE_AGENT_BROKER__URL", shared_broker.url)
    listener = listen(shared_broker.port, f"{root}/#")
    return lambda name, **info: Device(listener, f"{root}/{name}", **info)


Make = Callable[..., Device]


def looked(code: int, *arguments: str) -> list[str]:
    """Look; give the lines below the sum."""
    said = call_cli("status", *arguments)
    assert (said.code, said.err) == (code, ""), said
    return said.out.splitlines()["--json" not in arguments :]


def refused(*arguments: str) -> str:
    """Look in vain; give the error."""
    said: Called = call_cli("status", *arguments)
    assert (said.code, said.out) == (1, "")
    return said.error


def test_a_device_that_is_well_is_two_lines_and_0(device: Make) -> None:
    """A line for the device, one for its pipeline: rate, latency, and the model that serves."""
    models = [{"name": "face", "serves": "face@3", "engine": "openvino:CPU"}]
    device("one", models=models).healthy()
    assert looked(0) == [
        "one  ok  up 1 h 59 min",
        "  door  running  25.0 a second, p99 9 ms, face@3 on openvino:CPU",
    ]


def test_a_pipeline_that_is_off_says_so_and_no_figures_of_before(device: Make) -> None:
    """Its source has ended for those who read its topic; a person has switched it off."""
    one = device("one")
    one.healthy()
    one.say("source/door", state="ended", enabled=False, time=iso(1))
    assert looked(0)[1] == "  door  off      face"


def test_a_pipeline_without_a_result_has_no_figures(device: Make) -> None:
    """0.0 a second at 0 ms would be a measurement."""
    figures = {"fps": 0.0, "inferred": 0, "latency_ms": {"p99": 0.0}, "source": "running"}
    device("one").healthy(pipelines={"door": figures})
    assert looked(0)[1] == "  door  running  no result yet, face"


def test_the_first_instants_have_a_dash_instead_of_a_rate(device: Make) -> None:
    """Two frames that had waited for the model would be 52.2 a second."""
    figures = {"fps": 52.2, "inferred": 2, "latency_ms": {"p99": 40.0}, "source": "running"}
    device("one").healthy(uptime_s=0.6, pipelines={"door": figures})
    assert looked(0)[1] == "  door  running  - a second, p99 40 ms, face"


def test_an_agent_has_run_since_its_latest_health_too(device: Make) -> None:
    """It said `up 0 s` of an agent that had run for nine."""
    device("one").healthy(ago=12, uptime_s=3595)
    assert looked(0)[0] == "one  ok  up 1 h"


def test_learning_and_gaps_are_shown(device: Make) -> None:
    """While it learns nothing is anomalous, and gaps are readings that never came."""
    figures = {"fps": 5.0, "latency_ms": {"p99": 9.0}, "source": "running"}
    more = {"drift": {"against": "learned", "learning": 0.25}, "signal": {"gaps": 3}}
    device("one").healthy(pipelines={"door": {**figures, **more}})
    assert looked(0)[1].endswith("5.0 a second, p99 9 ms, learning 25%, 3 gaps, face")


def test_a_sum_comes_first_and_only_those_not_well_can_be_shown(device: Make) -> None:
    """The sum counts all; --not-well leaves the others out, from --json too."""
    device("one").healthy()
    device("two").say("status", state="offline", reason="lost", time=iso(9))
    device("three").healthy()
    lines = call_cli("status", "--not-well").out.splitlines()
    assert lines[0] == "3 devices: 1 offline, 2 ok"
    assert [line.split()[0] for line in lines[1:]] == ["two", "door"]
    assert [json.loads(line)["device"] for line in looked(1, "--not-well", "--json")] == ["two"]


def test_a_degraded_device_says_why_and_1(device: Make) -> None:
    """All reasons of health stand in the line, and one such device makes it 1."""
    device("one").healthy()
    device("two").healthy(state="degraded", why=["spool: the disk is full", "clock: not set"])
    lines = looked(1)
    assert lines[0].startswith("one  ok")
    assert lines[2] == "two  degraded  spool: the disk is full; clock: not set"


def test_a_source_that_is_lost_counts_before_health_says_it(device: Make) -> None:
    """The topic of a source is newer than health, which comes at its interval."""
    one = device("one")
    one.healthy()
    one.say("source/door", state="lost", error="nothing answers at cam-2", time=iso(1))
    first, second = looked(1)
    assert first.startswith("one  degraded")
    assert second == "  door  lost     nothing answers at cam-2"


def test_the_health_of_an_offline_device_is_told_as_old(device: Make) -> None:
    """Since when it is offline, and how old its last health is, which may have been good."""
    one = device("one")
    one.healthy(ago=7200)
    one.say("status", state="offline", reason="stopped", time=iso(3600))
    first, second = looked(1)
    assert re.fullmatch(
        r"one  offline  since \d{4}-\d\d-\d\d \d\d:\d\d UTC, 1 h ago \(stopped\); "
        r"its last health, 2 h old: ok",
        first,
    )
    assert second.startswith("  door  was running  25.0 a second")


def test_of_a_lost_device_the_latest_topic_tells_the_time(device: Make) -> None:
    """A last will bears the time of connecting: health tells that it was there for longer."""
    one = device("one")
    one.healthy(ago=90)
    one.say("status", state="offline", reason="lost", time=iso(9000))
    assert re.match(
        r"one  offline  \(lost\), last heard of .* UTC, 1 min \d+ s ago; ", looked(1)[0]
    )


def test_old_health_of_a_device_that_is_online_is_not_believed(device: Make) -> None:
    """Health of the run before, or three intervals old, says nothing of now."""
    device("hangs").healthy(ago=31)
    device("seldom").healthy(ago=31, interval_s=600)
    fresh = device("fresh")
    fresh.healthy(ago=5)
    fresh.say("status", state="online", reason="started", time=iso(1))
    device("mute")
    lines = [re.sub(r"\d+ s old", "N s old", line) for line in looked(1) if line[0] != " "]
    assert lines == [
        "fresh  unknown  online, but its last health, N s old: ok",
        "hangs  unknown  online, but its last health, N s old: ok",
        "mute  unknown  online, but has sent no health yet",
        "seldom  ok  up 2 h",
    ]


def test_a_clock_that_is_not_set_tells_no_age(device: Make) -> None:
    """A device that shows 1970 is degraded by its own word, not because of its health's age."""
    device("one").healthy(
        time="1970-01-01T00:00:09.000Z", clock="unset", state="degraded", why=["clock: not set"]
    )
    assert looked(1)[0] == "one  degraded  clock: not set"


def test_a_clock_that_is_ahead_is_said_and_its_health_is_not_current(device: Make) -> None:
    """Health that came no more was "ok, up 1 min 40 s" for an hour, an offline device "0 s ago"."""
    device("ahead").healthy(ago=-3660)
    gone = device("gone")
    gone.healthy(ago=-3660)
    gone.say("status", state="offline", reason="lost", time=iso(9))
    device("slightly").healthy(ago=-25)
    lines = [re.sub(r"\d+ s ahead", "N s ahead", line) for line in looked(1) if line[0] != " "]
    health = "its last health, of unknown age: ok; its clock is at least 1 h"
    assert lines[0].startswith(f"ahead  unknown  online, but {health}")
    assert re.search(rf"last heard of .* UTC by its clock; {health}", lines[1])
    assert lines[2] == "slightly  ok  its clock is at least N s ahead of this machine's"
    one = json.loads(looked(1, "--json")[0])
    assert one["health_age_s"] is None
    assert one["why"][0].startswith("its clock is at least 1 h")


def test_one_device_or_one_group_can_be_looked_at(device: Make) -> None:
    """--device leaves the others out, also from the exit status."""
    device("one", groups=["lab"]).healthy()
    device("two", groups=["lab", "yard"]).healthy()
    device("three").say("status", state="offline", reason="lost", time=iso(9))
    assert [line.split()[0] for line in looked(0, "--device", "two")] == ["two", "door"]
    group = looked(0, "--device", "@lab")
    assert [line.split()[0] for line in group] == ["one", "door", "two", "door"]
    assert refused("--device", "four") == (
        "edge-agent: device four is unknown; known: one, three, two"
    )
    assert "no device is in group @nobody" in refused("--device", "@nobody")


def test_json_is_an_object_a_device(device: Make) -> None:
    """--json gives what the lines say, as keys."""
    device("one").healthy()
    device("two").say("status", state="offline", reason="lost", time=iso(9))
    one, two = (json.loads(line) for line in looked(1, "--json"))
    assert (one["schema"], one["device"], one["state"], one["why"]) == (1, "one", "ok", [])
    assert one["pipelines"]["door"]["fps"] == 25.0
    assert one["health_age_s"] < 60
    assert (two["device"], two["state"], two["health_age_s"]) == ("two", "offline", None)


NONSENSE: list[dict[str, Any]] = [
    {"pipelines": 5, "why": "x", "time": 7, "uptime_s": float("inf"), "interval_s": "x"},
    {"pipelines": {"door": [1]}, "why": {"a": 1}, "time": "never"},
    {"why": ["\x1b[2J\n"], "state": "degraded"},
    {"uptime_s": 10**400, "interval_s": 10**400, "temperature_c": 10**400},
]


@pytest.mark.parametrize("health", NONSENSE)
def test_what_others_publish_does_not_stop_it(health: dict[str, Any], device: Make) -> None:
    """Payloads that are none of ours give no traceback, and no control character."""
    one = device("one")
    one.healthy(**health)
    one.say("info", pipelines=[3, {}, {"name": "door", "model": {}}], models={}, groups=7)
    one.say("source/door", state=[], error={"a": 1})
    said = call_cli("status")
    assert said.error.startswith(
        "edge-agent: left out, whole or in part, as no agent publishes them: "
    )
    assert "/info" in said.error
    assert "\x1b" not in said.out


HUGE = 10**400
HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("model/face", {"live": "1", "last": {"shadow": {"compared": 5, "agreement": float("inf")}}}),
    ("model/face", {"live": "1", "last": {"shadow": {"compared": HUGE, "agreement": 0.5}}}),
    *(("model/face", {"live": "1", "versions": odd}) for odd in (5, ["x"], [None], ["1e5"])),
    ("rollout", {"id": "r", "state": []}),
    ("rollout", {"id": "r", "state": "live", "agreement": {"a": 1}}),
    ("source/door", {"state": ["running"], "time": 7}),
    ("health", {"state": "ok", "pipelines": {"door": {"fps": HUGE}}}),
    ("info", {"groups": [["lab"]], "session": {}}),
    ("status", {"state": {"online": 1}}),
    ("health", {"state": "ok", "x": json.loads('{"n": ' * 600 + "1" + "}" * 600)}),
]


@pytest.mark.parametrize(("kind", "payload"), HOSTILE)
def test_one_hostile_device_ends_no_command_about_the_others(
    kind: str, payload: dict[str, Any], device: Make
) -> None:
    """What it may retain is left out and named; each of these had ended some command."""
    good = device("good", groups=["lab"])
    good.healthy()
    good.say("model/face", name="face", live="3", previous=None, versions=["3"])
    evil = device("evil", groups=["lab"])
    evil.say(kind, **payload)
    topic = f"{evil.topic}/{kind}"
    told = [call_cli("status"), call_cli("models"), call_cli("rollout", "status")]
    assert ["good  ok" in told[0].out, "face: live 3" in told[1].out] == [True, True]
    assert any(topic in each.err for each in told)


def publish_odd(url: str, topic: str, properties: bytes, payload: bytes) -> None:
    """Retain a message with properties that no client makes."""

    def text(data: bytes) -> bytes:
        return len(data).to_bytes(2, "big") + data

    def packet(first: int, body: bytes) -> bytes:
        return bytes([first]) + _variable(len(body)) + body

    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), PATIENCE) as wire:
        wire.sendall(packet(0x10, text(b"MQTT") + b"\x05\x02\x00\x3c\x00" + text(b"odd")))
        assert wire.recv(1) == b"\x20"
        body = text(topic.encode()) + b"\x00\x05" + _variable(len(properties)) + properties
        wire.sendall(packet(0x33, body + payload))
        wire.sendall(b"\xe0\x00")
        while wire.recv(4096):
            pass


def _variable(number: int) -> bytes:
    """Write an integer of variable length."""
    digits = [number >> shift & 0x7F for shift in (0, 7, 14, 21)]
    while len(digits) > 1 and not digits[-1]:
        digits.pop()
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


@pytest.mark.parametrize("protocol", ["5", "4"])
def test_a_message_of_no_sensible_size_hides_no_other(
    protocol: str, device: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 MB of one device took 3 GB of every command, and what came behind them was not seen."""
    for name in ("one", "two", "zed"):
        device(name).healthy()
    evil = device("evil")
    payload = b'{"state": "online", "x": [' + b"[]," * (7 * 2**20) + b"[]]}"
    evil.listener.publish(f"{evil.topic}/info", payload, retain=True)
    monkeypatch.setenv("EDGE_AGENT_BROKER__PROTOCOL", protocol)
    told = call_cli("status")
    assert [f"{name}  ok" in told.out for name in ("one", "two", "zed")] == [True] * 3
    # Over MQTT 5 the broker is asked to leave it out.
    assert (
        f"left out, whole or in part, as no agent publishes them: {evil.topic}/info" in told.err
    ) == (protocol == "4")


def test_a_message_with_very_many_properties_hides_no_other(device: Make) -> None:
    """Their reading took a time that grew with their square: a minute for 1 MB, in any client."""
    one, evil = device("one"), device("evil")
    one.healthy()
    said = {"schema": 1, "state": "online", "reason": "started", "session": "s", "time": iso(9)}
    properties = b"\x26\x00\x01a\x00\x01b" * 150_000
    url = os.environ["EDGE_AGENT_BROKER__URL"]
    publish_odd(url, f"{evil.topic}/status", properties, json.dumps(said).encode())
    told = call_cli("status")
    assert "one  ok" in told.out
    assert "evil  unknown  online" in told.out
    assert "a message's properties are ignored: they are 1050000 bytes" in told.err


METADATA = {"task": "classify", "names": "{0: 'good', 1: 'bad'}", "imgsz": "[32, 32]"}


def test_one_device_does_not_use_up_the_versions_of_all(device: Make, tmp_path: Path) -> None:
    """A push to a group without a version of its own goes one above the highest there is."""
    for name, versions in (("one", ["3", "4"]), ("two", ["2"]), ("evil", ["999999998"])):
        box = device(name, groups=["lab"])
        box.say("model/scores", name="scores", live=None, previous=None, versions=versions)
    network = tmp_path / "scores.onnx"
    constant_outputs(network, {"out": np.array([[0.1, 0.9]], np.float32)}, metadata=METADATA)
    said = call_cli("push", str(network), "--device", "@lab", "--timeout", "1")
    assert said.error.startswith(
        "edge-agent: scores: device evil says that it has version 999999998, all others at most 4"
    )


def test_what_strangers_have_left_is_said_once_and_not_shown(device: Make) -> None:
    """It was shown as devices that are offline, and as models."""
    one = device("one")
    one.healthy()
    one.say("model/face", name="face", live="3", versions=["3"])
    one.say("model/x", plan="mine")
    one.say("model/y", name="face", live="9")
    device("odd").say("status", state={"state": "online"})
    root = one.topic.partition("/")[0]
    one.listener.publish(f"{root}/plans/status", '{"plan": "mine"}', retain=True)
    one.listener.publish(f"{root}/a b/status", '{"state": "online"}', retain=True)
    one.listener.publish(f"{root}/@rollout/mine", "mine", retain=True)
    models = call_cli("models")
    assert models.out.splitlines()[1:] == ["  face: live 3; has 3"]
    left = ["a b/status", "odd/status", "one/model/x", "one/model/y", "plans/status"]
    topics = ", ".join(f"{root}/{each}" for each in left)
    assert (
        models.error
        == f"edge-agent: left out, whole or in part, as no agent publishes them: {topics}"
    )
    status = call_cli("status")
    assert status.out.splitlines()[:2] == ["1 device: 1 ok", "one  ok  up 1 h 59 min"]
    assert "plans/status" in status.error


def test_a_broker_without_devices_is_1(device: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody there is not well; nor is no broker."""
    del device
    assert "knows of no device" in refused()
    monkeypatch.delenv("EDGE_AGENT_BROKER__URL")
    port = free_port()
    assert f"127.0.0.1:{port} cannot be reached" in refused("--broker", f"mqtt://127.0.0.1:{port}")


FLEET = 1100
"""Devices: more than a stock mosquitto keeps of messages for a client."""


@pytest.fixture
def fleet(
    tmp_path: Path, listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Mosquitto]:
    """Run a mosquitto as it comes, with what a large fleet has left on it."""
    broker = Mosquitto(tmp_path / "stock", "max_queued_messages 1000\n")
    monkeypatch.setenv("EDGE_AGENT_BROKER__URL", broker.url)
    listener = listen(broker.port, "edge/caught-up/#")
    for number in range(FLEET):
        box = Device.__new__(Device)
        box.listener, box.topic = listener, f"edge/box-{number:04}"
        box.say("status", state="online", reason="started", session="s", time=iso(7200))
        box.say("info", groups=["fleet"], pipelines=[{"name": "door", "model": "face"}])
        box.healthy(interval_s=600)
        box.say("model/face", live="3", versions=["3"])
    listener.catch_up()
    yield broker
    broker.stop()


def test_more_devices_than_a_stock_broker_queues_are_all_seen(fleet: Mosquitto) -> None:
    """All of status, models and a group are there, though all together exceed the queue."""
    del fleet
    lines = looked(0, "--device", "@fleet")
    assert len([line for line in lines if line.startswith("box-")]) == FLEET
    models = call_cli("models")
    assert (models.code, models.err) == (0, "")
    assert models.out.count("  face: live 3; has 3") == FLEET
    models = call_cli("models", "--device", "@fleet", "--json")
    assert (models.code, models.err) == (0, "")
    says = [json.loads(line) for line in models.out.splitlines()]
    assert [each["device"] for each in says] == [f"box-{number:04}" for number in range(FLEET)]
    assert all(each["models"]["face"]["live"] == "3" for each in says)
    assert "no online device is in group @nobody" in call_cli("models", "--device", "@nobody").error


def test_a_look_that_is_not_complete_says_so_and_no_group_command_is_sent(
    fleet: Mosquitto, monkeypatch: pytest.MonkeyPatch, listen: Callable[..., Listener]
) -> None:
    """Over MQTT 3.1.1 that broker drops what is beyond its queue, and no one can ask for it."""
    commands = listen(fleet.port, "edge/#")
    monkeypatch.setenv("EDGE_AGENT_BROKER__PROTOCOL", "4")
    group = ("rollback", "face", "--device", "@fleet")
    # Each looks for as long as it may, so they look at the same time.
    with ThreadPoolExecutor(3) as together:
        *looks, sent = together.map(
            lambda words: run_cli(*words), (("status",), ("models",), group)
        )
    for said in looks:
        assert said.returncode == 1
        [error] = said.stderr.splitlines()
        assert error.startswith("edge-agent: the look is not complete: the broker leaves out")
        assert "max_queued_messages" in error
    assert (sent.returncode, sent.stdout) == (1, "")
    assert sent.stderr.rstrip().endswith("nothing was sent to @fleet")
    commands.catch_up()
    assert not [heard for heard in commands.heard if "/in/" in heard.topic]
    # One device is asked for by its name.
    one = call_cli("status", "--device", f"box-{FLEET - 1}")
    assert (one.out.splitlines()[1].split()[0], one.err) == (f"box-{FLEET - 1}", "")


def test_a_real_agent_is_looked_at(
    tmp_path: Path,
    broker: Mosquitto,
    agent: Callable[..., AgentProcess],
    listen: Callable[..., Listener],
) -> None:
    """While it runs, its pipeline is shown with rate and model; once stopped, since when."""
    box = start_box(tmp_path, broker, listen(broker.port), agent, "edge-01")
    state = box.health()["state"]
    done = run_cli("status", "--broker", broker.url)
    _, device, pipeline = done.stdout.splitlines()
    assert re.match(rf"edge-01  {state}  ", device), done.stdout
    assert re.match(r"  door  running  .* level@1 on onnxruntime:CPU", pipeline)
    assert done.returncode == (0 if state == "ok" else 1)
    assert box.agent.stop() == 0
    done = run_cli("status", "--broker", broker.url)
    assert done.returncode == 1
    assert re.match(
        r"1 device: 1 offline\nedge-01  offline  since .* s ago \(stopped\)", done.stdout
    )


def test_a_broker_without_retained_messages_for_wildcards(device: Make) -> None:
    """RabbitMQ: "knows of no device", and a device without models, was what was said of it."""
    models = [{"name": "face", "serves": "face@3", "engine": "openvino:CPU"}]
    one = device("one", models=models, has=["face"])
    one.healthy()
    one.say("model/face", name="face", live="3", versions=["3"])
    relay = NoWildcards(int(os.environ["EDGE_AGENT_BROKER__URL"].rpartition(":")[2]))
    broker = ("--broker", relay.url)
    why = "this broker sends no retained messages to wildcards: "
    for command in (("status",), ("status", "--device", "@all"), ("models",)):
        said = call_cli(*command, *broker)
        assert (said.code, said.out) == (1, "")
        assert why in said.err
    named = call_cli("models", "--device", "one", *broker)
    assert named.out.splitlines()[1:] == ["  face: live 3; has 3"]
    assert call_cli("status", "--device", "one", *broker).code == 0
    relay.shut()
    relay.cut()
