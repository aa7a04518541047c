"""Bare networks with the files of Hugging Face beside them become manifests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import ModelError
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import load_model
from edge_agent.models.files.metadata import manifest_of
from edge_agent.models.importing import import_model
from tests.helpers.tiny_networks import constant_outputs, node, save_onnx

LABELS = ("cat", "dog", "none of them")
CONFIG: dict[str, Any] = {
    "architectures": ["ViTForImageClassification"],
    "id2label": {str(index): label for index, label in enumerate(LABELS)},
}
VIT: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.25, 0.5],
}
TIMM: dict[str, Any] = {
    "architecture": "resnet18",
    "num_classes": 3,
    "label_names": LABELS,
    "pretrained_cfg": {
        "input_size": [3, 32, 32],
        "interpolation": "bicubic",
        "crop_pct": 0.875,
        "crop_mode": "center",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.2, 0.2, 0.2],
    },
}


def export(
    folder: Path,
    config: object = CONFIG,
    processor: object | None = VIT,
    classes: int = 3,
    picture: tuple[int | str | None, ...] = (1, 3, 32, 32),
) -> Path:
    """Save a network and what lies beside it."""
    path = constant_outputs(
        folder / "vit.onnx",
        {"logits": np.zeros((1, classes), np.float32)},
        picture=picture,
    )
    (folder / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def test_a_classifier_of_transformers(tmp_path: Path) -> None:
    """Labels, size, mean and scale are read, in units of 0..255."""
    manifest, assumed = manifest_of(export(tmp_path), None, "1")
    assert manifest.task == "classification"
    assert manifest.decoder == "logits"
    assert manifest.output.labels == LABELS
    assert manifest.input.mean == (127.5, 127.5, 127.5)
    assert manifest.input.scale == (127.5, 63.75, 127.5)
    assert (manifest.input.resize, manifest.input.antialias) == ("stretch", True)
    assert any("ViTForImageClassification" in line for line in assumed)


@pytest.mark.parametrize(
    ("entries", "resize", "ratio"),
    [
        ({"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": 32}, "crop", 0.8),
        (
            {"size": 40, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}},
            "crop",
            0.8,
        ),
        ({"size": 32}, "stretch", 1.0),
        (
            {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32}},
            "crop",
            0.875,
        ),
        # As microsoft/resnet-50 and facebook/convnext-tiny-224 have it.
        ({"feature_extractor_type": "ConvNextFeatureExtractor", "size": 32}, "crop", 0.875),
        # These resize to more than their `size`, and cut that out of it.
        (
            {
                "image_processor_type": "LevitImageProcessor",
                "size": {"shortest_edge": 32},
                "do_center_crop": True,
                "crop_size": {"height": 32, "width": 32},
            },
            "crop",
            round(32 / 36, 6),
        ),
        (
            {
                "feature_extractor_type": "LevitFeatureExtractor",
                "size": 32,
                "do_center_crop": True,
            },
            "crop",
            round(32 / 36, 6),
        ),
        (
            {
                "image_processor_type": "PoolFormerImageProcessor",
                "size": {"shortest_edge": 32},
                "crop_pct": 0.9,
                "do_center_crop": True,
                "crop_size": {"height": 32, "width": 32},
            },
            "crop",
            round(32 / 35, 6),
        ),
        (
            {
                "feature_extractor_type": "PoolFormerFeatureExtractor",
                "size": 32,
                "crop_pct": 0.9,
                "do_resize_and_center_crop": True,
            },
            "crop",
            round(32 / 35, 6),
        ),
        (
            {
                "image_processor_type": "DeiTImageProcessor",
                "size": 40,
                "do_center_crop": True,
                "crop_size": 32,
            },
            "stretch",
            0.8,
        ),
    ],
)
def test_how_a_picture_is_fitted(
    tmp_path: Path, entries: dict[str, Any], resize: str, ratio: float
) -> None:
    """Cuts keep their share of the shorter side, in the old way of writing and in the new one."""
    processor = {**VIT, **entries}
    if "feature_extractor_type" in entries:
        del processor["image_processor_type"]  # one or the other
    manifest, _ = manifest_of(export(tmp_path, processor=processor), None, "1")
    assert (manifest.input.resize, manifest.input.crop_ratio) == (resize, ratio)


@pytest.mark.parametrize(
    ("entries", "mean", "scale"),
    [
        # As google/efficientnet-b0 has it, which is divided by image_std twice.
        ({"image_processor_type": "EfficientNetImageProcessor"}, 127.5, 63.75),
        (
            {"image_processor_type": "EfficientNetImageProcessor", "include_top": False},
            127.5,
            127.5,
        ),
        ({"include_top": True, "do_normalize": False}, 0.0, 127.5),
        ({"rescale_factor": 1 / 127.5, "rescale_offset": True, "image_mean": 0}, 127.5, 63.75),
        ({"do_rescale": False}, 0.5, 0.5),
    ],
)
def test_mean_and_scale(tmp_path: Path, entries: dict[str, Any], mean: float, scale: float) -> None:
    """Factor, offset, mean and deviation become what one pixel of 0..255 goes through."""
    processor = {**VIT, "image_std": 0.5, **entries}
    manifest, _ = manifest_of(export(tmp_path, processor=processor), None, "1")
    spec = manifest.input
    assert spec.per_channel("mean", 3) == (mean,) * 3
    assert spec.per_channel("scale", 3) == (scale,) * 3


def detector(folder: Path, processor: dict[str, Any], others: Sequence[Any] = ()) -> Path:
    """Save a network of boxes and logits, of open size, with a processor beside it."""
    config = {**CONFIG, "architectures": ["DetrForObjectDetection"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps({**VIT, **processor}))
    boxes, logits = np.zeros((1, 5, 4), np.float32), np.zeros((1, 5, 4), np.float32)
    return save_onnx(
        folder / "detr.onnx",
        [node("Identity", ["a"], ["pred_boxes"]), node("Identity", ["b"], ["logits"])],
        [("pixel_values", "float32", (1, 3, None, None)), *others],
        [("pred_boxes", "float32", (1, 5, 4)), ("logits", "float32", (1, 5, 4))],
        {"a": boxes, "b": logits},
    )


def test_one_number_is_the_shorter_edge_of_a_detector(tmp_path: Path) -> None:
    """DETR's old files say 800, and mean no square: what a network of any size gets stays open."""
    old = {"image_processor_type": None, "feature_extractor_type": "DetrFeatureExtractor"}
    network = detector(tmp_path, {**old, "size": 800, "max_size": 1333})
    with pytest.raises(ModelError, match="leaves it open"):
        manifest_of(network, None, "1")


