"""The models that are measured: folders, an agent's, or generated with seeded random weights.

Those have the sizes that edge boxes load: a benchmark of loading needs no trained weights. They are
never downloaded, and everybody has the same; they are kept in the user's cache, and made again when
the generator changes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ...config.load import find_file, load
from ...core.bundled import bundled
from ...core.errors import UsageError
from ...core.scratch import scratch_folder
from ...core.types import Array
from ...models.manifest import MANIFEST
from ...models.store.catalog import Library
from ...tools.quantizers import TARGETS, calibrate, quantize_onnx
from . import layers
from .places import cache_folder

VERSION = 2
"""Of the generator: raise it with every change of what it makes."""
CONVOLUTIONS = ("Conv", "MaxPool", "Add", "GlobalAveragePool", "Flatten", "Gemm")
PRODUCTS = ("Conv", "MatMul", "Gemm")
"""Of a Transformer only these: Softmax and LayerNormalization lose too much in eight bits."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One model."""

    build: Callable[[], layers.Graph]
    mean: tuple[float, float, float]
    scale: tuple[float, float, float]
    quantized: Collection[str] = ()
    """Kinds of operators in eight bits; none: a float32 network."""


_IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
_HALVES = ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
_KINDS = {
    "resnet50-fp32": _Kind(layers.resnet50, *_IMAGENET),
    "resnet50-int8": _Kind(layers.resnet50, *_IMAGENET, CONVOLUTIONS),
    "vit-b16-fp32": _Kind(layers.vit_b16, *_HALVES),
    "vit-b16-int8": _Kind(layers.vit_b16, *_HALVES, PRODUCTS),
}
NAMES = tuple(_KINDS)


def generated(name: str, report_progress: Callable[[str], None]) -> Path:
    """Find the folder of one of `NAMES`, making it where it is not there yet."""
    cache = cache_folder()
    folder = cache / f"generator-{VERSION}" / name
    if folder.is_dir():
        return folder
    report_progress(f"{name}: being made of random weights, kept in {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for old in cache.glob("generator-*"):
        if old != folder.parent:
            shutil.rmtree(old)
    # Beside its place, so that it appears there whole or not at all.
    with TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as place:
        made = Path(place) / name
        make(name, made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was faster
                raise
    return folder


def find_model(
    text: str, report_progress: Callable[[str], None], library: Library | None = None
) -> Path:
    """Find the folder of what a user names: a folder, a model of an agent's, or a generated one.

    Args:
        text: a folder, "face", "face@3" or one of `NAMES`.
        report_progress: takes a line when a model has to be made.
        library: of the agent, whose live versions count; None: only bundled models do.

    Raises:
        UsageError: there is none such.
        ModelError: the agent has it, and it is broken.
    """
    if text and (Path(text) / MANIFEST).is_file():
        return Path(text)
    name, at, version = text.partition("@")
    if library is not None and library.entries(name):
        return library.find(name, version if at else None).path
    if text and (bundled("models") / text / MANIFEST).is_file():
        return bundled("models") / text
    if text in NAMES:
        return generated(text, report_progress)
    known = f" (there are {', '.join(library.names())})" if library is not None else ""
    raise UsageError(
        f"{text!r}: no model folder (one with {MANIFEST}; `edge-agent try … --save` makes one), "
        f"no model of the agent's{known}, and none of the generated ones: {', '.join(NAMES)}"
    )


def find_models(
    names: Sequence[str], config: str | None, report_progress: Callable[[str], None]
) -> list[Path]:
    """Find the folder of each: one named, a model of the agent's ("face@3"), or a generated one.

    *config* is the settings file; None: the one in its usual place, where there is one.

    Raises:
        UsageError: one is not there, or the settings are wrong.
        ModelError: one is broken.
    """
    named = any(not (name and (Path(name) / MANIFEST).is_file()) for name in names)
    file = find_file(config)
    if config is not None and file is not None:
        load(file)  # who names settings is told what is wrong with them, needed or not
    known = _library(file, config) if named else None
    return [find_model(name, report_progress, known) for name in names]


def _library(file: Path | None, config: str | None) -> Library | None:
    """Open the models of the agent whose settings these are; None: there is none to be seen."""
    from ...serving.loader import open_library, open_store

    if file is None or (config is None and not os.access(file, os.R_OK)):
        return None  # the service's own, for it and root alone
    settings = load(file)
    if config is None and not os.access(settings.state, os.W_OK):
        return None  # likewise
    return open_library(settings, open_store(settings))


def make(name: str, folder: Path) -> None:
    """Write a model folder."""
    kind = _KINDS[name]
    folder.mkdir(parents=True)
    if kind.quantized:
        _save_quantized(kind, folder / "model.onnx")
    else:
        _save(kind.build(), folder / "model.onnx")
    (folder / "labels.txt").write_text("".join(f"{n}\n" for n in range(layers.CLASSES)))
    (folder / MANIFEST).write_text(
        f'name = "{name}"\nversion = "1"\ntask = "classification"\nfile = "model.onnx"\n\n'
        '[input]\ncolor  = "rgb"\nlayout = "nchw"\nresize = "stretch"\n'
        f"mean   = {list(kind.mean)}\nscale  = {list(kind.scale)}\n\n"
        '[output]\ndecoder   = "logits"\nthreshold = 0.0\nlabels    = "labels.txt"\ntop_k     = 5\n'
    )


def _save(graph: layers.Graph, path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shapes = {"input": [1, 3, layers.SIDE, layers.SIDE], "output": [1, layers.CLASSES]}
    ends = {
        name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in shapes.items()
    }
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "random",
            ends["input"],
            ends["output"],
            [numpy_helper.from_array(array, name) for name, array in graph.weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", layers.OPSET)],
        ir_version=8,
        producer_name="edge-agent",
    )
    onnx.save(model, path)


def _save_quantized(kind: _Kind, path: Path) -> None:
    """Write an eight-bit network in the QDQ format, calibrated on a few seeded pictures.

    For x86 without VNNI, whatever this device is: else the answers would depend on the processor.
    """
    with scratch_folder("bench") as place:
        whole, ranges = place / "float.onnx", place / "ranges.json"
        _save(kind.build(), whole)
        pictures = [{"input": _picture(seed, kind)} for seed in range(3)]
        calibrate(whole, pictures, ranges, kinds=kind.quantized)
        quantize_onnx(whole, path, ranges, TARGETS["x86"], kinds=kind.quantized)


def _picture(seed: int, kind: _Kind) -> Array:
    """Make an input [1, 3, 224, 224] of coarse and fine patches over the whole range of a pixel."""
    chance = np.random.default_rng(seed)
    pixels = np.zeros((3, layers.SIDE, layers.SIDE))
    for size, share in ((56, 0.6), (8, 0.3), (1, 0.1)):
        patches = chance.uniform(0, 255, (3, layers.SIDE // size, layers.SIDE // size))
        pixels += share * patches.repeat(size, axis=1).repeat(size, axis=2)
    mean, scale = (np.array(each).reshape(3, 1, 1) for each in (kind.mean, kind.scale))
    made: Array = ((pixels - mean) / scale)[None].astype(np.float32)
    return made
