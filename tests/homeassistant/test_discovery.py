"""Home Assistant's discovery: entities on the topics that there are, templates that hold."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from jinja2 import Environment

from edge_agent.config.rules import Line, Rule, Zone
from edge_agent.config.settings import HomeAssistant, Pipeline, Settings
from edge_agent.core.threads import ShutdownQueue
from edge_agent.core.timeline import Timeline
from edge_agent.homeassistant.announcer import Announcer
from edge_agent.homeassistant.discovery import PipelineView, payload
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.manifest import load
from edge_agent.mqtt.topics import Topics, object_id
from edge_agent.runtime.pipelines.runner import Runner
from tests.helpers.small_models import detector, plain, write_clip
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings

Agents = Callable[..., AgentProcess]
Listeners = Callable[..., Listener]
TOPIC = "homeassistant/device/edge-agent_box/config"
YARD = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))


def made(**keys: Any) -> dict[str, Any]:
    """Make the payload of one pipeline."""
    settings = Pipeline(name="door", source="dir:.", model="m", **keys)
    shown = PipelineView(settings, ("person", 'it\'s "one" }}'), picture=True, scores=True)
    found = payload(Topics("edge", "box"), "1", {}, [shown], ["m"], temperature=True)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def test_every_entity_reads_and_writes_topics_of_the_interface() -> None:
    """Nothing is subscribed to but what is below `in/`, and each id is there once."""
    rules = (Rule(name="in", when="enter"), Rule(name="long", when="dwell", zone="yard"))
    found = made(
        zones=(Zone(name="yard", polygon=YARD),),
        lines=(Line(name="gate", points=((0.0, 0.0), (1.0, 1.0))),),
        rules=rules,
    )
    components = found["components"]
    assert len({each["unique_id"] for each in components.values()}) == len(components)
    for key, each in components.items():
        if "command_topic" in each:
            assert each["command_topic"].startswith("edge/box/in/"), key
        for name in ("state_topic", "image_topic"):
            assert each.get(name, "edge/box/").startswith("edge/box/"), key
    platforms = [each["platform"] for each in components.values()]
    assert {name: platforms.count(name) for name in sorted(set(platforms))} == {
        "binary_sensor": 4,  # two rules, a zone with two labels
        "button": 3,
        "image": 1,
        "number": 2,
        "sensor": 11,
        "switch": 1,
        "update": 1,
    }


def test_an_events_picture_reaches_home_assistant(
    tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """As an image of its own, on the topic where it is really published; its facts as attributes.

    A rule's sensor keeps them when another rule fires, and says only what its own event said.
    """
    detector(tmp_path / "models" / "finder", [(0, 0.9, 0.1, 0.1, 0.4, 0.4)], ["person"])
    clip = write_clip(tmp_path / "clip.avi", [plain(90)] * 10)
    rules = [{"name": "seen", "when": "enter", "picture": "crop"}]
    pipeline = {"name": "door", "source": f"file:{clip}", "model": "finder", "rules": rules}
    models = [str(tmp_path / "models")]
    enabled = {"enabled": True}
    heard = listen(broker.port, "#")
    agent(agent_settings("box", broker.url, [pipeline], models_dirs=models, homeassistant=enabled))
    picture = heard.wait_for(
        lambda all_: next((h for h in all_ if h.topic.startswith("edge/box/picture/")), None),
        "the picture of the event",
    )
    found = heard.wait_for(
        lambda all_: next((h for h in all_ if h.topic == TOPIC), None), "the entities"
    )
    components = found.json["components"]
    image = components["door_picture"]
    assert (image["platform"], image["content_type"]) == ("image", "image/jpeg")
    assert image["image_topic"] == "edge/box/picture/door/+"
    assert mqtt.topic_matches_sub(image["image_topic"], picture.topic)
    sensor = components["door_rule_seen"]
    assert sensor["json_attributes_topic"] == sensor["state_topic"] == "edge/box/event/door"
    assert 'if value_json.rule == "seen" else this.attributes' in sensor["json_attributes_template"]


def test_a_rules_sensor_is_not_turned_by_what_comes_late() -> None:
    """A begin that waited out a broken connection had switched it on again after its end.

    And the end of an event that a killed agent had begun had switched off one of the next run.
    """
    rule = Rule(name="long", when="dwell", zone="yard", for_s=1.0)
    zone = Zone(name="yard", polygon=YARD)
    sensor = made(zones=(zone,), rules=(rule,))["components"]["door_rule_long"]
    jinja = Environment()  # noqa: S701 - no HTML
    shown: dict[str, Any] = {"state": "unknown", "attributes": {}}

    def hear(event: str, state: str, time: str, **more: Any) -> str:
        said = {"rule": "long", "event": event, "state": state, "time": time, **more}
        if state == "end":
            said["why"] = "over"

        def render(template: str) -> str:
            return jinja.from_string(template).render(value_json=said, this=shown)

        turned = render(sensor["value_template"])
        facts = json.loads(render(sensor["json_attributes_template"]))
        # Home Assistant has no attribute of this name.
        shown["attributes"] = {key: facts[key] for key in facts if key != "state"}
        shown["state"] = {"ON": "on", "OFF": "off", "": shown["state"]}[turned]
        return str(shown["state"])

    assert hear("a", "end", "10:00:03") == "off"
    assert hear("a", "begin", "10:00:01", replayed=True) == "off"
    assert hear("a", "update", "10:00:02", replayed=True) == "off"
    assert shown["attributes"]["time"] == "10:00:03"
    assert hear("c", "begin", "10:00:05") == "on"
    assert hear("b", "end", "10:00:04", replayed=True) == "on"
    assert hear("c", "end", "10:00:06", replayed=True) == "off"
    assert hear("d", "begin", "09:00:00") == "on"  # the clock was set back
    assert hear("d", "end", "08:00:00", replayed=True) == "off", "by a run whose clock was behind"
    assert hear("d", "begin", "09:00:00", replayed=True) == "off", "once more"
    assert hear("f", "begin", "08:00:02", clock="unset") == "on"
    assert hear("e", "begin", "09:30:00", replayed=True) == "on"
    assert hear("e", "end", "08:00:01", replayed=True) == "on", "f has not ended"
    assert hear("f", "update", "08:00:03", replayed=True, clock="unset") == "on"
    assert shown["attributes"]["time"] == "08:00:03"
    assert hear("f", "end", "08:00:04") == "off"
    assert hear("g", "begin", "08:00:05", replayed=True) == "on"
    # A killed agent, whose next run began an event while the broker was still away.
    assert hear("h", "begin", "08:00:07", replayed=True) == "on"
    assert hear("g", "end", "08:00:06", replayed=True) == "on", "h has not ended"
    assert hear("h", "end", "08:00:08") == "off"


def test_a_mode_can_be_left_and_one_that_no_rule_names_is_shown_as_none() -> None:
    """The mode before it went on being shown, as if its rules held; nobody could disarm there."""
    found = payload(
        Topics("edge", "box"), "1", {}, [], [], temperature=False, modes=["day", "night"]
    )
    select = found["components"]["mode"]
    read = Environment().from_string(select["value_template"])  # noqa: S701 - no HTML
    shown = [read.render(value_json={"mode": each}) for each in ("night", "away", None)]
    assert shown == ["night", "None", "no mode"]
    write = Environment().from_string(select["command_template"])  # noqa: S701
    assert [write.render(value=each) for each in select["options"]] == ["day", "night", "null"]


def entities(task: str, *, picture: bool, values: tuple[str, ...] = ()) -> dict[str, Any]:
    """Make the entities of a pipeline whose model is of a task."""
    settings = Pipeline(name="door", source="dir:.", model="m")
    view = PipelineView(settings, (), picture=picture, scores=False, task=task, values=values)
    return payload(Topics("edge", "box"), "1", {}, [view], [], temperature=False)["components"]  # type: ignore[no-any-return]


def test_readings_scores_and_learned_thresholds_are_entities() -> None:
    """On the result's topic; those of every frame of a camera are there and not switched on."""
    found = entities("anomaly", picture=False)
    assert ".get('score', '')" in found["door_score"]["value_template"]
    assert ".get('threshold', '')" in found["door_learned"]["value_template"]
    found = entities("classification", picture=True)
    assert {"door_class", "door_score"} <= found.keys()
    assert found["door_class"]["enabled_by_default"] is False
    found = entities("regression", picture=False, values=("left °C", "right °C"))
    values = [each for key, each in found.items() if key.startswith("door_value:")]
    assert [each["name"] for each in values] == ["door left °C", "door right °C"]
    for each in values:
        assert each["state_topic"] == "edge/box/result/door"
        assert "enabled_by_default" not in each


