"""Public reference models on their pictures and recordings, on every engine that can run them.

The expected results are those of the assets' own list, made apart from this code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.types import Anomaly, Array, Classes, Detections, Findings, Kind, Values
from edge_agent.inference.decode.decoder import Decoder, build_decoder
from edge_agent.inference.engines.engine import Engine, EngineChoice
from edge_agent.inference.engines.registry import EngineName, open_engine
from edge_agent.inference.preprocess.inputs import fixed_shapes
from edge_agent.inference.preprocess.placement import Placement
from edge_agent.inference.preprocess.preprocessor import Preprocessor, build_preprocessor
from edge_agent.models.manifest import Manifest, parse

ASSETS = Path(__file__).resolve().parents[3] / "shared" / "assets"
LISTED = ASSETS / "assets.json"

pytestmark = [
    pytest.mark.assets,
    pytest.mark.skipif(not LISTED.is_file(), reason=f"the reference models are not at {ASSETS}"),
]

IMAGENET = {"color": "rgb", "mean": 128.0, "scale": 128.0}
RFB = {"color": "rgb", "mean": 127.0, "scale": 128.0}
PERSON = {"layout": "nhwc", "interpolation": "area"}
FACES = {"decoder": "ultraface", "threshold": 0.7, "iou": 0.3, "labels": ["face"]}
YOLOX = {"color": "bgr", "resize": "letterbox", "anchor": "top-left"}
KEYWORDS = (
    *("Down", "Go", "Left", "No", "Off", "On", "Right", "Stop", "Up", "Yes"),
    *("Silence", "Unknown"),
)
GESTURES = (
    *("SHAKE_BACKWARD", "SHAKE_FORWARD", "SHORT_VIBRATION"),
    *("STILL", "TILT_LEFT", "TILT_RIGHT"),
)
WHOLE = {"scale": 1 / 256, "zero_point": -128}
PEOPLE = ["no person", "person"]


class Bench:
    """One model as the agent would run it: prepare, infer, decode, carry back."""

    def __init__(
        self,
        engine: EngineName,
        file: str,
        *,
        task: str,
        output: dict[str, Any],
        entries: dict[str, Any] | None = None,
        kind: Kind = "picture",
    ) -> None:
        """Load *file* with a manifest of the tables [input] and [output]."""
        manifest: Manifest = parse(
            {
                "name": "m",
                "version": "1",
                "task": task,
                "file": Path(file).name,
                "input": entries or {},
                "output": {"threshold": 0.5, **output},
            },
            file,
        )
        labels = manifest.output.labels
        if isinstance(labels, str):
            labels = tuple((ASSETS / labels).read_text(encoding="utf-8").splitlines())
        self.engine: Engine = open_engine(
            EngineChoice(engine, threads=1), ASSETS / file, fixed_shapes(manifest.input, kind)
        )
        self.plan: Preprocessor = build_preprocessor(manifest.input, self.engine.inputs, kind)
        self.decoder: Decoder = build_decoder(
            manifest, labels, self.engine.inputs, self.engine.outputs, self.plan.size
        )
        given = manifest.output.threshold
        self.threshold = (
            given if task != "classification" and isinstance(given, int | float) else 0.0
        )

    def __call__(self, data: Array) -> Findings:
        """Find what *data* shows; boxes in its own pixels."""
        tensors, placement = self.plan(data)
        found = self.decoder(self.engine.infer(tensors), tensors, self.threshold)
        if not isinstance(found, Detections):
            return found
        boxes = cast("Placement", placement).back(found.boxes)
        return Detections(boxes, found.scores, found.labels)


def references(file: str) -> list[dict[str, Any]]:
    """Read what is expected of a model."""
    listed = json.loads(LISTED.read_text(encoding="utf-8"))["models"]
    expected: list[dict[str, Any]] = next(m for m in listed if m["file"] == file)["reference"]
    return expected


def picture(media: str) -> NDArray[np.uint8]:
    """Read a picture as a source gives it."""
    import cv2

    return cast("NDArray[np.uint8]", cv2.imread(str(ASSETS / media), cv2.IMREAD_COLOR))


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Work out the intersection over union of two boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0.0) * max(height, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


def check_boxes(
    found: Findings, expected: list[tuple[str, list[float]]], count: int | None = None
) -> None:
    """See that each expected box is found, once, and at most one more.

    The references list a crowd's best only; *count* says how many there were.
    """
    assert isinstance(found, Detections)
    assert len(found) <= 1 + (len(expected) if count is None else count)
    left = list(zip(found.labels, found.boxes.tolist(), strict=True))
    for label, box in expected:
        matching = [entry for entry in left if entry[0] == label and overlap(entry[1], box) >= 0.5]
        assert matching, f"no {label} at {box}, but {left}"
        left.remove(matching[0])


@pytest.fixture(params=["onnxruntime", "openvino"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    """Each engine there is."""
    name: EngineName = request.param
    return name


@pytest.mark.parametrize("model", ["face_rfb320_fp32", "face_rfb320_int8"])
def test_ultraface_finds_the_faces(engine: EngineName, model: str) -> None:
    """UltraFace, float and INT8, finds the reference faces and counts the known ones."""
    file = f"models/{model}.onnx"
    bench = Bench(engine, file, task="detection", output=FACES, entries=RFB)
    for entry in references(file):
        found = bench(picture(entry["media"]))
        expected = [("face", box[:4]) for box in entry["boxes_xyxy_score"]]
        check_boxes(found, expected, entry["detected"])


def test_yolox_finds_the_objects(engine: EngineName) -> None:
    """YOLOX-nano finds the reference boxes, letterboxed pictures carried back."""
    file = "models/coco_yolox_nano_fp32.onnx"
    output = {"decoder": "yolox", "threshold": 0.3, "labels": "media/coco_classes.txt"}
    bench = Bench(engine, file, task="detection", output=output, entries=YOLOX)
    for entry in references(file):
        found = bench(picture(entry["media"]))
        check_boxes(found, [(box["label"], box["box_xyxy"]) for box in entry["detections"]])


def test_a_degraded_yolox_is_decoded_as_it_is() -> None:
    """Also the broken INT8 model's boxes are those of the reference: decoding adds no error."""
    file = "models/coco_yolox_nano_int8_degraded.onnx"
    output = {"decoder": "yolox", "threshold": 0.3, "labels": "media/coco_classes.txt"}
    bench = Bench("onnxruntime", file, task="detection", output=output, entries=YOLOX)
    for entry in references(file):
        found = bench(picture(entry["media"]))
        check_boxes(found, [(box["label"], box["box_xyxy"]) for box in entry["detections"]])


