"""Packages of increasing versions for `bench push`: the same model, with every large block new."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...core.errors import ModelError
from ...models.files.tensor_ranges import tensor_ranges
from ...models.importing import import_model
from ...models.manifest import load
from ...models.packages.build import Package, make, model_files
from ...tools.random_networks import Graph

OURS = "bench-"
"""Prefix of pushed names, to avoid conflicts with a bundled model of the same name."""
LARGE = 4096
"""Tensors of at least this many bytes change with every version; smaller ones may be shapes or
scales."""
SIDE = 64
"""Width and height of the input of a network with random weights."""


def versions(model: Path, place: Path, largest: int) -> Iterator[Package]:
    """Yield packages of increasing versions that share no block; each is valid until the next.

    *largest* is the most bytes of a block.
    """
    chance = np.random.default_rng(7)
    with import_model(model) as imported:
        name = f"{OURS}{imported.folder.manifest.name}"[:64]
    version = 0
    while True:
        version += 1
        folder = place / "versions" / str(version)
        with import_model(model, name, str(version)) as imported:
            shutil.copytree(imported.folder.path, folder)
        # Its outputs belong to the original weights.
        (folder / "golden.npz").unlink(missing_ok=True)
        for path, ranges in tensors(folder):
            renew(path, ranges, chance)
        yield make(load(folder), largest=largest)
        if version > 1:  # the first is pushed to both agents
            shutil.rmtree(folder)


def tensors(folder: Path) -> list[tuple[Path, list[tuple[int, int]]]]:
    """Return the large tensors in a model's files: offsets of the first byte and after the last."""
    files = model_files(folder)
    found = [
        (files[name], [(first, last) for first, last in ranges if last - first >= LARGE])
        for name, ranges in tensor_ranges(files).items()
        if not name.endswith(".npz")
    ]
    found = [(path, ranges) for path, ranges in found if ranges]
    if not found:
        raise ModelError(f"{folder.name}: has no weights of {LARGE} bytes or more to make new")
    return found


def renew(path: Path, ranges: list[tuple[int, int]], chance: np.random.Generator) -> None:
    """Flip the lowest bit of some weights, which makes new blocks but hardly changes the model.

    Every fourth byte is the least significant one of a float32, and of every second float16; for
    integers, the lowest bit of any byte is one step.
    """
    data = np.fromfile(path, np.uint8)
    for first, last in ranges:
        part = data[first:last:4]
        part ^= chance.integers(0, 2, len(part), np.uint8)
    data.tofile(path)


def generated(folder: Path, size_mb: int) -> Path:
    """Make a picture model of about *size_mb* MB with random weights."""
    folder.mkdir()
    classes = 64
    _write_network(
        folder / "model.onnx", rows=size_mb * 1_000_000 // (4 * classes), classes=classes
    )
    labels = "".join(f"class-{number}\n" for number in range(classes))
    (folder / "labels.txt").write_text(labels)
    (folder / "model.toml").write_text(
        f'name = "random-{size_mb}-mb"\nversion = "1"\ntask = "classification"\n'
        'file = "model.onnx"\n[input]\nmean = [0, 0, 0]\nscale = [255, 255, 255]\n'
        '[output]\ndecoder = "logits"\nlabels = "labels.txt"\n'
    )
    return load(folder).path


def _write_network(path: Path, *, rows: int, classes: int) -> None:
    """Write an ONNX network from a picture [1, 3, 64, 64] to logits [1, classes], cheap to run.

    Its table of weights is float32 [rows, classes]; each inference reads one row, chosen by the
    picture, so that no engine can fold the table away.
    """
    graph = Graph()
    colors = graph.add("Flatten", graph.add("GlobalAveragePool", "image"))
    index = graph.add("ArgMax", colors, axis=1, keepdims=0)
    row = graph.add("Gather", graph.random((rows, classes), 1.0), index)
    seen = graph.add("MatMul", colors, graph.random((3, classes), 1.0))
    graph.add("Add", row, seen, output="logits")
    graph.save(path, {"image": [1, 3, SIDE, SIDE]}, {"logits": [1, classes]})
