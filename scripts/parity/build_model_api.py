"""Parity cases of OpenVINO's Model API: small random networks behind its own wrappers.

    python build_model_api.py FOLDER

Runs in the exporters' environment. The networks are random convolutions; what is compared is what
`model_info` makes of them: resize types, borders, colors, suppression, labels, thresholds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from model_api.models import Model
from workshop import Workshop

SIZE = (192, 256)
"""Height and width."""
LABELS = ["person", "traffic_light", "x_y_z"]
MEAN, SCALE = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


class Columns(torch.nn.Module):
    """YOLOv8's form: a column for each cell of stride 16, with scores that the picture decides."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Conv2d(3, len(LABELS), 16, 16)
        self.sides = torch.nn.Conv2d(3, 2, 16, 16)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return [1, 4 + classes, cells]."""
        logits = self.scores(picture).flatten(2)
        sizes = (40 + 30 * torch.tanh(self.sides(picture))).flatten(2)
        rows, columns = SIZE[0] // 16, SIZE[1] // 16
        down, across = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        middle = torch.stack((across.flatten(), down.flatten())).float()[None] * 16 + 8
        return torch.cat((middle, sizes, torch.sigmoid(logits)), 1)


class Finished(torch.nn.Module):
    """A finished detector's form: boxes with scores in pixels of the input, and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = Columns()

    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return [1, cells, 5] and [1, cells]."""
        table = self.columns(picture).transpose(1, 2)
        middle, half = table[..., :2], table[..., 2:4] / 2
        best, label = table[..., 4:].max(-1)
        low = torch.clamp(middle - half, min=0)
        high = torch.minimum(middle + half, torch.tensor([SIZE[1], SIZE[0]], dtype=torch.float32))
        return torch.cat((low, high, best[..., None]), -1), label


class Classes(torch.nn.Module):
    """A classifier that sees the middle of things: twelve numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 5, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 12, 3, 2)
        )

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return [1, 12]."""
        return self.layers(picture).amax((2, 3))


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))
    resized = {
        "standard": {"resize_type": "standard"},
        "window": {"resize_type": "fit_to_window", "pad_value": 0},
        "window-pad": {"resize_type": "fit_to_window", "pad_value": 114},
        "letterbox": {"resize_type": "fit_to_window_letterbox", "pad_value": 114},
    }
    rgb = {"reverse_input_channels": True, "scale_values": [255.0]}
    normal = {"mean_values": MEAN, "scale_values": SCALE, "reverse_input_channels": True}
    bare = {"resize_type": "standard", "topk": 5}
    build(shop, "mapi-class-bare", Classes(), "Classification", bare, size=(96, 96))
    for name in ("standard", "window-pad", "letterbox"):
        info = {**normal, **resized[name], "topk": 5}
        build(shop, f"mapi-class-{name}", Classes(), "Classification", info, size=(96, 96))
    crop = {**normal, "resize_type": "crop", "topk": 5}
    build(shop, "mapi-class-crop", Classes(), "Classification", crop, size=(96, 96))
    build(
        shop, "mapi-action", Classes(), "Action Classification", bare, size=(96, 96), refused=True
    )
    for name in ("standard", "letterbox"):
        build(shop, f"mapi-ssd-{name}", Finished(), "SSD", {**rgb, **resized[name]})
    nms = {"nms_execute": True, "iou_threshold": 0.3}
    build(shop, "mapi-ssd-nms", Finished(), "SSD", {**rgb, **nms})
    build(shop, "mapi-ssd-agnostic", Finished(), "SSD", {**rgb, **nms, "agnostic_nms": True})
    build(shop, "mapi-ssd-most", Finished(), "SSD", {**rgb, **nms, "nms_max_predictions": 5})
    # Last: its defaults of YOLOv8 are from then on those of all its wrappers in the process.
    for name, info in resized.items():
        build(shop, f"mapi-yolo-{name}", Columns(), "YOLOv8", {**rgb, **info})
    build(shop, "mapi-yolo-nms-off", Columns(), "YOLOv8", {**rgb, "nms_execute": False})


def build(
    shop: Workshop,
    name: str,
    network: torch.nn.Module,
    kind: str,
    info: Mapping[str, Any],
    *,
    size: tuple[int, int] = SIZE,
    refused: bool = False,
) -> None:
    """Save a network with its `model_info`, and ask Model API's own wrapper."""
    torch.manual_seed(11)
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.normal_(layer.weight, std=0.15)
            torch.nn.init.zeros_(layer.bias)
    raw = not info.get("scale_values")
    if raw:  # it takes 0..255
        network.layers[0].weight.data /= 128
    elif isinstance(network, Columns | Finished):
        scores = network.scores if isinstance(network, Columns) else network.columns.scores
        # Of these a black border finds nothing.
        scores.bias.data.fill_(-2.5 if kind == "YOLOv8" else 0.2)
    shape = [1, 3, *size]
    made = ov.convert_model(network.eval(), example_input=torch.zeros(shape), input=[shape])
    if isinstance(network, Finished):
        for output, called in zip(made.outputs, ("boxes", "labels"), strict=True):
            output.set_names({called})
    labels = LABELS if size == SIZE else [f"class_{number}" for number in range(12)]
    for key, value in {"model_type": kind, "labels": labels, **info}.items():
        made.set_rt_info(value, ["model_info", key])
    folder = shop.scrap / name
    folder.mkdir(exist_ok=True)
    path = folder / "model.xml"
    ov.save_model(made, path, compress_to_fp16=False)
    most = int(info.get("nms_max_predictions", 100_000))
    suppresses = kind == "YOLOv8" or info.get("nms_execute")
    iou = info.get("iou_threshold", 0.7) if suppresses and info.get("nms_execute", True) else None
    detects = kind in {"YOLOv8", "SSD"}
    facts: dict[str, Any] = {
        "family": f"Model API {kind}",
        "exporter": f"Model API {version('openvino-model-api')} {kind}",
        "precision": "FP32",
        "note": "the wrapper rounds boxes to whole pixels" if detects else "",
        "threshold": (0.25 if kind == "YOLOv8" else 0.5) if detects else 0.0,
        "iou": iou,
        "most": most if detects else 5,
        "whole_pixels": detects,
    }
    files = [path, path.with_suffix(".bin")]
    if refused:
        shop.add(name, files, "model.xml", {}, refused=True, **{**facts, "note": "to be refused"})
        return
    wrapper = Model.create_model(str(path))
    expected = {
        picture: found(wrapper(np.ascontiguousarray(pixels)), labels)
        for picture, pixels in shop.read().items()
    }
    shop.add(name, files, "model.xml", expected, **facts)


def found(result: Any, labels: list[str]) -> list[dict[str, Any]]:
    """Return what a wrapper has found in a picture, best first."""
    if hasattr(result, "top_labels"):
        return [{"label": one.name, "score": float(one.confidence)} for one in result.top_labels]
    rows = zip(result.bboxes, result.scores, result.labels, strict=True)
    return sorted(
        (
            {"label": labels[int(label)], "score": float(score), "box": [float(x) for x in box]}
            for box, score, label in rows
        ),
        key=lambda one: -one["score"],
    )


if __name__ == "__main__":
    main()