@pytest.mark.parametrize(
    ("rate", "bounds"),
    [(None, (0.1, 60)), (5.0, (0.1, 60)), (0.02, (0.02, 60)), (200.0, (0.1, 200))],
)
def test_the_rate_that_holds_is_within_the_bounds_of_its_number(
    rate: float | None, bounds: tuple[float, float]
) -> None:
    """Home Assistant takes no state outside them, and shows the one of before."""
    number = made(rate=rate)["components"]["door_rate"]
    assert (number["min"], number["max"]) == bounds


def as_jinja(literal: str) -> str:
    """Read a text of a template as Jinja's lexer does."""
    text: str = literal[1:-1].encode("ascii", "backslashreplace").decode("unicode-escape")
    return text


@pytest.mark.parametrize("label", ["\N{FIRE}", "Käse", 'a "b" \\ c', "日本", "two\nlines\t"])
def test_a_label_with_an_emoji_is_counted(label: str) -> None:
    """Home Assistant looks for the label that the counts have, whatever letters it is of."""
    found = made(zones=(Zone(name="yard", polygon=YARD),), labels=(label,))
    counts = [
        each["value_template"]
        for each in found["components"].values()
        if "state_class" in each and "zones" in each["value_template"]
    ]
    assert len(counts) == 1
    literal = re.search(r"""\{\}\)\.get\((".*"), 0\) \}\}$""", counts[0])
    assert literal is not None
    assert as_jinja(literal[1]) == label