@pytest.mark.parametrize("known", [True, False])
def test_what_a_detector_takes_beside_the_picture(tmp_path: Path, known: bool) -> None:
    """The mask of what is no padding is 1; words, which OWL-ViT takes, are none."""
    other = ("pixel_mask", "int64", (1, None, None)) if known else ("input_ids", "int64", (1, 16))
    network = detector(tmp_path, {}, [other])
    if known:
        assert manifest_of(network, None, "1")[0].input.fixed == {"pixel_mask": 1}
        return
    with pytest.raises(ModelError, match="input_ids"):
        manifest_of(network, None, "1")


def test_an_open_size_comes_from_the_processor(tmp_path: Path) -> None:
    """Where the network leaves its size open, the processor's is taken."""
    network = export(tmp_path, picture=("batch", 3, "height", "width"))
    manifest, _ = manifest_of(network, None, "1")
    assert (manifest.input.width, manifest.input.height) == (32, 32)


def test_every_size_open(tmp_path: Path) -> None:
    """As optimum exports: even the number of channels is open; its networks have them first."""
    network = export(tmp_path, picture=("batch_size", "num_channels", "height", "width"))
    with import_model(network) as imported:
        spec = imported.folder.manifest.input
        assert (spec.layout, spec.width, spec.height) == ("nchw", 32, 32)
        model = load_model(imported.folder, [EngineChoice("onnxruntime")], "picture")
        assert model.engine.inputs[0].shape == (1, 3, 32, 32)
        model.close()


def test_a_folder_named_onnx(tmp_path: Path) -> None:
    """The files may lie above a folder "onnx"; the model can be imported from there."""
    (tmp_path / "onnx").mkdir()
    network = export(tmp_path)
    moved = network.rename(tmp_path / "onnx" / "model.onnx")
    with import_model(moved) as imported:
        assert imported.folder.labels == LABELS


def test_a_network_of_timm(tmp_path: Path) -> None:
    """The one file of timm says all."""
    manifest, _ = manifest_of(export(tmp_path, TIMM, None), None, "1")
    assert (manifest.input.resize, manifest.input.crop_ratio) == ("crop", 0.875)
    assert (manifest.input.interpolation, manifest.input.antialias) == ("cubic", True)
    assert manifest.input.mean == (127.5, 127.5, 127.5)
    assert manifest.input.scale == (51.0, 51.0, 51.0)
    assert manifest.output.labels == LABELS


@pytest.mark.parametrize(
    ("config", "processor", "classes", "why"),
    [
        ({**CONFIG, "architectures": ["BertModel"]}, VIT, 3, "BertModel"),
        ({**CONFIG, "architectures": []}, VIT, 3, "not supported"),
        (CONFIG, None, 3, "preprocessor_config.json: is not beside"),
        ({**CONFIG, "id2label": None}, VIT, 3, "id2label"),
        ({**CONFIG, "id2label": {"0": "a", "2": "b"}}, VIT, 3, "'1' is missing"),
        (CONFIG, VIT, 4, "3 classes"),
        (CONFIG, {**VIT, "size": {"height": 64, "width": 64}}, 3, "another network"),
        (CONFIG, {**VIT, "size": "large"}, 3, "size: expected numbers"),
        (CONFIG, {**VIT, "image_mean": ["x"]}, 3, "image_mean: expected a number"),
        (CONFIG, {**VIT, "rescale_factor": 0}, 3, "rescale_factor"),
        ([1], VIT, 3, "expected a JSON object"),
        (CONFIG, {**VIT, "do_normalize": None}, 3, "do_normalize: is missing"),
        (CONFIG, {**VIT, "size": {"shortest_edge": 40}, "do_center_crop": True}, 3, "crop_size"),
        (
            CONFIG,
            {
                **VIT,
                "size": {"height": 40, "width": 48},
                "do_center_crop": True,
                "crop_size": 32,
            },
            3,
            "and then crop_size",
        ),
        ({**CONFIG, "problem_type": "multi_label_classification"}, VIT, 3, "multi_label"),
        ({**CONFIG, "problem_type": "regression"}, VIT, 3, "regression"),
        ({**TIMM, "label_names": None}, None, 3, "label_names: is missing (3 classes)"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, config: object, processor: object, classes: int, why: str
) -> None:
    """An entry that is missing or wrong is an error that names it."""
    with pytest.raises(ModelError) as error:
        manifest_of(export(tmp_path, config, processor, classes), None, "1")
    assert why in str(error.value)


def test_damaged_json_is_one_line(tmp_path: Path) -> None:
    """A file cut short, and one nested without end, are refused with their names."""
    network = export(tmp_path)
    for text in ('{"architectures": [', "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=r"config\.json: is not valid JSON"):
            manifest_of(network, None, "1")
