"""`edge-agent run` over a real broker, with public models on their pictures and recordings.

One agent an engine runs every model at once; the expected results are those of the assets' own
list, which was made apart from this code.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from tests.helpers.support import (
    ASSETS,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    iou,
    needs_assets,
    reference,
    run_cli,
)

pytestmark = [pytest.mark.assets, needs_assets]

KEYWORDS = [
    *("Down", "Go", "Left", "No", "Off", "On", "Right", "Stop", "Up", "Yes"),
    *("Silence", "Unknown"),
]
GESTURES = [
    *("SHAKE_BACKWARD", "SHAKE_FORWARD", "SHORT_VIBRATION"),
    *("STILL", "TILT_LEFT", "TILT_RIGHT"),
]
KWS_STEP = 0.5847029089927673
CAR_STEP = 0.3910152316093445
LIKELIHOOD = {"scale": 1 / 256, "zero_point": -128}
FACES = {"decoder": "ultraface", "threshold": 0.7, "iou": 0.3, "labels": ["face"]}
RFB = {"color": "rgb", "mean": 127, "scale": 128}
PERSON = {"layout": "nhwc", "interpolation": "area"}
CAR = {"window": 5, "hop": 1, "layout": "flat-tc"}
GESTURE = {"window": 150, "every": 10, "layout": "tc", "channels": list(range(8))}
BGR = {"color": "bgr"}


def softmax(labels: object, **more: object) -> dict[str, Any]:
    """Describe a classifier's output."""
    return {"decoder": "softmax", "labels": labels, **more}


# name: file, task, [input], [output]
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "rfb-fp32": ("face_rfb320_fp32.onnx", "detection", RFB, FACES),
    "rfb-int8": ("face_rfb320_int8.onnx", "detection", RFB, FACES),
    "yolox": (
        "coco_yolox_nano_fp32.onnx",
        "detection",
        {"color": "bgr", "resize": "letterbox", "anchor": "top-left"},
        {"decoder": "yolox", "threshold": 0.3, "labels": "coco_classes.txt"},
    ),
    "mobilenet-fp32": (
        "imagenet_mobilenetv2_fp32.onnx",
        "classification",
        {"color": "rgb", "mean": 128, "scale": 128},
        softmax("imagenet_labels.txt"),
    ),
    "mobilenet-int8": (
        "imagenet_mobilenetv2_int8.onnx",
        "classification",
        {"color": "rgb", "layout": "nhwc"},
        softmax("imagenet_labels.txt", scale=1 / 256),
    ),
    "person-fp32": (
        "vww_person_fp32.onnx",
        "classification",
        {**PERSON, "scale": 255},
        softmax(["no person", "person"]),
    ),
    "person-int8": (
        "vww_person_int8.onnx",
        "classification",
        {**PERSON, "mean": 128},
        softmax(["no person", "person"], **LIKELIHOOD),
    ),
    "kws-fp32": ("kws_dscnn_fp32.onnx", "classification", {}, softmax(KEYWORDS)),
    "kws-int8": (
        "kws_dscnn_int8.onnx",
        "classification",
        {"mean": -83 * KWS_STEP, "scale": KWS_STEP},
        softmax(KEYWORDS, **LIKELIHOOD),
    ),
    "car-fp32": (
        "anomaly_toycar_ae_fp32.onnx",
        "anomaly",
        CAR,
        {"decoder": "reconstruction", "threshold": 50.0},
    ),
    "car-int8": (
        "anomaly_toycar_ae_int8.onnx",
        "anomaly",
        {**CAR, "mean": -89 * CAR_STEP, "scale": CAR_STEP},
        {
            "decoder": "reconstruction",
            "threshold": 330.0,
            "scale": 0.36449846625328064,
            "zero_point": 96,
        },
    ),
    "imu-fp32": ("imu_gesture_cnn_fp32.onnx", "classification", GESTURE, softmax(GESTURES)),
    "imu-int8": ("imu_gesture_cnn_int8.onnx", "classification", GESTURE, softmax(GESTURES)),
}
IR_MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "adas": (
        "ir/face-detection-adas-0001.xml",
        "detection",
        BGR,
        {"decoder": "ssd", "threshold": 0.5, "labels": ["face"], "first_label": 1},
    ),
    "pose": ("ir/head-pose-estimation-adas-0001.xml", "regression", BGR, {"decoder": "raw"}),
    "landmarks": ("ir/landmarks-regression-retail-0009.xml", "regression", BGR, {"decoder": "raw"}),
}
ALL = MODELS | IR_MODELS


