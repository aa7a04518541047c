"""Pipelines changed from afar by `configure`: on probation, kept or not, over kills and reloads."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from edge_agent.mqtt import payloads
from tests.end_to_end.test_stages import form
from tests.helpers.small_models import brightness, detector, plain, write_clip
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    run_cli,
)

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
D = "edge/box"
FORM = {"name": "form", "model": "form"}
YARD = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
MAY = [
    "then",
    "labels",
    "threshold",
    "thresholds",
    "rate",
    "zones",
    "rules",
    "source",
    "model",
    "pipelines",
    "enabled",
]


class Device:
    """An agent with a detector on `door` and a lamp's brightness on `lamp`."""

    def __init__(self, tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents) -> None:
        rows = [(0, 0.9, 0.0, 0.0, 0.5, 0.5), (1, 0.6, 0.5, 0.5, 1.0, 1.0)]
        detector(tmp_path / "models" / "finder", rows, ["person", "car"])
        brightness(tmp_path / "models" / "light")
        form(tmp_path / "models" / "form")
        self.source = f"file:{write_clip(tmp_path / 'clip.avi', [plain(200)] * 25)}?loop=1"
        self.door: dict[str, Any] = {"name": "door", "source": self.source, "model": "finder"}
        self.url = broker.url
        self.models = str(tmp_path / "models")
        self.heard = listen(broker.port)
        self.agent = agent(self.settings())
        self.sent = 0
        self.result("door")
        self.result("lamp")

    def settings(self) -> str:
        """Write the settings of the moment."""
        lamp = {"name": "lamp", "source": self.source, "model": "light"}
        return agent_settings(
            *("box", self.url, [self.door, lamp]),
            models_dirs=[self.models],
            trial={"probation_s": 2.0},
            remote={"may": MAY},
        )

    def send(self, pipelines: dict[str, Any], **more: Any) -> str:
        """Send a patch; return the topic of its reply."""
        self.sent += 1
        body = {"id": f"c{os.getpid()}-{self.sent}", "pipelines": pipelines, **more}
        self.heard.publish(f"{D}/in/command/configure", json.dumps(body))
        return f"{D}/reply/{body['id']}"

    def configure(self, pipelines: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Send a patch; return the result of its reply."""
        reply = self.heard.wait_state(self.send(pipelines, **more), ok=True)
        return dict(reply["result"])

    def refused(self, pipelines: Any, **more: Any) -> str:
        """Send a patch; return the error of its reply."""
        reply = self.heard.wait_state(self.send(pipelines, **more), ok=False)
        return str(reply["error"])

    def config(self, **keys: Any) -> dict[str, Any]:
        """Wait for what the device says of its settings."""
        return self.heard.wait_state(f"{D}/config", **keys)

    def result(self, pipeline: str, *labels: str) -> dict[str, Any]:
        """Wait for a result that comes from now on, with these labels where some are given."""
        topic, begin = f"{D}/result/{pipeline}", len(self.heard.heard)

        def look(_: object) -> dict[str, Any] | None:
            there = [h.json for h in self.heard.heard[begin:] if h.topic == topic]
            fits = (
                each
                for each in there
                if not labels or [one["label"] for one in each["detections"]] == [*labels]
            )
            return next(fits, None)

        found: dict[str, Any] = self.heard.wait_for(look, f"a result of {pipeline}")
        return found

    def start_again(self) -> None:
        """Start the agent again, and wait for it."""
        del self.heard.heard[:]
        self.agent.restart()
        self.result("lamp")
        self.config()


@pytest.fixture
def device(tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents) -> Device:
    """Run the agent."""
    return Device(tmp_path, broker, listen, agent)


def test_a_threshold_beyond_the_scores_is_said_and_costs_no_kept_one(device: Device) -> None:
    """Percent that `configure` brought took away for good what `set` had kept."""
    kept = device.agent.folder / "state" / "overrides.json"
    body = {"id": "kept", "pipeline": "door", "threshold": 0.25, "persist": True}
    device.heard.publish(f"{D}/in/command/set", json.dumps(body))
    device.heard.wait_state(f"{D}/reply/kept", ok=True)
    for patch in ({"threshold": 60}, {"thresholds": {"a": 60}}):
        done = device.configure({"door": patch})
        assert any("expected a number from 0 to 1" in line for line in done["warnings"]), done
        device.configure({"door": dict.fromkeys(patch)})
        assert json.loads(kept.read_bytes())["door"]["threshold"] == 0.25, patch
    assert "ignored" not in device.agent.words()


def test_a_patch_holds_until_the_restart_and_touches_no_other_pipeline(device: Device) -> None:
    """Zones and rules make events; the hash guards; what is refused changes nothing."""
    first = device.config()
    assert first["from"] == "file"
    assert first["pipelines"]["door"]["model"] == "finder"
    assert "loop" not in first["pipelines"]["door"]["source"], "as info has it"
    rule = {"name": "seen", "when": "count", "zone": "yard", "above": 0.5}
    patch = {"door": {"zones": [{"name": "yard", "polygon": YARD}], "rules": [rule]}}
    done = device.configure(patch)
    device.heard.wait_for(lambda heard: [h for h in heard if "/event/door" in h.topic], "an event")
    held = device.config(hash=done["hash"])
    assert held["from"] == "remote"
    assert held["last"]["outcome"] == "live"
    assert held["pipelines"]["door"]["rules"][0]["name"] == "seen"
    assert held["pipelines"]["lamp"] == first["pipelines"]["lamp"]

    for words, refused in (
        ("if: the settings have changed since", device.refused(patch, **{"if": first["hash"]})),
        ("does not name 'qos'", device.refused({"door": {"qos": 1}})),
        ("pipelines[door]: rate: expected a number", device.refused({"door": {"rate": "x"}})),
        ("there is no zone 'yard'", device.refused({"door": {"zones": []}})),
        ("pipelines: expected an object", device.refused([])),
        ("names of pipelines, found None", device.refused(None)),
        ("persist: expected true or false", device.refused(patch, persist=1)),
    ):
        assert words in refused
    device.heard.publish(f"{D}/in/command/ping", '{"id": "after"}')
    device.heard.wait_state(f"{D}/reply/after", ok=True)
    assert device.config(hash=done["hash"])["pipelines"] == held["pipelines"]

    # A key that `set` changes, too: the later one holds, and the hash knows both.
    device.heard.publish(f"{D}/in/set/door/labels", "car")
    device.result("door", "car")
    changed = device.heard.wait_for(
        lambda _: (now := device.config()["hash"]) != done["hash"] and now, "another hash"
    )
    device.configure({"door": {"labels": ["person"]}}, **{"if": changed})
    device.result("door", "person")
    device.configure({"door": {"labels": None}})
    device.result("door", "person", "car")
    lamp = [each["state"] for each in device.heard.on(f"{D}/source/lamp")]
    assert lamp == ["running"], "its source was not opened again"
    assert device.agent.stop() == 0
    device.start_again()
    again = device.config()
    assert (again["from"], again["hash"]) == ("file", first["hash"])
    assert "Traceback" not in device.agent.words()


def test_what_stops_results_is_taken_back_by_itself(device: Device) -> None:
    """The reply and `config` say so; what `set` had changed is back, too; nothing is written."""
    device.heard.publish(f"{D}/in/set/door/labels", "car")
    device.result("door", "car")
    before = device.config(**{"from": "remote"})["hash"]
    bad = {"door": {"source": "v4l2:/dev/video99", "labels": ["person"]}}
    reply = device.send(bad, persist=True)
    pending = device.heard.wait_for(
        lambda heard: next(
            (h.json for h in heard if h.topic == f"{D}/config" and "pending" in h.json), None
        ),
        "the probation",
    )
    assert pending["pending"]["probation_s"] == 2.0
    assert pending["pipelines"]["door"]["source"] == "v4l2:/dev/video99"
    assert "another change is on probation" in device.refused({"lamp": {"rate": 5}})
    said = device.heard.wait_state(reply, ok=False)["error"]
    assert "door: gave results before and none within 2 s (v4l2:/dev/video99: " in said
    assert said.endswith("); the settings before are back")
    device.result("door", "car")
    held = device.config(hash=before)
    assert held["last"]["outcome"] == "rolled-back"
    assert "pending" not in held
    kept = device.agent.folder / "state" / "overrides.json"
    device.heard.wait_for(lambda _: json.loads(kept.read_text()) == {}, "nothing to be noted")

    # A kill amid the probation brings back what was as well, and both say so.
    reply = device.send(bad, persist=True)
    device.heard.wait_state(f"{D}/source/door", state="lost")
    device.agent.signal(signal.SIGKILL)
    device.agent.wait()
    device.start_again()
    device.result("door", "person", "car")
    said = device.heard.wait_state(reply, ok=False)["error"]
    assert said == "the agent has ended before the probation was over; the settings before are back"
    told = device.config(**{"from": "file"})["last"]
    assert (told["outcome"], told["pipelines"], told["why"]) == ("rolled-back", ["door"], said)
    device.heard.wait_for(lambda _: json.loads(kept.read_text()) == {}, "it to be said but once")


def test_what_fails_beside_results_is_told_to_who_sent_it(device: Device) -> None:
    """A second stage that fails on every crop costs no result, so that the settings are kept."""
    door = {**device.door, "source": device.source.replace("clip", "dark")}
    write_clip(Path(door["source"].removeprefix("file:").removesuffix("?loop=1")), [plain(0)] * 25)
    done = device.configure({"door": {"source": door["source"], "then": [FORM]}})
    assert any("values that are not finite" in line for line in done["warnings"]), done


def test_a_rule_on_a_sensor_that_reports_seldom_is_kept(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """A silence of its source had taken every change of it back."""
    fridge = {"name": "fridge", "source": "mqtt:home/fridge", "model": "readings"}
    heard = listen(broker.port)
    trial, remote = {"probation_s": 2.0}, {"may": ["rules"]}
    agent(agent_settings("box", broker.url, [fridge], trial=trial, remote=remote))
    heard.wait_state(f"{D}/source/fridge", state="running")
    heard.publish("home/fridge", json.dumps({"temperature": 9.5}))
    heard.wait_for(lambda _: heard.on(f"{D}/result/fridge"), "a reading")
    warm = {"name": "warm", "when": "value", "value": "temperature", "above": 8, "below": 7}
    body = {"id": "seldom", "pipelines": {"fridge": {"rules": [warm]}}}
    heard.publish(f"{D}/in/command/configure", json.dumps(body))
    heard.wait_state(f"{D}/reply/seldom", ok=True)
    assert len(heard.on(f"{D}/result/fridge")) == 1


def test_what_is_set_amid_a_probation_is_not_lost_by_its_end(device: Device) -> None:
    """A change that was answered as done had gone with the patch; so had a pipeline's rest."""
    bad = {"door": {"source": "v4l2:/dev/video99", "labels": ["person"]}}
    reply = device.send(bad)
    device.heard.wait_state(f"{D}/source/door", state="lost")
    device.heard.publish(f"{D}/in/set/door/threshold", "0.7")
    device.heard.wait_state(f"{D}/pipeline/door", threshold=0.7)
    device.heard.publish(f"{D}/in/set/door/labels", "car,person")
    device.heard.wait_state(f"{D}/pipeline/door", labels=["car", "person"])
    device.heard.wait_state(reply, ok=False)
    held = device.heard.wait_state(f"{D}/pipeline/door", threshold=0.7)
    assert held["labels"] == ["car", "person"]
    device.result("door", "person")

    # Who switches a pipeline off does not wait for its results.
    reply = device.send({"door": {"source": "v4l2:/dev/video99"}})
    device.heard.wait_state(f"{D}/source/door", state="lost")
    device.heard.publish(f"{D}/in/set/door/enabled", "OFF")
    device.heard.wait_state(reply, ok=True)


def test_what_is_kept_holds_over_kills_and_reloads(device: Device, tmp_path: Path) -> None:
    """From the command line: a pipeline comes, one goes; `check` and the log tell."""
    to = ("--device", "box", "--broker", device.url)
    patch = tmp_path / "patch.toml"
    twin = {"name": "twin", "source": device.source, "model": "light", "rate": 20}
    patch.write_text(tomli_w.dumps({"pipelines": [twin, {"name": "door", "labels": ["car"]}]}))
    said = call_cli("configure", str(patch), *to, "--persist")
    assert (said.code, said.err) == (0, "")
    assert said.out == f"box: twin, door changed; the hash is {device.config()['hash']}\n"
    device.result("twin")
    device.result("door", "car")
    device.agent.signal(signal.SIGKILL)
    device.agent.wait()
    device.start_again()
    device.result("twin")
    device.result("door", "car")
    assert device.config()["from"] == "remote"
    checked = run_cli("check", "--config", str(device.agent.config)).stdout
    assert "pipeline door: labels as kept by `configure … persist`" in checked
    assert "pipeline twin source" in checked

    # The file is edited: what was kept goes on; of other keys the file's hold.
    device.door |= {"threshold": 0.7, "labels": ["person"]}
    device.agent.config.write_text(device.settings())
    device.agent.signal(signal.SIGHUP)
    device.heard.wait_state(f"{D}/pipeline/door", threshold=0.7, labels=["car"])

    back = tmp_path / "back.json"
    back.write_text('{"twin": null, "door": {"labels": ["person"]}}')
    assert call_cli("configure", str(back), *to, "--persist").code == 0
    device.result("door", "person")
    assert device.config()["from"] == "file"
    said = call_cli("configure", str(back), *to, "--persist")
    assert said.out.startswith("box: door changed")
    back.write_text('{"door": {"source": "dir:/nowhere"}}')
    # The device tells how long its probation takes: the answer is waited for so long.
    said = call_cli("configure", str(back), *to, "--timeout", "2")
    assert said.code == 1
    assert "the settings before are back" in said.error
    assert device.agent.stop() == 0
    assert "Traceback" not in device.agent.words()


def test_an_end_amid_the_probation_is_told(device: Device) -> None:
    """Who stops the agent then gives the requester an answer."""
    reply = device.send({"door": {"source": "v4l2:/dev/video99"}}, persist=True)
    device.heard.wait_state(f"{D}/source/door", state="lost")
    assert device.agent.stop() == 0
    assert "the settings before are back" in device.heard.wait_state(reply, ok=False)["error"]
    device.start_again()
    device.result("door", "person", "car")


def test_what_was_kept_and_not_answered_is_told_by_the_next_run(device: Device) -> None:
    """A kill between the two had left the requester without a word, and `last` empty."""
    body = {"id": "again", "time": payloads.iso(time.time_ns()), "persist": True}
    body["pipelines"] = {"door": {"labels": ["car"]}}
    assert device.agent.stop() == 0
    # The file as it is between: the broker is away, so that no answer is out.
    content = {"@configure": body["pipelines"]}
    digest = hashlib.sha256(json.dumps(["configure", body], sort_keys=True).encode()).hexdigest()
    to = {"id": "again", "topic": None, "correlation": "", "digest": digest[:32]}
    note = {"pipelines": ["door"], "kept": True, "reply_to": to | {"sent": time.time()}}
    kept = device.agent.folder / "state" / "overrides.json"
    kept.write_text(json.dumps(content | {"@probation": note}))
    device.start_again()
    result = device.heard.wait_state(f"{D}/reply/again", ok=True)["result"]
    assert result["pipelines"]["door"]["labels"] == ["car"]
    assert result["hash"] == device.config()["hash"]
    assert device.config()["last"]["outcome"] == "live"
    device.heard.wait_for(lambda _: json.loads(kept.read_text()) == content, "it to be told once")
    # The broker sends again what was not acknowledged: it is not carried out a second time.
    device.heard.publish(f"{D}/in/command/configure", json.dumps(body))
    repeated = device.heard.wait_state(f"{D}/reply/again", repeated=True)
    assert repeated["result"] == result


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.toml", "[broker]\nurl = 'x'", "broker: only pipelines can be changed from afar"),
        ("a.toml", "[[pipeline]]\nname = 'x'", "from afar; did you mean 'pipelines'?"),
        ("a.toml", "[[pipelines]]\nrate = 5", "pipelines: each needs a `name`"),
        ("a.toml", "[pipelines.door]\nrate = 2020-01-01", "holds a date"),
        ("a.toml", "", "names no pipeline"),
        ("a.json", "[1]", "expected an object by names of pipelines"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"door": {"rate": NaN}}', "not finite"),
    ],
)
def test_a_file_that_is_no_patch_is_2(tmp_path: Path, name: str, content: str, error: str) -> None:
    """It is told before a broker is looked for."""
    file = tmp_path / name
    file.write_text(content)
    said = call_cli("configure", str(file), "--device", "box", "--broker", "mqtt://127.0.0.1:1")
    assert said.code == 2
    assert error in said.error
