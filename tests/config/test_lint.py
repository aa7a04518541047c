"""What settings ask for in vain is said: in `check`, in the log, in health where it degrades."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from edge_agent.config.lint import lint_pipeline, lint_settings
from edge_agent.config.rules import Action, Line, Rule, Zone
from edge_agent.config.settings import Evidence, Pipeline, SecondStage, Settings
from edge_agent.models.manifest import ModelFolder, load
from tests.helpers.cameras import MjpegServer
from tests.helpers.small_models import (
    brightness,
    color_classifier,
    detector,
    encode_jpeg,
    plain,
    write_manifest,
    write_pictures,
)
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    free_port,
    wait_until,
)
from tests.helpers.tiny_networks import node, save_onnx, to_ir

FACE = [(0, 0.9, 0.1, 0.1, 0.9, 0.9)]


@pytest.fixture
def face(tmp_path: Path) -> ModelFolder:
    """Give a detector of faces and hands."""
    return load(detector(tmp_path / "models" / "face", FACE, ["face", "hand"]))


@pytest.fixture
def light(tmp_path: Path) -> ModelFolder:
    """Give a model of numbers."""
    return load(brightness(tmp_path / "models" / "light"))


def asked(model: str = "face", **more: Any) -> Pipeline:
    """Make settings of a pipeline."""
    return Pipeline(name="door", source="dir:x", model=model, **more)


def stage(**more: Any) -> tuple[SecondStage, ...]:
    """Make one second stage."""
    return (SecondStage(name="two", model="light", **more),)


def test_what_can_come_about_is_no_doubt(face: ModelFolder, light: ModelFolder) -> None:
    """Labels that the first model finds, a threshold of its own, an even split: not a word."""
    assert lint_pipeline(asked(threshold=0.4, then=stage(labels=("hand",))), [face], [light]) == []
    assert lint_pipeline(asked("face@1:50,face@2:50"), [face, face], []) == []
    assert lint_pipeline(asked(then=stage(labels=("dog",))), [None], [None]) == []


def test_a_clip_that_shows_what_masks_hide_is_said(face: ModelFolder) -> None:
    """It is made of packets as the camera sent them."""
    rule = Rule(name="seen", when="count", clip=True)
    corner = ((0.0, 0.0), (0.5, 0.0), (0.5, 0.5))
    camera = replace(asked(rules=(rule,)), source="rtsp://cam/1")
    assert lint_pipeline(camera, [face], []) == []
    assert lint_pipeline(replace(camera, source="RTSP://cam/1"), [face], []) == []
    (line,) = lint_pipeline(replace(camera, masks=(corner,)), [face], [])
    assert line.startswith("rules[seen].clip: shows what masks blacken")


def test_keys_of_a_manifest_in_vain_are_said(face: ModelFolder, light: ModelFolder) -> None:
    """Of every model of the pipeline, a second stage's included."""
    inputs = replace(light.manifest.input, hop=4)
    idle = replace(light, manifest=replace(light.manifest, input=inputs))
    (line,) = lint_pipeline(asked(then=stage()), [face], [idle])
    assert line.startswith("light@1: input.hop: no effect: the model takes pictures")


def test_a_label_that_is_never_found_is_said(face: ModelFolder, light: ModelFolder) -> None:
    """With none of its labels a second stage never acts; with some it acts on those."""
    (none,) = lint_pipeline(asked(then=stage(labels=("dog",))), [face], [light])
    assert none == (
        "then[two].labels: never acts with face@1: 'dog' is not among what it finds (face, hand)"
    )
    (some,) = lint_pipeline(asked(then=stage(labels=("face", "dog"))), [face], [light])
    assert some.startswith("then[two].labels: 'dog' is not among")


def test_a_second_stage_on_what_finds_nothing_is_said(light: ModelFolder) -> None:
    """Under a model of numbers there is no detection to look at."""
    (line,) = lint_pipeline(asked("light", then=stage()), [light], [light])
    assert line.startswith("then[two]: never acts with light@1: it looks at detections")


def test_what_a_second_stage_smooths_is_said(face: ModelFolder, tmp_path: Path) -> None:
    """Its pictures are of one object and then of another: nothing is smoothed over them."""
    colors = color_classifier(tmp_path / "colors")
    manifest = colors / "model.toml"
    manifest.write_text(manifest.read_text().replace("[output]", '[output]\nsmooth = "3/5"'))
    (line,) = lint_pipeline(asked(then=stage()), [face], [load(colors)])
    assert line.startswith("then[two]: output.smooth of colors@1 has no effect")
    assert lint_pipeline(asked("colors"), [load(colors)], []) == []


