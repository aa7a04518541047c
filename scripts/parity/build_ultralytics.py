"""Parity cases of Ultralytics: random networks, exported and predicted by its own code.

    python build_ultralytics.py FOLDER [NAME…]

A NAME that is none of the list's is one of Ultralytics' own configurations (yolov6n), exported to
ONNX. Runs in the exporters' environment. Weights are random; batch norms are settled on the
pictures and the class heads shifted so that some boxes reach the predictor's threshold, with scores
apart.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import cv2
import numpy as np
import torch
import yaml
from ultralytics import RTDETR, YOLO, __version__
from ultralytics.utils.ops import xywhr2xyxyxyxy
from workshop import Workshop

THRESHOLD, IOU, MOST = 0.25, 0.7, 300
"""Of the predictor."""
SHARE = 0.03
"""Of the places that shall find something."""


@dataclass(frozen=True)
class Export:
    """One export of one network."""

    name: str
    network: str
    """A name of Ultralytics' own configurations."""
    format: str = "onnx"
    precision: int = 32
    size: tuple[int, int] = (320, 320)
    """Height and width."""
    names: tuple[str, ...] = ()
    more: tuple[tuple[str, Any], ...] = ()
    note: str = ""


DETECTORS = ("yolov5n", "yolov8n", "yolov9t", "yolov10n", "yolo11n", "yolo12n", "yolo26n")
CLASSIFIERS = ("yolov8n-cls", "yolo11n-cls", "yolo26n-cls")
ODD = ("person", "traffic light", "it's", 'a "b"', "Größe", "x_y z", "1", "-", "no: yes", "#9")


def exports() -> list[Export]:
    """List all exports."""
    made = [Export(f"{name}-onnx", name) for name in DETECTORS]
    made += [Export(f"{name}-ir16", name, "openvino", 16) for name in DETECTORS]
    for name in ("yolov8n", "yolo11n", "yolo26n"):
        made += [
            Export(f"{name}-onnx16", name, "onnx", 16),
            Export(f"{name}-onnx8", name, "onnx", 8),
            Export(f"{name}-ir32", name, "openvino", 32),
            Export(f"{name}-ir8", name, "openvino", 8),
        ]
    made += [
        Export("rtdetr-onnx", "rtdetr-l"),
        Export("rtdetr-ir16", "rtdetr-l", "openvino", 16),
        Export("yolo11n-rect", "yolo11n", size=(192, 320)),
        Export("yolo11n-nms", "yolo11n", more=(("nms", True),)),
        Export("yolo11n-nms-ir", "yolo11n", "openvino", more=(("nms", True),)),
        Export("yolov8n-names", "yolov8n", names=ODD),
        Export("yolov8n-names-ir", "yolov8n", "openvino", names=ODD),
        Export(
            "yolov8n-dynamic",
            "yolov8n",
            more=(("dynamic", True),),
            note="beside the predictor with rect=False, as the assumption says",
        ),
        Export("yolo26n-e2e", "yolo26n", more=(("nms", False),)),
    ]
    made += [
        Export(f"{name}-{task}", f"{name}-{task}", note="masks by hand" if task == "seg" else "")
        for name in ("yolov8n", "yolo11n", "yolo26n")
        for task in ("seg", "pose", "obb")
    ]
    for name in CLASSIFIERS:
        made += [
            Export(f"{name}-onnx", name, size=(224, 224)),
            Export(f"{name}-ir16", name, "openvino", 16, size=(224, 224)),
        ]
    return [
        *made,
        Export("yolo11n-cls-rect", "yolo11n-cls", size=(160, 224)),
        Export("yolo11n-cls-onnx8", "yolo11n-cls", "onnx", 8, size=(224, 224)),
    ]


def main() -> None:
    """Build those named, or all."""
    shop = Workshop(Path(sys.argv[1]))
    os.chdir(shop.scrap)
    wanted = sys.argv[2:]
    known = {export.name: export for export in exports()}
    for name in wanted or known:
        build(shop, known.get(name, Export(name, name)))