def test_entities_of_pipelines_with_similar_names_stay_apart() -> None:
    """Names hold underscores, which also part what a key is made of."""
    line = {"points": ((0.0, 0.0), (1.0, 1.0))}
    odd = ("in", "交通灯红", "交通灯绿", "traffic light")
    ways = (Line(name="gate", **line), Line(name="gate_in", **line))  # type: ignore[arg-type]
    pipelines = [
        Pipeline(name="parts", source="dir:.", model="m", rules=(Rule(name="fps", when="enter"),)),
        *(
            Pipeline(name=name, source="dir:.", model="m", lines=ways)
            for name in ("parts_rule", "parts_take", "parts_line_gate", "model", "front_door")
        ),
    ]
    shown = [PipelineView(each, odd, picture=True, scores=True) for each in pipelines]
    alone = [
        payload(Topics("edge", "box"), "1", {}, [each], [], temperature=False)["components"]
        for each in shown
    ]
    models = ["fps", "m"]
    together = payload(Topics("edge", "box"), "1", {}, shown, models, temperature=False)
    components = together["components"]
    assert len(components) - 1 == sum(len(each) - 1 for each in alone) + len(models)
    assert len({each["unique_id"] for each in components.values()}) == len(components)
    for usual in ("parts_rule_fps", "front_door_fps", "model_fps"):
        assert usual in components
    assert components["parts_rule_fps"]["platform"] == "binary_sensor"
    assert components["parts_rule:fps"]["platform"] == "sensor"
    lines = 2 * 2 * (1 + len(odd))
    assert sum(key.startswith("front_door_line_") for key in components) == lines


@pytest.mark.parametrize(
    ("device", "level"),
    [("box-1_a", "edge-agent_box-1_a"), ("gate.3", "edge-agent_gate_3_9c713123")],
)
def test_the_level_of_a_device_is_one_that_home_assistant_reads(device: str, level: str) -> None:
    """Letters, digits, "_" and "-"; and none is that of another device."""
    assert object_id(Topics("edge", device)) == level


