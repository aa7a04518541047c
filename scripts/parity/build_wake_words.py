"""Parity cases of wake words, beside openWakeWord's own code.

    python build_wake_words.py FOLDER

Runs in the exporters' environment. Its networks are those that pyopen-wakeword ships. What is
expected are the scores of openWakeWord's own features and of the word's network, both run by
LiteRT, for each 80 ms of a sound that is noise with tones. Its code would begin with features of
random noise; here it begins with those of silence, as the agent does.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import interpreter
from workshop import Workshop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from edge_agent.tools.wake_word import PARTS, WakeWordModel

WORDS = ("alexa", "hey_rhasspy", "okay_nabu")
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


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))
    found = importlib.util.find_spec("pyopen_wakeword")
    assert found is not None
    assert found.origin is not None
    features = own_code()
    for word in WORDS:
        build(shop, features, Path(found.origin).parent / "models", word)


if __name__ == "__main__":
    main()