def test_ssd_finds_the_faces() -> None:
    """The Open Model Zoo's face detector, an IR, finds the known faces."""
    file = "models/ir/face-detection-adas-0001.xml"
    output = {"decoder": "ssd", "threshold": 0.5, "labels": ["face"], "first_label": 1}
    bench = Bench("openvino", file, task="detection", output=output, entries={"color": "bgr"})
    for entry in references(file):
        found = bench(picture(entry["media"]))
        expected = [("face", box["box_xyxy"]) for box in entry["boxes"]]
        check_boxes(found, expected, entry["detected"])


@pytest.mark.parametrize(
    ("model", "entries", "output"),
    [
        ("fp32", IMAGENET, {}),
        ("int8", {"layout": "nhwc"}, {"scale": 1 / 256}),
    ],
)
def test_mobilenet_knows_the_pictures(
    engine: EngineName, model: str, entries: dict[str, Any], output: dict[str, Any]
) -> None:
    """MobileNetV2's best class is the reference's, with nearly its chance."""
    file = f"models/imagenet_mobilenetv2_{model}.onnx"
    output = {"decoder": "softmax", "labels": "media/imagenet_labels.txt", **output}
    bench = Bench(engine, file, task="classification", output=output, entries=entries)
    for entry in references(file):
        found = bench(picture(entry["media"]))
        assert isinstance(found, Classes)
        assert found.labels[0].startswith(entry["top5"][0][1])
        assert found.scores[0] == pytest.approx(entry["top5"][0][2], abs=0.02)


@pytest.mark.parametrize(
    ("model", "entries", "output"),
    [
        ("fp32", {"scale": 255.0}, {}),
        ("int8", {"mean": 128.0}, WHOLE),
    ],
)
def test_people_are_told_from_empty_rooms(
    engine: EngineName, model: str, entries: dict[str, Any], output: dict[str, Any]
) -> None:
    """The person detector's chance is the reference's, within one step of its quantization."""
    file = f"models/vww_person_{model}.onnx"
    output = {"decoder": "softmax", "labels": PEOPLE, **output}
    bench = Bench(engine, file, task="classification", output=output, entries=PERSON | entries)
    for entry in references(file):
        found = bench(picture(entry["media"]))
        assert isinstance(found, Classes)
        none, some = entry["out_noperson_person"]
        expected = (some + 128) / 256 if model == "int8" else some
        chances = dict(zip(found.labels, found.scores, strict=True))
        assert found.labels[0] == PEOPLE[some > none]
        assert chances["person"] == pytest.approx(expected, abs=2 / 256)


