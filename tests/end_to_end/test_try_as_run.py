"""`try --config` gives what `run` publishes: every model of the assets, and every key of a result.

Both run on one engine, so that numbers are the same but for the last digits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent.cli.samples import Samples
from edge_agent.cli.tried_pipeline import TriedPipeline, load_second_stages, read_pipeline
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models import manifest
from edge_agent.mqtt import payloads
from edge_agent.sources.spec import parse_source
from tests.end_to_end.test_run import (
    ALL,
    CAR,
    KEYWORDS,
    MODELS,
    pictures,
    plan_pipelines,
    softmax,
    wait_ended,
    write_library,
)
from tests.helpers.small_models import loudness
from tests.helpers.support import (
    ASSETS,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    call_cli,
    needs_assets,
)

OWN = {"device", "session", "pipeline", "engine", "time", "timing", "stages"}
"""Keys that tell who published when; `time` of a file is when it was read."""
SQUARE = [[0.0, 0.0], [0.6, 0.0], [0.6, 1.0], [0.0, 1.0]]
VOICE = {"window": 576, "hop": 512, "lead": 64, "rate_hz": 16000, "layout": "flat-tc"}
STATE = {"channels": [0], "state": {"state": "stateN"}}
YOLOX = ALL["yolox"][2:]
RECONSTRUCTION = {"decoder": "reconstruction", "threshold": 50.0}
LEARNED = {"decoder": "reconstruction", "threshold": "p99", "learn": 100}
DSCNN = "kws_dscnn_fp32.onnx"

# Kinds that `test_run` has no model for, and decisions over several windows.
MORE: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "voice": (
        "vad_silero_16k_openvino.onnx",
        "anomaly",
        {**VOICE, **STATE},
        {"decoder": "score", "threshold": 0.5},
    ),
    "degraded": ("coco_yolox_nano_int8_degraded.onnx", "detection", *YOLOX),
    "tflite": (
        "imagenet_mobilenetv2_int8.tflite",
        "classification",
        {"color": "rgb", "layout": "nhwc"},
        softmax("imagenet_labels.txt", scale=1 / 256),
    ),
    "car-smooth": (*MODELS["car-fp32"][:2], CAR, {**RECONSTRUCTION, "smooth": "3/5"}),
    "car-learned": (*MODELS["car-fp32"][:2], CAR, LEARNED),
    "kws-raw": (DSCNN, "raw", {}, {"decoder": "raw"}),
    "kws-smooth": (DSCNN, "classification", {}, softmax(KEYWORDS, smooth="1/2")),
}
FOLLOWING: dict[str, Any] = {
    "labels": ["person", "dog", "car"],
    "thresholds": {"car": 0.6},
    "min_box": [20, 20],
    "masks": [[[0.0, 0.0], [0.2, 0.0], [0.2, 0.2], [0.0, 0.2]]],
    "zones": [{"name": "left", "polygon": SQUARE}],
    "lines": [{"name": "gate", "points": [[0.5, 0.0], [0.5, 1.0]]}],
    "rules": [{"name": "somebody", "when": "enter", "zone": "left"}],
}


def more_pipelines(folder: Path) -> list[dict[str, Any]]:
    """Plan what the models of `MORE` are given, and pipelines with many settings."""
    photos = [f"media/{name}" for name in ("dog.jpg", "person.jpg", "giraffe.jpg", "dog.jpg")]
    noisy = folder / "car-fp32-1.bin"
    yes = f"npy:{ASSETS}/media/kws_yes_1000ms.npy"
    sources = {
        "voice": f"wav:{ASSETS}/media/silero_test.wav",
        "degraded": pictures(folder / "degraded", photos[:3]),
        "tflite": pictures(folder / "tflite", ["media/cat.bmp", "media/parrot.jpg"]),
        "car-smooth": f"f32:{noisy}?channels=128",
        "car-learned": f"f32:{noisy}?channels=128",
        "kws-raw": yes,
        "kws-smooth": yes,
    }
    planned: list[dict[str, Any]] = [
        {"name": name, "source": source, "model": name} for name, source in sources.items()
    ]
    followed: dict[str, Any] = {
        "name": "followed",
        "source": pictures(folder / "followed", photos[:3]),
    }
    planned.append({**followed, "model": "yolox", **FOLLOWING})
    region = {"roi": [40, 40, 700, 500], "threshold": 0.4, "track": True}
    planned.append({**followed, "name": "region", "model": "yolox", **region})
    rules = [{"name": "odd", "when": "anomaly"}]
    source = sources["car-smooth"]
    planned.append({"name": "odd", "source": source, "model": "car-fp32", "rules": rules})
    return planned


def as_tried(config: Path, model_folder: Path, engine: str) -> Iterator[dict[str, Any]]:
    """Run a settings file's pipeline on a model as `try --config` does; yield its results."""
    settings, pipeline = read_pipeline(str(config))
    spec = parse_source(pipeline.source, config.parent)
    folder = manifest.load(model_folder)
    model = load_model(folder, [EngineChoice(engine)], spec.kind)
    seconds = load_second_stages(settings, pipeline)
    try:
        with Samples(spec, folder.manifest.input, threading.Event()) as samples:
            tried = TriedPipeline(pipeline, seconds, apart=spec.apart)
            for sample in samples.follow():
                masked, outcome = tried.infer(model, sample)
                yield payloads.result("try", "", "try", masked, outcome, 0.0)
    finally:
        for one in [model, *(second for _, second in seconds)]:
            one.close()


