"""Bare networks with the metadata of Ultralytics and of Model API become manifests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.core.errors import ModelError
from edge_agent.models.describing import describe
from edge_agent.models.files.metadata import manifest_of
from edge_agent.models.manifest import Manifest, check
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx, to_ir

NAMES = {0: "person", 1: "traffic light", 2: "it's"}
ULTRALYTICS: Mapping[str, object] = {
    "description": "Ultralytics YOLOv8n model trained on coco.yaml",
    "author": "Ultralytics",
    "license": "AGPL-3.0 License (https://ultralytics.com/license)",
    "version": "8.3.0",
    "stride": 32,
    "task": "detect",
    "batch": 1,
    "imgsz": [32, 64],
    "names": NAMES,
    "args": {"batch": 1, "nms": False},
}
METADATA_YAML = """\
description: Ultralytics YOLO11n model trained on coco.yaml
author: Ultralytics
license: AGPL-3.0 License (https://ultralytics.com/license)
version: 8.3.0
stride: 32
task: detect
batch: 1
imgsz:
- 32
- 64
names:
  0: person
  1: traffic light
  2: 'it''s'
args:
  batch: 1
  nms: false
"""
MODEL_API: Mapping[str, object] = {
    "model_type": "ssd",
    "labels": ["face", "no_face"],
    "mean_values": [123.5, 116.25, 103.5],
    "scale_values": [58.5],
    "reverse_input_channels": True,
    "resize_type": "fit_to_window_letterbox",
    "pad_value": 114,
    "confidence_threshold": 0.4,
    "iou_threshold": 0.6,
}


NOTHING: Mapping[str, Any] = dict.fromkeys(MODEL_API)
"""Changes that leave every entry out."""


def zeros(*shape: int) -> NDArray[np.float32]:
    """Make an output."""
    return np.zeros(shape, np.float32)


def ultralytics(
    folder: Path,
    output: NDArray[np.float32],
    picture: tuple[int | str | None, ...] = (1, 3, 32, 64),
    **changes: object,
) -> Path:
    """Save an ONNX file as Ultralytics does; a field changed to None is left out."""
    fields = {key: text for key, text in {**ULTRALYTICS, **changes}.items() if text is not None}
    path = folder / "yolo v8n.onnx"
    return constant_outputs(path, {"output0": output}, picture=picture, metadata=fields)


def stored(info: Mapping[str, Any]) -> dict[str, str]:
    """Write `model_info` as Model API stores it in an ONNX file."""
    return {
        f"model_info {key}": " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in info.items()
    }


def model_api(
    folder: Path,
    outputs: Mapping[str, NDArray[np.float32]],
    *,
    ir: bool = False,
    end: str | None = None,
    picture: tuple[int | None, ...] = (1, 3, 32, 64),
    **changes: object,
) -> Path:
    """Save an ONNX file or IR with `model_info`; an entry changed to None is left out."""
    info = {key: value for key, value in {**MODEL_API, **changes}.items() if value is not None}
    path = constant_outputs(
        folder / "model.onnx",
        outputs,
        end=end,
        picture=picture,
        metadata=None if ir else stored(info),
    )
    return to_ir(path, folder / "model.xml", info) if ir else path


def manifest(network: Path) -> Manifest:
    """Read a bare network, and see that the manifest is one that a folder could have."""
    found, assumed = manifest_of(network, None, "1")
    assert all(assumed)
    check(found, network.parent)
    return found


def refused(network: Path, *words: str) -> None:
    """See that a network is refused in one line that has these words."""
    with pytest.raises(ModelError) as caught:
        manifest_of(network, None, "1")
    message = str(caught.value)
    assert "\n" not in message
    assert network.name in message
    assert all(word in message for word in words), message


# Ultralytics


def test_ultralytics_detector(tmp_path: Path) -> None:
    """A YOLOv8 export says how it is fed and decoded; the rest is its predictor's defaults."""
    path = ultralytics(tmp_path, zeros(1, 7, 42))
    found, assumed = manifest_of(path, None, "4")
    assert (found.name, found.version, found.file) == ("yolo-v8n", "4", "yolo v8n.onnx")
    assert (found.task, found.decoder) == ("detection", "yolov8")
    assert found.output.labels == ("person", "traffic light", "it's")
    assert (found.output.threshold, found.output.iou) == (0.25, 0.7)
    picture = found.input
    assert (picture.color, picture.layout, picture.resize) == ("rgb", "nchw", "letterbox")
    assert (picture.anchor, picture.pad) == ("center", 114)
    assert picture.per_channel("mean", 3) == (0, 0, 0)
    assert picture.per_channel("scale", 3) == (255, 255, 255)
    assert (picture.width, picture.height) == (None, None)
    assert found.license.startswith("AGPL-3.0")
    assert any("0.25" in words for words in assumed)
    assert any("iou" in words for words in assumed)


def test_name_and_version_are_the_callers(tmp_path: Path) -> None:
    """A name that is given is taken instead of the file's."""
    found, _ = manifest_of(ultralytics(tmp_path, zeros(1, 7, 42)), "door", "1.2")
    assert found.id == "door@1.2"


@pytest.mark.parametrize(
    ("shape", "changes", "decoder"),
    [
        ((1, 7, 42), {}, "yolov8"),
        ((1, 300, 6), {}, "yolo-e2e"),
        ((1, 300, 6), {"args": {"nms": True}}, "yolo-e2e"),
        ((1, 300, 6), {"end2end": True}, "yolo-e2e"),
        ((1, 6, 42), {"names": {0: "a", 1: "b"}}, "yolov8"),
        ((1, 300, 6), {"names": {0: "a"}}, "yolo-e2e"),
        ((1, 126, 8), {"task": None}, "yolov5"),
        ((1, 126, 6), {"task": None, "names": ["only"]}, "yolov5"),
        # As many classes as it keeps boxes, less four: rows of 6 are still its boxes.
        ((1, 300, 6), {"names": [f"kind {number}" for number in range(296)]}, "yolo-e2e"),
        # The first exporters of YOLOv8 did not write the task.
        ((1, 7, 42), {"task": None}, "yolov8"),
    ],
)
def test_ultralytics_family_by_shape(
    shape: tuple[int, ...], changes: dict[str, Any], decoder: str, tmp_path: Path
) -> None:
    """The output's shape, with the count of names and what the exporter says, tells the decoder."""
    found = manifest(ultralytics(tmp_path, zeros(*shape), **changes))
    assert found.decoder == decoder
    assert found.output.iou == {"yolov8": 0.7, "yolov5": 0.45}.get(decoder)


def test_yolov9_by_its_own_exporter(tmp_path: Path) -> None:
    """Its exporter is YOLOv5's, its output YOLOv8's, and its own demo suppresses at 0.45."""
    path = constant_outputs(
        tmp_path / "v9.onnx",
        {"output0": zeros(1, 7, 42)},
        picture=(1, 3, 32, 64),
        metadata={"stride": 32, "names": NAMES},
    )
    found = manifest(path)
    assert (found.decoder, found.output.iou) == ("yolov8", 0.45)


def test_older_exporter_without_task(tmp_path: Path) -> None:
    """YOLOv5's exporter writes only stride and names; that it detects is said as an assumption."""
    path = constant_outputs(
        tmp_path / "v5.onnx",
        {"output0": zeros(1, 126, 8)},
        metadata={"stride": 32, "names": NAMES},
    )
    found, assumed = manifest_of(path, None, "1")
    assert found.decoder == "yolov5"
    assert any(words.startswith("task: detect") for words in assumed)


def test_open_size_comes_from_imgsz(tmp_path: Path) -> None:
    """Where the network leaves its size open, it is the one it was exported for."""
    path = ultralytics(tmp_path, zeros(1, 7, 42), picture=("batch", 3, "height", "width"))
    found = manifest(path)
    assert (found.input.width, found.input.height) == (64, 32)
    assert any(
        "64x32" in words and "rectangle" in words for words in manifest_of(path, None, "1")[1]
    )


def test_open_size_without_imgsz(tmp_path: Path) -> None:
    """Without imgsz an open size is named as what is missing."""
    path = ultralytics(tmp_path, zeros(1, 7, 42), picture=(1, 3, None, None), imgsz=None)
    refused(path, "imgsz", "not in the metadata", "width and height")


@pytest.mark.parametrize(
    ("picture", "resize"), [((1, 3, 64, 64), "crop"), ((1, 3, 32, 64), "stretch")]
)
def test_ultralytics_classifier(picture: tuple[int, ...], resize: str, tmp_path: Path) -> None:
    """A classifier is fed 0..1, antialiased: a center cut, or all of it where it is not square."""
    found = manifest(ultralytics(tmp_path, zeros(1, 3), picture, task="classify"))
    assert (found.task, found.decoder) == ("classification", "softmax")
    assert (found.input.resize, found.input.crop_ratio) == (resize, 1.0)
    assert (found.input.interpolation, found.input.antialias) == ("linear", True)
    assert found.input.per_channel("scale", 3) == (255, 255, 255)


def test_yolov5_classifier(tmp_path: Path) -> None:
    """Its exporter says names and stride; the advice was to export it with anchors inside."""
    path = ultralytics(tmp_path, zeros(1, 3), (1, 3, 64, 64), task=None, version=None)
    found = manifest(path)
    assert (found.task, found.decoder) == ("classification", "logits")
    assert found.output.labels == ("person", "traffic light", "it's")
    assert (found.input.resize, found.input.antialias) == ("crop", False)
    assert found.input.per_channel("mean", 3) == (123.675, 116.28, 103.53)


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ((1, 300, 6), {"head": "RTDETRDecoder"}),
        ((1, 300, 6), {"head": "RTDETRDecoder", "names": {0: "a", 1: "b"}}),
        ((1, 300, 7), {"description": "Ultralytics rtdetr-l model trained on coco.yaml"}),
        ((1, 300, 7), {"description": "Ultralytics YOLOv8-rtdetr model"}),
    ],
)
def test_ultralytics_rtdetr(
    shape: tuple[int, ...], changes: dict[str, Any], tmp_path: Path
) -> None:
    """RT-DETR is told by its head, or before 8.4 by its name, and is fed stretched pictures."""
    found = manifest(ultralytics(tmp_path, zeros(*shape), **changes))
    assert (found.task, found.decoder) == ("detection", "rtdetr")
    assert (found.input.resize, found.input.color) == ("stretch", "rgb")
    assert found.input.per_channel("scale", 3) == (255, 255, 255)
    assert found.output.threshold == 0.25


