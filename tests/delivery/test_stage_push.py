"""Versions of a model that looks at what another has found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.push import Box, PlainSender, clip, plain_package, start_box
from tests.helpers.small_models import (
    color_classifier,
    detector,
    plain,
    write_clip,
    write_manifest,
)
from tests.helpers.support import AgentProcess, Listener, Mosquitto
from tests.helpers.tiny_networks import node, save_onnx

ROWS = [(0, 0.9, 0.1, 0.1, 0.5, 0.5)]


def failing(folder: Path, version: str) -> Path:
    """Make a version that computes with black pictures alone, as a trial has them."""
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["mean"], axes=[2, 3], keepdims=0),
            node("Neg", ["mean"], ["less"]),
            node("Sqrt", ["less"], ["logits"]),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("logits", "float32", (1, 3))],
    )
    output = {"decoder": "logits", "labels": ["red", "green", "blue"]}
    return write_manifest(folder, version, "classification", output=output)


def test_a_version_is_tried_on_a_still_scene(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """With `motion` no frame came at night, and one that fails on each of them went live."""
    still = write_clip(tmp_path / "still.avi", [plain(120)] * 25)
    color_classifier(tmp_path / "library" / "level")
    box = start_box(
        *(tmp_path, broker, listen(broker.port), agent, "edge-01"),
        source=f"file:{still}?loop=1",
        pipelines=[{"name": "door", "model": "level", "motion": True}],
        version=None,
        models_dirs=[str(tmp_path / "library")],
        trust={"allow_unsigned": True},
        trial={"shadow_frames": 20},
    )
    box.listener.wait_for(
        lambda _h: box.health()["pipelines"]["door"]["dropped"]["still"] > 20, "nothing to move"
    )
    end = push(box, failing(tmp_path / "level-2", "2"), "level", "2", "live", "rejected")
    assert end["state"] == "rejected"
    assert "shadow: failed on a live frame" in str(end["why"])


@pytest.fixture
def door(
    broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> Callable[[int], Box]:
    """Give what starts an agent that looks for colors in what it finds."""

    def start(shadow_frames: int) -> Box:
        clip(tmp_path / "clip.mp4")
        detector(tmp_path / "library" / "level", ROWS, ["thing"])
        color_classifier(tmp_path / "library" / "color")
        return start_box(
            *(tmp_path, broker, listen(broker.port), agent, "edge-01"),
            source=f"file:{tmp_path}/clip.mp4?loop=1",
            pipelines=[
                {"name": "door", "model": "level", "then": [{"name": "color", "model": "color"}]}
            ],
            version=None,
            models_dirs=[str(tmp_path / "library")],
            trust={"allow_unsigned": True},
            trial={"shadow_frames": shadow_frames, "probation_s": 5, "min_agreement": 0.5},
        )

    return start


def push(box: Box, folder: Path, name: str, version: str, *states: str) -> dict[str, object]:
    """Push a version, and give its end."""
    package = plain_package(folder, name, version)
    with PlainSender(box.broker.port, box.device, package) as sender:
        return sender.offer().wait(*states)


def test_a_second_model_is_tried_on_what_the_first_has_found(
    door: Callable[[int], Box], tmp_path: Path
) -> None:
    """Nothing was compared, so that one that fails on each crop went live."""
    box = door(5)
    box.results_go_on("1")
    end = push(box, failing(tmp_path / "color-2", "2"), "color", "2", "live", "rejected")
    assert end["state"] == "rejected"
    assert "shadow: failed on a live frame" in str(end["why"])
    end = push(box, color_classifier(tmp_path / "color-3", "3"), "color", "3", "live", "rejected")
    assert end["state"] == "live", end
    shadow = box.wait_settled("color", outcome="live", version="3")["last"]["shadow"]
    assert (shadow["compared"], shadow["agreement"]) == (5, 1)
    box.results_go_on("1")


def test_errors_of_a_second_model_end_its_own_probation(
    door: Callable[[int], Box], tmp_path: Path
) -> None:
    """They counted as those of the first one, which was rolled back for them."""
    box = door(0)
    box.results_go_on("1")
    push(box, detector(tmp_path / "level-2", ROWS, ["thing"], "2"), "level", "2", "probation")
    push(box, failing(tmp_path / "color-2", "2"), "color", "2", "probation")
    assert box.wait_settled("color", outcome="rolled-back", version="2")["live"] == "1"
    assert box.wait_settled(outcome="live", version="2")["live"] == "2"
    box.results_go_on("2")
