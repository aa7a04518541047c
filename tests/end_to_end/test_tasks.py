"""Models of tasks beyond boxes and classes, from a file to results, counts and events."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.golden import compare_golden
from edge_agent.inference.model import load_model
from edge_agent.models.importing import import_model
from tests.helpers.support import (
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    health_at_rest,
    yielded,
)
from tests.helpers.yolo_networks import Head, picture, save_yolo, unpacked

DEVICE = "tasks"
FRAME = (300, 200)
HEADS: tuple[Head, ...] = ("segment", "pose", "obb")
WHOLE = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
ZONES = {
    "zones": [{"name": "all", "polygon": WHOLE}],
    "rules": [{"name": "there", "when": "count", "zone": "all", "above": 0, "frames": "1/1"}],
}


def write_frames(folder: Path) -> str:
    """Write the same picture a few times: what is in it stands still."""
    folder.mkdir()
    for number in range(6):
        cv2.imwrite(str(folder / f"{number}.png"), picture(*FRAME))
    return f"dir:{folder}"


def with_golden(folder: Path, head: Head) -> None:
    """Make a model folder of a bare file, with golden outputs of a picture."""
    with import_model(save_yolo(folder / f"{head}.onnx", head)) as imported:
        model = load_model(imported.folder, [EngineChoice("onnxruntime")], "picture")
        inputs = {
            name: np.array(one) for name, one in model.prepare_data(picture(*FRAME)).tensors.items()
        }
        arrays = {f"input/{name}": one for name, one in inputs.items()}
        arrays |= {f"output/{name}": np.array(one) for name, one in model.run(inputs).items()}
        np.savez(imported.folder.path / "golden.npz", **arrays)  # type: ignore[arg-type]
        assert (agreement := compare_golden(model)) is not None
        assert agreement.passed, agreement.why
        model.close()
        shutil.copytree(imported.folder.path, folder / "models" / head)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    """Run all of them in one agent to the end of their pictures."""
    folder = tmp_path_factory.mktemp("tasks")
    broker = Mosquitto(folder)
    listener = Listener(broker.port)
    source = write_frames(folder / "frames")
    pipelines: list[dict[str, Any]] = [
        {"name": head, "source": source, "model": head, "threshold": 0.6, "qos": 1, **ZONES}
        for head in HEADS
    ]
    pipelines[0]["labels"] = ["ship"]
    for head in HEADS:
        with_golden(folder, head)
    agent = AgentProcess(
        folder, agent_settings(DEVICE, broker.url, pipelines, models_dirs=["models"])
    )
    health_at_rest(listener, DEVICE, HEADS)
    try:
        yield from yielded(listener, agent.stop)
    finally:
        listener.close()
        broker.stop()


KEYS = {"segment": "mask", "pose": "points", "obb": "corners"}


@pytest.mark.parametrize("head", HEADS)
def test_results_are_tracked_and_counted_in_zones(head: Head, published: Listener) -> None:
    """Detections carry their key beside track and zone; each object is counted once."""
    results = published.on(f"edge/{DEVICE}/result/{head}")
    assert len(results) == 6
    last = results[-1]["detections"]
    assert len(last) >= 2
    for found in last:
        assert KEYS[head] in found
        assert found["track"] > 0
        assert found["zones"] == ["all"]
        assert head != "segment" or found["label"] == "ship"
    objects = {found.get("track", 0) for each in results for found in each["detections"]} - {0}
    assert len(objects) == len(last)
    topic = f"edge/{DEVICE}/event/{head}"
    event = published.wait_for(
        lambda heard: next((e.json for e in heard if e.topic == topic), None), topic
    )
    assert (event["rule"], event["count"]) == ("there", len(last))


def test_a_mask_is_of_the_whole_frame_and_within_its_box(published: Listener) -> None:
    """In COCO's compressed run lengths."""
    for found in published.on(f"edge/{DEVICE}/result/segment")[0]["detections"]:
        bits = unpacked(found["mask"])
        assert bits.shape == FRAME[::-1]
        down, across = np.nonzero(bits)
        x1, y1, x2, y2 = found["box"]
        if len(down):
            assert x1 - 1 <= across.min() <= across.max() <= x2
            assert y1 - 1 <= down.min() <= down.max() <= y2


def test_try_draws_and_saves_a_bare_file(tmp_path: Path) -> None:
    """A folder that `try --save` has made is one that `describe` finds complete."""
    path = save_yolo(tmp_path / "ships-seg.onnx", "segment")
    source = write_frames(tmp_path / "frames")
    saved = tmp_path / "saved"
    said = call_cli("try", source, str(path), "--seconds", "20", "--save", str(saved))
    assert said.code == 0, said.err
    assert "instance-segmentation, decoder yolov8, 2 labels" in said.out + said.err
    (manifest,) = saved.rglob("model.toml")
    assert 'task = "instance-segmentation"' in manifest.read_text()
    described = call_cli("describe", str(manifest.parent)).out.splitlines()
    (missing,) = [line for line in described if line.startswith("missing")]
    assert "golden.npz" in missing
