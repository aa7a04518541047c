"""Model folders large enough to be cut into stages, and what to do with their prepared forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from edge_agent.inference.engines.engine import Engine, EngineChoice
from edge_agent.inference.engines.registry import open_engine
from edge_agent.inference.prepared.artifact import FILE, Artifact, encode
from edge_agent.inference.prepared.engine import OrtPreparedEngine
from edge_agent.inference.prepared.load import Load
from edge_agent.inference.preprocess.inputs import fixed_shapes
from edge_agent.models.manifest import load
from tests.helpers.tiny_networks import node, save_onnx

WIDTH = 128
CPU = EngineChoice("onnxruntime", threads=2)


def chain(folder: Path, layers: int = 8, *, width: int = WIDTH, **how: Any) -> Path:
    """Make a model of matrix products one behind the other, each with weights of its own.

    Args:
        folder: to make.
        layers: how many products.
        width: of each matrix: width x width floats.
        how: as for `save_onnx`.

    """
    random = np.random.default_rng(3)
    steps, weights = [], {}
    for layer in range(layers):
        weights[f"w{layer}"] = random.standard_normal((width, width), np.float32) / width**0.5
        weights[f"b{layer}"] = random.standard_normal(width, np.float32)
        steps += [
            node("MatMul", [f"x{layer}", f"w{layer}"], [f"p{layer}"]),
            node("Add", [f"p{layer}", f"b{layer}"], [f"s{layer}"]),
            node("Tanh", [f"s{layer}"], [f"x{layer + 1}"]),
        ]
    folder.mkdir(parents=True)
    save_onnx(
        folder / "model.onnx",
        steps,
        [("x0", "float32", (4, width))],
        [(f"x{layers}", "float32", (4, width))],
        weights,
        **how,
    )
    return raw_manifest(folder)


def raw_manifest(folder: Path, **more: Any) -> Path:
    """Write a manifest that says nothing but that tensors go in and come out."""
    manifest: Mapping[str, Any] = {
        "name": folder.name,
        "version": "1",
        "task": "raw",
        "file": "model.onnx",
        "output": {"decoder": "raw"},
        **more,
    }
    (folder / "model.toml").write_text(tomli_w.dumps(manifest))
    return folder


def plain(folder: Path, choice: EngineChoice = CPU) -> Engine:
    """Load a model itself, without any form."""
    return open_engine(choice, folder / "model.onnx", lambda _: {})


def shapes_of(folder: Path) -> Any:
    """Give what fixes the sizes that a model's network leaves open."""
    return fixed_shapes(load(folder).manifest.input, "signal")


def engine_of(form: Artifact, way: str) -> OrtPreparedEngine:
    """Load a form in a way that its table need not have."""
    return OrtPreparedEngine(Load(Artifact(form.folder, {**form.table, "way": way})))


def noise(seed: int, *shape: int) -> NDArray[np.float32]:
    """Make an input that no form was made with."""
    return np.random.default_rng(1000 + seed).standard_normal(shape, np.float32)


def rewrite(form: Artifact, **changes: Any) -> None:
    """Change a form's table, its checksum included, as another program or machine would write."""
    Path(form.folder, FILE).write_bytes(encode({**form.table, **changes}))


def damage(path: Path, at: int) -> None:
    """Turn over one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def table_of(folder: str) -> dict[str, Any]:
    """Read a form's table as anybody may: it is JSON."""
    found: dict[str, Any] = json.loads(Path(folder, FILE).read_bytes())["form"]
    return found