def test_a_rule_on_what_any_second_stage_finds_acts(face: ModelFolder, tmp_path: Path) -> None:
    """Of whichever task: the names in a gallery, classes, boxes of every kind."""
    who = tmp_path / "who"
    brightness(who, task="embedding")
    write_manifest(who, "1", "embedding", output={"threshold": 0.5})
    np.savez(who / "gallery.npz", alice=np.ones((1, 1), np.float32))
    rules = tuple(Rule(name=name, when="enter", labels=(name,)) for name in ("alice", "bob"))
    given = asked(rules=rules, then=stage())
    (line,) = lint_pipeline(given, [face], [load(who)])
    assert line.startswith("rules[bob].labels: never acts with face@1: 'bob'")
    boxes = load(detector(tmp_path / "boxes", FACE, ["alice", "bob"]))
    for task in ("detection", "obb", "instance-segmentation", "segmentation"):
        each = replace(boxes, manifest=replace(boxes.manifest, task=task))
        assert lint_pipeline(given, [face], [each]) == []


def test_a_threshold_of_numbers_is_said(face: ModelFolder, light: ModelFolder) -> None:
    """Numbers are all published, so that a threshold on them does nothing."""
    (second,) = lint_pipeline(asked(then=stage(threshold=0.5)), [face], [light])
    assert second.startswith("then[two].threshold has no effect: light@1")
    (first,) = lint_pipeline(asked("light", threshold=0.5), [light], [])
    assert first.startswith("threshold has no effect: light@1")


def test_a_split_of_two_tasks_is_said(face: ModelFolder, light: ModelFolder) -> None:
    """Results of one pipeline that change their kind are nothing that a reader expects."""
    (line,) = lint_pipeline(asked("face:50,light:50"), [face, light], [])
    assert "different tasks (face@1 is of detection, light@1 is of regression)" in line


def test_clips_that_nothing_may_be_kept_of_are_said() -> None:
    """By default nothing is."""
    settings = Settings(pipelines=(asked(rules=(Rule(name="r", when="enter", clip=True),)),))
    (line,) = lint_settings(settings)
    assert line.startswith("pipeline door: rules[r].clip keeps nothing: evidence.keep_mb is 0")
    assert list(lint_settings(replace(settings, evidence=Evidence(keep_mb=1)))) == []


def test_clips_of_a_camera_that_sends_mjpeg_are_said(tmp_path: Path, broker: Mosquitto) -> None:
    """Its device was degraded from the first event on, and nothing had said so before."""
    brightness(tmp_path / "models" / "light")
    rule = {"name": "r", "when": "value", "value": "light", "above": 1, "clip": True}
    with MjpegServer([encode_jpeg(plain(1))]) as camera:
        pipeline = {"name": "door", "source": camera.url(), "model": "light", "rules": [rule]}
        config = tmp_path / "edge-agent.toml"
        more = {"models_dirs": ["models"], "evidence": {"keep_mb": 30}}
        config.write_text(agent_settings("box", broker.url, [pipeline], **more))
        said = call_cli("check", "--config", str(config))
    (line,) = (each for each in said.out.splitlines() if "].clip" in each)
    assert "rules[r].clip keeps nothing" in line
    assert "rtsp://" in line


def test_rules_on_what_is_no_camera_are_said(face: ModelFolder) -> None:
    """A folder of pictures is none, nor a clip as fast as it goes, nor a camera not watched."""
    rules = (Rule(name="r", when="camera", labels=("dark",)),)
    other = {"source": "file:x.mp4?loop=1&pace=max"}
    for unlike in ({"source": "dir:x"}, other, {"source": "rtsp://a/b", "camera": False}):
        (line,) = lint_pipeline(replace(asked(rules=rules), **unlike), [face], [])
        assert line.startswith('rules[r]: never acts: when = "camera" is for cameras')
    assert lint_pipeline(replace(asked(rules=rules), source="v4l2:/dev/video0"), [face], []) == []


