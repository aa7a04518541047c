"""Parity cases of wake words, beside openWakeWord's and microWakeWord's own code.

    python build_wake_words.py FOLDER

Runs in the exporters' environment. Its networks are those that pyopen-wakeword ships. What is
expected are the scores of openWakeWord's own features and of the word's network, both run by
LiteRT, for each 80 ms of a sound that is noise with tones. Its code would begin with features of
random noise; here it begins with those of silence, as the agent does.

microWakeWord's features and networks are those of pymicro-wakeword, and LiteRT runs them, with
their variables; the library in that package rounds otherwise than LiteRT does. The sound is no
word, and its probability would be 0 all the time: a network's last bias is raised until it is not.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import interpreter
from ai_edge_litert import schema_py_generated as schema
from pymicro_wakeword import MicroWakeWordFeatures
from workshop import Workshop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from edge_agent.tools.micro_wake_word import MicroWakeWordModel
from edge_agent.tools.wake_word import PARTS, WakeWordModel

WORDS = ("alexa", "hey_rhasspy", "okay_nabu")
MICRO_WORDS = ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")
RATE, STEP, SECONDS = 16000, 1280, 12
"""Samples a second and a step, and the length of the sound."""


def own_code() -> Any:
    """Import openWakeWord's features; it runs a .tflite by the package that LiteRT was before."""
    lite = types.ModuleType("tflite_runtime")
    sys.modules |= {"tflite_runtime": lite, "tflite_runtime.interpreter": interpreter}
    found = importlib.util.find_spec("openwakeword")
    assert found is not None
    assert found.submodule_search_locations is not None
    # The package itself imports what trains words.
    package = types.ModuleType("openwakeword")
    package.__path__ = list(found.submodule_search_locations)
    package.__dict__.update(FEATURE_MODELS={}, models={}, get_pretrained_model_paths=list)
    sys.modules["openwakeword"] = package
    return importlib.import_module("openwakeword.utils").AudioFeatures


def sound() -> Any:
    """Return noise with tones that come and go, int16."""
    random, at = np.random.default_rng(11), np.arange(SECONDS * RATE) / RATE
    tones = sum(
        np.sin(2 * np.pi * f * at) * (np.sin(at * f / 97) > 0) for f in (210, 430, 880, 1730)
    )
    return np.clip(2500 * tones + random.normal(0, 900, len(at)), -32768, 32767).astype(np.int16)


def build(shop: Workshop, features: Any, models: Path, word: str) -> None:
    """Write the case of a word."""
    place = shop.scrap / f"wake-word-{word}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    joined = WakeWordModel(models / f"{word}.tflite")
    joined.save(place)
    network = interpreter.Interpreter(model_path=str(models / f"{word}.tflite"))
    network.allocate_tensors()
    (taken,), (made,) = network.get_input_details(), network.get_output_details()
    own = features(
        melspec_model_path=str(models / f"{PARTS[0]}.tflite"),
        embedding_model_path=str(models / f"{PARTS[1]}.tflite"),
        inference_framework="tflite",
    )
    silence = np.zeros(4 * RATE, np.int16)
    own.melspectrogram_buffer = own._get_melspectrogram(silence)[-76:]  # noqa: SLF001
    own.feature_buffer = own._get_embeddings(silence)  # noqa: SLF001
    heard, expected = sound(), {}
    for number in range(len(heard) // STEP):
        own(heard[number * STEP : (number + 1) * STEP])
        network.set_tensor(taken["index"], own.get_features(taken["shape"][1]).astype(np.float32))
        network.invoke()
        score = float(network.get_tensor(made["index"]).ravel()[0])
        expected[str(number)] = [{"label": "anomaly", "score": score}]
    np.savetxt(place / "sound.csv", heard / 32768, fmt="%.9f")
    facts = {"family": "openwakeword", "exporter": "openWakeWord 0.6", "precision": "FP32"}
    facts |= {"rows": "sound.csv", "threshold": 0.5, "iou": None, "most": 1, "numbers": True}
    files = [place / name for name in ("model.xml", "model.bin", "sound.csv")]
    shop.add(place.name, files, "model.xml", expected, note="", **facts)


def raised(content: bytes, more: float) -> bytes:
    """Return a network of microWakeWord whose last bias is higher."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    graph = model.subgraphs[0]
    codes = [max(one.builtinCode, one.deprecatedBuiltinCode) for one in model.operatorCodes]
    last = next(
        one
        for one in reversed(graph.operators)
        if codes[one.opcodeIndex] == schema.BuiltinOperator.FULLY_CONNECTED
    )
    bias = graph.tensors[last.inputs[2]]
    held = np.array(model.buffers[bias.buffer].data).view(np.int32)
    held = held + round(more / bias.quantization.scale[0])
    model.buffers[bias.buffer].data = held.astype(np.int32).view(np.uint8)
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def own_means(content: bytes, heard: Any, averaged: int) -> list[float]:
    """Return the means of the probabilities of a network that keeps its state, one for each run."""
    network = interpreter.Interpreter(model_content=content)
    network.allocate_tensors()
    (taken,), (made,) = network.get_input_details(), network.get_output_details()
    (step, zero), (chance, nothing) = taken["quantization"], made["quantization"]
    frames, chances, means = [], [0.0] * averaged, []
    for one in MicroWakeWordFeatures().process_streaming(heard.tobytes()):
        frames.append(one[0])
        if len(frames) == taken["shape"][1]:
            steps = np.round(np.concatenate(frames) / step + zero)
            network.set_tensor(taken["index"], np.clip(steps, -128, 127).astype(np.int8)[None])
            network.invoke()
            found = (network.get_tensor(made["index"]).item() - nothing) * chance
            frames, chances = [], [*chances[1:], found]
            means.append(sum(chances) / averaged)
    return means


def build_micro(shop: Workshop, models: Path, word: str) -> None:
    """Write the case of a word of microWakeWord."""
    place = shop.scrap / f"micro-wake-word-{word}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    path = place / f"{word}.tflite"
    shutil.copy(models / f"{word}.json", place)
    micro = json.loads((models / f"{word}.json").read_text(encoding="utf-8"))["micro"]
    heard, more, means = sound(), 0, [0.0]
    while np.mean(means) < 0.3:
        path.write_bytes(raised((models / path.name).read_bytes(), more))
        means = own_means(path.read_bytes(), heard, micro["sliding_window_size"])
        more += 1
    MicroWakeWordModel(path).save(place)
    expected = {
        str(number): [{"label": "anomaly", "score": mean}] for number, mean in enumerate(means)
    }
    np.savetxt(place / "sound.csv", heard / 32768, fmt="%.9f")
    facts = {"family": "microwakeword", "exporter": "pymicro-wakeword 2.5", "precision": "INT8"}
    facts |= {"rows": "sound.csv", "threshold": micro["probability_cutoff"]}
    facts |= {"iou": None, "most": 1, "numbers": True}
    files = [place / name for name in ("model.xml", "model.bin", "sound.csv")]
    shop.add(place.name, files, "model.xml", expected, note="", **facts)


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))
    found = importlib.util.find_spec("pyopen_wakeword")
    assert found is not None
    assert found.origin is not None
    features = own_code()
    for word in WORDS:
        build(shop, features, Path(found.origin).parent / "models", word)
    found = importlib.util.find_spec("pymicro_wakeword")
    assert found is not None
    assert found.origin is not None
    for word in MICRO_WORDS:
        build_micro(shop, Path(found.origin).parent / "models", word)


if __name__ == "__main__":
    main()
