"""Stages of stages: models on what models have found on what a model has found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.load import load
from edge_agent.core.errors import UsageError
from tests.helpers.small_models import (
    brightness,
    color_classifier,
    detector,
    plain,
    write_manifest,
    write_pictures,
)
from tests.helpers.support import AgentProcess, Listener, Mosquitto, agent_settings, wait_until
from tests.helpers.tiny_networks import node, save_onnx

LIGHT = {"name": "light", "model": "light"}


def nested(**keys: Any) -> dict[str, Any]:
    """Give a pipeline whose second stage has two stages of its own."""
    inner = {"name": "inner", "model": "dots", "labels": ["box"]}
    again = {"name": "again", "model": "dots", "limit": 1, "then": [LIGHT]}
    return {
        "name": "p",
        "model": "boxes",
        "then": [LIGHT, {**inner, "then": [LIGHT, again]}],
        **keys,
    }


def test_stages_nest_and_rules_see_what_they_find(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """Boxes are in pixels of the frame at every depth; a rule names the label of a stage."""
    halves = [(0, 0.9, 0.0, 0.0, 0.5, 1.0), (1, 0.8, 0.5, 0.0, 1.0, 1.0)]
    detector(tmp_path / "models" / "boxes", halves, ["box", "other"])
    quarters = [(0, 0.9, 0.0, 0.0, 0.5, 0.5), (0, 0.8, 0.5, 0.5, 1.0, 1.0)]
    detector(tmp_path / "models" / "dots", quarters, ["dot"])
    brightness(tmp_path / "models" / "light")
    picture = plain(0)
    picture[:24, :16] = 200
    rules = [
        {"name": "dotted", "when": "count", "labels": ["dot"], "frames": "1/1", "above": 0},
        {"name": "never", "when": "count", "labels": ["square"], "frames": "1/1", "above": 0},
    ]
    source = write_pictures(tmp_path / "pictures", [picture] * 6)
    heard = listen(broker.port)
    settings = nested(source=f"{source}?loop=1&rate=10", rules=rules)
    running = agent(
        agent_settings("box", broker.url, [settings], models_dirs=[str(tmp_path / "models")])
    )
    event = heard.wait_for(lambda _: heard.on("edge/box/event/p"), "an event")[0]
    assert (event["rule"], event["label"], event["count"]) == ("dotted", "dot", 1)
    result = heard.on("edge/box/result/p")[0]
    box, other = result["detections"]
    assert box["label"] == "box"
    assert "inner" not in other["then"]
    first, second = box["then"]["inner"]["detections"]
    assert first["box"] == pytest.approx([0, 0, 16, 24], abs=1)
    assert second["box"] == pytest.approx([16, 24, 32, 48], abs=1)
    assert first["then"]["light"]["values"]["light"] == pytest.approx(200, abs=1)
    assert second["then"]["light"]["values"]["light"] == pytest.approx(0, abs=1)
    (smallest, _) = first["then"]["again"]["detections"]
    assert smallest["box"] == pytest.approx([0, 0, 8, 12], abs=1)
    assert smallest["then"]["light"]["values"]["light"] == pytest.approx(200, abs=1)
    assert "again" not in second["then"], "one a frame"
    crops = {stage: took["crops"] for stage, took in result["stages"].items()}
    assert crops == {
        "light": 2,
        "inner": 1,
        "inner/light": 2,
        "inner/again": 1,
        "inner/again/light": 2,
    }
    doubt = "rules[never].labels: never acts with boxes@1: 'square' is not"
    wait_until(lambda: doubt in running.words(), "the warning")
    assert running.stop() == 0


def form(folder: Path) -> None:
    """Make a model that says "round" of a light picture, and of a black one what is not finite."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["mean"], axes=[2, 3], keepdims=0),
            node("Div", ["mean", "mean"], ["ones"]),
            node("Mul", ["ones", "scale"], ["logits"]),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("logits", "float32", (1, 3))],
        {"scale": np.array([[3, 2, 1]], np.float32)},
    )
    output = {"decoder": "logits", "labels": ["round", "square", "flat"]}
    write_manifest(folder, "1", "classification", output=output)


@pytest.mark.parametrize(
    ("fails", "label"), [("on a crop", "box"), ("to load", "box"), ("to load", "0")]
)
def test_a_second_stage_that_fails_takes_nothing_of_the_first_with_it(
    fails: str,
    label: str,
    tmp_path: Path,
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
) -> None:
    """Rules on what only the stage finds stand still: an alarm for a missing label was false."""
    halves = [(0, 0.9, 0.0, 0.0, 0.5, 1.0), (0, 0.8, 0.5, 0.0, 1.0, 1.0)]
    detector(tmp_path / "models" / "boxes", halves, [label] if label == "box" else [])
    form(tmp_path / "models" / "form")
    color_classifier(tmp_path / "models" / "color")
    picture = plain(0)
    picture[:, :32] = 200
    source = write_pictures(tmp_path / "pictures", [picture] * 6)
    rules = [
        {"name": "there", "when": "count", "labels": [label], "above": 1, "qos": 1},
        {"name": "no-square", "when": "absent", "labels": ["square"], "for_s": 0.5},
        {"name": "no-red", "when": "absent", "labels": ["red"], "for_s": 0.5},
        {"name": "red", "when": "count", "labels": ["red"], "above": 1, "qos": 1},
    ]
    stages = [
        {"name": "form", "model": "form" if fails == "on a crop" else "nowhere"},
        {"name": "color", "model": "color"},
    ]
    pipeline: dict[str, Any] = {"name": "p", "source": f"{source}?loop=1&rate=10", "model": "boxes"}
    pipeline |= {"then": stages, "rules": rules}
    heard = listen(broker.port)
    agent(agent_settings("box", broker.url, [pipeline], models_dirs=[str(tmp_path / "models")]))
    heard.wait_for(lambda _: heard.on("edge/box/event/p")[1:], "two events")
    result = heard.wait_for(lambda _: heard.on("edge/box/result/p")[20:], "more results")[0]
    light, black = result["detections"]
    why = {"on a crop": "values that are not finite", "to load": "model nowhere: "}[fails]
    assert why in result["stages"]["form"]["error"]
    assert black["then"].keys() == {"color"}
    assert ("form" in light["then"]) == (fails == "on a crop")
    events = heard.on("edge/box/event/p")
    assert {(each["rule"], each["count"]) for each in events} == {("there", 2), ("red", 2)}
    health = heard.wait_for(lambda _: heard.on("edge/box/health"), "health")[-1]
    assert health["state"] == "degraded"


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"name": "a b", "model": "m"}, r"then\[inner\]\.then\[0\]\.name: 'a b' is not a name"),
        ({"name": "x", "model": "m:3"}, r"then\[inner\]\.then\[x\]\.model: "),
        ({"name": "x", "model": "m", "margn": 1}, r"unknown key; did you mean 'margin'"),
        ({"name": "x"}, r"then\[x\]\.model: is missing"),
        ("x", r"then"),
    ],
)
def test_what_is_wrong_with_a_stage_below_is_said_with_its_place(
    stage: object, words: str, tmp_path: Path
) -> None:
    """However deep it stands."""
    inner = {"name": "inner", "model": "m", "then": [stage]}
    pipeline = {"name": "p", "source": "dir:.", "model": "m", "then": [inner]}
    file = tmp_path / "settings.toml"
    file.write_text(agent_settings("box", "mqtt://h", [pipeline]))
    with pytest.raises(UsageError, match=words):
        load(file)
