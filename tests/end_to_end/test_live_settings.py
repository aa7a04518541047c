"""What can be changed of a pipeline while it runs: filters, masks, its switch."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.core.parameters import shown
from tests.helpers.small_models import brightness, decode_picture, detector, plain, write_clip
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    run_cli,
    wait_until,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"
TOP = [[0.0, 0.0], [1.0, 0.0], [1.0, 0.5], [0.0, 0.5]]


class Device:
    """An agent with a detector on `door` and a lamp's brightness on `lamp`."""

    def __init__(self, tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents) -> None:
        rows = [(0, 0.9, 0.0, 0.0, 0.5, 0.5), (1, 0.6, 0.5, 0.5, 1.0, 1.0)]
        rows.append((0, 0.3, 0.1, 0.1, 0.2, 0.2))
        detector(tmp_path / "models" / "finder", rows, ["person", "car"])
        brightness(tmp_path / "models" / "light")
        clip = write_clip(tmp_path / "clip.avi", [plain(200)] * 25)
        self.url = broker.url
        self.models = str(tmp_path / "models")
        self.door: dict[str, Any] = {
            "name": "door",
            "source": f"file:{clip}?loop=1",
            "model": "finder",
        }
        self.lamp: dict[str, Any] = {**self.door, "name": "lamp", "model": "light"}
        self.heard = listen(broker.port)
        self.agent = agent(self.settings())

    def settings(self) -> str:
        """Write the settings of the moment."""
        return agent_settings("box", self.url, [self.door, self.lamp], models_dirs=[self.models])

    def reload(self) -> None:
        """Have the agent read its settings again."""
        self.agent.config.write_text(self.settings())
        self.agent.signal(signal.SIGHUP)

    def put(self, key: str, value: str) -> None:
        """Set a key of `door` as a phone does."""
        self.heard.publish(f"{D}/in/set/door/{key}", value)

    def wait(
        self, claim: Callable[[dict[str, Any]], object], pipeline: str = "door"
    ) -> dict[str, Any]:
        """Wait for a result that comes from now on and of which *claim* is true."""
        topic, begin = f"{D}/result/{pipeline}", len(self.heard.heard)

        def look(_: object) -> dict[str, Any] | None:
            there = [h.json for h in self.heard.heard[begin:] if h.topic == topic]
            return next((each for each in there if claim(each)), None)

        found: dict[str, Any] = self.heard.wait_for(look, f"a result of {pipeline}")
        return found

    def labels(self, *wanted: str) -> None:
        """Wait for a result with these labels."""
        self.wait(lambda result: [each["label"] for each in result["detections"]] == [*wanted])


@pytest.fixture
def device(tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents) -> Device:
    """Run the agent."""
    return Device(tmp_path, broker, listen, agent)


def test_filters_follow_bare_values_commands_and_reload_while_frames_go_on(device: Device) -> None:
    """Each takes effect on the running pipeline, which counts on; its topic says what holds."""
    device.labels("person", "car")
    device.put("labels", "car")
    device.labels("car")
    device.heard.wait_state(f"{D}/pipeline/door", labels=["car"], enabled="ON", threshold=0.5)
    device.put("labels", "[]")
    device.put("thresholds", '{"person": 0.2, "car": 0.7}')
    device.labels("person", "person")
    device.put("min_box", "[20, 20]")
    device.labels("person")
    body = {"id": "a", "pipeline": "door", "threshold": 0.95, "thresholds": {}, "min_box": [0, 0]}
    device.heard.publish(f"{D}/in/command/set", json.dumps(body))
    device.labels()
    device.door |= {"threshold": 0.55, "labels": ["person"]}
    device.reload()
    device.labels("person")
    device.heard.wait_state(f"{D}/pipeline/door", labels=["person"], threshold=0.55)
    seqs = [each["seq"] for each in device.heard.on(f"{D}/result/door")]
    assert seqs == sorted(set(seqs)), "the pipeline was not made again"
    running = [each["state"] for each in device.heard.on(f"{D}/source/door")]
    assert running == ["running"], "its source was not opened again"