def write_library(folder: Path, models: dict[str, tuple[str, str, Any, Any]]) -> Path:
    """Make model folders; copies, since a link that leads out of its folder is refused."""
    for name, (file, task, entries, output) in models.items():
        model = folder / name
        model.mkdir(parents=True)
        network = ASSETS / "models" / file
        for part in {network, network.with_suffix(".bin")}:
            if part.is_file():
                shutil.copyfile(part, model / part.name)
        if isinstance(output.get("labels"), str):
            labels = ASSETS / "media" / output["labels"]
            shutil.copyfile(labels, model / labels.name)
        manifest = {"name": name, "version": "1", "task": task, "file": network.name}
        tables = {**manifest, "input": entries, "output": output}
        (model / "model.toml").write_text(tomli_w.dumps(tables))
    return folder


def pictures(folder: Path, media: list[str]) -> str:
    """Make a folder of some pictures; gives it as a source."""
    folder.mkdir(parents=True)
    for name in media:
        shutil.copyfile(ASSETS / name, folder / Path(name).name)
    return f"dir:{folder}"


def plan_pipelines(folder: Path, *, with_ir: bool) -> list[dict[str, Any]]:
    """Give every model a pipeline, or one a recording."""
    planned: list[dict[str, Any]] = []
    for name, (file, *_) in (ALL if with_ir else MODELS).items():
        media = [entry["media"] for entry in reference(file)["reference"]]
        match name.split("-")[0]:
            case "kws":
                for index, recording in enumerate(media):
                    source = f"npy:{ASSETS / recording}"
                    planned.append({"name": f"{name}-{index}", "source": source, "model": name})
            case "imu":
                for index, recording in enumerate(media):
                    source = f"csv:{ASSETS / recording}"
                    planned.append({"name": f"{name}-{index}", "source": source, "model": name})
            case "car":
                recorded = np.fromfile(ASSETS / media[0], np.float32).reshape(-1, 128)
                noise = np.random.default_rng(0).normal(0, 12, recorded.shape)
                for index, _ in enumerate(media):
                    raw = folder / f"{name}-{index}.bin"
                    (recorded + noise * index).astype(np.float32).tofile(raw)
                    source = f"f32:{raw}?channels=128"
                    planned.append({"name": f"{name}-{index}", "source": source, "model": name})
            case "pose" | "landmarks":
                roi = [int(side) for side in reference(file)["reference"][0]["crop_xyxy"]]
                source = pictures(folder / name, media)
                planned.append({"name": name, "source": source, "model": name, "roi": roi})
            case _:
                source = pictures(folder / name, media)
                planned.append({"name": name, "source": source, "model": name})
    if with_ir:
        seconds = [{"name": stage, "model": stage, "limit": 1} for stage in ("pose", "landmarks")]
        source = pictures(folder / "portrait", ["media/astronaut.png"])
        planned.append({"name": "portrait", "source": source, "model": "adas", "then": seconds})
    return planned


@dataclass(frozen=True)
class Heard:
    """What an agent has said."""

    engine: str
    results: dict[str, list[dict[str, Any]]]
    health: dict[str, Any]
    info: dict[str, Any]

    def by_file(self, pipeline: str) -> dict[str, dict[str, Any]]:
        """Give the results of a folder of pictures, each by its name."""
        return {result["file"]: result for result in self.results[pipeline]}


