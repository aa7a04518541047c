"""Sound models of others, through the whole agent's own path from a source to findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import ModelError, SampleError
from edge_agent.core.types import Anomaly, Classes, Sample, State
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.inference.preprocess.windowing import Windower
from edge_agent.models.manifest import check, parse
from edge_agent.sources.source import open_source, readings
from edge_agent.sources.spec import parse_source

SHARED = Path(__file__).parents[3] / "shared" / "assets"
MEDIA, MODELS = SHARED / "media", SHARED / "models"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared models are not here")
ENGINES = ("onnxruntime", "openvino")
COMMANDS = ("Down", "Go", "Left", "No", "Off", "On", "Right", "Stop", "Up")


def load(name: str, engine: str, **manifest: Any) -> Model:
    """Load a model file of others under a manifest of ours."""
    data = {"name": "m", "version": "1", "file": name, **manifest}
    folder = check(parse(data, "model.toml"), MODELS)
    return load_model(folder, [EngineChoice(engine)], "signal")


def samples(model: Model, source: str) -> list[Sample]:
    """Cut a source into the windows of a model."""
    windower = Windower(model.manifest.input)
    found: list[Sample] = []
    opened = open_source(parse_source(source, MEDIA))
    for reading in readings(opened):
        assert not isinstance(reading, Exception)
        for window in windower.push(reading):
            found.append(replace(window, seq=len(found)))
    opened.close()
    return found


KEYWORD: dict[str, Any] = {
    "task": "classification",
    "output": {"decoder": "softmax", "labels": [*COMMANDS, "Yes", "Silence", "Unknown"]},
    "input": {
        "channels": [0],
        "window": 16000,
        "rate_hz": 16000,
        "layout": "tc",
        "transform": "mfcc",
        "logmel": {"fft": 512, "high_hz": 4000, "normalize": "max"},
        "scale": [0.5**0.5] + [1.0] * 9,
    },
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("word", "label", "score"), [("yes", "Yes", 0.99905), ("silence", "Silence", 0.93569)]
)
def test_a_keyword_is_heard_in_a_wav_file(engine: str, word: str, label: str, score: float) -> None:
    """Our features of a .wav file are those stored beside the model, and give the same answer."""
    model = load("kws_dscnn_fp32.onnx", engine, **KEYWORD)
    (sample,) = samples(model, f"wav:{word}_1000ms.wav")
    found = model.infer(sample)
    assert isinstance(found.findings, Classes)
    assert found.findings.labels[0] == label
    assert found.findings.scores[0] == pytest.approx(score, abs=1e-4)
    assert model.last is not None
    features = next(iter(model.last.values()))
    stored = np.load(MEDIA / f"kws_{word}_1000ms.npy")
    assert np.abs(features.reshape(-1) - stored.reshape(-1)).max() < 2e-5
    model.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_eight_bit_keyword_model_hears_the_same(engine: str) -> None:
    """Mean and scale quantize the features of a model that takes integers."""
    step, zero = 0.5847029089927673, 83
    spec = {**KEYWORD["input"], "mean": -zero * step, "scale": [step * 0.5**0.5] + [step] * 9}
    spec["mean"] = [-zero * step * 0.5**0.5] + [-zero * step] * 9
    output = {**KEYWORD["output"], "scale": 1 / 256, "zero_point": -128}
    model = load("kws_dscnn_int8.onnx", engine, **{**KEYWORD, "input": spec, "output": output})
    for word, label in (("yes", "Yes"), ("silence", "Silence")):
        (sample,) = samples(model, f"wav:{word}_1000ms.wav")
        found = model.infer(sample).findings
        assert isinstance(found, Classes)
        assert found.labels[0] == label
    model.close()


VOICE: dict[str, Any] = {
    "task": "anomaly",
    "output": {"decoder": "score", "threshold": 0.5},
    "input": {
        "channels": [0],
        "window": 576,
        "hop": 512,
        "lead": 64,
        "rate_hz": 16000,
        "layout": "flat-tc",
        "state": {"state": "stateN"},
    },
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_state_is_no_constant(engine: str) -> None:
    """A state that is given as zeros is refused: only the first window would be right."""
    spec = {**VOICE["input"], "state": {}, "fixed": {"state": 0}}
    with pytest.raises(ModelError, match=r"\[input.state\] state = 'stateN'"):
        load("vad_silero_16k_openvino.onnx", engine, **{**VOICE, "input": spec})


def speech(model: Model, windows: list[Sample], state: State) -> list[float]:
    """Return the chance of speech in each window."""
    found = [model.infer(sample, state=state).findings for sample in windows]
    assert all(isinstance(one, Anomaly) for one in found)
    return [one.score for one in found if isinstance(one, Anomaly)]


@pytest.mark.parametrize("engine", ENGINES)
def test_voice_is_found_by_a_model_with_a_state(engine: str) -> None:
    """Silero VAD with its state carried along finds the frames of speech that its makers find."""
    model = load("vad_silero_16k_openvino.onnx", engine, **VOICE)
    found = speech(model, samples(model, "wav:silero_test.wav"), State())
    assert len(found) == 1875
    assert sum(score > 0.5 for score in found) == pytest.approx(1452, rel=0.01)
    expected = [0.20834, 0.81794, 0.8912, 0.99636, 0.99918, 0.99995, 0.9999, 0.99977, 0.99935]
    assert found[:9] == pytest.approx(expected, abs=1e-3)
    model.close()


def test_a_rate_without_dimensions_reaches_the_network() -> None:
    """Silero's own file takes its rate as a number, no array, and finds the same as the other."""
    spec = {**VOICE["input"], "tensor": "input", "fixed": {"sr": 16000}}
    model = load("vad_silero_16k.onnx", "onnxruntime", **{**VOICE, "input": spec})
    found = speech(model, samples(model, "wav:yes_1000ms.wav"), State())
    assert (len(found), sum(score > 0.5 for score in found)) == (31, 12)
    assert found[:4] == pytest.approx([0.02613, 0.01579, 0.01349, 0.01297], abs=1e-3)
    model.close()