def test_rows_of_another_family_are_no_yolo(tmp_path: Path) -> None:
    """Boxes and classes in rows are RT-DETR's; where nothing says so, nothing is assumed."""
    refused(ultralytics(tmp_path, zeros(1, 300, 7)), "[1, 300, 7]", "RT-DETR", "model.toml")
    sparse = {**NOTHING, "model_type": "YOLO", "labels": ["a", "b", "c"]}
    path = model_api(tmp_path, {"output0": zeros(1, 300, 7)}, **sparse)
    refused(path, "[1, 300, 7]", "RT-DETR", "model.toml")
    path = model_api(tmp_path, {"output0": zeros(1, 300, 6)}, **sparse)
    refused(path, "[1, 300, 6]", "RT-DETR", "metadata.yaml")


@pytest.mark.parametrize(("task", "head"), [("detect", "Depth"), ("classify", "Detect")])
def test_a_head_that_is_not_known_is_refused(task: str, head: str, tmp_path: Path) -> None:
    """The exporter names the head: of one that is not known no shape is trusted."""
    path = ultralytics(tmp_path, zeros(1, 7, 42), task=task, head=head)
    refused(path, f"head '{head}' is not known", "model.toml")


def test_gray_network(tmp_path: Path) -> None:
    """A network of one channel is fed gray."""
    found = manifest(ultralytics(tmp_path, zeros(1, 7, 42), picture=(1, 1, 32, 64)))
    assert found.input.color == "gray"


