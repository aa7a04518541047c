"""`edge-agent set` and `edge-agent activate`: one device, or all of a group that are online."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.boxes import Boxes
from tests.helpers.push import model_folder, start_box
from tests.helpers.support import AgentProcess, Listener, Mosquitto, call_cli, run_cli

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]


def test_a_group_is_set_and_each_device_answers(
    tmp_path: Path, broker: Mosquitto, agent: Agents, listen: Listeners
) -> None:
    """What holds is printed for each; one that has no such pipeline makes it 1; null goes back."""
    listener = listen(broker.port)
    for device, pipeline in (("edge-01", "door"), ("edge-02", "gate")):
        pipelines = [{"name": pipeline, "model": "level"}]
        start_box(tmp_path, broker, listener, agent, device, groups=["lab"], pipelines=pipelines)
        listener.wait_state(f"edge/{device}/info", groups=["lab"])
    to = ("--device", "@lab", "--broker", broker.url)

    said = call_cli("set", "door", "threshold=0.25", "labels=a,b", *to, "--persist")
    assert said.code == 1
    assert said.out == 'edge-01: door: threshold 0.25, labels ["a", "b"]\n'
    warning, error = said.err.splitlines()
    assert warning.startswith("edge-01: warning: labels: 'a', 'b' leaves")
    assert error.startswith("edge-agent: device edge-02: pipeline: there is no 'door'")
    held = listener.wait_state("edge/edge-01/pipeline/door", threshold=0.25)
    assert held["labels"] == ["a", "b"]

    back = ("threshold=null", "labels=null", "--device", "edge-01", "--persist")
    said = call_cli("set", "door", *back, "--broker", broker.url)
    assert (said.code, said.err) == (0, "")
    listener.wait_state("edge/edge-01/pipeline/door", labels=[])

    # The same as a bare value.
    listener.publish("edge/edge-02/in/set/gate/enabled", "OFF")
    listener.wait_state("edge/edge-02/pipeline/gate", enabled="OFF")
    listener.publish("edge/edge-02/in/set/gate/enabled", "null")
    listener.wait_state("edge/edge-02/pipeline/gate", enabled="ON")


def test_the_mode_of_a_device_is_set_by_hand(
    tmp_path: Path, broker: Mosquitto, agent: Agents, listen: Listeners
) -> None:
    """Only `mosquitto_pub` could, and `@device` was no name."""
    listener = listen(broker.port)
    start_box(tmp_path, broker, listener, agent, "edge-01", pipelines=[])
    to = ("--device", "edge-01", "--broker", broker.url)
    said = call_cli("set", "@device", "mode=night", *to)
    assert (said.code, said.out) == (0, 'edge-01: @device: mode "night"\n')
    assert "no rule names this mode" in said.err
    listener.wait_state("edge/edge-01/pipeline/@device", mode="night")
    assert call_cli("set", "@device", "mode=null", *to).out == "edge-01: @device: mode null\n"
    listener.wait_state("edge/edge-01/pipeline/@device", mode=None)
    for wrong in ("mode=a b", "rate=5", "mode"):
        assert call_cli("set", "@device", wrong, *to).code == 2
    for body in ({"pipeline": "door", "mode": "x"}, {"pipeline": "@device", "rate": 1}):
        listener.publish("edge/edge-01/in/command/set", json.dumps({"id": "r", **body}))
        wrong_ = listener.wait_state("edge/edge-01/reply/r", ok=False)
        assert "mode is what can be set of @device" in wrong_["error"]


def test_a_device_that_went_offline_is_not_waited_for(broker: Mosquitto, listen: Listeners) -> None:
    """It is named, long before the command's time is over."""
    listener = listen(broker.port)
    with Boxes(broker.port, 1) as boxes:
        listener.wait_state("edge/box-0000/info", groups=["lab"])
        command = [sys.executable, "-m", "edge_agent", "set", "door", "rate=1", "--device", "@lab"]
        asking = subprocess.Popen(
            [*command, "--timeout", "600", "--broker", broker.url],
            stderr=subprocess.PIPE,
            text=True,
        )
        listener.wait_for(
            lambda heard: any("/in/command/set" in h.topic for h in heard), "the command"
        )
        boxes.do(lambda: boxes.remove(["box-0000"]))
        _, words = asking.communicate(timeout=60)
    assert asking.returncode == 1
    assert "device box-0000 went offline before it had answered; it may still" in words


def test_a_version_is_activated(
    tmp_path: Path, broker: Mosquitto, agent: Agents, listen: Listeners
) -> None:
    """One that was accepted serves again; one that is not there is 1 and says so."""
    box = start_box(
        tmp_path, broker, listen(broker.port), agent, "edge-01", trust={"allow_unsigned": True}
    )
    to = ("--device", box.device, "--broker", broker.url)
    new = str(model_folder(tmp_path / "new", "2", best=2))
    assert run_cli("push", new, *to).returncode == 0
    said = call_cli("activate", "level@1", *to)
    assert (said.code, said.out, said.err) == (0, "edge-01: level is live as version 1\n", "")
    box.wait_live("1")
    said = call_cli("activate", "level@7", *to)
    assert said.code == 1
    assert said.error.startswith("edge-agent: device edge-01: ")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("set", "door", "threshold"), "found 'threshold'; write it as threshold=0.6"),
        (("set", "door", "treshold=1"), "'treshold' cannot be set; what can: enabled,"),
        (("set", "door", "zones=x"), "'zones' cannot be set, but edge-agent configure changes it"),
        (("set", "door", "threshold=0,5"), "threshold: cannot be read: '0,5'; write it as 0.5"),
        (("set", "door", "rate=2,5"), "rate: cannot be read: '2,5'; write it as 2.5"),
        (("set", "door", "rate=5fps"), "rate: cannot be read: '5fps'; write it as 5"),
        (("set", "door", "min_box=9,9"), "min_box: cannot be read: '9,9'; write it as [10, 10]"),
        (("set", "door", "masks=x"), "; write it as [[[0, 0], [1, 0], [1, 0.1]]]"),
        (("set", "door", "rate=1e999"), "rate: expected a number, found inf"),
        (("set", "door", "rate=\udcff"), "rate: is not UTF-8 text"),
        (("set", "do or", "rate=1"), "PIPELINE: 'do or' is not a name"),
        (("activate", "parts"), "'parts' is not a model and a version; as parts@2"),
        (("activate", "parts@x"), "'parts@x' is not a model and a version"),
    ],
)
def test_what_cannot_be_is_2_and_nothing_is_sent(words: tuple[str, ...], error: str) -> None:
    """Wrong usage is told before a broker is looked for."""
    said = call_cli(*words, "--device", "edge-01", "--broker", "mqtt://127.0.0.1:1")
    assert said.code == 2
    assert error in said.error


def test_no_group_is_asked_from_an_incomplete_look(
    broker: Mosquitto, listen: Listeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where retained messages still come, nothing is sent."""
    monkeypatch.setattr("edge_agent.cli.fleet.MOST_SECONDS", 0.0)
    listener = listen(broker.port)
    listener.publish("edge/box/info", json.dumps({"groups": ["lab"]}), retain=True)
    listener.publish("edge/box/status", json.dumps({"state": "online"}), retain=True)
    said = call_cli("set", "door", "rate=1", "--device", "@lab", "--broker", broker.url)
    assert said.code == 1
    assert "the look is not complete" in said.error
    listener.catch_up()
    assert not [heard for heard in listener.heard if "/in/" in heard.topic]
