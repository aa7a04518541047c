"""Rules that hold at some hours and in some modes, and rules over pipelines, over a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.schedule import DAYS
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings, call_cli

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
MODE = "edge/box/pipeline/@device"
OVER = {"name": "both", "all": ["door/open", "yard/value"], "within_s": 600.0}


def sensor(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    common = {"when": "value", "value": "value", "above": 0.5, "frames": "1/1"}
    return {
        "name": name,
        "source": f"mqtt:plant/{name}",
        "model": "readings",
        "rules": [{**common, **rule} for rule in rules],
    }


class Sensors:
    """Two sensors whose values are readings of an agent, and all that is heard of it."""

    def __init__(self, heard: Listener) -> None:
        self.heard = heard
        for name in ("door", "yard"):
            heard.wait_state(f"edge/box/source/{name}", state="running")

    def say(self, name: str, value: float) -> None:
        """Publish a value and wait for its result."""
        topic = f"edge/box/result/{name}"
        before = len(self.heard.on(topic))
        self.heard.publish(f"plant/{name}", str(value))
        self.heard.wait_for(lambda all_: sum(h.topic == topic for h in all_) > before, topic)

    def told(self, *wanted: tuple[str, str]) -> list[dict[str, Any]]:
        """Wait for events of the door, rule and state, and check that there are no others."""

        def look(_: object) -> list[dict[str, Any]] | None:
            found = self.heard.on("edge/box/event/door")
            return found if len(found) >= len(wanted) else None

        found: list[dict[str, Any]] = self.heard.wait_for(look, f"events {wanted}")
        assert [(each["rule"], each["state"]) for each in found] == list(wanted)
        return found

    def set_mode(self, mode: str) -> None:
        """Set the mode, and wait until it is told."""
        self.heard.publish("edge/box/in/set/@device/mode", mode)
        self.heard.wait_state(MODE, mode=None if mode == "null" else mode)


def test_rules_hold_in_their_modes_and_hours_and_over_pipelines(
    broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """A mode set over MQTT begins and ends events, over a restart too; two make a third."""
    # Not today, nor on the days beside: the night may be ending.
    day = DAYS[(time.localtime().tm_wday + 3) % 7]
    rules = (
        {"name": "open", "modes": ["night", "away"]},
        {"name": "daily", "during": "mon-sun 00:00-24:00"},
        {"name": "never", "during": day},
    )
    siren = {"publish": "siren/{pipeline}/{rule}", "payload": "{state}"}
    settings = agent_settings(
        "box",
        broker.url,
        [sensor("door", *rules), sensor("yard", {"name": "moving"})],
        rules=[{**OVER, "modes": ["night"], "do": [siren]}],
        homeassistant={"enabled": True},
    )
    heard = listen(broker.port, "#")
    running = agent(settings)
    there = Sensors(heard)
    heard.wait_state(MODE, mode=None)

    there.say("door", 1)
    first = [("daily", "begin")]
    there.told(*first)
    for bad in ("a b", "\x00", "#", "x" * 70, "", "{}"):
        heard.publish("edge/box/in/set/@device/mode", bad)
    heard.publish("edge/box/in/set/@device/threshold", "1")
    there.set_mode("night")
    there.say("door", 1)
    there.told(*first, ("open", "begin"))
    there.say("yard", 1)
    both = there.told(*first, ("open", "begin"), ("both", "once"))[-1]
    yard = heard.wait_state("edge/box/event/yard", state="begin")
    opened = heard.on("edge/box/event/door")[1]["event"]
    assert both["when"] == "all"
    assert both["events"] == {"door/open": opened, "yard/value": yard["event"]}
    heard.wait_for(
        lambda all_: [h.payload for h in all_ if h.topic == "siren/door/both"] == [b"once"],
        "the siren, once",
    )
    there.set_mode("holiday")  # the door says nothing
    upto = [*first, ("open", "begin"), ("both", "once"), ("open", "end")]
    assert there.told(*upto)[-1]["why"] == "over"
    there.say("yard", 0)
    there.say("yard", 1)  # nothing over pipelines: neither the mode nor the door is so
    shown = heard.last("homeassistant/device/edge-agent_box/config")
    assert shown is not None
    assert shown["components"]["mode"]["options"] == ["away", "night", "no mode"]
    assert shown["components"]["rule:both"]["state_topic"] == "edge/box/event/door"
    assert running.stop() == 0
    assert "no rule names this mode; there are away, night" in running.words()
    heard.heard.clear()
    running.restart()
    heard.wait_state(MODE, mode="holiday")
    there.set_mode("null")
    assert running.stop() == 0
    assert "Traceback" not in running.words()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([{**OVER, "all": ["door/open"]}], "rules[both].all: expected several unlike ones"),
        ([{**OVER, "all": ["door/open", "door/open"]}], "rules[both].all: expected several"),
        ([{**OVER, "all": ["door/open", "gate/x"]}], "'gate' is no pipeline; there are door, yard"),
        ([{**OVER, "all": ["door/open", "yard"]}], "yard has no rule ''; there are moving, value"),
        ([OVER, OVER], "rules[both].name: another one has this name"),
        ([{**OVER, "name": "open"}], "rules[open].name: door, on whose topic its events are"),
        ([{**OVER, "during": "nights"}], "rules[both].during: expected days and hours"),
        ([{**OVER, "modes": ["a b"]}], "rules[both].modes: 'a b' is not a name"),
        ([{**OVER, "do": [{"publish": "x", "on": "end"}]}], 'rules[both].do[0].on: "end" never'),
        ([{**OVER, "do": [{"publish": "edge/box/in/x"}]}], "rules[both].do[0].publish"),
    ],
)
def test_rules_that_can_never_fire_are_refused(
    tmp_path: Path, rules: list[dict[str, Any]], said: str
) -> None:
    """One line that names the key and what there is."""
    config = tmp_path / "config.toml"
    pipelines = [sensor("door", {"name": "open"}), sensor("yard", {"name": "moving"})]
    config.write_text(agent_settings("box", "mqtt://localhost:1", pipelines, rules=rules))
    done = call_cli("check", "--config", str(config))
    assert done.code == 2
    assert said in done.error
