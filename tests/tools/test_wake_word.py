"""openWakeWord: a chain of three networks, converted to one with a state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from edge_agent.core.types import Anomaly, Reading, State
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.manifest import load
from tests.helpers.support import call_cli
from tests.helpers.tiny_networks import node, save_onnx

Floats = NDArray[np.float32]
WORDS = 16
"""Embeddings that the wake word's network takes."""


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """Save three networks with the ends of openWakeWord's; return the wake word's."""
    random = np.random.default_rng(3)

    def weights(*shape: int) -> Floats:
        return random.normal(0, 0.3, shape).astype(np.float32)

    save_onnx(
        tmp_path / "melspectrogram.onnx",
        [
            node("Unsqueeze", ["input", "one"], ["row"]),
            node("Conv", ["row", "filters"], ["bands"], strides=[160]),
            node("Tanh", ["bands"], ["loud"]),
            node("Transpose", ["loud"], ["turned"], perm=[0, 2, 1]),
            node("Unsqueeze", ["turned", "one"], ["output"]),
        ],
        [("input", "float32", (None, None))],
        [("output", "float32", (None, 1, None, 32))],
        {"filters": weights(32, 1, 640) / 3000, "one": np.array([1])},
    )
    save_onnx(
        tmp_path / "embedding_model.onnx",
        [
            node("Flatten", ["input_1"], ["flat"]),
            node("MatMul", ["flat", "weights"], ["made"]),
            node("Tanh", ["made"], ["bounded"]),
            node("Reshape", ["bounded", "shape"], ["conv2d_19"]),
        ],
        [("input_1", "float32", (None, 76, 32, 1))],
        [("conv2d_19", "float32", (None, 1, 1, 96))],
        {"weights": weights(76 * 32, 96) / 10, "shape": np.array([-1, 1, 1, 96])},
    )
    return save_onnx(
        tmp_path / "hey_box.onnx",
        [
            node("Flatten", ["x"], ["flat"]),
            node("MatMul", ["flat", "weights"], ["made"]),
            node("Sigmoid", ["made"], ["chance"]),
        ],
        [("x", "float32", (1, WORDS, 96))],
        [("chance", "float32", (1, 1))],
        {"weights": weights(WORDS * 96, 1)},
    )


def own_scores(wake_word: Path, sound: NDArray[np.int16]) -> list[float]:
    """Compute what openWakeWord's own steps give for each 80 ms, after silence."""
    mel, embed, word = (
        onnxruntime.InferenceSession(path)
        for path in (
            wake_word.with_stem("melspectrogram"),
            wake_word.with_stem("embedding_model"),
            wake_word,
        )
    )
    heard = np.concatenate((np.zeros(32_000, np.int16), sound)).astype(np.float32)
    frames, embeddings, scores = np.empty((0, 32), np.float32), [], []
    for end in range(1760, len(heard) + 1, 1280):
        (made,) = mel.run(None, {"input": heard[None, end - 1760 : end]})
        frames = np.concatenate((frames, made[0, 0] / 10 + 2))
        if len(frames) >= 76:
            (made,) = embed.run(None, {"input_1": frames[None, -76:, :, None]})
            embeddings.append(made[0, 0, 0])
        if len(embeddings) >= WORDS:
            (made,) = word.run(None, {"x": np.stack(embeddings[-WORDS:])[None]})
            scores.append(float(made[0, 0]))
    return scores


def with_verifier(wake_word: Path) -> None:
    """Have a second network decide where the first is sure, as in hey_jarvis of openWakeWord."""
    model = onnx.load(wake_word)
    random = np.random.default_rng(4)
    weights = random.normal(0, 0.3, (WORDS * 96, 1)).astype(np.float32)
    chance = onnx.helper.make_tensor_value_info("ifs", onnx.TensorProto.FLOAT, [1, 1])
    sure = [
        node("MatMul", ["flat", "more"], ["again"]),
        node("Sigmoid", ["again"], ["ifs"]),
    ]
    branches = {
        "then_branch": onnx.helper.make_graph(sure, "sure", [], [chance]),
        "else_branch": onnx.helper.make_graph(
            [node("Identity", ["first"], ["ifs"])], "unsure", [], [chance]
        ),
    }
    model.graph.node[-1].output[0] = "first"
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "more"))
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.full((1, 1), 0.5, np.float32), "half")
    )
    model.graph.node.append(node("GreaterOrEqual", ["first", "half"], ["is_sure"]))
    model.graph.node.append(node("If", ["is_sure"], ["chance"], **branches))
    onnx.save(model, wake_word)


@pytest.mark.parametrize("verifier", [False, True])
def test_a_chain_of_three_networks_becomes_one_that_gives_the_same_scores(
    chain: Path, tmp_path: Path, *, verifier: bool
) -> None:
    """Bare it is refused with the command; converted it is openWakeWord, from the first window."""
    if verifier:
        with_verifier(chain)
    assert any("edge-agent convert" in line for line in describe(chain).missing)
    done = call_cli("convert", str(chain), "-o", str(tmp_path / "made"))
    assert done.code == 0, done.err
    assert "by its three networks" in done.out
    model = load_model(load(tmp_path / "made"), [EngineChoice("openvino")], "signal")
    sound = np.random.default_rng(5).normal(0, 6000, 160 * 8 * 30).astype(np.int16)
    rows = sound.astype(np.float32)[:, None] / 32768
    windows = model.windower(()).push(Reading(rows, 0, 0.0, rate_hz=16000))
    state, scores = State(), []
    for number, window in enumerate(windows):
        anomaly = model.infer(replace(window, seq=number), state=state).findings
        assert isinstance(anomaly, Anomaly)
        assert anomaly.label == "wake-word"
        scores.append(anomaly.score)
    model.engine.close()
    assert len(scores) == 30
    assert np.ptp(scores) > 0.2
    # The silence before ends where a window of its own code does.
    expected = own_scores(chain, np.concatenate((np.zeros(480, np.int16), sound)))
    np.testing.assert_allclose(scores, expected[-30:], atol=1e-3)


def test_a_wake_word_without_the_two_others_is_told_what_to_put_beside_it(
    chain: Path, tmp_path: Path
) -> None:
    """`convert` has nothing to convert, and `describe` names the two."""
    chain.with_stem("melspectrogram").unlink()
    done = call_cli("convert", str(chain), "-o", str(tmp_path / "made"))
    assert done.code == 1
    assert "edge-agent describe" in done.err
    assert any("melspectrogram and embedding_model" in line for line in describe(chain).missing)


def test_a_wake_word_of_several_classes_is_refused(chain: Path, tmp_path: Path) -> None:
    """The timer of openWakeWord tells seven times apart; it gave an exception of OpenVINO."""
    model = onnx.load(chain)
    for one in model.graph.initializer:
        many = np.repeat(onnx.numpy_helper.to_array(one), 7, axis=1)
        one.CopyFrom(onnx.numpy_helper.from_array(many, one.name))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    onnx.save(model, chain)
    done = call_cli("convert", str(chain), "-o", str(tmp_path / "made"))
    assert done.code == 1
    assert "gives 7 scores, not one" in done.err
    assert not (tmp_path / "made").exists()
