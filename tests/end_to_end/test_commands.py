"""What others may ask of a running agent: commands over MQTT, and settings read again."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.helpers.small_models import brightness, decode_picture, detector, plain, write_clip
from tests.helpers.small_models import write_pictures as write_folder
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    check_account,
    wait_until,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Make a regression model and a detector of one sure and one unsure box; as `models_dirs`."""
    brightness(tmp_path / "models" / "light")
    rows = [(0, 0.9, 0.0, 0.0, 0.5, 0.5), (0, 0.6, 0.5, 0.5, 1.0, 1.0)]
    detector(tmp_path / "models" / "finder", rows, ["box"])
    return [str(tmp_path / "models")]


@pytest.fixture
def clip(tmp_path: Path) -> str:
    """Make a clip that plays for ever at 25 frames a second; as a source."""
    return f"file:{write_clip(tmp_path / 'clip.avi', [plain(5 * i) for i in range(25)])}?loop=1"


class Device:
    """An agent that runs, and someone who talks to it."""

    def __init__(self, listener: Listener, agent: AgentProcess) -> None:
        self.heard = listener
        self.agent = agent

    def ask(self, verb: str, body: dict[str, Any] | bytes, *, retain: bool = False) -> None:
        """Send a command."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.heard.publish(f"{D}/in/command/{verb}", payload, retain=retain)

    def reply(self, request: str, number: int = 1) -> dict[str, Any]:
        """Wait for the nth reply to a request."""
        topic = f"{D}/reply/{request}"
        replies: list[dict[str, Any]] = self.heard.wait_for(
            lambda _: (there := self.heard.on(topic))[number - 1 :] and there, topic
        )
        assert all(reply["schema"] == 1 and reply["id"] == request for reply in replies)
        return replies[number - 1]

    def health(self, claim: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait for a health payload, made from now on, of which *claim* is true."""
        topic = f"{D}/health"
        begin = len(self.heard.heard)

        def look(_: object) -> dict[str, Any] | None:
            fresh = [h.json for h in self.heard.heard[begin:] if h.topic == topic]
            return fresh[-1] if fresh and claim(fresh[-1]) else None

        health: dict[str, Any] = self.heard.wait_for(look, "health as it should be")
        return health

    def results(self, pipeline: str) -> list[dict[str, Any]]:
        """Give all results of a pipeline."""
        return self.heard.on(f"{D}/result/{pipeline}")

    def started(self) -> int:
        """Count the agent's starts."""
        says = self.heard.on(f"{D}/status")
        return len({each["session"] for each in says if each["state"] == "online"})

    def more_results(self, pipeline: str, number: int = 5) -> list[dict[str, Any]]:
        """Wait for further results; gives those."""
        topic = f"{D}/result/{pipeline}"
        before = len(self.results(pipeline))
        self.heard.wait_for(
            lambda heard: sum(h.topic == topic for h in heard) >= before + number, topic
        )
        return self.results(pipeline)[before:]


@pytest.fixture
def device(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], clip: str
) -> Device:
    """Run an agent with one live pipeline and wait until it gives results."""
    pipeline = {"name": "live", "source": clip, "model": "finder"}
    heard = listen(broker.port)
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    device = Device(heard, running)
    device.more_results("live", 2)
    return device


# Commands


def test_ping_is_answered(device: Device) -> None:
    """A ping's reply carries the id, `ok` and the time."""
    device.ask("ping", {"id": "p1", "time": datetime.now(UTC).isoformat()})
    reply = device.reply("p1")
    assert reply["ok"] is True
    assert reply["result"]["time"].endswith("Z")
    assert device.agent.stop() == 0


def test_a_group_is_spoken_to_at_once(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], clip: str
) -> None:
    """What is sent to `@group` reaches each member, which answers on its own topic."""
    pipeline = {"name": "live", "source": clip, "model": "light"}
    heard = listen(broker.port)
    for name in ("one", "two"):
        settings = agent_settings(name, broker.url, [pipeline], models_dirs=models, groups=["lab"])
        agent(settings, name)
    for name in ("one", "two"):
        heard.wait_state(f"edge/{name}/status", state="online")
    heard.publish("edge/@lab/in/command/ping", b'{"id": "all"}')
    for name in ("one", "two"):
        heard.wait_state(f"edge/{name}/reply/all", ok=True)


def test_replies_also_go_where_the_request_says(broker: Mosquitto, device: Device) -> None:
    """MQTT 5: the reply comes on the response topic too, with the correlation data."""
    caller = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    got: list[Any] = []
    ready, answered = threading.Event(), threading.Event()

    def on_message(_client: Any, _userdata: Any, message: Any) -> None:
        got.append(message)
        answered.set()

    caller.on_subscribe = lambda *_: ready.set()
    caller.on_message = on_message
    caller.connect("127.0.0.1", broker.port)
    caller.subscribe("callers/me", 1)
    caller.loop_start()
    try:
        assert ready.wait(PATIENCE)
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = "callers/me"
        properties.CorrelationData = b"\x00\xffnumber 7"
        caller.publish(f"{D}/in/command/ping", b'{"id": "five"}', 1, properties=properties)
        assert answered.wait(PATIENCE)
    finally:
        caller.disconnect()
        caller.loop_stop()
    (message,) = got
    assert message.properties.CorrelationData == b"\x00\xffnumber 7"
    assert json.loads(message.payload) == device.reply("five")


