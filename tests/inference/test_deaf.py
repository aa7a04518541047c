"""A classifier whose scores do not follow what it is given is in doubt; others are not."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from edge_agent.core.types import Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.manifest import load
from edge_agent.sources.opencv import load as load_opencv
from tests.helpers.small_models import Picture, blocks, write_manifest
from tests.helpers.support import ASSETS, CHECKOUT, needs_assets
from tests.helpers.tiny_networks import node, save_onnx

ENOUGH = 140
"""Results after which a model that is deaf has been found out."""


def above(folder: Path, level: float, *, classes: int = 3, **more: Any) -> Model:
    """Load a classifier of how far each color is above a level; below it, it is nearly deaf."""
    folder.mkdir()
    save_onnx(
        folder / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["means"], axes=[2, 3], keepdims=0),
            node("Sub", ["means", "level"], ["differences"]),
            node("LeakyRelu", ["differences"], ["all"], alpha=1e-4),
            node("Slice", ["all", "first", "last", "axis"], ["logits"]),
        ],
        [("picture", "float32", (1, 3, 16, 16))],
        [("logits", "float32", (1, classes))],
        {
            "level": np.array(level, np.float32),
            "first": np.array([0], np.int64),
            "last": np.array([classes], np.int64),
            "axis": np.array([1], np.int64),
        },
    )
    output = {"decoder": "logits", "labels": ["red", "green", "blue"][: max(classes, 2)]}
    write_manifest(folder, "1", "classification", input=more, output=output)
    return load_model(load(folder), [EngineChoice("onnxruntime")], "picture")


def show(model: Model, pictures: Iterable[Picture]) -> str | None:
    """Return what is said of a model after these pictures."""
    for number, picture in enumerate(pictures):
        model.infer(Sample(picture, number, 0, 0.0))
    return model.stats.doubt


@pytest.mark.parametrize("classes", [1, 3])
def test_scores_that_do_not_follow_the_input_are_in_doubt(tmp_path: Path, classes: int) -> None:
    """With the keys, and no longer once they move; a single sigmoid is a classifier, too."""
    model = above(tmp_path / "m", 200.0, classes=classes)
    said = show(model, blocks(ENOUGH, 0, 100))
    assert said is not None
    assert said.startswith("its scores hardly depend on its input: over 12 pictures that differ")
    assert "none changed by more than " in said
    assert "input.scale, input.mean and input.layout" in said
    assert model.stats.remark == said
    model.stats.remark = None
    assert show(model, blocks(7, 0, 100)) == said
    assert model.stats.remark is None, "once"
    assert show(model, blocks(28, 200, 255)) is None
    model.close()


def lit(count: int) -> Iterable[Picture]:
    """Give one scene in changing light, with noise."""
    noise = np.random.default_rng(1)
    (scene,) = blocks(1, 0, 150)
    for _ in range(count):
        made = scene * noise.uniform(0.3, 1) + noise.normal(0, 4, scene.shape)
        yield made.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("level", "pictures"),
    [
        pytest.param(200.0, blocks(90, 0, 100), id="few results"),
        pytest.param(200.0, blocks(11, 0, 100) * 40, id="few pictures"),
        pytest.param(200.0, list(lit(400)), id="a scene that stays"),
        pytest.param(0.0, blocks(400, 0, 100), id="scores that follow"),
        pytest.param(0.0, [p // 2 + (0, 0, 127) for p in blocks(400, 0, 80)], id="sure"),
    ],
)
def test_what_is_not_proved_is_no_doubt(
    tmp_path: Path, level: float, pictures: list[Picture]
) -> None:
    """A door that stays closed is no fault, nor is a network that is sure of what moves."""
    model = above(tmp_path / "m", level)
    assert show(model, [picture.astype(np.uint8) for picture in pictures]) is None
    model.close()


def test_only_what_the_network_gets_of_a_picture_counts(tmp_path: Path) -> None:
    """What moves beside its region, or beside the part it cuts out, it need not follow."""
    model = above(tmp_path / "m", 200.0, resize="crop")
    for number, picture in enumerate(blocks(ENOUGH, 0, 100)):
        wide = np.zeros((64, 192, 3), np.uint8)
        wide[:, :64] = wide[:, 128:] = picture
        model.infer(Sample(wide, number, 0, 0.0))
    assert model.stats.doubt is None
    model.close()


@pytest.mark.parametrize("quantized", [False, True])
def test_the_lowest_step_of_a_quantized_network_tells_nothing(
    tmp_path: Path, *, quantized: bool
) -> None:
    """A network of floats that gives 0.996 and 0.004 for ever is deaf; in 256 steps it is sure."""
    last = "wide" if not quantized else "score"
    save_onnx(
        tmp_path / "model.onnx",
        [
            node("ReduceSum", ["picture"], ["sum"], keepdims=0),
            node("Mul", ["sum", "nought"], ["zero"]),
            node("Add", ["value", "zero"], ["wide"]),
            node("QuantizeLinear", ["wide", "step", "point"], ["bytes"]),
            node("DequantizeLinear", ["bytes", "step", "point"], ["score"]),
        ][: 5 if quantized else 3],
        [("picture", "float32", (1, 3, 16, 16))],
        [(last, "float32", (1, 2))],
        {
            "nought": np.array(1e-9, np.float32),
            "value": np.array([[255, 1]], np.float32) / 256,
            "step": np.array(1 / 256, np.float32),
            "point": np.array(0, np.uint8),
        },
    )
    write_manifest(tmp_path, "1", "classification", output={"decoder": "softmax"})
    model = load_model(load(tmp_path), [EngineChoice("onnxruntime")], "picture")
    assert (show(model, blocks(ENOUGH, 0, 255)) is None) == quantized
    model.close()


@pytest.mark.assets
@needs_assets
@pytest.mark.parametrize("network", ["vww_person_fp32.onnx", "imagenet_mobilenetv2_fp32.onnx"])
@pytest.mark.parametrize("right", [True, False])
def test_a_trained_network_in_a_clip(tmp_path: Path, network: str, *, right: bool) -> None:
    """It is called deaf where its pictures are divided by 255 once too often, only there."""
    person = network.startswith("vww")
    keys: dict[str, Any] = {"layout": "nhwc"} if person else {"mean": 128}
    scale = 255 if person else 128
    keys["scale"] = scale if right else scale * 255
    about = {"name": "m", "version": "1", "task": "classification", "file": network}
    manifest = {**about, "input": keys, "output": {"decoder": "softmax"}}
    (tmp_path / "model.toml").write_text(tomli_w.dumps(manifest))
    shutil.copyfile(ASSETS / "models" / network, tmp_path / network)
    model = load_model(load(tmp_path), [EngineChoice("onnxruntime")], "picture")
    clip = load_opencv().VideoCapture(str(CHECKOUT / "models" / "media" / "conveyor.mp4"))
    frames = [clip.read()[1] for _ in range(ENOUGH)]
    assert (show(model, frames) is None) == right
    model.close()