def build(shop: Workshop, export: Export) -> None:
    """Make, export and predict one network."""
    torch.manual_seed(7)
    maker = RTDETR if export.network.startswith("rtdetr") else YOLO
    config = f"{export.network}.yaml"
    model = maker(with_names(config, export)) if export.names else maker(config)
    settle(model.model, shop, export)
    if export.names:
        model.model.names = dict(enumerate(export.names))
    weights = shop.scrap / f"{export.name}.pt"
    model.save(str(weights))
    loaded = maker(str(weights))
    more = dict(export.more)
    if export.precision == 8:
        more["data"] = calibration(shop, loaded)
    size = list(export.size)
    made = Path(
        loaded.export(
            format=export.format, imgsz=size, quantize=export.precision, verbose=False, **more
        )
    )
    kind = f"Ultralytics {__version__} {export.format}"
    facts: dict[str, Any] = {
        "family": export.network,
        "exporter": kind,
        "precision": {8: "INT8", 16: "FP16", 32: "FP32"}[export.precision],
        "note": export.note,
        "threshold": THRESHOLD,
        "iou": IOU,
        "most": MOST,
    }
    # A predictor of its own: its class keeps what it was told for the network before.
    reader = maker(str(made), task="classify") if "cls" in export.network else maker(str(made))
    if maker is YOLO and "cls" not in export.network:
        reader = YOLO(str(made), task=loaded.task)
    rect = "dynamic" not in more
    expected = {
        name: found(
            reader.predict(picture, imgsz=size, rect=rect, verbose=False, device="cpu")[0],
            export.size,
        )
        for name, picture in shop.read().items()
    }
    if "cls" in export.network:
        facts |= {"threshold": 0.0, "iou": None, "most": 5}
    shop.add(export.name, [made], made.name, expected, **facts)


def with_names(config: str, export: Export) -> str:
    """Write a configuration with another number of classes."""
    from ultralytics.nn.tasks import yaml_model_load

    content = yaml_model_load(config) | {"nc": len(export.names), "scale": "n"}
    path = Path(f"named-{export.network}.yaml")
    path.write_text(yaml.safe_dump(content))
    return str(path)


def found(result: Any, size: tuple[int, int]) -> list[dict[str, Any]]:
    """Return what a predictor has found in a picture, on an input of this height and width."""
    if result.probs is not None:
        return [
            {"label": result.names[index], "score": float(result.probs.data[index])}
            for index in result.probs.top5
        ]
    found = result.boxes if result.obb is None else result.obb
    height, width = result.orig_shape
    boxes, more = found.xyxy, [{} for _ in found.conf]
    if result.obb is not None:
        quads = corners(result, size)
        boxes = torch.cat((quads.amin(1), quads.amax(1)), dim=1)
        more = [{"corners": quad.tolist()} for quad in quads]
    if result.keypoints is not None:
        points = result.keypoints.data.clone()
        # Those outside are cut at the edges, which the agent does not do: they are not compared.
        x, y = points[..., 0], points[..., 1]
        points[..., 2][(x <= 0) | (y <= 0) | (x >= width) | (y >= height)] = 0
        more = [{"points": each.tolist()} for each in points]
    return [
        {"label": result.names[int(label)], "score": float(score), "box": box.tolist(), **extra}
        for box, score, label, extra in zip(
            # Boxes around oriented ones reach beyond the picture.
            boxes.clamp(min=0).minimum(boxes.new_tensor([width, height] * 2)),
            found.conf,
            found.cls,
            more,
            strict=True,
        )
    ]


def corners(result: Any, size: tuple[int, int]) -> torch.Tensor:
    """Return the corners (n, 4, 2) of oriented boxes, each carried to the picture by itself.

    The predictor divides width and height by the scales across and down, whatever the angle. Where
    the letterbox has rounded a side these differ, and its corners lie up to 2 pixels off.
    """
    height, width = result.orig_shape
    gain = min(size[0] / height, size[1] / width)
    scales = [round(width * gain) / width, round(height * gain) / height]
    turned = result.obb.xywhr.double().clone()
    turned[:, :4] *= turned.new_tensor(scales * 2)
    return xywhr2xyxyxyxy(turned) / turned.new_tensor(scales)