@pytest.mark.usefixtures("shared_device")
@pytest.mark.parametrize(
    ("topic", "answered"),
    [
        ("callers/me", True),
        (f"{D}/reply/elsewhere", True),
        ("$SYS/x", False),
        ("a/" * 300 + "a", False),
        ("a/" * 240 + "a", False),
        (f"{D}/status", False),
        (f"{D}/model/finder", False),
        (f"{D}/reply", False),
        (f"{D}/reply/a/b", False),
        ("edge/other/reply/mine", False),
        ("edge", False),
    ],
)
def test_no_reply_passes_for_what_a_device_says(
    shared_broker: Mosquitto, topic: str, *, answered: bool
) -> None:
    """Within topic_root a response topic is used only if it is one of the device's for replies."""
    request = f"t{abs(hash(topic))}"
    ear = Listener(shared_broker.port, "#")
    caller = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    caller.connect("127.0.0.1", shared_broker.port)
    caller.loop_start()
    try:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = topic
        body = json.dumps({"id": request})
        caller.publish(f"{D}/in/command/ping", body, 1, properties=properties)
        # Answered behind the first, on its topic alone.
        caller.publish(f"{D}/in/command/ping", json.dumps({"id": f"{request}-end"}), 1)
        ear.wait_state(f"{D}/reply/{request}-end", ok=True)
        assert ear.on(f"{D}/reply/{request}")[0]["ok"] is True
        replies = [h.topic for h in ear.heard if f'"{request}"'.encode() in h.payload]
        assert (topic in replies) is answered, replies
    finally:
        caller.disconnect()
        caller.loop_stop()
        ear.close()


def test_a_threshold_is_set_until_the_restart(device: Device) -> None:
    """`set` changes the threshold of results to come; after a restart it is as before."""
    assert all(len(result["detections"]) == 2 for result in device.results("live"))
    device.ask("set", {"id": "s1", "pipeline": "live", "threshold": 0.8})
    reply = device.reply("s1")
    assert reply["ok"]
    assert reply["result"]["threshold"] == 0.8
    device.more_results("live", 3)  # those under way were made before
    assert all(len(result["detections"]) == 1 for result in device.more_results("live", 5))
    assert device.agent.stop() == 0
    device.agent.restart()
    assert all(len(result["detections"]) == 2 for result in device.more_results("live", 5)[-2:])


def test_what_is_set_to_persist_survives_a_restart(device: Device) -> None:
    """With `persist` threshold and rate hold after a restart of the agent too."""
    body = {"id": "s2", "pipeline": "live", "threshold": 0.8, "rate": 20, "persist": True}
    device.ask("set", body)
    result = device.reply("s2")["result"]
    assert (result["pipeline"], result["threshold"], result["rate"]) == ("live", 0.8, 20.0)
    assert device.agent.stop() == 0
    device.agent.restart()
    session = device.heard.wait_state(f"{D}/status", state="online")["session"]
    device.more_results("live", 5)
    fresh = [result for result in device.results("live") if result["session"] == session]
    assert all(len(result["detections"]) == 1 for result in fresh)
    device.ask("set", {"id": "s3", "pipeline": "live", "threshold": 0.8})
    assert device.reply("s3")["result"]["rate"] == 20.0


def test_a_set_with_half_of_a_letter_keeps_nothing(device: Device) -> None:
    """It is answered with an error, and neither holds nor is written."""
    device.more_results("live", 2)
    device.ask("set", {"id": "h1", "pipeline": "live", "labels": ["\ud800"], "persist": True})
    reply = device.reply("h1")
    assert reply["ok"] is False
    assert reply["error"].startswith("the payload holds half of a letter, \\ud800")
    assert not (device.agent.folder / "state" / "overrides.json").exists()
    assert "Traceback" not in device.agent.words()
    device.more_results("live", 2)


def test_a_detectors_threshold_is_a_score(device: Device) -> None:
    """`set` refuses what no score can reach, with the task; kept from before, it is passed over."""
    device.more_results("live", 2)
    for number, threshold in enumerate((7, 1.01, -0.1)):
        device.ask("set", {"id": f"t{number}", "pipeline": "live", "threshold": threshold})
        reply = device.reply(f"t{number}")
        assert reply["ok"] is False
        wanted = "threshold: expected a number from 0 to 1, as the scores of task detection are"
        assert reply["error"] == f"{wanted}, found {threshold:g}"
    assert device.agent.stop() == 0
    kept = {"live": {"threshold": 7, "rate": 1e-300}, "gone": {"rate": "fast"}}
    (device.agent.folder / "state" / "overrides.json").write_text(json.dumps(kept))
    device.agent.restart()
    session = device.heard.wait_state(f"{D}/status", state="online")["session"]

    def found(_: object) -> bool:
        fresh = [result for result in device.results("live") if result["session"] == session]
        return any(len(result["detections"]) == 2 for result in fresh)

    device.heard.wait_for(found, "detections again")
    words = device.agent.words()
    assert "overrides.json: live: threshold for finder@1: expected a number from 0 to 1" in words
    assert "overrides.json: live: rate: expected a number from 0.00001 to 100000" in words
    assert "overrides.json: gone: rate: expected a number, found 'fast'; ignored" in words
    device.health(lambda health: not any("threshold" in why for why in health["why"]))


