"""A small float classifier of colors, and pictures of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.tiny_networks import node, save_onnx

LABELS = ("red", "green", "blue")
MANIFEST = """\
name = "color"
version = "3"
task = "classification"
file = "model.onnx"
[input]
color = "rgb"
scale = 255
[output]
decoder = "logits"
labels = ["red", "green", "blue"]
"""
LOUD = 3000.0
"""How much larger the numbers of one channel are than those that matter, in the loud network."""


def color_model(folder: Path, *, loud: bool = False, plain: int = 3, **how: Any) -> Path:
    """Make a model folder.

    Args:
        folder: to make.
        loud: the first convolution also makes a channel of large numbers that nothing uses: in
            eight bits all others are lost beside it.
        plain: further convolutions, which change nothing.
        how: as for `save_onnx`.

    """
    folder.mkdir(parents=True)
    network = folder / "model.onnx"
    first = np.eye(4, 3, k=0, dtype=np.float32)
    second = np.eye(3, 4, dtype=np.float32)
    if loud:
        first[3] = LOUD
    weights: dict[str, NDArray[Any]] = {
        "first": first.reshape(4, 3, 1, 1),
        "second": second.reshape(3, 4, 1, 1),
        "scores": 20 * np.eye(3, dtype=np.float32),
    }
    nodes = [
        node("Conv", ["picture", "first"], ["a"], name="first"),
        node("Relu", ["a"], ["ar"]),
        node("Conv", ["ar", "second"], ["x0"], name="second"),
    ]
    for number in range(plain):
        weights[f"plain{number}"] = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
        nodes.append(
            node("Conv", [f"x{number}", f"plain{number}"], [f"x{number + 1}"], name=f"p{number}")
        )
    nodes += [
        node("GlobalAveragePool", [f"x{plain}"], ["mean"]),
        node("Flatten", ["mean"], ["flat"]),
        node("Gemm", ["flat", "scores"], ["logits"], name="scores"),
    ]
    save_onnx(
        network,
        nodes,
        [("picture", "float32", (1, 3, 16, 16))],
        [("logits", "float32", (1, 3))],
        weights,
        **how,
    )
    (folder / "model.toml").write_text(MANIFEST)
    return folder


def color_pictures(folder: Path, count: int = 12, *, apart: bool = False) -> Path:
    """Write pictures in which one color is a little stronger than the others.

    Args:
        folder: to make.
        count: of pictures.
        apart: each in the folder of its label.

    """
    import cv2

    random = np.random.default_rng(3)
    for number in range(count):
        label = number % 3
        picture = random.integers(60, 160, (20, 20, 3)).astype(np.uint8)
        picture[:, :, 2 - label] += 70  # OpenCV's order is blue, green, red
        place = folder / LABELS[label] if apart else folder
        place.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(place / f"{number:02}.png"), picture)
    return folder