WRONG = [
    ("door/enabled", "maybe", "expected ON or OFF"),
    ("door/threshold", "nan", "threshold"),
    ("door/threshold", "1.5", "threshold"),
    ("door/model", "other", "cannot be set"),
    ("gate/threshold", "0.5", "there is no 'gate'"),
    ("door/masks", "[[[0,0],[1,1]]]", "a list of 3 to 256"),
    ("door/masks", "[[[0,0],[1,1],[1,0],[0,1]]]", "crosses itself"),
    ("door/masks", "[" * 5000, "cannot be read"),
    ("door/labels", "[1]", "expected a text, found 1"),
]


def test_each_value_that_cannot_be_is_one_line_in_the_log_and_counted(device: Device) -> None:
    """Nothing changes, nothing stops, and the log tells the sender why."""
    device.labels("person", "car")
    for count, (topic, value, words) in enumerate(WRONG, 1):
        device.heard.publish(f"{D}/in/set/{topic}", value)
        device.heard.wait_state(f"{D}/health", malformed=count)
        device.labels("person", "car")
        lines = [line for line in device.agent.words().splitlines() if "refused" in line]
        assert len(lines) == count, value
        assert f"to {shown(value)}: refused: " in lines[-1]
        assert words in lines[-1]


def test_what_was_set_in_vain_is_told_in_the_reply_and_the_log(device: Device) -> None:
    """A key that is misspelt is named beside the good ones; a label that nothing finds, too."""
    device.labels("person", "car")
    body = {"id": "a", "pipeline": "door", "threshold": 0.5, "treshold": 0.6, "labels": ["persn"]}
    device.heard.publish(f"{D}/in/command/set", json.dumps(body))
    reply = device.heard.wait_state(f"{D}/reply/a", ok=True)
    slip = "'treshold' is not known, and ignored; did you mean 'threshold'?"
    vain = "labels: 'persn' leaves nothing to publish: it is not what finder@1 finds"
    assert reply["result"]["warnings"] == [slip, vain]
    assert f"done, but {slip}; {vain}" in device.agent.words()
    body = {"id": "b", "pipeline": "door", "treshold": 0.6}
    device.heard.publish(f"{D}/in/command/set", json.dumps(body))
    reply = device.heard.wait_state(f"{D}/reply/b", ok=False)
    assert reply["error"].endswith(f"; {slip}")
    device.put("labels", "persn")
    device.heard.wait_state(f"{D}/pipeline/door", labels=["persn"])
    device.heard.publish(f"{D}/in/command/ping", '{"id": "c"}')
    device.heard.wait_state(f"{D}/reply/c", ok=True)
    assert f"set 'door' 'labels': {vain}" in device.agent.words()


def test_what_a_value_does_to_rules_and_health_is_told(device: Device) -> None:
    """A rule is named that is left nothing to act on; health knows of a filter as long as it is."""
    device.labels("person", "car")
    device.door["rules"] = [{"name": "cars", "when": "enter", "labels": ["car"]}]
    device.reload()
    device.heard.wait_for(lambda _: device.heard.on(f"{D}/event/door"), "its event")
    body = {"id": "a", "pipeline": "door", "labels": ["person"]}
    device.heard.publish(f"{D}/in/command/set", json.dumps(body))
    reply = device.heard.wait_state(f"{D}/reply/a", ok=True)
    none = "rules[cars].labels: never acts: the pipeline's labels are person"
    assert reply["result"]["warnings"] == [none]
    device.heard.publish(f"{D}/in/command/set", '{"id": "b", "pipeline": "door", "rate": 9}')
    assert "warnings" not in device.heard.wait_state(f"{D}/reply/b", ok=True)["result"]
    device.put("labels", "persn")
    device.heard.wait_why("pipeline door: labels: 'persn' leaves nothing to publish")
    device.put("labels", "null")
    device.heard.wait_state(f"{D}/health", state="ok")


def test_the_log_says_which_value_was_set(device: Device) -> None:
    """Bare values as commands: what it was set to stands in the log."""
    device.labels("person", "car")
    device.put("threshold", "0.7")
    device.labels("person")
    device.heard.wait_state(f"{D}/pipeline/door", threshold=0.7)
    device.agent.stop()
    assert "INFO    set 'door' 'threshold' to '0.7': done" in device.agent.words()