@pytest.mark.parametrize(
    ("key", "settings"),
    [("threshold", {"threshold": 7}), ("thresholds.a", {"thresholds": {"b": 0.7, "a": 60}})],
)
def test_settings_whose_threshold_nothing_reaches_are_said(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    clip: str,
    key: str,
    settings: dict[str, Any],
) -> None:
    """A detector's threshold above 1 in the settings is a reason in health and fails `check`."""
    pipeline = {"name": "live", "source": clip, "model": "finder", **settings}
    running = agent(agent_settings("box", broker.url, [pipeline], models_dirs=models))
    listen(broker.port).wait_why(
        f"pipeline live: {key} for finder@1: expected a number from 0 to 1"
    )
    # Health may say it before the log does.
    wait_until(
        lambda: running.words().count(f"pipeline live: {key} for finder@1") == 1, "it in the log"
    )
    said = call_cli("check", "--config", str(running.config))
    assert said.code == 1
    assert f"FAIL  pipeline live model finder: {key}: expected a number from 0 to 1" in said.out


def test_a_rate_that_is_set_holds_at_once(device: Device) -> None:
    """A pipeline slowed down to a frame in a thousand seconds is quick again when told."""
    device.ask("set", {"id": "slow", "pipeline": "live", "rate": 0.001})
    assert device.reply("slow")["ok"]
    # One frame may pass before the pause begins.
    device.health(lambda h: h["pipelines"]["live"]["dropped"]["rate"] > 20)
    device.ask("set", {"id": "quick", "pipeline": "live", "rate": 100})
    assert device.reply("quick")["ok"]
    device.more_results("live", 5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"pipeline": "nobody", "rate": 1}, "there is no 'nobody'; known: live"),
        ({"pipeline": "life", "rate": 1}, "there is no 'life'; did you mean 'live'?"),
        ({"rate": 1}, "pipeline: is missing"),
        ({"pipeline": "live"}, "nothing to set: give enabled, threshold, rate"),
        ({"pipeline": "live", "rate": 0}, "rate: expected a number above 0"),
        ({"pipeline": "live", "rate": -2}, "rate: expected a number above 0"),
        ({"pipeline": "live", "rate": "fast"}, "rate: expected a number, found 'fast'"),
        ({"pipeline": "live", "rate": 1e308}, "rate: expected a number from 0.00001 to 100000"),
        ({"pipeline": "live", "rate": 1e-300}, "rate: expected a number from 0.00001 to 100000"),
        ({"pipeline": "live", "threshold": 1e10}, "threshold: expected a number from -1000000000"),
        ({"pipeline": "live", "rate": 1, "persist": "yes"}, "persist: expected true or false, fou"),
        ({"pipeline": "live", "rate": 1, "persist": 1}, "persist: expected true or false, found 1"),
        ({"pipeline": "live", "threshold": True}, "threshold: expected a number"),
        ({"pipeline": "live", "threshold": 10**400}, "threshold: expected a number"),
        ({"pipeline": ["live"], "rate": 1}, "pipeline: expected a text"),
    ],
)
def test_nonsense_is_refused_with_a_reason(
    shared_device: Device, body: dict[str, Any], words: str
) -> None:
    """A `set` that cannot be done is answered with what is wrong, and changes nothing."""
    request = f"r{abs(hash(words + repr(body)))}"
    shared_device.ask("set", {"id": request, **body})
    reply = shared_device.reply(request)
    assert reply["ok"] is False
    assert words in reply["error"]
    assert "result" not in reply


@pytest.fixture(scope="module")
def shared_device(
    tmp_path_factory: pytest.TempPathFactory, shared_broker: Mosquitto
) -> Iterator[Device]:
    """Run an agent for tests that do not change it."""
    folder = tmp_path_factory.mktemp("shared")
    brightness(folder / "models" / "light")
    source = f"file:{write_clip(folder / 'clip.avi', [plain(9)] * 25)}?loop=1"
    pipeline = {"name": "live", "source": source, "model": "light"}
    settings = agent_settings(
        "box", shared_broker.url, [pipeline], models_dirs=[str(folder / "models")]
    )
    listener = Listener(shared_broker.port)
    agent = AgentProcess(folder / "agent", settings)
    device = Device(listener, agent)
    try:
        device.more_results("live", 2)
        yield device
        assert agent.stop() == 0
    finally:
        listener.close()
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
        print(agent.words())


