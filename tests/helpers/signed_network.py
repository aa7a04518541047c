"""A trained network in eight bits that OpenVINO computes wrongly: its activations have a sign.

As Ultralytics exports with `quantize=8`, and as `edge-agent quantize --target arm` writes it. On
x86 the low-precision transformations of OpenVINO (2026.4) find nothing with it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import tomli_w

from edge_agent.core.types import Detections, Request, Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.manifest import load
from edge_agent.serving.reference_check import open_plain
from edge_agent.tools.float_model import make_ready
from edge_agent.tools.quantizers import TARGETS, calibrate, quantize_onnx
from tests.helpers.support import ASSETS

NETWORK = ASSETS / "models" / "coco_yolox_nano_fp32.onnx"
PICTURES = ("dog.jpg", "person.jpg", "coco_000000000078.jpg", "coffee.png")
"""In each of which it finds something."""
_MANIFEST = {
    "name": "coco",
    "task": "detection",
    "file": "model.onnx",
    "input": {"color": "bgr", "resize": "letterbox", "anchor": "top-left"},
    "output": {"decoder": "yolox", "threshold": 0.3, "labels": "labels.txt"},
}


def detector(folder: Path, network: Path, version: str) -> Path:
    """Make the folder of a YOLOX network of the assets, or of one that was made of it."""
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(tomli_w.dumps({**_MANIFEST, "version": version}))
    shutil.copy(network, folder / "model.onnx")
    shutil.copy(ASSETS / "media" / "coco_classes.txt", folder / "labels.txt")
    return folder


def pictures(folder: Path) -> Path:
    """Make a folder of the pictures."""
    folder.mkdir()
    for name in PICTURES:
        shutil.copy(ASSETS / "media" / name, folder)
    return folder


def quantize(place: Path) -> Path:
    """Write YOLOX-nano in eight bits with a sign; return the file."""
    model = load(detector(place / "float", NETWORK, "1"))
    engine = load_model(model, [EngineChoice("onnxruntime")], "picture")
    inputs = [engine.prepare(Request(sample)).tensors for sample in _samples().values()]
    inputs = [engine.unfolded(tensors) for tensors in inputs]
    engine.close()
    ready = make_ready(NETWORK, place).path
    calibrate(ready, inputs, place / "ranges.json")
    out = place / "signed.onnx"
    quantize_onnx(ready, out, place / "ranges.json", TARGETS["arm"])
    return out


def expected(folder: Path) -> dict[str, list[str]]:
    """Return the labels of the boxes in each picture, as a session without optimization has them.

    Skips the test where OpenVINO finds the same, as on processors without VNNI, on which the agent
    has it compute with floats.
    """
    model = load(folder)
    plain = open_plain(model, "picture")
    assert plain is not None
    wrong = load_model(model, [EngineChoice("openvino")], "picture")
    found: dict[str, list[str]] = {}
    other: dict[str, list[str]] = {}
    for name, sample in _samples().items():
        for one, place in ((plain, found), (wrong, other)):
            findings = one.infer(sample).findings
            assert isinstance(findings, Detections)
            place[name] = sorted(findings.labels)
        assert found[name], name
    plain.close()
    wrong.close()
    if not any(found[name] != other[name] for name in found):
        pytest.skip("OpenVINO computes it as ONNX Runtime does, on this processor")
    assert all(found[name] != other[name] for name in found)
    return found


def _samples() -> dict[str, Sample]:
    """Read the pictures."""
    read = {name: cv2.imread(str(ASSETS / "media" / name)) for name in PICTURES}
    return {name: Sample(np.asarray(one), 0, 0, 0.0) for name, one in read.items()}