def test_entities_stay_while_the_models_that_name_them_are_loaded(tmp_path: Path) -> None:
    """At each start their labels are not known for a while: Home Assistant would remove them."""
    zone = Zone(name="yard", polygon=YARD)
    pipeline = Pipeline(name="door", source=f"dir:{tmp_path}", model="finder", zones=(zone,))
    settings = Settings(
        device_id="box",
        state_dir=str(tmp_path),
        pipelines=(pipeline,),
        homeassistant=HomeAssistant(enabled=True),
    )
    folder = load(detector(tmp_path / "finder", [(0, 0.9, 0.1, 0.1, 0.4, 0.4)], ["person"]))

    def nothing() -> Any:
        raise AssertionError("no model is loaded here")

    def components(runner: Runner) -> dict[str, Any]:
        made = runner.client.retained._published.get(TOPIC)
        return {} if made is None else json.loads(made)["components"]

    for _ in range(2):
        runner = Runner(
            settings,
            lanes=1,
            catalog=nothing,
            loader=nothing,
            stops=ShutdownQueue(),
            timeline=Timeline(),
        )
        announcer = Announcer(runner, "box", tmp_path)
        announcer.publish()
        assert components(runner) == {}
        [serving] = runner.active.all()
        model = load_model(folder, [EngineChoice("onnxruntime")], "picture")
        runner.active.put(serving.arm, serving.kind, model)
        announcer.publish()
        assert len(components(runner)["door_zone_yard_person"]) > 1
        model.close()
    serving.model, serving.problem = None, "is broken"
    announcer.publish()
    assert len(components(runner)["door_enabled"]) > 1


def test_discovery_follows_the_settings_and_goes_with_them(
    tmp_path: Path, broker: Mosquitto, listen: Listeners, agent: Agents
) -> None:
    """A rule that is gone is named without anything; switched off, the topic is cleared.

    Not at a start: Home Assistant removes a device whose discovery is cleared, and clears it itself
    then, also what was published right after that (seen with Home Assistant 2025.10.4).
    """
    detector(tmp_path / "models" / "finder", [(0, 0.9, 0.1, 0.1, 0.4, 0.4)], ["person"])
    clip = write_clip(tmp_path / "clip.avi", [plain(90)] * 10)
    pipeline: dict[str, Any] = {
        "name": "door",
        "source": f"file:{clip}?loop=1",
        "model": "finder",
        "rules": [{"name": "seen", "when": "enter"}],
    }
    models = [str(tmp_path / "models")]

    def settings(*, enabled: bool) -> str:
        return agent_settings(
            "box", broker.url, [pipeline], models_dirs=models, homeassistant={"enabled": enabled}
        )

    heard = listen(broker.port, "#")
    running = agent(settings(enabled=True))

    def components(heard_all: list[Any]) -> dict[str, Any]:
        latest = [h for h in heard_all if h.topic == TOPIC and h.payload]
        return latest[-1].json["components"] if latest else {}

    heard.wait_for(lambda all_: "door_threshold" in components(all_), "entities")
    assert len(components(heard.heard)["door_rule_seen"]) > 1
    del pipeline["rules"]
    running.config.write_text(settings(enabled=True))
    running.signal(signal.SIGHUP)
    gone = {"platform": "binary_sensor"}
    heard.wait_for(lambda all_: components(all_).get("door_rule_seen") == gone, "the rule to go")
    running.stop()
    before = len(heard.on(TOPIC))
    running.restart()
    heard.wait_for(lambda _: heard.on(TOPIC)[before:], "the entities of the next run")
    assert all(each.payload for each in heard.heard if each.topic == TOPIC), "cleared: removed"
    running.stop()
    running.config.write_text(settings(enabled=False))
    running.restart()
    heard.wait_for(
        lambda all_: [h for h in all_ if h.topic == TOPIC][-1].payload == b"", "it to be cleared"
    )