def test_an_unknown_command_is_answered(shared_device: Device) -> None:
    """A verb that is not known is refused with those that are."""
    shared_device.ask("dance", {"id": "d1"})
    reply = shared_device.reply("d1")
    assert reply["ok"] is False
    assert "unknown command 'dance'" in reply["error"]
    assert all(verb in reply["error"] for verb in ("ping", "restart", "set", "snapshot"))


def test_an_old_command_is_refused(shared_device: Device) -> None:
    """A command sent more than 60 s ago is not done; one without a time, or a fresh one, is."""
    old = datetime.now(UTC) - timedelta(seconds=90)
    zone = "+02:00"
    fresh = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S") + zone
    shared_device.ask("ping", {"id": "old", "time": old.isoformat().replace("+00:00", "Z")})
    shared_device.ask("ping", {"id": "fresh", "time": fresh})
    shared_device.ask("ping", {"id": "when", "time": "yesterday"})
    assert "expired: sent 9" in shared_device.reply("old")["error"]
    assert shared_device.reply("fresh")["ok"] is True
    assert "time: 'yesterday' is not ISO 8601" in shared_device.reply("when")["error"]


def test_a_retained_command_is_refused(shared_device: Device) -> None:
    """Retained, a command is not done: neither as it comes, nor at every connect from then on."""
    topic = f"{D}/in/command/ping"
    shared_device.heard.publish(topic, b'{"id": "kept"}', retain=True)
    live = shared_device.reply("kept")
    assert live["ok"] is False
    assert "retained" in live["error"]
    assert shared_device.agent.stop() == 0
    shared_device.agent.restart()
    again = shared_device.reply("kept", 2)
    assert again["ok"] is False
    assert "retained" in again["error"]
    shared_device.health(lambda h: h["malformed"] == 1)
    # Taking it back is an empty message, which is none that could be answered.
    shared_device.heard.publish(topic, b"", retain=True)
    shared_device.health(lambda h: h["malformed"] == 2)


def test_a_retained_command_to_a_group_that_was_joined_is_refused(
    device: Device,
) -> None:
    """The inbox of a group that comes by a reload shows, too, what was published to be retained."""
    config = device.agent.config
    config.write_text('groups = ["lab"]\n' + config.read_text())
    device.agent.signal(signal.SIGHUP)
    device.heard.wait_for(
        lambda _: (device.heard.last(f"{D}/info") or {}).get("groups") == ["lab"], "the group"
    )
    device.heard.publish("edge/@lab/in/command/ping", b'{"id": "all"}', retain=True)
    assert device.reply("all")["ok"] is False
    assert "retained" in device.reply("all")["error"]


@pytest.mark.parametrize(
    ("place", "payload"),
    [
        ("command/ping", b"not json"),
        ("command/ping", b'{"id": 7}'),
        ("command/ping", b'{"id": "has space"}'),
        ("command/ping", b"[]"),
        ("command/ping", b"\xff\xfe"),
        ("command/ping", b'{"id": "n", "x": ' + b"[" * 50_000 + b"}"),
        ("command/ping", b'{"id": "large", "x": "' + b"x" * 70_000 + b'"}'),
        ("command/set", b'{"id": "nan", "pipeline": "live", "rate": NaN}'),
        ("command/set", b'{"id": "big", "pipeline": "live", "rate": 1e400}'),
        ("command/set", b'{"id": "\\ud800", "pipeline": "live", "rate": 1}'),
        ("command/set", b'{"id": "low", "pipeline": "\\ud800", "rate": 1}'),
        ("command", b'{"id": "short"}'),
        ("command/ping/more", b'{"id": "long"}'),
        ("nothing/at/all", b"x"),
        ("push/x/offer", b"{}"),
        ("push/../offer", b"{}"),
        ("push/abc/block/-1", b"123"),
        ("model", b"not a package"),
    ],
)
def test_nothing_that_arrives_stops_the_agent(
    shared_device: Device, place: str, payload: bytes
) -> None:
    """After whatever was sent, the next command is answered and results go on."""
    shared_device.heard.publish(f"{D}/in/{place}", payload)
    request = f"after-{abs(hash((place, payload)))}"
    shared_device.ask("ping", {"id": request})
    assert shared_device.reply(request)["ok"] is True
    assert shared_device.agent.process.poll() is None
    shared_device.more_results("live", 2)


def test_a_byte_order_mark_in_a_property_cuts_nothing_off(
    broker: Mosquitto, device: Device
) -> None:
    """MQTT 5 allows it; paho ended the connection over it, and the broker sent it at each again."""
    topic, mark = f"{D}/in/command/ping", "x\ufeffy"
    for number, put in enumerate(
        (
            ["user-property", "from", mark],
            ["content-type", mark],
            ["response-topic", f"callers/{mark}"],
            ["payload-format-indicator", "2"],
        )
    ):
        command = ["mosquitto_pub", "-p", str(broker.port), "-V", "5", "-q", "1", "-t", topic]
        message = json.dumps({"id": f"marked-{number}"})
        run([*command, "-D", "publish", *put, "-m", message], check=True)
        assert device.reply(f"marked-{number}")["ok"] is True
    states = [each["state"] for each in device.heard.on(f"{D}/status")]
    assert states == ["online"]