def test_a_mask_is_black_for_the_model_and_in_the_picture(device: Device) -> None:
    """A model sees the area black, and so does whoever asks for a snapshot; without it, neither."""
    device.lamp["masks"] = [TOP]
    bright = device.wait(lambda _: True, "lamp")["values"]["light"]
    device.reload()
    device.wait(lambda result: result["values"]["light"] < 0.55 * bright, "lamp")
    device.heard.publish(f"{D}/in/command/snapshot", '{"pipeline": "lamp"}')
    topic = f"{D}/snapshot/lamp"
    data = device.heard.wait_for(
        lambda heard: next((h.payload for h in heard if h.topic == topic), None), topic
    )
    picture = decode_picture(data)
    assert picture[30:, 40:].mean() > 150
    assert picture[:22].mean() < 90, "black, with the text upon it"


def test_a_pipeline_that_is_switched_off_closes_its_source_and_stays_listed(device: Device) -> None:
    """No result comes, its account adds up, and frames follow once it is switched on again."""
    device.labels("person", "car")
    device.put("enabled", "OFF")
    device.heard.wait_state(f"{D}/source/door", state="off", enabled=False)
    device.heard.wait_state(f"{D}/pipeline/door", enabled="OFF")

    def still(heard: list[Any]) -> dict[str, Any] | None:
        there = [h.json["pipelines"]["door"] for h in heard if h.topic == f"{D}/health"][-2:]
        return there[-1] if len(there) == 2 and there[0] == there[1] else None

    account = device.heard.wait_for(still, "two equal accounts")
    check_account(account)
    assert account["source"] == "off"
    device.heard.publish(f"{D}/in/command/snapshot", '{"id": "look", "pipeline": "door"}')
    reply = device.heard.wait_state(f"{D}/reply/look", ok=False)
    assert "door is switched off" in reply["error"]
    device.put("enabled", "on")
    found = device.wait(lambda _: True)
    assert found["seq"] >= account["captured"]
    device.heard.wait_state(f"{D}/source/door", state="running")
    device.door["enabled"] = False
    device.reload()
    device.heard.wait_state(f"{D}/source/door", state="off", enabled=False)


def test_what_was_kept_is_told_and_can_be_taken_back(device: Device) -> None:
    """Null with persist brings the settings' own value back; until then log and `check` tell."""
    device.labels("person", "car")
    kept = {"id": "a", "pipeline": "door", "threshold": 0.8, "persist": True}
    device.heard.publish(f"{D}/in/command/set", json.dumps(kept))
    device.labels("person")
    assert device.agent.stop() == 0
    device.agent.restart()
    device.labels("person")
    line = f"pipeline door: threshold is 0.8, as it was set with persist ({device.agent.folder}"
    assert line in device.agent.words()
    assert line in run_cli("check", "--config", str(device.agent.config)).stdout
    times = device.agent.words().count(line)
    device.door["threshold"] = 0.45
    device.reload()
    wait_until(lambda: "not 0.45; to undo that" in device.agent.words(), "the line at a reload")
    assert device.agent.words().count(line) == times + 1
    back = {"id": "b", "pipeline": "door", "threshold": None, "persist": True}
    device.heard.publish(f"{D}/in/command/set", json.dumps(back))
    reply = device.heard.wait_state(f"{D}/reply/b", ok=True)
    assert reply["result"]["threshold"] == 0.45
    device.labels("person", "car")
    assert device.agent.stop() == 0
    device.agent.restart()
    device.labels("person", "car")


def test_a_change_that_is_kept_holds_after_the_next_start(device: Device) -> None:
    """`persist` keeps labels and the switch, too."""
    device.labels("person", "car")
    body = {"id": "keep", "pipeline": "door", "labels": ["car"], "enabled": False, "persist": True}
    device.heard.publish(f"{D}/in/command/set", json.dumps(body))
    device.heard.wait_state(f"{D}/reply/keep", ok=True)
    device.agent.stop()
    begin = len(device.heard.heard)
    device.agent.restart()
    device.heard.wait_for(
        lambda heard: [h for h in heard[begin:] if h.topic == f"{D}/result/lamp"], "lamp"
    )
    device.heard.wait_state(f"{D}/pipeline/door", enabled="OFF", labels=["car"])
    device.put("enabled", "ON")
    device.labels("car")
