"""A network of eight bits whose products saturate on processors without VNNI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.tiny_networks import node, save_onnx

SIZE = 12
STEP, W_STEP, OUT_STEP = np.float32(0.02), np.float32(0.01), np.float32(2.0)


def network(path: Path, weights: Any, *, shared: bool = False) -> Path:
    """Save two convolutions of eight bits with the same weights.

    Args:
        path: the .onnx file.
        weights: of both, steps with a sign.
        shared: the weights have one zero point together.

    """
    zeros = ["w_zero", "w_zero" if shared else "v_zero"]
    nodes = [
        node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "step", "zero"], ["f"]),
    ]
    for name, zero, result in zip(("w", "v"), zeros, ("a", "b"), strict=True):
        nodes += [
            node("DequantizeLinear", [name, "w_step", zero], [f"{name}f"]),
            node("Conv", ["f", f"{name}f"], [f"{result}c"], kernel_shape=[3, 3]),
            node("QuantizeLinear", [f"{result}c", "out_step", "out_zero"], [f"{result}q"]),
            node("DequantizeLinear", [f"{result}q", "out_step", "out_zero"], [result]),
        ]
    shape = (1, len(weights), SIZE - 2, SIZE - 2)
    return save_onnx(
        path,
        nodes,
        [("x", "float32", (1, weights.shape[1], SIZE, SIZE))],
        [("a", "float32", shape), ("b", "float32", shape)],
        {
            "step": np.array(STEP),
            "zero": np.array(0, np.uint8),
            "w": weights,
            "v": weights,
            "w_step": np.array(W_STEP),
            "out_step": np.array(OUT_STEP),
            "out_zero": np.array(128, np.uint8),
            **{name: np.array(0, np.int8) for name in zeros},
        },
    )