@pytest.mark.parametrize("task", ["depth", "track"])
def test_tasks_that_are_not_supported(task: str, tmp_path: Path) -> None:
    """Other tasks are refused by their name."""
    refused(ultralytics(tmp_path, zeros(1, 39, 42), task=task), f"task '{task}' is not supported")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"names": "__import__('os').system('true')"}, ["names", "dictionary"]),
        ({"names": "{0: 'a', 2: 'b'}"}, ["names", "keys 0 to 1"]),
        ({"names": "{'a': 0}"}, ["names"]),
        ({"names": "{}"}, ["names", "found none"]),
        ({"names": "17"}, ["names", "found none"]),
        ({"names": "[" * 5000}, ["names"]),
        ({"names": {0: "a"}}, ["[1, 5, N]", "[1, 7, 42]"]),
    ],
)
def test_ultralytics_fields_that_are_wrong(
    changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    """Names that are no dictionary, or not as many as classes, are one clear line; no code runs."""
    refused(ultralytics(tmp_path, zeros(1, 7, 42), **changes), *words)


def test_batch_that_is_not_one(tmp_path: Path) -> None:
    """A network for several pictures at once is taken; `describe` says what that costs."""
    made = describe(ultralytics(tmp_path, zeros(4, 7, 42), picture=(4, 3, 32, 64)))
    assert made.manifest is not None
    assert made.manifest.decoder == "yolov8"
    assert any("4 samples at once" in line for line in made.missing)


def test_ultralytics_ir(tmp_path: Path) -> None:
    """Beside an IR, metadata.yaml holds what an ONNX file has inside, spaces in names included."""
    onnx = constant_outputs(
        tmp_path / "m.onnx", {"output0": zeros(1, 7, 42)}, picture=(1, 3, 32, 64)
    )
    info = {"model_type": "YOLO", "labels": ["person", "traffic_light", "it's"]}
    xml = to_ir(onnx, tmp_path / "yolo11n.xml", info)
    (tmp_path / "metadata.yaml").write_text(METADATA_YAML, encoding="utf-8")
    found = manifest(xml)
    assert (found.name, found.decoder) == ("yolo11n", "yolov8")
    assert found.output.labels == ("person", "traffic light", "it's")
    assert found.input.resize == "letterbox"


def test_ultralytics_ir_with_text_over_several_lines(tmp_path: Path) -> None:
    """PyYAML breaks what is longer than 80 characters at a space, a colon in it or not."""
    onnx_file = constant_outputs(tmp_path / "m.onnx", {"output0": zeros(1, 300, 6)})
    folder = tmp_path / "yolo_openvino_model"
    folder.mkdir()
    network = to_ir(onnx_file, folder / "yolo.xml")
    long = " ".join(["a label of many words"] * 5)
    (folder / "metadata.yaml").write_text(
        "description: Ultralytics rtdetr-l model trained on "
        + "x" * 40
        + "\n  with: spaces\n"
        + METADATA_YAML.partition("\n")[2]
        .replace("  0: person\n", f"  0: {long[:87]}\n    {long[88:]}\n")
        .replace("'it''s'", "'it''s\n    so'")
    )
    found = manifest(network)
    assert found.output.labels == (long, "traffic light", "it's so")
    assert found.decoder == "rtdetr"
    assert found.description.endswith("x with: spaces")


def test_ultralytics_ir_of_another_task(tmp_path: Path) -> None:
    """The task in metadata.yaml counts, whatever model_info says."""
    onnx = constant_outputs(tmp_path / "m.onnx", {"output0": zeros(1, 39, 42)})
    xml = to_ir(onnx, tmp_path / "m.xml", {"model_type": "YOLO", "labels": ["a", "b", "c"]})
    text = METADATA_YAML.replace("task: detect", "task: depth")
    (tmp_path / "metadata.yaml").write_text(text, encoding="utf-8")
    refused(xml, "task 'depth'")


# Model API


@pytest.mark.parametrize("ir", [False, True], ids=["onnx", "ir"])
def test_model_api_detector(ir: bool, tmp_path: Path) -> None:
    """model_info is read alike from an ONNX file and from an IR."""
    found = manifest(model_api(tmp_path, {"detection_out": zeros(1, 1, 20, 7)}, ir=ir))
    assert (found.name, found.task, found.decoder) == ("model", "detection", "ssd")
    assert found.output.labels == ("face", "no_face")
    assert found.output.threshold == pytest.approx(0.4)
    picture = found.input
    assert (picture.color, picture.resize, picture.anchor) == ("rgb", "letterbox", "center")
    assert picture.pad == 114
    assert picture.per_channel("mean", 3) == (123.5, 116.25, 103.5)
    assert picture.per_channel("scale", 3) == (58.5, 58.5, 58.5)


@pytest.mark.parametrize(
    ("resize_type", "resize", "anchor", "pad"),
    [
        ("standard", "stretch", "center", 0),
        ("fit_to_window", "letterbox", "top-left", 114),
        ("fit_to_window_letterbox", "letterbox", "center", 114),
        ("crop", "crop", "center", 0),
        (None, "stretch", "center", 0),
    ],
)
def test_model_api_resize_types(
    resize_type: str | None, resize: str, anchor: str, pad: float, tmp_path: Path
) -> None:
    """Each resize_type means what its wrapper does, which rounds half to even and pads."""
    path = model_api(
        tmp_path,
        {"detection_out": zeros(1, 1, 20, 7)},
        picture=(1, 3, 64, 64),
        resize_type=resize_type,
    )
    found = manifest(path).input
    assert (found.resize, found.anchor, found.pad) == (resize, anchor, pad)
    assert found.rounding == ("half-even" if resize == "letterbox" else None)


def test_model_api_crop_of_another_shape(tmp_path: Path) -> None:
    """What its wrapper cuts for an input that is not square is no center cut: refused."""
    path = model_api(tmp_path, {"detection_out": zeros(1, 1, 20, 7)}, resize_type="crop")
    refused(path, "resize_type: crop", "not square")


@pytest.mark.parametrize(
    ("kind", "changes", "iou", "agnostic", "most"),
    [
        ("ssd", {}, None, False, 0),
        ("ssd", {"nms_execute": True}, 0.6, False, 200),
        ("ssd", {"nms_execute": True, "nms_max_predictions": 7}, 0.6, False, 7),
        ("YOLOX", {}, 0.6, True, 200),
        ("YOLOX", {"agnostic_nms": False, "nms_max_predictions": 0}, 0.6, False, 100_000),
        ("YOLOv8", {}, 0.6, False, 30_000),
        ("YOLOv8", {"agnostic_nms": True}, 0.6, True, 30_000),
        ("YOLOv8", {"nms_execute": False}, 1.0, False, 100_000),
    ],
)
def test_model_api_suppression(
    kind: str,
    changes: dict[str, Any],
    iou: float | None,
    agnostic: bool,
    most: int,
    tmp_path: Path,
) -> None:
    """Whether, among which and of how many boxes is suppressed is as its wrapper has it."""
    shape = {"ssd": (1, 1, 20, 7), "YOLOX": (1, 42, 7), "YOLOv8": (1, 6, 42)}[kind]
    path = model_api(tmp_path, {"output": zeros(*shape)}, model_type=kind, **changes)
    output = manifest(path).output
    assert (output.iou, output.agnostic, output.max_detections) == (iou, agnostic, most)


def test_model_api_defaults_are_said(tmp_path: Path) -> None:
    """What model_info leaves out is the wrapper's default, and each is put into words."""
    path = model_api(
        tmp_path,
        {"detection_out": zeros(1, 1, 20, 7)},
        **{**NOTHING, "model_type": "SSD", "labels": "face"},
    )
    found, assumed = manifest_of(path, None, "1")
    assert found.input.color == "bgr"
    assert found.output.threshold == pytest.approx(0.5)
    for key in ("resize_type", "confidence_threshold", "mean and scale"):
        assert any(words.startswith(key) for words in assumed), assumed


def test_model_api_none_is_missing(tmp_path: Path) -> None:
    """Model API stores an entry that has no value as "None"."""
    path = model_api(tmp_path, {"detection_out": zeros(1, 1, 20, 7)}, confidence_threshold="None")
    assert manifest(path).output.threshold == pytest.approx(0.5)


@pytest.mark.parametrize("kind", ["YOLOv8", "YoloV8", "YOLO11", "YOLOv5", "YOLO"])
@pytest.mark.parametrize("ir", [False, True], ids=["onnx", "ir"])
def test_model_api_yolo(kind: str, ir: bool, tmp_path: Path) -> None:
    """YOLO wrappers do as Ultralytics does where model_info is silent."""
    sparse = {**NOTHING, "model_type": kind, "labels": ["a", "b", "c"]}
    found = manifest(model_api(tmp_path, {"output0": zeros(1, 7, 42)}, ir=ir, **sparse))
    assert found.decoder == "yolov8"
    assert (found.input.color, found.input.resize, found.input.pad) == ("rgb", "letterbox", 114)
    assert found.input.per_channel("scale", 3) == (255, 255, 255)
    assert (found.output.threshold, found.output.iou) == (0.25, 0.7)


def test_model_api_yolox(tmp_path: Path) -> None:
    """YOLOX is always letterboxed from the top left on 114."""
    sparse = {**NOTHING, "model_type": "YOLOX", "labels": ["a", "b"]}
    path = model_api(tmp_path, {"output": zeros(1, 42, 7)}, **sparse)
    found = manifest(path)
    assert found.decoder == "yolox"
    assert (found.input.resize, found.input.anchor, found.input.pad) == (
        "letterbox",
        "top-left",
        114,
    )
    assert found.input.per_channel("scale", 3) == (1, 1, 1)
    assert found.output.iou == pytest.approx(0.65)


@pytest.mark.parametrize("ir", [False, True], ids=["onnx", "ir"])
@pytest.mark.parametrize(("end", "decoder"), [("Softmax", "softmax"), (None, "logits")])
def test_model_api_classifier(end: str | None, decoder: str, ir: bool, tmp_path: Path) -> None:
    """Whether chances or logits come out is told by the network's last operator."""
    path = model_api(
        tmp_path, {"logits": zeros(1, 2)}, ir=ir, end=end, model_type="Classification", topk=2
    )
    found = manifest(path)
    assert (found.task, found.decoder, found.output.top_k) == ("classification", decoder, 2)
    assert found.output.first_label == 0


def test_model_api_classifier_with_a_class_more(tmp_path: Path) -> None:
    """With one class more than labels, the first is "other" and labels begin at 1."""
    path = model_api(tmp_path, {"logits": zeros(1, 3)}, model_type="Classification")
    assert manifest(path).output.first_label == 1


def test_model_api_anomaly(tmp_path: Path) -> None:
    """An anomaly model's score is its output pred_score, its threshold image_threshold."""
    path = model_api(
        tmp_path,
        {"anomaly_map": zeros(1, 1, 32, 64), "pred_score": zeros(1)},
        model_type="AnomalyDetection",
        image_threshold=0.75,
    )
    found = manifest(path)
    assert (found.task, found.decoder) == ("anomaly", "score")
    assert found.output.threshold == pytest.approx(0.75)
    assert found.output.names == {"score": "pred_score"}


def test_model_api_anomaly_of_unknown_scale(tmp_path: Path) -> None:
    """Without mean and scale it may be meant for 0..1 or for 0..255: neither is assumed."""
    path = model_api(
        tmp_path,
        {"pred_score": zeros(1)},
        model_type="AnomalyDetection",
        mean_values=None,
        scale_values=None,
    )
    refused(path, "mean_values and scale_values", "scale = 255 or scale = 1", "model.toml")


def test_model_api_embedded_processing(tmp_path: Path) -> None:
    """A network with its preprocessing inside takes BGR as it comes, at its former size."""
    path = model_api(
        tmp_path,
        {"detection_out": zeros(1, 1, 20, 7)},
        picture=(1, None, None, 3),
        embedded_processing=True,
        orig_width=320,
        orig_height=240,
    )
    found = manifest(path).input
    assert (found.layout, found.color) == ("nhwc", "bgr")
    assert (found.width, found.height) == (320, 240)
    assert found.per_channel("mean", 3) == (0, 0, 0)
    assert found.per_channel("scale", 3) == (1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": None}, ["model_type", "not in its model_info"]),
        ({"labels": None}, ["labels", "not in its model_info"]),
        ({"model_type": "MaskRCNN"}, ["'MaskRCNN' is not supported", "SSD"]),
        ({"model_type": "Segmentation"}, ["'Segmentation' is not supported"]),
        ({"model_type": "YOLO-seg"}, ["'YOLO-seg' is not supported"]),
        ({"model_type": "YOLOv8"}, ["detection_out", "expected one output of 3 dimensions"]),
        ({"model_type": "AnomalyDetection"}, ["pred_score", "detection_out"]),
        ({"resize_type": "squeeze"}, ["resize_type", "squeeze", "fit_to_window"]),
        ({"mean_values": "a b c"}, ["mean_values", "expected numbers", "a b c"]),
        ({"confidence_threshold": "0.1 0.2"}, ["confidence_threshold", "one number"]),
        ({"intensity_mode": "percentile"}, ["intensity_mode", "percentile"]),
        ({"interpolation_mode": "LANCZOS"}, ["interpolation", "lanczos"]),
        ({"iou_threshold": 7, "model_type": "YOLOX"}, ["output.iou", "7"]),
    ],
)
def test_model_api_entries_that_are_wrong(
    changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    """Each entry that is missing, wrong or asks for too much is named in one line."""
    refused(model_api(tmp_path, {"detection_out": zeros(1, 1, 20, 7)}, **changes), *words)


@pytest.mark.parametrize("kind", ["multilabel", "hierarchical"])
def test_model_api_other_classifiers(kind: str, tmp_path: Path) -> None:
    """Classification with several labels at once, or a tree of them, is refused by name."""
    changes: dict[str, Any] = {"model_type": "Classification", kind: True}
    refused(model_api(tmp_path, {"logits": zeros(1, 2)}, **changes), kind, "not supported")


def test_model_api_labels_that_do_not_fit(tmp_path: Path) -> None:
    """Labels that are not as many as classes are an error with both counts."""
    path = model_api(tmp_path, {"logits": zeros(1, 9)}, model_type="Classification")
    refused(path, "labels: 2", "logits float32[1, 9]")


# Neither


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_bytes_that_would_be_divided_away(dtype: str, tmp_path: Path) -> None:
    """Of pixels in 0..1 an input of bytes would keep two values: its normalization is inside."""
    path = save_onnx(
        tmp_path / "yolo.onnx",
        [node("Identity", ["value"], ["output0"])],
        [("images", dtype, (1, 3, 32, 64))],
        [("output0", "float32", (1, 7, 42))],
        {"value": zeros(1, 7, 42)},
        metadata=ULTRALYTICS,
    )
    refused(path, f"images {dtype}[1, 3, 32, 64]", "input.scale")


def test_no_metadata(tmp_path: Path) -> None:
    """A network without metadata is refused with the mend."""
    path = constant_outputs(tmp_path / "bare.onnx", {"y": zeros(1, 2)}, metadata={"team": "x"})
    refused(path, "neither Ultralytics' (task, names) nor Model API's", "found team", "model.toml")


def test_damaged_network(tmp_path: Path) -> None:
    """A file that is not fit to run is refused before its metadata is looked at."""
    path = ultralytics(tmp_path, zeros(1, 7, 42))
    path.write_bytes(path.read_bytes()[:200])
    refused(path, "not a valid ONNX file")


def test_signal_network_with_metadata(tmp_path: Path) -> None:
    """A network without a picture input cannot be described by such metadata."""
    path = constant_outputs(
        tmp_path / "signal.onnx",
        {"output0": zeros(1, 7, 42)},
        picture=(1, 3, 128),
        metadata=ULTRALYTICS,
    )
    refused(path, "expected one input of 4 dimensions", "images float32[1, 3, 128]")