def wait_ended(heard: Listener, device: str, names: list[str]) -> None:
    """Wait until every source has ended."""
    for name in names:
        heard.wait_state(f"edge/{device}/source/{name}", patience=120, state="ended")


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def heard(
    request: pytest.FixtureRequest,
    shared_broker: Mosquitto,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Heard]:
    """All that one agent says about all models, on each engine."""
    engine: str = request.param
    device = f"all-{engine}"
    folder = tmp_path_factory.mktemp(engine)
    with_ir = engine == "openvino"
    library = write_library(folder / "models", ALL if with_ir else MODELS)
    planned = plan_pipelines(folder, with_ir=with_ir)
    listener = Listener(shared_broker.port, f"edge/{device}/#")
    settings = agent_settings(
        device, shared_broker.url, planned, engine=engine, models_dirs=[str(library)]
    )
    agent = AgentProcess(folder / "agent", settings)
    names = [pipeline["name"] for pipeline in planned]
    try:
        wait_ended(listener, device, names)

        def at_rest(_: object) -> dict[str, Any] | None:
            health = listener.last(f"edge/{device}/health")
            done = health and all(p["source"] == "ended" for p in health["pipelines"].values())
            return health if done else None

        health = listener.wait_for(at_rest, "health after the end")

        def complete(_: object) -> dict[str, Any] | None:
            info = listener.last(f"edge/{device}/info")
            return info if info and all(m["engine"] for m in info["models"]) else None

        info = listener.wait_for(complete, "info with every model")
        results = {name: listener.on(f"edge/{device}/result/{name}") for name in names}
        yield Heard(engine, results, health, info)
        assert agent.stop() == 0
    finally:
        listener.close()
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
        print(agent.words())


def check_boxes(
    result: dict[str, Any], expected: list[tuple[str, list[float]]], count: int | None = None
) -> None:
    """See that each expected box is found, once, and at most one more.

    The references list a crowd's best only; *count* says how many there were.
    """
    found = list(result["detections"])
    assert len(found) <= 1 + (len(expected) if count is None else count)
    for label, box in expected:
        match = [it for it in found if it["label"] == label and iou(it["box"], box) >= 0.5]
        assert match, f"no {label} at {box} in {result['file']}: {found}"
        found.remove(match[0])


@pytest.mark.parametrize("name", ["rfb-fp32", "rfb-int8"])
def test_faces_are_found(heard: Heard, name: str) -> None:
    """UltraFace, float and INT8, finds the reference faces and at most one more."""
    results = heard.by_file(name)
    entries = reference(MODELS[name][0])["reference"]
    assert len(results) == len(entries)
    for entry in entries:
        expected = [("face", box[:4]) for box in entry["boxes_xyxy_score"]]
        check_boxes(results[Path(entry["media"]).name], expected, entry["detected"])


def test_objects_are_found(heard: Heard) -> None:
    """YOLOX-nano finds the reference boxes with their labels."""
    results = heard.by_file("yolox")
    entries = reference(MODELS["yolox"][0])["reference"]
    assert len(results) == len(entries)
    for entry in entries:
        expected = [(box["label"], box["box_xyxy"]) for box in entry["detections"]]
        check_boxes(results[Path(entry["media"]).name], expected)


@pytest.mark.parametrize("name", ["mobilenet-fp32", "mobilenet-int8"])
def test_pictures_are_classified(heard: Heard, name: str) -> None:
    """MobileNetV2, float NCHW and INT8 NHWC, names each of the 12 pictures as the reference."""
    results = heard.by_file(name)
    entries = reference(MODELS[name][0])["reference"]
    assert len(results) == len(entries) == 12
    for entry in entries:
        best = results[Path(entry["media"]).name]["classes"][0]
        _, label, score = entry["top5"][0]
        assert best["label"].startswith(label)
        assert best["score"] == pytest.approx(score, abs=0.02)


@pytest.mark.parametrize("name", ["person-fp32", "person-int8"])
def test_people_are_told_from_empty_rooms(heard: Heard, name: str) -> None:
    """The person detector decides as the reference, also with integers in and out."""
    results = heard.by_file(name)
    entries = reference(MODELS[name][0])["reference"]
    assert len(results) == len(entries)
    for entry in entries:
        none, some = entry["out_noperson_person"]
        chance = (some + 128) / 256 if name.endswith("int8") else some
        classes = results[Path(entry["media"]).name]["classes"]
        assert classes[0]["label"] == ("person" if some > none else "no person")
        found = {entry["label"]: entry["score"] for entry in classes}
        assert found["person"] == pytest.approx(chance, abs=2 / 256)


