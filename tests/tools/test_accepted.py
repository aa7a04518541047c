"""What `quantize` and `convert` write is accepted by the trial of a device, on each engine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from edge_agent.cli.lineup import engines_for
from edge_agent.delivery.trial.worker import judge
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import readers
from edge_agent.inference.golden import compare_golden
from edge_agent.inference.model import load_model
from edge_agent.models.manifest import load
from edge_agent.tools.golden_cases import clearest, write_golden
from edge_agent.tools.quantize import quantize
from edge_agent.tools.quantizers import own_target
from edge_agent.tools.report import publish
from tests.helpers.asset_models import MODELS, asset_folder, asset_samples
from tests.helpers.small_models import detector, write_manifest
from tests.helpers.support import ASSETS, call_cli, needs_assets

QUICK = ["imu_gesture_cnn", "anomaly_toycar_ae"]
LONG = {"coco_yolox_nano", "seg_deeplab_mnv2_dm05"}
"""Take two and five minutes: by hand."""
FLOAT = [name for name in MODELS if name not in {"kws_dscnn", *LONG}]
"""Of the others, one has integers inside already."""


def check_accepted(folder: Path) -> None:
    """Try a folder on each engine that reads it, as a push does."""
    network = load(folder).network
    for engine in readers(network.suffix):
        question = {
            "folder": str(folder),
            "choices": [asdict(EngineChoice(engine))],
            "kind": load(folder).manifest.input.kind,
            "golden": True,
            "forms": None,
        }
        verdict = judge(question, None)
        assert verdict.passed, verdict.why
        assert verdict.why.startswith("golden: ")
        assert verdict.why.endswith(("agree", "agrees"))


@needs_assets
@pytest.mark.assets
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FLOAT],
)
def test_what_quantize_writes_is_accepted(name: str, tmp_path: Path) -> None:
    """Of each float network: no golden output of it is refused where it was made."""
    folder = load(asset_folder(name, tmp_path / "float"))
    _, samples = asset_samples(name)
    (tmp_path / "work").mkdir()
    target = own_target(read_facts())
    report = quantize(
        folder,
        samples[:12],
        None,
        engines=engines_for(folder.network),
        target=target,
        own=target,
        max_drop=0.2,
        place=tmp_path / "work",
        progress=lambda *_: None,
    )
    assert report.passed
    assert not [note for note in report.notes if "refuse" in note]
    publish(report, tmp_path / "out")
    check_accepted(tmp_path / "out")


@needs_assets
@pytest.mark.assets
@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "raw"])
def test_what_convert_writes_is_accepted(task: str, tmp_path: Path) -> None:
    """Of a .tflite in eight bits; also where its outputs are compared as numbers."""
    pytest.importorskip("ai_edge_litert")
    out = tmp_path / "out"
    file = ASSETS / "models" / "imagenet_mobilenetv2_int8.tflite"
    said = call_cli("convert", str(file), "-o", str(out))
    assert said.code == 0, said.err
    if task == "raw":
        write_manifest(out, "1", "raw", file="model.tflite", input={"layout": "nhwc"})
    check_accepted(out)


@needs_assets
@pytest.mark.assets
@pytest.mark.slow
def test_a_device_adds_what_quantize_wrote(tmp_path: Path) -> None:
    """By the commands, with each engine that the settings may insist on."""
    model = asset_folder("vww_person", tmp_path / "float")
    out, pictures = tmp_path / "out", ASSETS / "media"
    said = call_cli("quantize", str(model), "--calibration", str(pictures), "-o", str(out))
    assert said.code == 0, said.err
    for engine in readers(".onnx"):
        config = tmp_path / f"{engine}.toml"
        config.write_text(f'state_dir = "{tmp_path / engine}"\nengine = "{engine}"\n')
        added = call_cli("add", str(out), "--config", str(config))
        assert added.code == 0, added.err


AT_THE_THRESHOLD, CLEAR = (0, 0.5002, 0.5, 0.5, 0.9, 0.9), (0, 0.9, 0.1, 0.1, 0.4, 0.4)


def test_a_box_at_the_threshold_refuses_no_engine(tmp_path: Path) -> None:
    """One engine's 0.5002 is the next one's 0.4998; the trial counts neither."""
    folder = detector(tmp_path / "1", [(0, 0.4998, *AT_THE_THRESHOLD[2:])], ["person"])
    model = load_model(load(folder), [EngineChoice("onnxruntime")], "picture")
    (name,) = (spec.name for spec in model.engine.inputs)
    picture = {name: np.zeros([size or 1 for size in model.engine.inputs[0].shape], np.float32)}
    rows = np.array([[[[0, *AT_THE_THRESHOLD]]]], np.float32)
    rows[..., 1] = model.run(picture)["detection_out"][..., 1]
    write_golden(folder, [picture], [{"detection_out": rows}])
    agreement = compare_golden(model)
    model.close()
    assert agreement is not None
    assert agreement.passed, agreement.why


def test_a_case_on_a_threshold_is_not_written(tmp_path: Path) -> None:
    """Where there are others; else the clearest."""
    folder = detector(tmp_path / "1", [CLEAR], ["person"])
    model = load_model(load(folder), [EngineChoice("onnxruntime")], "picture")
    outputs = [
        {"detection_out": np.array([[[[0, *row]]]], np.float32)}
        for row in (AT_THE_THRESHOLD, CLEAR, (0, 0.495, *CLEAR[2:]), (0, 0.1, *CLEAR[2:]))
    ]
    assert clearest(model, [{}] * 4, outputs) == [1, 3]
    assert clearest(model, [{}] * 2, [outputs[0], outputs[2]]) == [1]
    model.close()
