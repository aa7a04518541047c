"""A network whose scores are all 0 is said to be in doubt, whatever its decoder; others are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.types import Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.manifest import load
from tests.helpers.small_models import color_classifier
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx

Arrays = Mapping[str, NDArray[np.float32]]
PICTURE = np.zeros((32, 32, 3), np.uint8)
BOXES = np.tile(np.array([8, 8, 6, 6], np.float32), (12, 1))
"""By middle and size."""


def rows(width: int, score: float = 0.0) -> NDArray[np.float32]:
    """Return 12 rows: a box, and numbers of one score."""
    return np.concatenate((BOXES, np.full((12, width - 4), score, np.float32)), axis=1)[None]


def doubt(
    tmp_path: Path, arrays: Arrays, decoder: str, task: str = "detection", frames: int = 2
) -> str | None:
    """Return what is said of a model after some frames."""
    constant_outputs(tmp_path / "m.onnx", arrays)
    return said_of(tmp_path, decoder, task, frames)


def said_of(tmp_path: Path, decoder: str, task: str, frames: int) -> str | None:
    text = f'name = "m"\nversion = "1"\ntask = "{task}"\nfile = "m.onnx"\n[output]\n'
    (tmp_path / "model.toml").write_text(f'{text}decoder = "{decoder}"\nthreshold = 0.5\n')
    model = load_model(load(tmp_path), [EngineChoice("onnxruntime")], "picture")
    for number in range(frames):
        model.infer(Sample(PICTURE, number, 0, 0.0))
    model.close()
    return model.stats.doubt


@pytest.mark.parametrize(
    ("decoder", "arrays"),
    [
        ("yolov8", {"output0": rows(7).transpose(0, 2, 1).copy()}),
        ("yolov8", {"output0": np.zeros((1, 7, 12), np.float32)}),
        ("yolov5", {"output0": rows(7)}),
        ("yolo-e2e", {"output0": rows(6) + np.array([0, 0, 9, 9, 0, 0], np.float32)}),
        (
            "ssd",
            {"boxes": rows(4) * np.array([1, 1, 4, 4], np.float32), "scores": rows(7)[..., 4:]},
        ),
        ("softmax", {"prob": np.zeros((1, 3), np.float32)}),
    ],
)
def test_a_decoder_that_never_sees_a_score_above_0_is_in_doubt(
    tmp_path: Path, decoder: str, arrays: Arrays
) -> None:
    """Not at the first frame, which is not held up; the keys are named."""
    task = "classification" if decoder == "softmax" else "detection"
    assert doubt(tmp_path, arrays, decoder, task, frames=1) is None
    said = doubt(tmp_path, arrays, decoder, task)
    assert said is not None
    assert said.startswith("no score so far is above 0")
    assert "input.scale" in said
    assert "output.decoder" in said


@pytest.mark.parametrize(
    ("decoder", "arrays"),
    [
        ("yolov8", {"output0": rows(7, 1e-6).transpose(0, 2, 1).copy()}),
        ("yolo-e2e", {"output0": np.zeros((1, 12, 6), np.float32)}),
        ("ssd", {"boxes": rows(4) * 0, "scores": rows(7)[..., 4]}),
    ],
)
def test_an_empty_picture_is_no_doubt(tmp_path: Path, decoder: str, arrays: Any) -> None:
    """Low scores are scores, and rows of zeros are what fills up an empty list."""
    assert doubt(tmp_path, arrays, decoder, frames=4) is None


def in_steps(path: Path, step: float) -> None:
    """Save a YOLO without a score whose boxes and scores are quantized together."""
    array = rows(7).transpose(0, 2, 1).copy()
    save_onnx(
        path,
        [
            node("ReduceSum", ["images"], ["sum"], keepdims=0),
            node("Mul", ["sum", "nought"], ["zero"]),
            node("Add", ["value", "zero"], ["wide"]),
            node("QuantizeLinear", ["wide", "step", "point"], ["bytes"]),
            node("DequantizeLinear", ["bytes", "step", "point"], ["output0"]),
        ],
        [("images", "float32", (1, 3, 32, 32))],
        [("output0", "float32", array.shape)],
        {
            "nought": np.zeros((), np.float32),
            "value": array,
            "step": np.array(step, np.float32),
            "point": np.array(0, np.uint8),
        },
    )


def test_a_quantized_network_may_see_nothing_for_a_while(tmp_path: Path) -> None:
    """Its least step is more than the scores of an empty picture; not for ever."""
    in_steps(tmp_path / "m.onnx", 0.1)
    assert said_of(tmp_path, "yolov8", "detection", 9) is None
    assert said_of(tmp_path, "yolov8", "detection", 40) is not None


@pytest.mark.parametrize("varied", [False, True])
def test_a_classifier_that_only_ever_finds_one_class_has_a_remark(
    tmp_path: Path, varied: bool
) -> None:
    """A door that stays closed is no fault: the agent says so once, with the keys to compare."""
    model = load_model(
        load(color_classifier(tmp_path / "m")), [EngineChoice("onnxruntime")], "picture"
    )
    red, green = (np.full((16, 16, 3), color, np.uint8) for color in ((0, 0, 9), (0, 9, 0)))
    for number in range(1000):
        assert model.stats.remark is None
        model.infer(Sample(green if varied and number == 900 else red, number, 0, 0.0))
    model.close()
    assert model.stats.doubt is None
    assert (model.stats.remark is None) == varied
    if model.stats.remark is not None:
        assert "finds red in each of its first 1000 results" in model.stats.remark
        assert "input.scale" in model.stats.remark


def test_road_anomaly_detection_pi4_scores_that_quantization_lost(tmp_path: Path) -> None:
    """A step of 2.86 for boxes and scores: told by its file, and in health at once."""
    in_steps(tmp_path / "m.onnx", 2.86)
    said = said_of(tmp_path, "yolov8", "detection", 2)
    assert said is not None
    assert "lost when it was quantized" in said
    assert any(line.startswith("scores: ") for line in describe(tmp_path).missing)
    in_steps(tmp_path / "m.onnx", 0.1)
    assert not any(line.startswith("scores: ") for line in describe(tmp_path).missing)
