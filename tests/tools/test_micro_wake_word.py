"""microWakeWord: features that keep a state, and a network whose variables become states."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset15 as ops

from edge_agent.core.types import Anomaly, Reading, State
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.describing import describe
from edge_agent.models.manifest import load
from edge_agent.tools.micro_frontend import BANDS, FRAME, features
from tests.helpers.micro_word import AVERAGED, SAID, save_word
from tests.helpers.support import call_cli
from tests.tools.pytorch_files import needs_litert

ORACLE = Path(__file__).with_name("microfrontend_oracle.npz")
"""What pymicro-features 2.0.2 makes of `sound()`, each frame of 10 ms: (n, 40) whole numbers."""


def sound() -> NDArray[np.int16]:
    """Return two seconds: quiet, silent, loud, and so loud that sums of 16 bits overflow."""
    at = np.arange(8000)
    rising = at * at // 50 % 2001 - 1000
    square = np.where(at // 18 % 2, 32767, -32768)
    parts = [rising // 300, 0 * at, rising * 9 + at % 97, square]
    return np.concatenate(parts).astype(np.int16)


@pytest.mark.parametrize("frames", [1, 3])
def test_features_are_those_of_the_microfrontend_whatever_a_window_holds(frames: int) -> None:
    """Every number is the same, as quiet bands and the estimates of noise depend on rounding."""
    expected = np.load(ORACLE)["features"]
    samples = ops.parameter([FRAME + 160 * (frames - 1)], np.int32)
    noise = ops.parameter([1, BANDS], np.float32)
    ends = features(samples, noise, frames, 160)
    graph = ov.Model([ops.result(one) for one in ends], [samples, noise])
    run = ov.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    heard, state, made = sound().astype(np.int32), np.zeros((1, BANDS), np.float32), []
    for start in range(0, len(heard) - FRAME - 160 * (frames - 1) + 1, 160 * frames):
        window = heard[start : start + FRAME + 160 * (frames - 1)]
        found, state = run([window, state]).values()
        made.append(found)
    np.testing.assert_array_equal(np.concatenate(made), expected[: frames * len(made)])
    assert len(expected) - frames * len(made) < frames


def own_means(path: Path) -> list[float]:
    """Compute the means that its own code does, with the network's variables and LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    network = Interpreter(model_path=str(path))
    network.allocate_tensors()
    (taken,), (made,) = network.get_input_details(), network.get_output_details()
    (step, zero), chances, means = taken["quantization"], [0.0] * AVERAGED, []
    expected = np.load(ORACLE)["features"]
    for number in range(len(expected) // 3):
        frames = expected[None, 3 * number : 3 * number + 3] * 0.0390625 / step + zero
        network.set_tensor(taken["index"], np.clip(frames.round(), -128, 127).astype(np.int8))
        network.invoke()
        chances = [*chances[1:], network.get_tensor(made["index"]).item() / 256]
        means.append(sum(chances) / AVERAGED)
    return means


@needs_litert
def test_okay_nabu_is_one_network_of_samples_that_hears_what_its_own_code_does(
    tmp_path: Path,
) -> None:
    """Bare it is refused with the command; converted it has its word, cutoff and mean."""
    path = save_word(tmp_path / "hey_box.tflite")
    done = call_cli("describe", str(path))
    assert f"`edge-agent convert {path} -o FOLDER`" in done.err
    done = call_cli("convert", str(path), "-o", str(tmp_path / "made"))
    assert done.code == 0, done.err
    bare = describe(tmp_path / "made" / "model.xml")
    assert "family: microWakeWord, by its metadata" in bare.guessed
    assert bare.manifest is not None
    assert bare.manifest.output.threshold == 0.6
    model = load_model(load(tmp_path / "made"), [EngineChoice("openvino")], "signal")
    rows = sound().astype(np.float32)[:, None] / 32768
    windows = model.windower(()).push(Reading(rows, 0, 0.0, rate_hz=16000))
    state, means, labels = State(), [], set()
    for number, window in enumerate(windows):
        anomaly = model.infer(replace(window, seq=number), state=state).findings
        assert isinstance(anomaly, Anomaly)
        means.append(anomaly.score)
        labels.add(anomaly.label if anomaly.score > 0.6 else "")
    model.engine.close()
    expected = own_means(path)
    np.testing.assert_allclose(means, expected[: len(means)], atol=0.005)
    assert len(expected) == len(means)
    assert np.ptp(means) > 0.3
    assert labels == {"", "hey box"}


@needs_litert
@pytest.mark.parametrize(
    ("said", "begin", "lost", "why"),
    [
        (None, -128, 0, "hey_box.json is missing, .* put it beside it"),
        ({"wake_word": "hey box"}, -128, 0, "hey_box.json: expected wake_word, and in micro prob"),
        ({**SAID, "micro": {**SAID["micro"], "probability_cutoff": 97}}, -128, 0, "cutoff in 0..1"),
        (SAID, -128, 90, "LiteRT cannot load it, it is damaged; take what"),
        (SAID, 3, 0, "does not begin with 0; take what .* calls stream_state_internal_quant"),
    ],
)
def test_a_wake_word_without_what_decides_is_told_what_is_missing(
    tmp_path: Path, said: Any, begin: int, lost: int, why: str
) -> None:
    """The cutoff is in no network; what begins otherwise than with 0 would be wrong at first."""
    path = save_word(tmp_path / "hey_box.tflite", begin=begin, lost=lost, said=said)
    if said is None:
        path.with_suffix(".json").unlink()
    done = call_cli("convert", str(path), "-o", str(tmp_path / "made"))
    assert done.code == 1
    assert re.search(why, done.err), done.err
    assert not (tmp_path / "made").exists()