@pytest.mark.usefixtures("face", "light")
def test_check_and_the_log_say_so(
    tmp_path: Path, broker: Mosquitto, agent: Callable[..., AgentProcess]
) -> None:
    """`check` has a note, and is content all the same; a running agent logs it once."""
    source = write_pictures(tmp_path / "pictures", [plain(90)])
    pipeline = {
        "name": "door",
        "source": f"{source}?loop=1&rate=5",
        "model": "face",
        "then": [{"name": "two", "model": "light", "labels": ["dog"]}],
    }
    models = [str(tmp_path / "models")]
    text = agent_settings("box", broker.url, [pipeline], models_dirs=models)
    running = agent(text)
    said = call_cli("check", "--config", str(running.config))
    assert said.code == 0, said.out
    note = (
        "pipeline door: then[two].labels: never acts with face@1: 'dog' is not among what it finds"
    )
    assert [line[:4] for line in said.out.splitlines() if note in line] == ["note"]
    wait_until(lambda: note in running.words(), "the warning")
    assert running.stop() == 0
    assert running.words().count(note) == 1


def test_a_version_that_calls_what_a_rule_waits_for_otherwise_degrades(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    face: ModelFolder,
) -> None:
    """The push was live and health ok, while the alarm could never come again."""
    source = write_pictures(tmp_path / "pictures", [plain(90)])
    rules = [
        {"name": "alarm", "when": "enter", "labels": ["face"]},
        {"name": "hint", "when": "enter", "labels": ["hand", "paw"]},
    ]
    pipeline = {"name": "door", "source": f"{source}?loop=1&rate=5", "model": "face"}
    models = [str(face.path.parent)]
    trial = {"shadow_frames": 0, "probation_s": 0}
    running = agent(
        agent_settings(
            "box", broker.url, [{**pipeline, "rules": rules}], models_dirs=models, trial=trial
        )
    )
    heard = listen(broker.port)
    heard.wait_state("edge/box/health", state="ok")
    heard.wait_for(lambda _: "rules[hint].labels: 'paw'" in running.words(), "the hint")
    newer = detector(tmp_path / "new" / "face", FACE, ["visage", "hand"], "2")
    assert call_cli("add", str(newer), "--config", str(running.config)).code == 0
    why = "pipeline door: rules[alarm].labels: never acts with face@2: 'face' is not among what it"
    heard.wait_why(f"{why} finds (hand, visage)")
    heard.publish("edge/box/in/set/door/enabled", "OFF")
    heard.wait_state("edge/box/health", state="ok")
    heard.publish("edge/box/in/set/door/enabled", "ON")
    heard.wait_why(why)
    heard.publish("edge/box/in/command/rollback", '{"model": "face"}')
    heard.wait_state("edge/box/health", state="ok")


# A profile that lists no engine for a model's file


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Make a model in OpenVINO's own format."""
    folder = brightness(tmp_path / "models" / "light")
    to_ir(folder / "model.onnx", folder / "model.xml")
    manifest = folder / "model.toml"
    manifest.write_text(manifest.read_text().replace("model.onnx", "model.xml"))
    return folder


def test_silero_vad_a_network_that_one_engine_cannot_load_is_well_on_the_other(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """Its device was degraded for ever; the reason, which nobody can mend, is in `passed_over`."""
    folder = brightness(tmp_path / "models" / "light")
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["gray"], axes=[1], keepdims=0),
            node("Det", ["gray"], ["light"]),  # OpenVINO has none (2026.4)
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("light", "float32", (1,))],
    )
    source = write_pictures(tmp_path / "pictures", [plain(90)])
    pipeline = {"name": "door", "source": f"{source}?loop=1&rate=5", "model": "light"}
    models = [str(tmp_path / "models")]
    options = {"engine": "auto", "profile": "intel-cpu-vnni", "health": {"interval_s": 0.5}}
    listener = listen(broker.port)
    agent(agent_settings("box", broker.url, [pipeline], models_dirs=models, **options))
    state = listener.wait_for(
        lambda all_: next(
            (h.json for h in all_ if h.topic == "edge/box/model/light" and "passed_over" in h.json),
            None,
        ),
        "the reason",
    )
    assert state["engine"].startswith("onnxruntime:CPU")
    assert state["passed_over"][0].startswith("openvino:CPU: ")
    before = len(listener.on("edge/box/health"))
    listener.wait_for(lambda _: len(listener.on("edge/box/health")) > before + 1, "health")
    assert listener.on("edge/box/health")[-1].get("why", []) == []