def test_what_is_malformed_is_counted(shared_device: Device) -> None:
    """Each message that cannot be understood adds one to `malformed` in health."""
    before = shared_device.health(lambda _: True)["malformed"]
    for _ in range(3):
        shared_device.ask("ping", b"{")
    shared_device.health(lambda h: h["malformed"] == before + 3)


def test_what_cannot_be_answered_is_in_the_log(shared_device: Device) -> None:
    """Broken JSON, and a topic that nobody expects, are a line each that names the topic."""
    shared_device.ask("snapshot", b"{")
    shared_device.heard.publish(f"{D}/in/set/rate", b"5")
    shared_device.ask("ping", {"id": "after-malformed"})
    shared_device.reply("after-malformed")
    words = shared_device.agent.words()
    assert "edge/box/in/command/snapshot: ignored: the payload is not a JSON object" in words
    assert "edge/box/in/set/rate: ignored: nothing is expected here; below in/ there are" in words


def now() -> str:
    """Return the time as a command has it."""
    return datetime.now(UTC).isoformat()


def test_the_same_request_is_done_once(device: Device) -> None:
    """A restart asked for twice with one id and time happens once, also across the restart itself.

    Both times the same answer is given, the second time as a repeated one.
    """
    first = device.heard.wait_state(f"{D}/status", state="online")["session"]
    request = {"id": "again", "time": now()}
    device.ask("restart", request)
    reply = device.reply("again")
    assert reply["ok"] is True
    device.heard.wait_state(f"{D}/status", state="offline", reason="stopped")
    second = device.heard.wait_state(f"{D}/status", state="online")["session"]
    assert second != first
    device.ask("restart", request)
    assert device.reply("again", 2) == {**reply, "repeated": True}
    device.ask("set", {"id": "again", "time": now(), "pipeline": "live", "threshold": 0.95})
    other = device.reply("again", 3)
    assert other["ok"] is False
    assert "again was given to another command" in other["error"]
    device.ask("ping", {"id": "still"})
    device.reply("still")
    device.more_results("live", 5)
    assert [s["session"] for s in device.heard.on(f"{D}/status")] == [first, first, second]
    assert device.agent.process.poll() is None, "a restart is not the end of the process"
    assert device.agent.stop() == 0


def test_without_a_time_every_arrival_counts(device: Device) -> None:
    """Buttons send the same payload each time; their id only names the reply."""
    for threshold in (0.7, 0.95, 0.7):
        device.ask("set", {"id": "button", "pipeline": "live", "threshold": threshold})
    device.reply("button", 3)
    replies = device.heard.on(f"{D}/reply/button")
    assert [reply["result"]["threshold"] for reply in replies] == [0.7, 0.95, 0.7]
    assert not any("repeated" in reply for reply in replies)


def test_without_an_id_it_is_carried_out(device: Device) -> None:
    """And not answered, where there is no response topic."""
    device.ask("set", {"pipeline": "live", "threshold": 0.95})
    device.ask("ping", {"id": "behind"})
    device.reply("behind")
    topics = {heard.topic for heard in device.heard.heard}
    assert [topic for topic in topics if "/reply" in topic] == [f"{D}/reply/behind"]
    device.heard.wait_for(lambda _: not device.more_results("live", 1)[-1]["detections"], "it")


def test_what_was_carried_out_outlives_a_kill(device: Device) -> None:
    """What changes something is on disk before it is answered; the rest is never written."""
    kept = device.agent.folder / "state" / "commands.jsonl"
    for number in range(30):
        device.ask("ping", {"id": f"p{number}", "time": now()})
    device.ask("set", {"id": "wrong", "time": now(), "pipeline": "nobody", "rate": 1})
    device.ask("dance", {"id": "unknown", "time": now()})
    device.reply("unknown")
    assert not kept.exists()
    request = {"id": "kept", "time": now(), "pipeline": "live", "threshold": 0.7}
    device.ask("set", {**request, "more": "x" * 60_000})
    first = device.reply("kept")
    assert kept.stat().st_size < 1000
    device.agent.signal(signal.SIGKILL)
    device.agent.wait()
    device.agent.restart()
    device.heard.wait_for(lambda _: device.started() == 2, "a second start")
    device.ask("set", {**request, "more": "x" * 60_000})
    assert device.reply("kept", 2) == {**first, "repeated": True}