def without_own(result: dict[str, Any]) -> dict[str, Any]:
    """Leave out who published when."""
    return {key: value for key, value in result.items() if key not in OWN}


def assert_alike(one: Any, other: Any, where: str) -> None:
    """Compare fields one by one; numbers may differ in the last digits of the engines."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        assert list(one) == list(other), where
        for key in one:
            assert_alike(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            assert_alike(mine, theirs, f"{where}[{place}]")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=2e-3, abs=2e-3), where
    else:
        assert one == other, where


@pytest.mark.assets
@needs_assets
def test_try_gives_what_run_publishes(shared_broker: Mosquitto, tmp_path: Path) -> None:
    """Detections, classes, anomalies with thresholds, values, tensors, tracks, zones, stages."""
    engine, device = "openvino", "tried"
    models = ALL | MORE
    library = write_library(tmp_path / "models", models)
    planned = [*plan_pipelines(tmp_path, with_ir=True), *more_pipelines(tmp_path)]
    names = [pipeline["name"] for pipeline in planned]
    common = {"engine": engine, "models_dirs": [str(library)]}
    listener = Listener(shared_broker.port, f"edge/{device}/#")
    settings = agent_settings(device, shared_broker.url, planned, **common)
    agent = AgentProcess(tmp_path / "agent", settings)
    try:
        wait_ended(listener, device, names)
        published = {name: listener.on(f"edge/{device}/result/{name}") for name in names}
        assert agent.stop() == 0
    finally:
        listener.close()
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
        print(agent.words())
    kinds: set[str] = set()
    for pipeline in planned:
        config = tmp_path / f"{pipeline['name']}.toml"
        config.write_text(agent_settings(device, shared_broker.url, [pipeline], **common))
        tried = list(as_tried(config, library / pipeline["model"], engine))
        ran = published[pipeline["name"]]
        assert tried, pipeline["name"]
        assert len(tried) == len(ran), pipeline["name"]
        for place, (mine, theirs) in enumerate(zip(tried, ran, strict=True)):
            assert_alike(without_own(mine), without_own(theirs), f"{pipeline['name']} {place}")
            kinds |= set(theirs)
    assert kinds >= {"detections", "classes", "anomaly", "values", "tensors"}


def test_try_calls_a_healthy_bearing_normal(tmp_path: Path) -> None:
    """A score of 1.2 below the manifest's threshold of 3.5: no anomaly, and no rule fires."""
    loudness(tmp_path / "bearing", window=4, threshold=3.5)
    (tmp_path / "x.csv").write_text("x\n" + "1.2\n" * 16)
    (tmp_path / "c.toml").write_text(
        """
        [[pipelines]]
        name = "bearing"
        source = "csv:x.csv"
        model = "bearing"
        rules = [{ name = "worn", when = "anomaly", frames = "1/1" }]
        """
    )
    config = str(tmp_path / "c.toml")
    said = call_cli("try", str(tmp_path / "x.csv"), str(tmp_path / "bearing"), "--config", config)
    assert said.code == 0
    assert "normal" in said.out
    assert "1.2" in said.out
    assert "3.5" in said.out
    assert "ANOMALY" not in said.out
    assert "worn" not in said.out
