"""What one engine finds beside another: two networks stand for two engines, one of them wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import AgentError
from edge_agent.core.types import Request, Sample
from edge_agent.inference.agreement import (
    Margin,
    compare_findings,
    compare_on_noise,
    relative_distance,
)
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import plain_choice
from edge_agent.inference.model import Model, load_model
from edge_agent.inference.probe import probe_inputs
from edge_agent.models.manifest import load
from edge_agent.serving.reference_check import (
    attach_check,
    is_confirmed,
    open_plain,
    why_unlike_session,
    why_wrong,
)
from tests.helpers.push import model_folder
from tests.helpers.small_models import (
    brightness,
    detector,
    picky,
    wrapping,
    write_manifest,
)
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx

Rows = Sequence[tuple[float, ...]]
PERSON, CAR = (0, 0.9, 0.1, 0.1, 0.4, 0.9), (1, 0.8, 0.6, 0.5, 0.9, 0.9)
WEAK = (1, 0.53, 0.0, 0.0, 0.2, 0.2)


def opened(folder: Path) -> Model:
    """Load a model on ONNX Runtime."""
    return load_model(load(folder), [EngineChoice("onnxruntime")], "picture")


def verdict(tmp_path: Path, expected: Rows, found: Rows) -> str | None:
    """Compare two detectors that always find the same."""
    right = opened(detector(tmp_path / "right", expected, ["person", "car"]))
    other = opened(detector(tmp_path / "other", found, ["person", "car"]))
    inputs = probe_inputs(right.engine.inputs, seed=1)
    return why_unlike_session(right, other, [inputs])


def test_an_engine_that_finds_the_same_may_serve(tmp_path: Path) -> None:
    """Boxes a few pixels off and scores a little lower are no difference."""
    near = [(0, 0.86, 0.11, 0.1, 0.41, 0.9), CAR]
    assert verdict(tmp_path, [PERSON, CAR], near) is None


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        pytest.param([PERSON], [PERSON, CAR], id="one too many"),
        pytest.param([PERSON, CAR], [PERSON], id="one missing"),
        pytest.param([PERSON], [(1, *PERSON[1:])], id="another label"),
    ],
)
def test_an_engine_that_finds_something_else_must_not(
    expected: Rows, found: Rows, tmp_path: Path
) -> None:
    """The reason names what it was compared with."""
    why = verdict(tmp_path, expected, found)
    assert why is not None
    assert why.startswith("beside onnxruntime:CPUExecutionProvider without optimization: ")


def test_a_box_just_above_the_threshold_is_in_doubt(tmp_path: Path) -> None:
    """One engine's 0.53 is the next one's 0.49."""
    assert verdict(tmp_path, [PERSON], [PERSON, WEAK]) is None


@pytest.mark.parametrize(("gap", "wrong"), [(0.02, False), (0.2, True)])
def test_two_classes_as_likely_are_a_tie(gap: float, wrong: bool, tmp_path: Path) -> None:
    """Which of them comes first says nothing; where one is clearly best it does."""
    models = []
    for name, order in (("right", 1), ("other", -1)):
        folder = tmp_path / name
        folder.mkdir()
        scores = np.array([[0.5, 0.5 - gap]], np.float32)[:, ::order]
        constant_outputs(folder / "model.onnx", {"scores": np.ascontiguousarray(scores)})
        output = {"decoder": "softmax", "labels": ["cat", "dog"]}
        models.append(opened(write_manifest(folder, "1", "classification", output=output)))
    right, other = models
    inputs = probe_inputs(right.engine.inputs, seed=1)
    assert (why_unlike_session(right, other, [inputs]) is not None) is wrong


@pytest.mark.parametrize(
    ("expected", "found", "why"),
    [
        pytest.param([0.48, 0.1], [0.52, 0.1], None, id="just above, of the engine"),
        pytest.param([0.52, 0.1], [0.48, 0.1], None, id="just above, of the reference"),
        pytest.param([0.3, 0.1], [0.9, 0.1], "best class cat, expected none", id="far above"),
        pytest.param([0.9, 0.1], [0.3, 0.1], "best class none, expected cat", id="far below"),
        pytest.param([0.52, 0.0], [0.0, 0.48], "cosine", id="just above, and unlike"),
        pytest.param([0.45, 0.05], [0.05, 0.45], "cosine", id="none reported, and unlike"),
        pytest.param([0.45, 0.05], [0.44, 0.06], None, id="none reported"),
    ],
)
def test_classes_about_the_threshold(
    expected: Sequence[float], found: Sequence[float], why: str | None, tmp_path: Path
) -> None:
    """What reaches the threshold on one engine only is in doubt; what on none is compared too."""
    models = []
    for name, scores in (("right", expected), ("other", found)):
        folder = tmp_path / name
        folder.mkdir()
        constant_outputs(folder / "model.onnx", {"scores": np.array([scores], np.float32)})
        output = {"decoder": "softmax", "labels": ["cat", "dog"], "threshold": 0.5}
        models.append(opened(write_manifest(folder, "1", "classification", output=output)))
    right, other = models
    told = why_unlike_session(right, other, [probe_inputs(right.engine.inputs, seed=1)])
    assert told is None if why is None else told is not None and why in told


def test_where_nothing_is_found_the_outputs_are_compared(tmp_path: Path) -> None:
    """Two outputs without a box in them may still be unlike."""
    low = [(0, 0.1, 0.1, 0.1, 0.4, 0.9)]
    assert verdict(tmp_path, low, [(0, 0.12, 0.1, 0.1, 0.4, 0.9)]) is None
    why = verdict(tmp_path / "unlike", low, [(0, 0.1, 0.9, 0.0, -0.9, -0.4)])
    assert why is not None
    assert "cosine" in why


def summing(folder: Path, weights: np.ndarray, order: Sequence[int]) -> Model:
    """Make a classifier of 4x4 pixels that sums their products in an order of its own."""
    folder.mkdir(parents=True)
    order = list(order)
    save_onnx(
        folder / "model.onnx",
        [
            node("Flatten", ["x"], ["flat"]),
            node("Gather", ["flat", "order"], ["turned"], axis=1),
            node("MatMul", ["turned", "weights"], ["sums"]),
            node("Softmax", ["sums"], ["scores"]),
        ],
        [("x", "float32", (1, 3, 4, 4))],
        [("scores", "float32", (1, 3))],
        {"order": np.array(order), "weights": weights[order]},
    )
    output = {"decoder": "softmax", "labels": ["ok", "scratch", "dent"]}
    return opened(write_manifest(folder, "1", "classification", output=output))


def test_an_input_whose_rounding_decides_says_nothing_about_an_engine(tmp_path: Path) -> None:
    """Whoever might ask could have every engine condemned, with what each rounds in its own way."""
    random = np.random.default_rng(5)
    weights = random.standard_normal((48, 3)).astype(np.float32)
    right = summing(tmp_path / "right", weights, range(48))
    other = summing(tmp_path / "other", weights, range(47, -1, -1))
    wrong = summing(tmp_path / "wrong", weights[:, ::-1].copy(), range(48))
    nothing = np.linalg.svd(weights.T.astype(np.float64))[2][3:]

    def sought() -> dict[str, np.ndarray]:
        for _ in range(500):
            flat = 1e15 * random.standard_normal(len(nothing)) @ nothing
            x = flat.reshape(1, 3, 4, 4).astype(np.float32)
            one, two = (model.run({"x": x})["scores"].argmax() for model in (right, other))
            if one != two:
                return {"x": x}
        pytest.fail("both sum alike")

    usual = {"x": random.standard_normal((1, 3, 4, 4)).astype(np.float32)}
    assert why_unlike_session(right, other, [usual, *(sought() for _ in range(5))]) is None
    assert why_unlike_session(right, wrong, [usual]) is not None
    # Where nothing else is there, nothing is proven.
    why = why_unlike_session(right, other, [sought()])
    assert why is not None
    assert why.endswith("by rounding alone")


@pytest.mark.parametrize("ready", [True, False])
def test_what_clients_send_counts_only_where_a_model_has_no_samples(
    ready: bool, tmp_path: Path
) -> None:
    """It may have been sought out; whoever sends nothing else has nothing else compared."""
    model = opened(brightness(tmp_path / "light"))
    gray, bright = (Sample(np.full((48, 64, 3), v, np.uint8), 0, 0, 0.0) for v in (9, 200))
    given = {"picture": np.full((1, 3, 16, 16), 1e15, np.float32)} if ready else None
    ask = Request(bright, tensors=given, foreign=True)
    model.infer_all([ask])
    assert model.last is not None
    assert model.last["picture"].max() > 199
    model.infer_all([Request(gray), ask])
    assert model.last["picture"].max() < 10


@pytest.mark.parametrize("client", [True, False])
def test_a_client_neither_ends_a_check_nor_gets_what_the_reference_refuses(
    client: bool, tmp_path: Path
) -> None:
    """Three numbers out of a table, and an engine that nobody had compared served all frames."""
    folder = tmp_path / "picky"
    picky(folder)
    model = load_model(load(folder), [EngineChoice("openvino")], "picture")
    attach_check(model, "picture")
    assert model.check is not None
    frames = [Sample(np.full((16, 16, 3), v, np.uint8), 0, 0, 0.0) for v in (20, 250)]
    model.infer(frames[0])
    answers = model.infer_all([Request(frames[1], foreign=client)] * 3)
    assert all(isinstance(each, AgentError) is client for each in answers)
    assert model.check.settled is not client
    model.close()


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_an_engine_agrees_with_a_plain_session(engine: str, tmp_path: Path) -> None:
    """Of noise and of a picture."""
    folder = load(brightness(tmp_path / "light"))
    plain = open_plain(folder, "picture")
    assert plain is not None
    model = load_model(folder, [EngineChoice(engine)], "picture")
    picture = {"picture": np.full((1, 3, 16, 16), 40, np.float32)}
    assert why_unlike_session(plain, model, [picture]) is None
    assert compare_on_noise(plain, model, picture).passed


def test_what_no_plain_session_reads_is_compared_with_nothing(tmp_path: Path) -> None:
    """There is one for each format that is read."""
    assert plain_choice(".pt") is None
    assert {plain_choice(suffix) is not None for suffix in (".onnx", ".xml")} == {True}
    assert open_plain(load(model_folder(tmp_path / "1", "1")), "picture") is not None


def crowd(tmp_path: Path, name: str, noise: float) -> Model:
    """Make a detector of more boxes than it lists, with scores that the picture decides.

    *noise* of its own changes them, as another engine's rounding would.
    """
    random, count = np.random.default_rng(3), 3 * 20 * 20
    places = random.uniform(0.1, 0.7, (1, 1, count, 2))
    own = np.random.default_rng(4).uniform(-noise, noise, (1, 1, count, 1))
    arrays: dict[str, Any] = {
        "rows": np.array([1, 1, count, 1], np.int64),
        "share": np.array(0.001, np.float32),
        "base": (0.9 + own).astype(np.float32),
        "head": np.zeros((1, 1, count, 2), np.float32),
        "boxes": np.concatenate((places, places + 0.2), axis=3).astype(np.float32),
    }
    (tmp_path / name).mkdir()
    save_onnx(
        tmp_path / name / "model.onnx",
        [
            node("Reshape", ["picture", "rows"], ["pixels"]),
            node("Mul", ["pixels", "share"], ["parts"]),
            node("Add", ["parts", "base"], ["scores"]),
            node("Concat", ["head", "scores", "boxes"], ["detection_out"], axis=3),
        ],
        [("picture", "float32", (1, 3, 20, 20))],
        [("detection_out", "float32", (1, 1, count, 7))],
        arrays,
    )
    output = {"decoder": "ssd", "threshold": 0.5, "labels": ["person"], "max_detections": 40}
    return opened(write_manifest(tmp_path / name, "1", "detection", output=output))


def test_last_digits_decide_which_of_a_crowd_stay(tmp_path: Path) -> None:
    """What the reference itself does not find again in noise of a gray level is no difference."""
    right, rounded = crowd(tmp_path, "right", 0), crowd(tmp_path, "rounded", 0.0002)
    flat = np.random.default_rng(1).uniform(0, 3, (1, 3, 20, 20)).astype(np.float32)
    flat[0, 0, 0, 0] = 255
    inputs = {"picture": flat}
    one, other = (each.decode(each.run(inputs), inputs) for each in (right, rounded))
    assert not compare_findings(one, other, Margin(0.01)).passed
    assert why_unlike_session(right, rounded, [inputs]) is None
    assert why_unlike_session(right, crowd(tmp_path, "wrong", 0.05), [inputs]) is not None


def test_boxes_in_another_order_are_alike(tmp_path: Path) -> None:
    """Of noise, a list of the best boxes has them as the last digits happen to fall."""
    rows = np.random.default_rng(5).uniform(0, 320, (1, 300, 6)).astype(np.float32)
    lists: dict[str, Any] = {
        "one": rows,
        "other": rows[:, ::-1],
        "wrong": rows * [-1, -1, 1, 1, 1, 1],
    }
    models = {}
    for name, table in lists.items():
        folder = tmp_path / name
        folder.mkdir()
        constant_outputs(folder / "model.onnx", {"output0": table.astype(np.float32)})
        models[name] = opened(write_manifest(folder, "1", "regression", output={"decoder": "raw"}))
    inputs = probe_inputs(models["one"].engine.inputs, seed=1)
    assert compare_on_noise(models["one"], models["other"], inputs).passed
    assert not compare_on_noise(models["one"], models["wrong"], inputs).passed


@pytest.mark.parametrize("task", ["raw", "regression"])
def test_surely_nothing_keeps_a_healthy_engine(task: str, tmp_path: Path) -> None:
    """A sigmoid of -17: a session without optimization rounds it to a multiple of 6e-8."""
    save_onnx(
        tmp_path / "model.onnx",
        [
            node("ReduceMean", ["picture"], ["mean"], axes=[1, 2, 3], keepdims=0),
            node("Sub", ["mean", "far"], ["logit"]),
            node("Sigmoid", ["logit"], ["chance"]),
        ],
        [("picture", "float32", (1, 3, 8, 8))],
        [("chance", "float32", (1,))],
        {"far": np.array(17.3, np.float32)},
    )
    folder = load(write_manifest(tmp_path, "1", task, output={"decoder": "raw"}))
    plain = open_plain(folder, "picture")
    assert plain is not None
    model = load_model(folder, [EngineChoice("openvino")], "picture")
    inputs = [{"picture": np.full((1, 3, 8, 8), step / 10, np.float32)} for step in range(5)]
    distance = relative_distance(*(one.run(inputs[0])["chance"] for one in (plain, model)))
    assert distance > model.manifest.trial.tolerance
    assert why_unlike_session(plain, model, inputs) is None


@pytest.mark.parametrize(("gray", "right"), [(20, True), (200, False)])
def test_two_engines_are_believed_against_one(tmp_path: Path, gray: int, right: bool) -> None:
    """An engine is confirmed by another engine that gives the same, and by nothing else.

    Bytes that overflow are computed by OpenVINO in its own way, which no other engine confirms.
    """
    folder = load(wrapping(tmp_path / "wrapping"))
    model = load_model(folder, [EngineChoice("openvino")], "picture")
    inputs = [{"picture": np.full((1, 3, 16, 16), gray, np.float32)}]
    assert is_confirmed(model, "picture", inputs) is right
    # A reference that differs from both does not condemn an engine that is confirmed.
    other = opened(brightness(tmp_path / "other"))
    other_inputs = [{"picture": each["picture"]} for each in inputs]
    why = why_wrong(other, model, "picture", other_inputs)
    assert (why is None) is right


def test_an_engine_that_fails_on_every_input_confirms_nothing(tmp_path: Path) -> None:
    """Two are believed against one only where the second one has answered."""
    folder = load(wrapping(tmp_path / "wrapping"))
    model = load_model(folder, [EngineChoice("openvino")], "picture")
    unfit = [{"picture": np.zeros((1, 3, 5, 5), np.float32)}]
    assert is_confirmed(model, "picture", unfit) is False
