"""Converts a manifest to options of the plain scripts."""

from __future__ import annotations

from typing import Any

from ...core.errors import UsageError
from ...core.types import TensorSpec
from ...inference.model import default_threshold
from ...models.manifest import ModelFolder


def recipe(folder: ModelFolder, given: TensorSpec) -> dict[str, Any]:
    """Return how a plain script uses a model: arguments for `start_script.prepare` and `detect`."""
    wanted = folder.manifest.input
    layout = wanted.layout or "nchw"
    height, width = given.shape[2:] if layout == "nchw" else given.shape[1:3]
    height, width = height or wanted.height, width or wanted.width
    if height is None or width is None:
        raise UsageError(
            f"{folder.path}: input {given} leaves its size open; give input.width and input.height"
        )
    count = 1 if wanted.color == "gray" else 3
    return {
        "width": width,
        "height": height,
        "type": given.dtype,
        "layout": layout,
        "color": wanted.color,
        "resize": wanted.resize,
        "crop_ratio": wanted.crop_ratio,
        "interpolation": wanted.interpolation,
        "anchor": wanted.anchor,
        "pad": round(wanted.pad),
        "mean": wanted.per_channel("mean", count),
        "scale": wanted.per_channel("scale", count),
        "decoder": folder.manifest.decoder,
        "threshold": default_threshold(folder),
        "iou": folder.manifest.output.iou,
    }