@pytest.mark.parametrize("name", ["kws-fp32", "kws-int8"])
def test_keywords_are_heard(heard: Heard, name: str) -> None:
    """Ready features give one result a recording, with the reference's keyword."""
    for index, entry in enumerate(reference(MODELS[name][0])["reference"]):
        (result,) = heard.results[f"{name}-{index}"]
        chance = (entry["value"] + 128) / 256 if name.endswith("int8") else entry["value"]
        assert result["classes"][0]["label"] == entry["label"]
        assert result["classes"][0]["score"] == pytest.approx(chance, abs=0.01)


@pytest.mark.parametrize(("name", "unit"), [("car-fp32", 1.0), ("car-int8", CAR_STEP**2)])
def test_machines_sound_as_odd_as_they_are(heard: Heard, name: str, unit: float) -> None:
    """The mean score over all 196 windows is the reference's within 2 %, in its units."""
    for index, entry in enumerate(reference(MODELS[name][0])["reference"]):
        results = heard.results[f"{name}-{index}"]
        assert [result["seq"] for result in results] == list(range(196))
        scores = [result["anomaly"]["score"] for result in results]
        assert np.mean(scores) * unit == pytest.approx(entry["score"], rel=0.02)
        for result in results:
            anomaly = result["anomaly"]
            assert anomaly["anomalous"] == (anomaly["score"] > anomaly["threshold"])
        if name == "car-fp32":
            # A threshold between the two recordings tells them apart in nearly every window.
            share = np.mean([result["anomaly"]["anomalous"] for result in results])
            assert (share > 0.9) if index else (share < 0.1)


@pytest.mark.parametrize("name", ["imu-fp32", "imu-int8"])
def test_gestures_are_told_from_motion(heard: Heard, name: str) -> None:
    """Every 10th row of a CSV file makes one window, with the reference's gesture."""
    for index, entry in enumerate(reference(MODELS[name][0])["reference"]):
        (result,) = heard.results[f"{name}-{index}"]
        assert result["classes"][0]["label"] == entry["label"]
        assert result["classes"][0]["score"] == pytest.approx(entry["p"], abs=0.02)


def ir_only(heard: Heard) -> None:
    """Leave a test that is about OpenVINO's own format."""
    if heard.engine != "openvino":
        pytest.skip("OpenVINO IR runs on openvino only")


def test_faces_are_found_by_an_ir(heard: Heard) -> None:
    """The Open Model Zoo's face detector finds the known faces."""
    ir_only(heard)
    results = heard.by_file("adas")
    entries = reference(IR_MODELS["adas"][0])["reference"]
    assert len(results) == len(entries)
    for entry in entries:
        expected = [("face", box["box_xyxy"]) for box in entry["boxes"]]
        check_boxes(results[Path(entry["media"]).name], expected, entry["detected"])


def expected_values(name: str) -> dict[str, float]:
    """Give what a regression model says of the portrait, as results name it."""
    (entry,) = reference(IR_MODELS[name][0])["reference"]
    given: dict[str, list[float]] = entry["angles" if name == "pose" else "landmarks"]
    return {
        key if len(numbers) == 1 else f"{key}[{place}]": number
        for key, numbers in given.items()
        for place, number in enumerate(numbers)
    }


TOLERANCE = {"pose": 1.0, "landmarks": 0.01}
"""Degrees; share of the crop's side."""


@pytest.mark.parametrize("name", ["pose", "landmarks"])
def test_a_region_is_measured(heard: Heard, name: str) -> None:
    """With the face as `roi`, angles are within 1 degree and landmarks within 1 %."""
    ir_only(heard)
    (result,) = heard.results[name]
    assert result["values"] == pytest.approx(expected_values(name), abs=TOLERANCE[name])


@pytest.mark.parametrize("name", ["pose", "landmarks"])
def test_a_second_stage_measures_what_the_first_found(heard: Heard, name: str) -> None:
    """As second stage on the detected face the same comes out, nested under the detection."""
    ir_only(heard)
    (result,) = heard.results["portrait"]
    (face,) = result["detections"]
    assert set(face["then"]) == {"pose", "landmarks"}
    found = face["then"][name]["values"]
    assert found == pytest.approx(expected_values(name), abs=TOLERANCE[name])


