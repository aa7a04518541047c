"""What `edge-agent schema` prints is what devices say and take."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from jsonschema import Draft202012Validator

from edge_agent.config.rule_kinds import RULE_KINDS
from edge_agent.core.bundled import bundled
from tests.helpers.payload_schemas import closed
from tests.helpers.push import QUICK, model_folder
from tests.helpers.small_models import brightness, detector, plain, write_clip
from tests.helpers.support import (
    AgentProcess,
    Heard,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    run_cli,
)

YARD = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]


def printed(*words: str) -> dict[str, Any]:
    """Return what the command prints."""
    said = call_cli("schema", *words)
    assert (said.code, said.err) == (0, "")
    return dict(json.loads(said.out))


def problems(payload: Any, *words: str) -> list[str]:
    """List what is wrong with a payload, by the schema of its kind."""
    checks = Draft202012Validator(closed(printed(*words)))
    return [f"{each.json_path}: {each.message}" for each in checks.iter_errors(payload)]


@pytest.fixture
def heard(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> list[Heard]:
    """Return all that is heard of a device at work: of each kind something, but answers."""
    rows = [(0, 0.9, 0.0, 0.0, 0.5, 0.5), (1, 0.6, 0.5, 0.5, 1.0, 1.0)]
    detector(tmp_path / "models" / "finder", rows, ["person", "car"])
    brightness(tmp_path / "models" / "light")
    source = f"file:{write_clip(tmp_path / 'clip.avi', [plain(200)] * 25)}?loop=1"
    door: dict[str, Any] = {
        "name": "door",
        "source": source,
        "model": "finder",
        "zones": [{"name": "yard", "polygon": YARD}],
        "lines": [{"name": "gate", "points": [[0.0, 0.5], [1.0, 0.5]]}],
        "rules": [
            {"name": "come", "when": "enter", "zone": "yard"},
            {"name": "many", "when": "count", "zone": "yard", "above": 0.5},
        ],
    }
    lamp: dict[str, Any] = {"name": "lamp", "source": source, "model": "light"}
    lit = {"name": "lit", "when": "value", "value": "light", "above": 0.0}
    model_folder(tmp_path / "models" / "level", "1")
    level = {"name": "level", "source": source, "model": "level"}
    shaft = {"name": "shaft", "source": f"csv:{bundled('models') / 'media' / 'bearing.csv'}"}
    press = {"name": "press", "source": "mqtt:shop/press?field=t", "model": "readings"}
    shaft["model"] = "bearing-vibration"
    settings = agent_settings(
        "box",
        broker.url,
        [door, {**lamp, "rules": [lit]}, level, shaft, press],
        models_dirs=[str(tmp_path / "models")],
        trust={"allow_unsigned": True},
        infer={"models": ["light"]},
        trial=QUICK,
        groups=["lab"],
    )
    assert problems(tomllib.loads(settings), "settings") == []
    listener = listen(broker.port)
    agent(settings)
    listener.wait_for(lambda all_: [h for h in all_ if "/event/lamp" in h.topic], "an event")
    listener.publish("shop/press", '{"t": 20.5}')
    listener.publish("edge/box/in/command/snapshot", '{"id": "a", "pipeline": "door"}')
    listener.publish(
        "edge/box/in/command/configure", '{"id": "b", "pipelines": {"lamp": {"rate": 5}}}'
    )
    listener.publish("edge/box/in/command/set", '{"id": "c", "pipeline": "gate"}')
    listener.publish("edge/box/in/command/which", '{"id": "d"}')
    for name, good in (("a", True), ("b", True), ("c", False), ("d", False)):
        listener.wait_state(f"edge/box/reply/{name}", ok=good)
    new = brightness(tmp_path / "light-2", "2")
    pushed = run_cli("push", str(new), "--device", "box", "--broker", broker.url)
    assert pushed.returncode == 0, pushed.stderr
    listener.wait_state("edge/box/model/light", live="2")
    listener.wait_for(lambda _: listener.last("edge/box/result/press"), "a reading")
    listener.wait_state("edge/box/health", state="ok")
    return [each for each in listener.heard if "/in/" not in each.topic and "@" not in each.topic]


def test_every_message_of_a_device_is_as_its_schema_says(heard: list[Heard]) -> None:
    """Every key is named there, has its type, and is there where it has to be."""
    by_kind: dict[str, list[Any]] = {}
    for each in heard:
        kind = each.topic.split("/")[2]
        if kind not in {"snapshot", "picture"}:
            by_kind.setdefault(kind, []).append(each.json)
    document = printed()
    told = {kind for kind in document["$defs"] if kind.islower() and "." not in kind}
    assert {each["state"] for each in by_kind["event"]} >= {"once", "begin"}
    assert told - by_kind.keys() == {"settings", "answer", "rollout"}
    found = {key for each in by_kind["result"] for key in each}
    assert {"detections", "classes", "anomaly", "values", "capture"} <= found
    for kind, payloads in by_kind.items():
        checks = Draft202012Validator(closed(printed(kind)))
        wrong = [
            f"{error.json_path}: {error.message}"
            for payload in payloads
            for error in checks.iter_errors(payload)
        ]
        assert not wrong, (kind, wrong[0])
        for key in printed(kind)["required"]:
            assert list(checks.iter_errors({k: v for k, v in payloads[0].items() if k != key}))
    # The verbs, and their keys, are those that the device itself lists.
    listed = next(each.json for each in heard if each.topic == "edge/box/reply/d")["error"]
    for kind in document["$defs"]:
        if kind.startswith("command."):
            schema = printed(kind)
            keys = [key for key in schema["properties"] if key not in {"id", "time"}]
            usage = ", ".join(key if key in schema["required"] else f"{key}?" for key in keys)
            assert f"{kind.removeprefix('command.')} {{{usage}}}" in listed
    assert listed.count("{") == sum(kind.startswith("command.") for kind in document["$defs"])


def test_schemas_are_valid_and_so_is_what_refers_to_them() -> None:
    """Each alone, all together, and the topics as AsyncAPI, in which every reference leads on."""
    for kind in printed()["$defs"]:
        if not kind[0].isupper():
            Draft202012Validator.check_schema(printed(kind))
    written = set(
        json.loads(files("edge_agent.mqtt").joinpath("payloads.json").read_text())["$defs"]
    )
    assert not written & printed("settings")["$defs"].keys(), "one name for two things"
    document = printed("--asyncapi")
    assert document["asyncapi"].startswith("3.")

    def check(part: Any) -> None:
        if isinstance(part, dict) and isinstance(part.get("$ref"), str):
            found = document
            for step in part["$ref"].removeprefix("#/").split("/"):
                found = found[step]
        for each in part.values() if isinstance(part, dict) else part:
            if isinstance(each, dict | list):
                check(each)

    check(document)
    assert document["channels"]["result"]["address"] == "edge/{device}/result/{pipeline}"
    assert document["operations"]["send.status"]["bindings"]["mqtt"] == {"qos": 1, "retain": True}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quota_mb": "much"}, "'much' is not of type 'integer'"),
        ({"broker": {"protocol": 3}}, "3 is less than the minimum of 4"),
        ({"quotamb": 5}, "'quotamb' was unexpected"),
        ({"pipelines": [{"name": "door", "source": "dir:."}]}, "'model' is a required property"),
        ({"remote": {"may": "all"}}, "'all' is not of type 'array'"),
    ],
)
def test_settings_that_are_wrong_are_so_by_their_schema(change: Any, words: str) -> None:
    """Types, bounds, unknown and missing keys."""
    settings = tomllib.loads(tomli_w.dumps(change))
    assert any(words in each for each in problems(settings, "settings"))


def test_the_example_of_all_settings_has_all_settings() -> None:
    """As it is, nothing is set; uncommented, it names every key, with a value that it takes."""
    said = call_cli("schema", "settings", "--toml")
    assert (said.code, said.err, tomllib.loads(said.out)) == (0, "", {})
    lines = [line[1:] for line in said.out.splitlines() if re.match(r"#(\w+ =|\[)", line)]
    every = tomllib.loads("\n".join(lines))
    assert problems(every, "settings") == []
    for key in ("ca_file", "cert_file", "key_file"):
        assert every["broker"][key].startswith("/"), "no file has an empty name"
    document = printed("settings")

    def check(table: Any, schema: Any) -> None:
        assert table.keys() - {"then"} == schema["properties"].keys() - {"then"}
        for key, value in table.items():
            inner = value[0] if isinstance(value, list) and value else value
            named = re.search(r"\$defs/(\w+)", json.dumps(schema["properties"][key]))
            if isinstance(inner, dict) and named is not None and inner:
                check(inner, document["$defs"][named[1]])

    check(every, document)
    kinds = document["$defs"]["Rule"]["properties"]["when"]["description"]
    assert re.findall(r"\w+", kinds.replace(" or ", " ")) == [*RULE_KINDS]


def test_what_check_says_on_the_broker_is_as_its_schema(
    broker: Mosquitto, listen: Callable[..., Listener], tmp_path: Path
) -> None:
    """Whoever reads all replies found a bare text among them."""
    listener = listen(broker.port, "edge/#")
    (tmp_path / "box.toml").write_text(agent_settings("box", broker.url, []))
    assert "broker: mqtt://" in call_cli("check", "--config", str(tmp_path / "box.toml")).out
    listener.catch_up()
    replies = [each.payload for each in listener.heard if "/reply/" in each.topic]
    bodies = [json.loads(payload) for payload in replies if payload]
    assert bodies
    assert [words for body in bodies for words in problems(body, "reply")] == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["results"], "did you mean 'result'?"),
        (["result", "--asyncapi"], "leave out KIND"),
        (["result", "--toml"], "schema settings --toml"),
        (["settings", "--toml", "--asyncapi"], "not allowed with argument"),
    ],
)
def test_what_there_is_no_schema_of_is_2(words: list[str], why: str) -> None:
    """The nearest kind is named."""
    said = call_cli("schema", *words)
    assert said.code == 2
    assert why in said.error


@pytest.mark.parametrize(
    "wrong",
    [
        {"rules": [{"name": "r", "when": "nope"}]},
        {"rules": [{"name": "r", "when": "enter", "frames": "often"}]},
        {"rules": [{"name": "r", "when": "cross"}]},
        {"rules": [{"name": "r", "when": "value", "above": 1}]},
        {"rules": [{"name": "r", "when": "value", "value": "t"}]},
        {"rules": [{"name": "r", "when": "enter", "during": "monday"}]},
        {"rules": [{"name": "r", "when": "enter", "modes": ["at night"]}]},
        {"roi": [1, 2, 3]},
        {"masks": [[[0, 0], [1, 1]]]},
        {"lines": [{"name": "l", "points": [[0, 0]]}]},
        {"name": "ü"},
    ],
)
def test_an_editor_sees_what_the_agent_would_refuse(wrong: dict[str, Any]) -> None:
    """Beyond types: kinds of rules, names, and how many corners there are."""
    pipeline = {"name": "a", "source": "mqtt:x", "model": "readings"}
    schema = Draft202012Validator(printed("settings"))
    assert schema.is_valid({"pipelines": [pipeline]})
    assert not schema.is_valid({"pipelines": [pipeline | wrong]})
