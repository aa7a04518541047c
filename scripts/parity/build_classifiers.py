"""Parity cases of torchvision's, timm's and transformers' classifiers, with random weights.

    python build_classifiers.py FOLDER

Runs in the exporters' environment. torchvision and timm write no metadata: the model.toml beside
their networks says what their own recipes and configurations do. What transformers saves beside a
network has to be enough by itself, or be refused.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import timm
import torch
import torchvision
from PIL import Image
from timm.data import create_transform, resolve_data_config
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor
from workshop import Workshop

TORCHVISION = {
    "mobilenet_v2": torchvision.models.MobileNet_V2_Weights.IMAGENET1K_V2,
    "resnet18": torchvision.models.ResNet18_Weights.IMAGENET1K_V1,
    "efficientnet_b0": torchvision.models.EfficientNet_B0_Weights.IMAGENET1K_V1,
}
TIMM = ("mobilenetv3_small_100", "efficientnet_lite0", "resnet10t", "convnextv2_atto")
LEVEL = 1 / 255 / 0.225
"""One level of 255 where a network is given numbers with a deviation of 1."""
HOLDS = 0.005
"""Half of what is taken as equal (`compare.SCORE`)."""
INTERPOLATIONS = {"bilinear": "linear", "bicubic": "cubic"}


def main() -> None:
    """Build all."""
    shop = Workshop(Path(sys.argv[1]))
    torch.manual_seed(3)
    for name, weights in TORCHVISION.items():
        recipe = weights.transforms()
        size, whole = recipe.crop_size[0], recipe.resize_size[0]
        build(
            shop,
            f"torchvision-{name}",
            f"torchvision {torchvision.__version__.partition('+')[0]}",
            torchvision.models.get_model(name, weights=None),
            lambda picture, recipe=recipe: recipe(picture),
            (size, size / whole, recipe.interpolation.value, recipe.mean, recipe.std),
        )
    for name in TIMM:
        network = timm.create_model(name, pretrained=False)
        config = resolve_data_config({}, model=network)
        build(
            shop,
            f"timm-{name}",
            f"timm {timm.__version__}",
            network,
            create_transform(**config),
            (
                config["input_size"][1],
                config["crop_pct"],
                config["interpolation"],
                config["mean"],
                config["std"],
            ),
        )
    transformers(shop)


def build(
    shop: Workshop, name: str, exporter: str, network: Any, transform: Any, how: tuple[Any, ...]
) -> None:
    """Export a network and write its manifest."""
    size, ratio, interpolation, mean, scale = how
    settle(network, shop, transform)
    folder = shop.scrap / name
    folder.mkdir(exist_ok=True)
    export(network, size, folder / "model.onnx")
    (folder / "model.toml").write_text(f"""\
name = "{name}"
version = "1"
task = "classification"
file = "model.onnx"

[input]
resize = "crop"
crop_ratio = {ratio}
interpolation = "{INTERPOLATIONS[interpolation]}"
antialias = true
mean = {[255 * value for value in mean]}
scale = {[255 * value for value in scale]}

[output]
decoder = "logits"
""")
    expected = {path.name: best(network, transform(opened(path))) for path in shop.pictures}
    facts = {"family": name, "exporter": exporter, "precision": "FP32", "note": ""}
    shop.add(name, [folder], name, expected, threshold=0.0, iou=None, most=5, **facts)


def opened(path: Path) -> Image.Image:
    """Open a picture as these libraries do."""
    return Image.fromarray(cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB))


def settle(network: Any, shop: Workshop, transform: Any) -> None:
    """Settle batch norms on the pictures, and spread the scores.

    Only as far as they hold where a hundredth of the values is another by one level of 255, as two
    libraries may round: some networks with random weights magnify that without a bound.
    """
    batch = torch.stack([transform(opened(path)) for path in shop.pictures])
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network(batch)
        network.eval()
        last = [one for one in network.modules() if isinstance(one, torch.nn.Linear)][-1]
        last.weight.mul_(2.0 / network(batch).std())
        noisy = batch + LEVEL * (torch.rand_like(batch) < 0.01)
        while moved(network(batch), network(noisy)) > HOLDS:
            last.weight.mul_(0.8)


def moved(logits: torch.Tensor, noisy: torch.Tensor) -> float:
    """Return how far the chances are moved at most."""
    return float((logits.softmax(1) - noisy.softmax(1)).abs().max())


def export(network: Any, size: int, path: Path) -> None:
    """Export to ONNX."""
    picture = torch.zeros(1, 3, size, size)
    torch.onnx.export(
        network, (picture,), str(path), input_names=["input"], output_names=["logits"], dynamo=False
    )


def best(network: Any, picture: torch.Tensor) -> list[dict[str, Any]]:
    """Return the five best classes, called by their numbers."""
    with torch.no_grad():
        chances = network(picture[None])[0].softmax(0)
    scores, labels = chances.topk(5)
    rows = zip(labels.tolist(), scores.tolist(), strict=True)
    return [{"label": str(label), "score": score} for label, score in rows]


def transformers(shop: Workshop) -> None:
    """Save a network as transformers does, with its configurations beside it."""
    name = "transformers-resnet"
    folder = shop.scrap / name
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    labels = {number: f"thing {number}" for number in range(20)}
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], id2label=labels)
    config.architectures = ["ResNetForImageClassification"]
    network = ResNetForImageClassification(config)
    processor = ViTImageProcessor(
        size={"height": 128, "width": 128}, image_mean=[0.485, 0.456, 0.406], image_std=[0.25] * 3
    )

    class Logits(torch.nn.Module):
        """The tensor alone."""

        def forward(self, picture: torch.Tensor) -> torch.Tensor:
            """Return [1, classes]."""
            return network(picture).logits

    def transform(picture: Image.Image) -> torch.Tensor:
        return processor(picture, return_tensors="pt")["pixel_values"][0]

    network_of = Logits()
    network_of.add_module("network", network)
    settle(network_of, shop, transform)
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    export(network_of, 128, folder / "onnx" / "model.onnx")
    expected = {path.name: best(network_of, transform(opened(path))) for path in shop.pictures}
    for found in expected.values():
        for one in found:
            one["label"] = labels[int(one["label"])]
    facts = {"family": name, "exporter": f"transformers {version('transformers')}", "note": ""}
    facts |= {"precision": "FP32", "threshold": 0.0, "iou": None, "most": 5}
    shop.add(name, [folder], name, expected, **facts)


if __name__ == "__main__":
    main()