def test_the_engine_that_is_forced_is_the_one_that_serves(heard: Heard) -> None:
    """Every result, model and health entry names the engine of the settings."""
    results = [result for results in heard.results.values() for result in results]
    assert all(results)
    assert len(results) > 600
    assert {result["engine"].split(":")[0] for result in results} == {heard.engine}
    assert {m["engine"].split(":")[0] for m in heard.health["models"].values()} == {heard.engine}
    assert {m["engine"].split(":")[0] for m in heard.info["models"]} == {heard.engine}


def test_every_reading_is_accounted_for(heard: Heard) -> None:
    """At the end every pipeline has inferred and published all it captured; health is well."""
    assert heard.health["state"] == "ok", heard.health["why"]
    for name, results in heard.results.items():
        pipeline = heard.health["pipelines"][name]
        check_account(pipeline)
        assert pipeline["waiting"] == 0
        assert sum(pipeline["dropped"].values()) == 0
        assert pipeline["captured"] == pipeline["inferred"] == pipeline["published"] == len(results)


def test_a_result_carries_what_is_promised(heard: Heard) -> None:
    """Device, session, times, model, source size and timing are in every result."""
    session = heard.info["session"]
    for name, results in heard.results.items():
        for result in results:
            assert result["schema"] == 1
            assert result["device"] == f"all-{heard.engine}"
            assert (result["session"], result["pipeline"]) == (session, name)
            assert result["time"].endswith("Z")
            assert len(result["time"]) == 24
            assert set(result["timing"]) == {
                "age_ms",
                "preprocess_ms",
                "infer_ms",
                "postprocess_ms",
            }
            assert all(took >= 0 for took in result["timing"].values())
            assert "replayed" not in result
            picture = "source" in result
            assert picture == ("file" in result)
            if picture:
                assert min(result["source"].values()) > 0


def test_an_engine_that_cannot_run_the_model_ends_the_run(tmp_path: Path) -> None:
    """IR on a forced onnxruntime: exit 2 and one line that says so and how to mend it."""
    library = write_library(tmp_path / "models", {"pose": IR_MODELS["pose"]})
    source = pictures(tmp_path / "in", ["media/astronaut.png"])
    (tmp_path / "c.toml").write_text(
        agent_settings(
            "ir",
            "mqtt://127.0.0.1:9",
            [{"name": "p", "source": source, "model": "pose"}],
            models_dirs=[str(library)],
        )
    )
    done = run_cli("run", "--config", str(tmp_path / "c.toml"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert 'OpenVINO IR runs on openvino only, but engine = "onnxruntime" is set' in done.stderr


@pytest.mark.parametrize(
    ("clip", "frames"), [("one-by-one-person-detection", 1394), ("bottle-detection", 1189)]
)
def test_a_clip_runs_to_its_end(
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
    clip: str,
    frames: int,
) -> None:
    """At pace=max every frame of a recorded video gives a result, in order, before the source ends.

    Two lanes share the frames; nothing is dropped, and the account is exact afterward.
    """
    library = write_library(tmp_path / "models", {"person-int8": MODELS["person-int8"]})
    device = f"clip-{frames}"
    source = f"file:{ASSETS / 'media' / clip}.mp4?pace=max"
    pipeline = {"name": "clip", "source": source, "model": "person-int8"}
    listener = listen(shared_broker.port, f"edge/{device}/#")
    settings = agent_settings(device, shared_broker.url, [pipeline], models_dirs=[str(library)])
    running = agent(settings)

    wait_ended(listener, device, ["clip"])
    topics = {f"edge/{device}/{kind}/clip" for kind in ("source", "result")}
    spoken = [said for said in listener.heard if said.topic in topics]
    assert spoken[0].json["state"] == "running"
    assert spoken[-1].json["state"] == "ended"
    assert [said.json.get("seq") for said in spoken[1:-1]] == list(range(frames))

    def over(_: object) -> dict[str, Any] | None:
        health = listener.last(f"edge/{device}/health")
        there = health and health["pipelines"]["clip"]
        return there if there and there["source"] == "ended" else None

    there = listener.wait_for(over, "health after the end")
    check_account(there)
    assert (there["captured"], there["inferred"], there["published"]) == (frames,) * 3
    assert there["waiting"] == 0
    assert running.process.poll() is None, "the daemon goes on"
    assert running.stop() == 0