def settle(network: torch.nn.Module, shop: Workshop, export: Export) -> None:
    """Settle batch norms on the pictures, and spread and shift the scores of the head."""
    height, width = export.size
    batch = torch.stack([
        torch.from_numpy(np.ascontiguousarray(cv2.resize(one, (width, height))[:, :, ::-1]))
        for one in shop.read().values()
    ])  # fmt: skip
    batch = batch.permute(0, 3, 1, 2).float() / 255
    norms = [one for one in network.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    network.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all that it sees
        norm.train()
    with torch.no_grad():
        for _ in range(2):
            network(batch)
    for norm in norms:
        norm.momentum = 0.03
    network.eval()
    heads = score_layers(network)
    with torch.no_grad():
        for head in heads:
            seen: list[torch.Tensor] = []
            hook = head.register_forward_hook(lambda _m, _i, out, seen=seen: seen.append(out))
            head.weight.normal_()
            head.bias.zero_()
            network(batch)
            hook.remove()
            if not seen:
                continue  # of the decoder's layers only the last one's scores are looked at
            out = seen[-1]
            across = 1 if out.dim() == 4 else out.dim() - 1
            best = out.amax(across).flatten()
            if "cls" in export.network:
                head.weight.mul_(2.0 / out.std())
                continue
            # Apart, and not near 1: there they would all be ties.
            low, high = (float(torch.quantile(best, at)) for at in (1 - SHARE, 0.999))
            factor = 2.5 / (high - low)
            head.weight.mul_(factor)
            head.bias.fill_(-1.1 - low * factor)  # sigmoid(-1.1) = 0.25
        for layer in distance_layers(network):
            layer.weight.mul_(0.1)
            layer.bias.fill_(3.0)


def distance_layers(network: torch.nn.Module) -> list[Any]:
    """Return the last layers of a box's sides where they are distances, which must not be below 0.

    YOLO26 has them so; others have a distribution.
    """
    head = network.model[-1]
    if getattr(head, "reg_max", 0) != 1 or not hasattr(head, "cv2"):
        return []
    branches = [head.cv2, *([head.one2one_cv2] if hasattr(head, "one2one_cv2") else [])]
    return [level[-1] for branch in branches for level in branch]


def score_layers(network: torch.nn.Module) -> list[Any]:
    """Return the last layers of the class scores."""
    head = network.model[-1]
    if hasattr(head, "linear"):
        return [head.linear]
    if hasattr(head, "dec_score_head"):
        return [head.enc_score_head, *head.dec_score_head]
    branches = [head.cv3, *([head.one2one_cv3] if hasattr(head, "one2one_cv3") else [])]
    return [level[-1] for branch in branches for level in branch]


def calibration(shop: Workshop, model: Any) -> str:
    """Write a data set of the pictures, for a quantizer to calibrate on."""
    root = (shop.scrap / ("classes" if model.task == "classify" else "boxes")).resolve()
    names = list(model.names.values())
    shutil.rmtree(root, ignore_errors=True)
    if model.task == "classify":
        for split in ("train", "val"):
            for label in names[:2]:
                (root / split / label).mkdir(parents=True)
                for path in shop.pictures:
                    shutil.copy(path, root / split / label)
        return str(root)
    (root / "images").mkdir(parents=True)
    (root / "labels").mkdir()
    for path in shop.pictures:
        shutil.copy(path, root / "images")
        (root / "labels" / f"{path.stem}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    content = {
        "path": str(root),
        "train": "images",
        "val": "images",
        "names": dict(enumerate(names)),
    }
    (root / "data.yaml").write_text(yaml.safe_dump(content))
    return str(root / "data.yaml")


if __name__ == "__main__":
    main()