@pytest.mark.parametrize(
    ("model", "entries", "output"),
    [
        ("fp32", {}, {}),
        ("int8", {"mean": -83 * 0.5847029089927673, "scale": 0.5847029089927673}, WHOLE),
    ],
)
def test_keywords_are_heard_from_features(
    engine: EngineName, model: str, entries: dict[str, Any], output: dict[str, Any]
) -> None:
    """Ready features give the reference's keyword, quantized on the way in for INT8."""
    file = f"models/kws_dscnn_{model}.onnx"
    output = {"decoder": "softmax", "labels": list(KEYWORDS), **output}
    bench = Bench(
        engine, file, task="classification", output=output, entries=entries, kind="signal"
    )
    for entry in references(file):
        found = bench(np.load(ASSETS / entry["media"]))
        assert isinstance(found, Classes)
        expected = (entry["value"] + 128) / 256 if model == "int8" else entry["value"]
        assert found.labels[0] == entry["label"]
        assert found.scores[0] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("model", ["fp32", "int8"])
def test_gestures_are_told_from_motion(engine: EngineName, model: str) -> None:
    """Every 10th of 1500 rows of 8 channels gives the reference's gesture and chance."""
    file = f"models/imu_gesture_cnn_{model}.onnx"
    output = {"decoder": "softmax", "labels": list(GESTURES)}
    entries = {"window": 150, "every": 10, "layout": "tc", "channels": list(range(8))}
    bench = Bench(
        engine, file, task="classification", output=output, entries=entries, kind="signal"
    )
    for entry in references(file):
        rows = np.loadtxt(ASSETS / entry["media"], delimiter=",", skiprows=1, dtype=np.float32)
        found = bench(rows[:1500:10])
        assert isinstance(found, Classes)
        assert found.labels[0] == entry["label"]
        assert found.scores[0] == pytest.approx(entry["p"], abs=0.02)


INPUT_STEP = 0.3910152316093445


@pytest.mark.parametrize(
    ("model", "entries", "output", "unit"),
    [
        ("fp32", {}, {}, 1.0),
        (
            "int8",
            {"mean": -89 * INPUT_STEP, "scale": INPUT_STEP},
            {"scale": 0.36449846625328064, "zero_point": 96},
            INPUT_STEP**2,
        ),
    ],
)
def test_a_machine_sounds_as_anomalous_as_it_should(
    *,
    engine: EngineName,
    model: str,
    entries: dict[str, Any],
    output: dict[str, Any],
    unit: float,
) -> None:
    """The mean score of all windows is the reference's within 2 %, in its units."""
    file = f"models/anomaly_toycar_ae_{model}.onnx"
    output = {"decoder": "reconstruction", **output}
    entries = {"window": 5, "hop": 1, "layout": "flat-tc", **entries}
    bench = Bench(engine, file, task="anomaly", output=output, entries=entries, kind="signal")
    recorded = np.fromfile(ASSETS / "media/ad01_normal_id_01.bin", np.float32).reshape(-1, 128)
    for entry in references(file):
        rows = recorded
        if "noise" in entry["media"]:
            rows = rows + np.random.default_rng(0).normal(0, 12, rows.shape).astype(np.float32)
        windows = [bench(rows[start : start + 5]) for start in range(196)]
        scores = [window.score for window in windows if isinstance(window, Anomaly)]
        assert np.mean(scores) * unit == pytest.approx(entry["score"], rel=0.02)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("head-pose-estimation-adas-0001", "angles"),
        ("landmarks-regression-retail-0009", "landmarks"),
    ],
)
def test_second_stages_measure_a_face(model: str, key: str) -> None:
    """Angles within 1 degree and landmarks within 1 % of the reference, on a cut-out face."""
    file = f"models/ir/{model}.xml"
    bench = Bench(
        "openvino",
        file,
        task="regression",
        output={"decoder": "raw"},
        entries={"color": "bgr"},
    )
    for entry in references(file):
        left, top, right, bottom = (int(edge) for edge in entry["crop_xyxy"])
        found = bench(picture(entry["media"])[top:bottom, left:right])
        assert isinstance(found, Values)
        expected = {
            name if len(numbers) == 1 else f"{name}[{place}]": number
            for name, numbers in entry[key].items()
            for place, number in enumerate(numbers)
        }
        assert found.values == pytest.approx(expected, abs=1.0 if key == "angles" else 0.01)
