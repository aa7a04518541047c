"""Model folders for tests of packages and the store, which never look into a network."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

MANIFEST = """\
name = "{name}"
version = "{version}"
task = "classification"
file = "model.onnx"
[output]
decoder = "softmax"
labels = "labels.txt"
"""


def weights(seed: int, size: int = 200_000) -> bytes:
    """Give bytes that are always the same for a seed, and no two stretches alike."""
    return random.Random(seed).randbytes(size)  # noqa: S311 - weights, not secrets


def make_model(
    folder: Path,
    *,
    name: str = "face",
    version: str = "1",
    network: bytes | None = None,
    more: Mapping[str, bytes] | None = None,
) -> Path:
    """Make a model folder.

    Args:
        folder: to make; its parents are made too.
        name: of the model.
        version: of the model.
        network: the content of model.onnx; None: some bytes.
        more: further files, by name.

    """
    files = {
        "model.toml": MANIFEST.format(name=name, version=version).encode(),
        "labels.txt": b"face\nno face\n",
        "model.onnx": weights(1) if network is None else network,
        **(more or {}),
    }
    for file, content in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a model folder, the store's notes aside."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".package" not in path.parts
    }