def test_ir_on_a_profile_without_openvino_is_said(
    tmp_path: Path,
    numbers: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """It runs on OpenVINO; health is degraded, the log and `passed_over` say why, and `check`."""
    source = write_pictures(tmp_path / "pictures", [plain(90)])
    pipeline = {"name": "door", "source": f"{source}?loop=1&rate=5", "model": numbers.name}
    settings = agent_settings(
        "box",
        broker.url,
        [pipeline],
        models_dirs=[str(tmp_path / "models")],
        engine="auto",
        profile="arm-small",
    )
    listener = listen(broker.port)
    running = agent(settings)
    why = "onnxruntime:CPU: cannot read such a file, and the profile does not list openvino"
    health = listener.wait_why(f"model light: on openvino:CPU, because {why}")
    assert health["state"] == "degraded"
    state = listener.wait_state("edge/box/model/light", live="1", engine="openvino:CPU")
    assert state["passed_over"][0].startswith(why)
    assert running.stop() == 0
    assert running.words().count(why) == 1
    said = call_cli("check", "--config", str(running.config))
    assert f"passed over {why}" in said.out
    shown = call_cli("profile", "--config", str(running.config))
    assert "OpenVINO IR (.xml) runs on openvino:CPU, which the profile does not list" in shown.out


def test_an_engine_that_the_settings_name_needs_no_word(tmp_path: Path, numbers: Path) -> None:
    """`engine = "openvino"` is the user's word, which counts more than the profile's list."""
    table = {
        "state_dir": "state",
        "models_dirs": [str(numbers.parent)],
        "engine": "openvino",
        "profile": "arm-small",
        "broker": {"url": f"mqtt://127.0.0.1:{free_port()}"},
        "pipelines": [{"name": "door", "source": "dir:x", "model": "light"}],
    }
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(table))
    said = call_cli("check", "--config", str(config))
    assert "light@1 runs on openvino:CPU\n" in said.out
    assert "OpenVINO IR" not in call_cli("profile", "--config", str(config)).out


YARD = Zone(name="yard", polygon=((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)))
GATE = Line(name="gate", points=((0.0, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"labels": ("dog",)},
            "labels: 'dog' leaves nothing to publish: it is not what face@1 finds",
        ),
        ({"labels": ("dog", "face")}, "labels: 'dog' is not among what face@1 finds"),
        ({"thresholds": {"dog": 0.5}}, "thresholds: 'dog' is not among"),
        (
            {"rules": (Rule(name="r", when="drift", value="ax"),)},
            "rules[r].value: never acts with face@1: drift is of blue, green, red, score",
        ),
        (
            {"rules": (Rule(name="r", when="drift", above=15.0),)},
            "rules[r].above: never acts: no index of drift is above 14",
        ),
        (
            {"rules": (Rule(name="r", when="drift", below=0.0),)},
            "rules[r].below: never acts: no index of drift is below 0",
        ),
        (
            {"rules": (Rule(name="r", when="class"),)},
            'rules[r]: never acts with face@1: when = "class"',
        ),
        (
            {"rules": (Rule(name="r", when="enter", labels=("dog",)),)},
            "rules[r].labels: never acts with face@1: 'dog'",
        ),
        (
            {"rules": (Rule(name="r", when="count", labels=("face", "hnd")),)},
            "rules[r].labels: 'hnd' is not among what face@1 finds; did you mean 'hand'?",
        ),
        (
            {"rules": (Rule(name="r", when="absent", labels=("dog",), for_s=9.0),)},
            "rules[r].labels: always acts with face@1: 'dog' is not among what it finds (face, h",
        ),
        (
            {"rules": (Rule(name="r", when="count", labels=("dog",), below=1.0),)},
            "rules[r].labels: always acts with face@1: 'dog'",
        ),
        (
            {"labels": ("face",), "rules": (Rule(name="r", when="enter", labels=("hand",)),)},
            "rules[r].labels: never acts: the pipeline's labels are face",
        ),
        (
            {"rules": (Rule(name="r", when="count", below=0.0),)},
            "rules[r].below: never acts: no count is below 0",
        ),
        ({"rules": (Rule(name="r", when="enter", for_s=3.0),)}, "rules[r].for_s has no effect"),
        (
            {
                "lines": (GATE,),
                "rules": (
                    Rule(name="r", when="cross", line="gate", do=(Action(publish="x", on="end"),)),
                ),
            },
            'rules[r].do: on = "end" never occurs',
        ),
    ],
)
def test_a_rule_that_can_never_act_is_said(
    face: ModelFolder, keys: dict[str, Any], words: str
) -> None:
    """One line names the rule, or the filter, and why nothing can come of it."""
    (line,) = lint_pipeline(asked(**keys), [face], [])
    assert line.startswith(words)