def test_each_pipeline_has_its_own_state() -> None:
    """Windows of two signals through one model do not change each other's state."""
    model = load("vad_silero_16k_openvino.onnx", "onnxruntime", **VOICE)
    yes, quiet = (samples(model, f"wav:{name}_1000ms.wav") for name in ("yes", "silence"))
    alone = speech(model, yes, State())
    first, second = State(), State()
    mixed = []
    for one, other in zip(yes, quiet, strict=True):
        mixed += speech(model, [one], first)
        speech(model, [other], second)
    assert mixed == alone
    assert sum(score > 0.5 for score in alone) == 12
    model.close()


def test_a_state_begins_anew_where_something_is_missing() -> None:
    """After a gap, a dropped window or a failure a model knows nothing of what was before."""
    model = load("vad_silero_16k_openvino.onnx", "onnxruntime", **VOICE)
    windows = samples(model, "wav:yes_1000ms.wav")
    (alone,) = speech(model, [replace(windows[20], follows=False)], State())
    whole = speech(model, windows, State())
    assert whole[20] != alone
    gap = [replace(one, follows=one.seq != 20) for one in windows[:21]]
    assert speech(model, gap, State())[20] == alone
    dropped = [*windows[:19], windows[20]]
    assert speech(model, dropped, State())[19] == alone
    state = State()
    speech(model, windows[:19], state)
    with pytest.raises(SampleError):
        model.infer(replace(windows[19], data=windows[19].data * np.nan), state=state)
    assert speech(model, [windows[20]], state) == [alone]
    model.close()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"state": "nothing"}, "the model has no output 'nothing'; its outputs: output"),
        ({"state": "output"}, "output output float32.1, 1. does not fit input state"),
        ({"nothing": "stateN"}, "input.state: the model has no input 'nothing'"),
        ({}, "input.fixed: input state .* needs a constant"),
    ],
)
def test_a_state_that_is_not_there_is_named(state: dict[str, str], message: str) -> None:
    """What `input.state` says is checked against the network."""
    manifest = {**VOICE, "input": {**VOICE["input"], "state": state, "tensor": "input"}}
    with pytest.raises(ModelError, match=message):
        load("vad_silero_16k_openvino.onnx", "onnxruntime", **manifest)