@pytest.mark.parametrize(
    ("verb", "version", "point"),
    [("rollback", "3", "rollback.done"), ("delete", "0.5", "delete.renamed")],
)
def test_a_kill_before_its_reply_makes_no_command_happen_twice(
    *,
    verb: str,
    version: str,
    point: str,
    tmp_path: Path,
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    clip: str,
) -> None:
    """A rollback went back two versions; a delete was answered with an error.

    The broker sends such a command again, because it was not acknowledged.
    """
    for each in ("0.5", "2", "3", "4"):
        models.append(str(tmp_path / each))
        detector(tmp_path / each / "finder", [(0, 0.9, 0.0, 0.0, 0.5, 0.5)], ["box"], each)
    old = tmp_path / "agent" / "state" / "models" / "finder" / "0.5"
    old.parent.mkdir(parents=True)
    (Path(models.pop(1)) / "finder").rename(old)
    (old / ".package").mkdir()
    (old / ".package" / "accepted").touch()
    pipeline = {"name": "live", "source": clip, "model": "finder"}
    running = agent(
        agent_settings("box", broker.url, [pipeline], models_dirs=models),
        environ={"EDGE_AGENT_FAULT": point},
    )
    device = Device(listen(broker.port), running)
    device.more_results("live", 2)
    for each in "1234":
        device.ask("activate", {"id": f"to{each}", "model": "finder", "version": each})
        assert device.reply(f"to{each}")["ok"] is True
    body = {"model": "finder"} if verb == "rollback" else {"model": "finder", "version": version}
    request = {"id": "once", "time": now(), **body}
    device.ask(verb, request)
    assert running.wait() == -signal.SIGKILL
    running.environ.clear()
    running.restart()
    done = {"schema": 1, "id": "once", "ok": True}
    expected = {**done, "result": {"model": "finder", "version": version}}
    assert device.reply("once") == expected
    assert device.reply("once", 2) == {**expected, "repeated": True}
    live = {"rollback": ("3", "2"), "delete": ("4", "3")}[verb]
    device.heard.wait_state(f"{D}/model/finder", live=live[0], previous=live[1])
    device.more_results("live", 2)
    assert device.results("live")[-1]["model"] == f"finder@{live[0]}"
    assert running.stop() == 0
    running.restart()
    device.heard.wait_for(lambda _: device.started() == 3, "a third start")
    device.ask("ping", {"id": "after"})
    device.reply("after")
    assert len(device.heard.on(f"{D}/reply/once")) == 2, "answered is answered"


def test_a_flood_of_commands_does_not_wear_out_the_disk(device: Device) -> None:
    """300 commands of 60 kB each, 18 MB: what is written to remember them is a thousandth."""
    written = bytes_written(device.agent)
    for number in range(300):
        more = {"pipeline": "live", "threshold": 0.7, "more": "x" * 60_000}
        device.ask("set", {"id": f"n{number}", "time": now(), **more})
    device.reply("n299")
    assert bytes_written(device.agent) - written < 4 * 2**20
    error = "y" * 60_000
    device.ask("set", {"id": "long", "pipeline": error, "rate": 1})
    assert len(device.reply("long")["error"]) <= 1000


def bytes_written(agent: AgentProcess) -> int:
    """Return how many bytes the agent's process has had written to disks."""
    content = Path(f"/proc/{agent.process.pid}/io").read_text()
    return int(dict(line.split(": ") for line in content.splitlines())["write_bytes"])


def test_commands_are_in_the_log(device: Device) -> None:
    """Those that change something, with what became of them; escaped, so that no line is forged."""
    device.ask("set", {"id": "a", "pipeline": "live", "threshold": 0.7})
    device.ask("set", {"id": "b", "pipeline": "no\nbody", "rate": 1})
    device.reply("b")
    words = device.agent.words()
    assert """command 'set' {"id": "a", "pipeline": "live", "threshold": 0.7}: done""" in words
    assert """command 'set' {"id": "b", "pipeline": "no\\nbody", "rate": 1}: failed: """ in words


def test_health_is_retained(device: Device, listen: Listeners, broker: Mosquitto) -> None:
    """Who connects later sees at once how the device is, and from its time how old that is."""
    device.health(lambda health: health["state"] == "ok")
    late = listen(broker.port)
    health = late.wait_for(lambda heard: [h for h in heard if h.topic == f"{D}/health"], "health")
    assert health[0].retained
    assert health[0].json["state"] == "ok"


def test_a_snapshot_is_made_when_asked_for(device: Device) -> None:
    """`snapshot` gives one JPEG of the size of the frames."""
    topic = f"{D}/snapshot/live"
    device.ask("snapshot", {"id": "cheese", "pipeline": "live"})
    assert device.reply("cheese")["result"] == {"topic": topic}
    device.heard.wait_for(lambda heard: any(h.topic == topic for h in heard), topic)
    device.more_results("live", 5)
    (picture,) = [h.payload for h in device.heard.heard if h.topic == topic]
    assert decode_picture(picture).shape == (48, 64, 3)


