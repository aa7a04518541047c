"""The public reference models as model folders, and samples of what they are for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from edge_agent.core.types import Array, Kind, Sample
from tests.helpers.support import ASSETS

PEOPLE = ["no person", "person"]
KEYWORDS = [
    *("Down", "Go", "Left", "No", "Off", "On", "Right", "Stop", "Up", "Yes"),
    *("Silence", "Unknown"),
]
GESTURES = [
    *("SHAKE_BACKWARD", "SHAKE_FORWARD", "SHORT_VIBRATION"),
    *("STILL", "TILT_LEFT", "TILT_RIGHT"),
]

MODELS: dict[str, dict[str, Any]] = {
    "face_rfb320": {
        "task": "detection",
        "input": {"color": "rgb", "mean": 127.0, "scale": 128.0},
        "output": {"decoder": "ultraface", "threshold": 0.7, "iou": 0.3, "labels": ["face"]},
    },
    "coco_yolox_nano": {
        "task": "detection",
        "input": {"color": "bgr", "resize": "letterbox", "anchor": "top-left"},
        "output": {"decoder": "yolox", "threshold": 0.4, "labels": "coco_classes.txt"},
    },
    "imagenet_mobilenetv2": {
        "task": "classification",
        "input": {"color": "rgb", "mean": 128.0, "scale": 128.0},
        "output": {"decoder": "softmax", "labels": "imagenet_labels.txt"},
    },
    "seg_deeplab_mnv2_dm05": {"task": "raw", "input": {"layout": "nhwc"}, "output": {}},
    "vww_person": {
        "task": "classification",
        "input": {"layout": "nhwc", "interpolation": "area", "scale": 255.0},
        "output": {"decoder": "softmax", "labels": PEOPLE},
    },
    "kws_dscnn": {
        "task": "classification",
        "input": {},
        "output": {"decoder": "softmax", "labels": KEYWORDS},
    },
    "imu_gesture_cnn": {
        "task": "classification",
        "input": {"window": 150, "every": 10, "layout": "tc", "channels": list(range(8))},
        "output": {"decoder": "softmax", "labels": GESTURES},
    },
    "anomaly_toycar_ae": {
        "task": "anomaly",
        "input": {"window": 5, "hop": 1, "layout": "flat-tc"},
        "output": {"decoder": "reconstruction", "threshold": 12.0},
    },
}
"""By name: the manifest of each float network."""


def asset_folder(name: str, place: Path) -> Path:
    """Make a model folder of a float network."""
    place.mkdir(parents=True)
    shutil.copyfile(ASSETS / "models" / f"{name}_fp32.onnx", place / "model.onnx")
    table = {"name": name.replace("_", "-"), "version": "1", "file": "model.onnx", **MODELS[name]}
    if isinstance(labels := table["output"].get("labels"), str):
        shutil.copyfile(ASSETS / "media" / labels, place / labels)
    (place / "model.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    return place


def asset_samples(name: str) -> tuple[Kind, list[Sample]]:
    """Return samples for a network, at least eight, in a fixed order."""
    media = ASSETS / "media"
    arrays: list[Array] = []
    if name == "kws_dscnn":
        sounds = [np.load(path) for path in sorted(media.glob("kws_*.npy"))]
        random = np.random.default_rng(0)
        arrays = [
            (one + random.normal(0, 2 * step, one.shape)).astype(np.float32)
            for step in range(6)
            for one in sounds
        ]
    elif name == "imu_gesture_cnn":
        for path in sorted((media / "imu").glob("*.csv")):
            rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float32)
            arrays.append(rows[:1500:10])
    elif name == "anomaly_toycar_ae":
        rows = np.fromfile(media / "ad01_normal_id_01.bin", np.float32).reshape(-1, 128)
        arrays = [rows[start : start + 5] for start in range(0, 192, 8)]
    else:
        import cv2

        for path in sorted(media.glob("faces_*.jpg")) + sorted(media.glob("*.[jb]*g")):
            picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
            if picture is not None:
                arrays.append(picture)
    picture_model = arrays[0].dtype == np.uint8
    samples = [
        Sample(each, number, 0, 0.0, picture=picture_model) for number, each in enumerate(arrays)
    ]
    return "picture" if picture_model else "signal", samples
