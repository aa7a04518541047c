"""The plain script that the agent is measured against does what it claims to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.bench.common.recipe import recipe
from edge_agent.bench.common.start_script import prepare
from edge_agent.bench.pipeline.plain import to_frame
from edge_agent.core.types import Detections, TensorSpec
from edge_agent.inference.preprocess.preprocessor import build_preprocessor
from edge_agent.models.manifest import load

MANIFEST = """
name = "seen"
version = "1"
task = "raw"
file = "net.onnx"
[output]
decoder = "raw"
[input]
"""
EACH = "mean = [123.7, 116.3, 103.5]\nscale = [58.4, 57.1, 57.4]\n"


@pytest.mark.parametrize(
    ("given", "size", "dtype"),
    [
        ("mean = 127\nscale = 128\n", (1, 3, 24, 32), "float32"),
        (EACH, (1, 3, 24, 32), "float32"),
        (EACH + 'layout = "nhwc"\ncolor = "bgr"\n', (1, 24, 32, 3), "float32"),
        (EACH, (1, 3, 24, 32), "float16"),
        ('layout = "nhwc"\n', (1, 24, 32, 3), "uint8"),
        ('color = "bgr"\n', (1, 3, 24, 32), "uint8"),
        ('color = "gray"\nmean = 3\nscale = 255\n', (1, 1, 24, 32), "float32"),
        ('resize = "letterbox"\nanchor = "center"\nscale = 255\n', (1, 3, 32, 32), "float32"),
        ('resize = "letterbox"\nanchor = "top-left"\npad = 114\n', (1, 3, 32, 32), "float32"),
        ('resize = "crop"\ncrop_ratio = 0.875\n', (1, 3, 24, 24), "float32"),
    ],
)
def test_the_script_prepares_as_the_agent_does(
    given: str, size: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    """But for the last digits of what is divided; and boxes find their way back."""
    (tmp_path / "net.onnx").write_bytes(b"a network")
    (tmp_path / "model.toml").write_text(MANIFEST + given)
    folder, spec = load(tmp_path), TensorSpec("images", size, dtype)
    frame = np.random.default_rng(5).integers(0, 256, (54, 96, 3), np.uint8)
    theirs, way = prepare(frame, recipe(folder, spec))
    made, placement = build_preprocessor(folder.manifest.input, (spec,), "picture")(frame)
    ours = made["images"]
    assert (theirs.shape, theirs.dtype) == (ours.shape, ours.dtype)
    assert theirs.flags.c_contiguous
    near = 2 * float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 0.0
    np.testing.assert_allclose(theirs, ours, rtol=near, atol=near)
    boxes: Any = np.array([[3, 4, 20, 22]], np.float32)
    found = Detections(boxes.copy(), np.ones(1, np.float32), ("one",))
    to_frame(found, way)
    assert placement is not None
    back = (boxes - placement._offsets(2)) / placement._scales(2)
    np.testing.assert_allclose(found.boxes, back, rtol=1e-5)