@pytest.mark.parametrize("protocol", [5, 4])
def test_a_snapshot_says_of_which_frame_it_is(
    protocol: int, broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], clip: str
) -> None:
    """On MQTT 5 number and time come as user properties, as in the result; 3.1.1 has none."""
    heard = listen(broker.port, protocol=MQTTProtocolVersion.MQTTv5)
    pipeline = {"name": "live", "source": clip, "model": "finder", "snapshot": True}
    broker_table = {"protocol": protocol}
    agent(agent_settings("box", broker.url, [pipeline], models_dirs=models, broker=broker_table))
    topic = f"{D}/snapshot/live"
    snapshot = heard.wait_for(lambda all_: [h for h in all_ if h.topic == topic], topic)[0]
    if protocol == 4:
        assert snapshot.about == {}
        return
    results = heard.wait_for(
        lambda all_: {h.json["seq"]: h.json for h in all_ if h.topic == f"{D}/result/live"},
        "results",
    )
    assert set(snapshot.about) == {"seq", "time"}
    assert results[int(snapshot.about["seq"])]["time"] == snapshot.about["time"]


def test_a_snapshot_of_a_still_scene_comes(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """With `motion` and nothing that moves, a frame is inferred for it all the same."""
    still = f"{write_folder(tmp_path / 'still', [plain(90)])}?loop=1&rate=50"
    pipeline = {"name": "still", "source": still, "model": "finder", "motion": True}
    settings = agent_settings("box", broker.url, [pipeline], models_dirs=models)
    device = Device(listen(broker.port), agent(settings))
    before = device.health(lambda h: h["pipelines"]["still"]["dropped"]["still"] > 20)

    device.ask("snapshot", {"id": "cheese", "pipeline": "still"})

    topic = f"{D}/snapshot/still"
    device.heard.wait_for(lambda heard: any(h.topic == topic for h in heard), topic)
    after = device.health(lambda h: h["pipelines"]["still"]["dropped"]["still"] > 80)
    (picture,) = [h.payload for h in device.heard.heard if h.topic == topic]
    assert np.ptp(decode_picture(picture).astype(int)) > 40, "nothing is drawn"
    for health in (before, after):
        check_account(health["pipelines"]["still"])
    assert after["pipelines"]["still"]["inferred"] > before["pipelines"]["still"]["inferred"]


def test_a_snapshot_comes_though_every_frame_is_late(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """Where each frame is dropped by its deadline, the picture comes without boxes."""
    source = f"{write_folder(tmp_path / 'one', [plain(90)])}?loop=1&rate=50"
    pipeline = {"name": "late", "source": source, "model": "finder", "deadline_ms": 0.001}
    settings = agent_settings("box", broker.url, [pipeline], models_dirs=models)
    device = Device(listen(broker.port), agent(settings))
    device.health(lambda h: h["pipelines"]["late"]["dropped"]["deadline"] > 20)

    device.ask("snapshot", {"id": "cheese", "pipeline": "late"})

    topic = f"{D}/snapshot/late"
    device.heard.wait_for(lambda heard: any(h.topic == topic for h in heard), topic)
    health = device.health(lambda _: True)["pipelines"]["late"]
    (picture,) = [h.payload for h in device.heard.heard if h.topic == topic]
    assert np.ptp(decode_picture(picture).astype(int)) < 10, "something is drawn"
    assert health["inferred"] == 0
    check_account(health)


def test_a_snapshot_shows_the_region_that_is_looked_at(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """`roi` is a white frame in the picture; outside of it nothing can be found."""
    source = f"{write_folder(tmp_path / 'one', [plain(90)])}?loop=1&rate=20"
    pipeline = {"name": "part", "source": source, "model": "light", "roi": [8, 24, 48, 44]}
    settings = agent_settings(
        "box", broker.url, [{**pipeline, "snapshot": True}], models_dirs=models
    )
    device = Device(listen(broker.port), agent(settings))
    topic = f"{D}/snapshot/part"
    device.heard.wait_for(lambda heard: any(h.topic == topic for h in heard), topic)
    picture = decode_picture(next(h.payload for h in device.heard.heard if h.topic == topic))
    assert picture[30:40, 48].min() > 180
    assert picture[30:40, 54:].max() < 120


def test_a_snapshot_that_cannot_come_is_refused(
    broker: Mosquitto, listen: Listeners, agent: Agents, models: list[str], tmp_path: Path
) -> None:
    """Of a source that has ended, is lost, or has no model the answer says so, with the reason."""
    one = write_folder(tmp_path / "one", [plain(90)])
    pipelines = [
        {"name": "over", "source": one, "model": "light"},
        {"name": "away", "source": f"dir:{tmp_path}/nowhere", "model": "light"},
        {"name": "bare", "source": f"{one}?loop=1&rate=20", "model": "nobody"},
    ]
    heard = listen(broker.port)
    device = Device(heard, agent(agent_settings("box", broker.url, pipelines, models_dirs=models)))
    heard.wait_state(f"{D}/source/over", state="ended")
    heard.wait_state(f"{D}/source/away", state="lost")
    heard.wait_why("model nobody")
    said = {
        "over": "the source of over has ended, no picture comes",
        "away": "the source of away is lost: ",
        "bare": "bare has no model: ",
    }
    for name, words in said.items():
        device.ask("snapshot", {"id": f"shot-{name}", "pipeline": name})
        reply = device.reply(f"shot-{name}")
        assert reply["ok"] is False
        assert words in reply["error"]


# Settings read again


def _lists(health: dict[str, Any], names: list[str]) -> bool:
    """Whether health is about these pipelines."""
    return sorted(health["pipelines"]) == sorted(names)


def test_a_reload_touches_only_what_has_changed(
    broker: Mosquitto,
    listen: Listeners,
    agent: Agents,
    models: list[str],
    clip: str,
    tmp_path: Path,
) -> None:
    """SIGHUP adds, removes and changes pipelines; one that stays loses no frame and keeps counting.

    A removed one's retained topics are cleared; no (session, pipeline, seq) is given twice.
    """
    pictures = write_folder(tmp_path / "in", [plain(i) for i in range(200)])
    stays: dict[str, Any] = {"name": "stays", "source": pictures, "model": "light", "rate": 60.0}
    goes: dict[str, Any] = {"name": "goes", "source": clip, "model": "finder"}
    changes: dict[str, Any] = {"name": "changes", "source": clip, "model": "light"}
    comes: dict[str, Any] = {"name": "comes", "source": clip, "model": "finder"}
    heard = listen(broker.port)
    first = [stays, goes, changes]
    running = agent(agent_settings("box", broker.url, first, models_dirs=models))
    device = Device(heard, running)
    for pipeline in first:
        device.more_results(pipeline["name"], 3)

    second = [stays, {**changes, "roi": [0, 0, 8, 8]}, comes]
    running.config.write_text(agent_settings("box", broker.url, second, models_dirs=models))
    running.signal(signal.SIGHUP)
    device.more_results("comes", 5)
    device.health(lambda h: set(h["pipelines"]) == {"stays", "changes", "comes"})
    device.more_results("changes", 5)
    # Taken out altogether and put in again, it goes on counting, too.
    for pipelines in ([stays], second):
        running.config.write_text(agent_settings("box", broker.url, pipelines, models_dirs=models))
        running.signal(signal.SIGHUP)
        names = [pipeline["name"] for pipeline in pipelines]
        listed = partial(_lists, names=names)
        device.health(listed)
    device.more_results("changes", 5)
    heard.wait_state(f"{D}/source/stays", state="ended")

    assert [result["seq"] for result in device.results("stays")] == list(range(200))
    given = [(r["session"], r["seq"]) for r in device.results("changes")]
    assert len(set(given)) == len(given)
    assert given == sorted(given, key=lambda pair: pair[1])
    retained = heard.wait_for(lambda h: [m for m in h if m.topic == f"{D}/source/goes"], "goes")
    assert retained[-1].payload == b""
    health = device.health(lambda _: True)
    for account in health["pipelines"].values():
        check_account(account)
    assert [status["reason"] for status in heard.on(f"{D}/status")] == ["started"]
    info = heard.last(f"{D}/info")
    assert info is not None
    assert {pipeline["name"] for pipeline in info["pipelines"]} == {"stays", "changes", "comes"}
    assert running.stop() == 0


def test_wrong_settings_are_not_taken_over(device: Device) -> None:
    """SIGHUP with a file that is wrong: the old settings hold, and the log says what is wrong."""
    device.agent.config.write_text("pipelins = []\n")
    device.agent.signal(signal.SIGHUP)
    wait_until(lambda: "the settings stay as they were" in device.agent.words(), "a word about it")
    assert "did you mean 'pipelines'?" in device.agent.words()
    device.more_results("live", 5)
    device.agent.config.write_text("pipelines = [\n")
    device.agent.signal(signal.SIGHUP)
    wait_until(lambda: "not valid TOML" in device.agent.words(), "a word about it")
    device.more_results("live", 5)
    assert device.agent.stop() == 0


def test_groups_change_without_a_restart(
    device: Device, broker: Mosquitto, models: list[str], clip: str
) -> None:
    """A group that is joined by SIGHUP is listened to; one that is left is not."""
    pipeline = {"name": "live", "source": clip, "model": "finder"}

    def join(*groups: str) -> None:
        settings = agent_settings(
            "box", broker.url, [pipeline], models_dirs=models, groups=list(groups)
        )
        device.agent.config.write_text(settings)
        device.agent.signal(signal.SIGHUP)
        device.heard.wait_state(f"{D}/info", groups=list(groups))

    join("lab")
    device.heard.publish("edge/@lab/in/command/ping", b'{"id": "in"}')
    assert device.reply("in")["ok"] is True
    join("yard")
    device.heard.publish("edge/@lab/in/command/ping", b'{"id": "out"}')
    device.heard.publish("edge/@yard/in/command/ping", b'{"id": "there"}')
    assert device.reply("there")["ok"] is True
    assert not device.heard.on(f"{D}/reply/out")