def test_drift_of_readings_is_said_to_be_of_nothing(tmp_path: Path) -> None:
    """A sensor's rule on drift never fired, and a second stage on readings ended `check`."""
    table = {
        "device_id": "th",
        "pipelines": [
            {
                "name": "s",
                "source": "mqtt:t/x",
                "model": "readings",
                "then": [{"name": "x", "model": "parts-inspection"}],
                "rules": [{"name": "d", "when": "drift", "above": 0.1}],
            }
        ],
    }
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(table))
    said = call_cli("check", "--config", str(config))
    assert said.err == ""
    assert 'rules[d]: never acts with readings: when = "drift" is of what a model gets' in said.out
    assert "then[x]: never acts with readings" in said.out


def test_labels_of_a_model_without_names_leave_nothing(tmp_path: Path) -> None:
    """Its classes are called by their numbers, which may be named; what may not is said."""
    nameless = load(detector(tmp_path / "boxes", [(0, 0.9, 0.1, 0.1, 0.4, 0.9)], []))
    (line,) = lint_pipeline(asked(labels=("person",)), [nameless], [])
    assert line.startswith("labels: 'person' leaves nothing to publish: ")
    assert "labels.txt" in line
    assert lint_pipeline(asked(labels=("0",)), [nameless], []) == []


def test_zones_and_filters_of_boxes_on_a_model_of_numbers_are_said(light: ModelFolder) -> None:
    """A model that finds no boxes has no objects in zones, and no labels."""
    lines = lint_pipeline(
        asked("light", zones=(YARD,), track=True, min_box=(9, 9), labels=("a",)), [light], []
    )
    assert len(lines) == 4
    assert all("has no effect" in line for line in lines)


def test_rules_that_can_act_are_no_doubt(face: ModelFolder, light: ModelFolder) -> None:
    """Not a word about what may come about."""
    rules = (
        Rule(name="a", when="dwell", zone="yard", labels=("face",), for_s=3.0),
        Rule(name="b", when="cross", line="gate", direction="in"),
        Rule(
            name="c", when="count", above=2.0, below=1.0, do=(Action(http="http://h/", on="end"),)
        ),
    )
    given = asked(zones=(YARD,), lines=(GATE,), rules=rules, labels=("face",), min_box=(4, 4))
    assert lint_pipeline(given, [face], []) == []
    value = Rule(name="v", when="value", value="light", above=3.0)
    assert lint_pipeline(asked("light", rules=(value,)), [light], []) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://h:99999/x", "http://h:0/"])
def test_the_mend_of_a_wrong_address_survives_redacting(url: str) -> None:
    """What hides passwords in messages leaves it as it is."""
    from edge_agent.config.templates import url_trouble
    from edge_agent.core.text import redact_urls

    trouble = url_trouble(url)
    assert trouble is not None
    assert redact_urls(trouble) == trouble
    assert "http://host:8080/path" in trouble


def test_empty_braces_are_text_in_a_payload_and_a_mistake_in_a_topic() -> None:
    """`{}` is what many commands take; no word of an event is meant by it."""
    from edge_agent.config.templates import braces_trouble, fill, trouble

    assert trouble("{}") is None
    assert fill('{"of": {}, "is": "{label}"}', {"label": "face"}) == '{"of": {}, "is": "face"}'
    assert braces_trouble("a/{}") is not None


def test_a_text_with_quotes_leaves_a_payload_of_json_whole() -> None:
    """What somebody holds into a camera must not end a string and add keys."""
    from edge_agent.config.templates import fill_payload

    event = {"text": 'A", "open": "yes', "score": 0.9}
    filled = fill_payload('{"plate": "{text}", "score": {score}}', event)
    assert json.loads(filled) == {"plate": 'A", "open": "yes', "score": 0.9}
    assert fill_payload("plate {text}", event) == 'plate A", "open": "yes'
    assert fill_payload("{text}", event) == 'A", "open": "yes'
