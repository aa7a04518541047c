"""Public networks without metadata whose families were not recognized, though most are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_agent.models.files.check_onnx import inspect
from edge_agent.models.files.facts import Draft
from edge_agent.models.files.guess import draft_of
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx


def drafted(tmp_path: Path, *shapes: tuple[int, ...]) -> Draft:
    """Draft a network of 64 x 96 pixels that gives zeros of these shapes."""
    outputs = {f"out{n}": np.zeros(shape, np.float32) for n, shape in enumerate(shapes)}
    path = constant_outputs(tmp_path / "net.onnx", outputs, picture=(1, 3, 64, 96))
    return draft_of(inspect(path))


def test_fastestdet_of_other_classes(tmp_path: Path) -> None:
    """Masks and fruit, by FastestDet's own training: its only question is what they are called."""
    path = save_onnx(
        tmp_path / "net.onnx",
        [
            node("AveragePool", ["picture"], ["cells"], kernel_shape=[16, 16], strides=[16, 16]),
            node("Sigmoid", ["cells"], ["there"]),
            node("Softmax", ["cells"], ["chances"], axis=1),
            node("Concat", ["there", "cells", "chances"], ["758"], axis=1),
        ],
        [("picture", "float32", (1, 3, 64, 96))],
        [("758", "float32", (1, 9, 4, 6))],
    )
    made = draft_of(inspect(path))
    assert made.keys["output"]["decoder"] == "fastestdet"
    assert [words.partition(":")[0] for words in made.questions] == ["output.labels"]
    # The same shape without chances may be a head of any other family.
    assert drafted(tmp_path, (1, 9, 4, 6)).keys["output"]["decoder"] != "fastestdet"


def test_yolo26_without_metadata(tmp_path: Path) -> None:
    """Three hundred rows of six, as YOLOv10, YOLO26 and exports with `nms=True` give them."""
    made = drafted(tmp_path, (1, 300, 6))
    assert made.keys["output"]["decoder"] == "yolo-e2e"
    asked = {words.partition(":")[0] for words in made.questions}
    assert asked == {"output.decoder", "output.labels"}


@pytest.mark.parametrize(
    ("family", "shapes"),
    [
        ("RetinaFace", [(1, 252, 4), (1, 252, 2), (1, 252, 10)]),
        ("CenterFace", [(1, 1, 16, 24), (1, 2, 16, 24), (1, 2, 16, 24), (1, 10, 16, 24)]),
        ("DBFace", [(1, 1, 16, 24), (1, 4, 16, 24), (1, 10, 16, 24)]),
    ],
)
def test_faces_in_other_forms_are_told_what_is_read(
    family: str, shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    """They were of no known family, where MediaPipe's were told of YuNet."""
    made = drafted(tmp_path, *shapes)
    assert family in made.family
    assert "YuNet, SCRFD or UltraFace" in made.questions[0]


def test_picodet_without_its_post_processing(tmp_path: Path) -> None:
    """Its four levels, each with classes and distances."""
    levels = [(1, 96, size) for size in (10, 32)] * 4
    assert "export.post_process=True" in drafted(tmp_path, *levels).questions[0]


def test_segmentation_without_an_axis_for_the_batch(tmp_path: Path) -> None:
    """BiSeNetV2 that ends in ArgMax was called a classifier of 256 classes."""
    path = save_onnx(
        tmp_path / "net.onnx",
        [
            node("ArgMax", ["picture"], ["numbers"], axis=1, keepdims=0),
            node("Reshape", ["numbers", "shape"], ["map"]),
        ],
        [("picture", "float32", (1, 3, 64, 96))],
        [("map", "int64", (64, 96))],
        {"shape": np.array([64, 96])},
    )
    made = draft_of(inspect(path))
    assert made.family.startswith("what each pixel is")
    assert "[1, height, width]" in made.questions[0]


def test_a_regressor_of_a_table_is_one(tmp_path: Path) -> None:
    """Its draft was raw, whose results are shapes."""
    path = save_onnx(
        tmp_path / "net.onnx",
        [node("ReduceMean", ["rows"], ["variable"], axes=[1])],
        [("rows", "float32", (None, 5))],
        [("variable", "float32", (None, 1))],
    )
    made = draft_of(inspect(path))
    assert (made.keys["task"], made.keys["input"]["window"]) == ("regression", 1)


def test_only_a_state_is_offered_as_one(tmp_path: Path) -> None:
    """Silero VAD's chance was offered as the next value of its sound: both have open sizes."""
    path = save_onnx(
        tmp_path / "net.onnx",
        [
            node("ReduceMean", ["input"], ["output"], axes=[1]),
            node("Identity", ["h"], ["hn"]),
        ],
        [("input", "float32", (None, None)), ("h", "float32", (2, None, 64))],
        [("output", "float32", (None, 1)), ("hn", "float32", (2, None, 64))],
    )
    states = [words for words in draft_of(inspect(path)).questions if "input.state" in words]
    assert len(states) == 1
    assert states[0].endswith("h = 'hn'")
    assert "input = " not in states[0]


@pytest.mark.parametrize(
    ("shape", "recurrent", "given", "asked"),
    [
        ((1, 30, 43), True, ("tc", 30, 43), False),
        ((1, 30, 1662), True, ("tc", 30, 1662), False),
        ((1, 30, 43), False, ("ct", 43, 30), True),
        ((1, 128, 6), False, ("tc", 128, 6), False),
    ],
)
def test_hand_tracking_which_are_samples_and_which_channels(
    tmp_path: Path,
    shape: tuple[int, ...],
    recurrent: bool,
    given: tuple[str, int, int],
    asked: bool,
) -> None:
    """Thirty samples of 43 features were assumed to be 43 samples of thirty."""
    width, hidden = shape[-1], 5
    weights = {
        "w": np.ones((1, 4 * hidden, width), "f4"),
        "r": np.ones((1, 4 * hidden, hidden), "f4"),
    }
    nodes = [node("Transpose", ["x"], ["turned"], perm=[1, 0, 2])]
    if recurrent:
        nodes.append(node("LSTM", ["turned", "w", "r"], ["y"], hidden_size=hidden))
    path = save_onnx(
        tmp_path / "net.onnx",
        [*nodes, node("ReduceMean", ["y" if recurrent else "turned"], ["out"], keepdims=0)],
        [("x", "float32", shape)],
        [("out", "float32", ())],
        weights if recurrent else {},
    )
    made = draft_of(inspect(path))
    window = made.keys["input"]
    assert (window["layout"], window["window"], len(window["channels"])) == given
    assert any(words.startswith("input.layout") for words in made.questions) is asked


def test_haeeai_two_features_into_two_chances_are_no_autoencoder(tmp_path: Path) -> None:
    """It was drafted for anomalies, without a question about that; scores were 4e5."""
    path = save_onnx(
        tmp_path / "net.onnx",
        [node("Softmax", ["x"], ["y"], axis=-1)],
        [("x", "float32", ("batch", 2))],
        [("y", "float32", ("batch", 2))],
    )
    assert draft_of(inspect(path)).keys["task"] == "classification"
