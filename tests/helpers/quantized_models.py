"""Small eight-bit picture networks, built the ways in which exporters and quantizers build them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from tests.helpers.tiny_networks import Value, node, save_onnx

SIZE = 16
WIDTH = 64
"""Of the convolution: its weights are large enough to lie outside the graph of a form."""
STEP = np.float32(1 / 64)
ZERO = np.uint8(100)
PICTURE: Value = ("picture", "float32", (1, 3, SIZE, SIZE))


def layer(given: str, channels: int = 3, zero: Any = ZERO) -> tuple[list[Any], dict[str, Any]]:
    """Make what follows the input's quantization, steps named *given*: a convolution and a mean."""
    random = np.random.default_rng(5)
    weights: dict[str, NDArray[Any]] = {
        "step": np.array(STEP),
        "zero": np.array(zero),
        "w": random.integers(-127, 128, (WIDTH, channels, 3, 3)).astype(np.int8),
        "w_step": np.array(0.01, np.float32),
        "w_zero": np.array(0, np.int8),
        "out_step": np.array(0.25, np.float32),
        "out_zero": np.array(128, np.uint8),
    }
    steps = [
        node("DequantizeLinear", [given, "step", "zero"], ["x"]),
        node("DequantizeLinear", ["w", "w_step", "w_zero"], ["wf"]),
        node("Conv", ["x", "wf"], ["c"], kernel_shape=[3, 3]),
        node("QuantizeLinear", ["c", "out_step", "out_zero"], ["cq"]),
        node("DequantizeLinear", ["cq", "out_step", "out_zero"], ["cf"]),
        node("ReduceMean", ["cf"], ["y"], axes=[2, 3], keepdims=0),
    ]
    return steps, weights


def save(
    path: Path,
    before: Sequence[Any] | None = None,
    *,
    channels: int = 3,
    taken: Value = PICTURE,
    more: Sequence[Value] = (),
    outputs: Sequence[Value] = (),
    zero: Any = ZERO,
    weights: dict[str, Any] | None = None,
    **how: Any,
) -> Path:
    """Save a network.

    Args:
        path: the .onnx file.
        before: nodes from "picture" to its steps, "q"; None: the quantization alone.
        channels: of the steps.
        taken: the input.
        more: other inputs.
        outputs: besides "y".
        zero: the zero point, of the type of the steps.
        weights: instead of the usual ones, or in addition.
        how: as for `save_onnx`.

    """
    if before is None:
        before = [node("QuantizeLinear", ["picture", "step", "zero"], ["q"])]
    steps, usual = layer("q", channels, zero)
    return save_onnx(
        path,
        [*before, *steps],
        [taken, *more],
        [("y", "float32", (1, WIDTH)), *outputs],
        {**usual, **(weights or {})},
        **how,
    )


def model(folder: Path, version: str = "1", **how: Any) -> Path:
    """Make a model folder whose network can be folded."""
    folder.mkdir(parents=True)
    save(folder / "model.onnx", **how)
    manifest = {
        "name": folder.name.split("-")[0],
        "version": version,
        "task": "raw",
        "file": "model.onnx",
        "input": {"mean": [127, 120, 110], "scale": [64, 60, 57]},
        "output": {"decoder": "raw"},
    }
    (folder / "model.toml").write_text(tomli_w.dumps(manifest))
    return folder


def focus() -> list[Any]:
    """Take a picture apart as YOLOX does, then quantize it: 12 channels of a quarter the size."""
    nodes, parts = [], []
    for row in (0, 1):
        for column in (0, 1):
            name = f"part{row}{column}"
            nodes += [
                node("Slice", ["picture", f"at{row}", "end", "rows", "two"], [f"rows{name}"]),
                node("Slice", [f"rows{name}", f"at{column}", "end", "columns", "two"], [name]),
            ]
            parts.append(name)
    nodes.append(node("Concat", parts, ["parts"], axis=1))
    return [*nodes, node("QuantizeLinear", ["parts", "step", "zero"], ["q"])]


FOCUS: dict[str, NDArray[np.int64]] = {
    name: np.array([value], np.int64)
    for name, value in (
        ("at0", 0),
        ("at1", 1),
        ("end", 2**31),
        ("rows", 2),
        ("columns", 3),
        ("two", 2),
    )
}
