"""Large public networks with random weights: ResNet-50 v1.5 and ViT-B/16, in floats and INT8.

Built layer by layer like their usual exports to ONNX (batch normalization folded into the
convolutions, attention as products, Gelu as Erf). The cost of loading, running, and quantizing them
depends on operators, sizes, and bytes, not on the values; nothing is downloaded, and everybody gets
the same networks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..core.scratch import scratch_folder
from ..core.types import Array
from ..models.manifest import MANIFEST
from .quantizers import TARGETS, calibrate, quantize_onnx

VERSION = 3
"""Version of the generator: increase it with every change of its networks."""
CONVOLUTIONS = ("Conv", "MaxPool", "Add", "GlobalAveragePool", "Flatten", "Gemm")
PRODUCTS = ("Conv", "MatMul", "Gemm")
"""Quantized in a Transformer: Softmax and LayerNormalization would lose too much in eight bits."""
OPSET = 17
"""The first opset with LayerNormalization."""
SIDE = 224
CLASSES = 1000
SEED = 4
RESIDUAL = 0.3
"""Deviation of a block's addition to its input: with 1, sixteen blocks would increase the numbers
beyond the resolution of eight bits."""


@dataclass(slots=True)
class Graph:
    """A network whose nodes each have one output, named by kind and number."""

    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    _chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))

    def random(self, shape: Sequence[int], deviation: float) -> str:
        """Add a weight of normally distributed numbers; return its name."""
        array = self._chance.standard_normal(shape, np.float32)
        array *= np.float32(deviation)
        return self.constant(array)

    def constant(self, array: Any) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node; return its output."""
        from onnx import helper

        name = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def head(self, features: str, count: int, scale: float) -> None:
        """Append the last layer.

        Its rows differ much in length, so that one class is clearly best: engines that round
        differently must still agree on it.
        """
        lengths = self._chance.lognormal(0.0, 2.0, (CLASSES, 1)).astype(np.float32)
        weight = self.random((CLASSES, count), scale)
        self.weights[weight] *= lengths
        bias = self.constant(np.zeros(CLASSES, np.float32))
        self.add("Gemm", features, weight, bias, output="output", transB=1)

    def save(
        self, path: Path, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]
    ) -> None:
        """Write it as ONNX, given the shapes of its float32 inputs and outputs by name."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        ends = [
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
                for n, shape in side.items()
            ]
            for side in (inputs, outputs)
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "random", ends[0], ends[1], weights)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph, opset_imports=opset, ir_version=8, producer_name="edge-agent"
        )
        onnx.save(model, path)


def resnet50() -> Graph:
    """Build ResNet-50 v1.5 (He et al. 2015, strides in the 3x3 convolutions): 25.5 M weights."""
    graph = Graph()
    x = graph.add("Relu", _convolution(graph, "input", 3, 64, kernel=7, stride=2))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            x = _bottleneck(graph, x, channels, width, 2 if number and not block else 1)
            channels = 4 * width
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x), axis=1)
    graph.head(x, channels, 0.01)
    return graph


def _bottleneck(graph: Graph, x: str, channels: int, width: int, stride: int) -> str:
    """Append a bottleneck block: narrow, 3x3, widen, and a shortcut, projected if shapes differ."""
    y = graph.add("Relu", _convolution(graph, x, channels, width))
    y = graph.add("Relu", _convolution(graph, y, width, width, kernel=3, stride=stride))
    y = _convolution(graph, y, width, 4 * width, gain=RESIDUAL)
    if channels != 4 * width:
        x = _convolution(graph, x, channels, 4 * width, stride=stride, gain=0.7)
    return graph.add("Relu", graph.add("Add", y, x))


def _convolution(
    graph: Graph,
    x: str,
    channels: int,
    filters: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    gain: float = 1.0,
) -> str:
    """Append a convolution with its batch normalization folded in, and so with a bias."""
    deviation = gain * float(np.sqrt(2 / (channels * kernel * kernel)))
    weight = graph.random((filters, channels, kernel, kernel), deviation)
    # Numbers after a Relu are above zero on average. Over fifty layers that average would be all
    # that is left, the same for every picture; filters whose weights sum to zero cancel it.
    graph.weights[weight] -= graph.weights[weight].mean(axis=(1, 2, 3), keepdims=True)
    bias = graph.random((filters,), 0.1 * gain)
    window: dict[str, Any] = {
        "kernel_shape": [kernel] * 2,
        "strides": [stride] * 2,
        "pads": [kernel // 2] * 4,
    }
    return graph.add("Conv", x, weight, bias, **window, dilations=[1, 1], group=1)


WIDTH, HEADS, DEPTH, PATCH = 768, 12, 12, 16
TOKENS = (SIDE // PATCH) ** 2 + 1


def vit_b16() -> Graph:
    """Build ViT-B/16 (Dosovitskiy et al. 2020) like timm's exports: 86.6 M weights."""
    graph = Graph()
    weight = graph.random((WIDTH, 3, PATCH, PATCH), 1 / np.sqrt(3 * PATCH * PATCH))
    bias = graph.random((WIDTH,), 0.02)
    x = graph.add("Conv", "input", weight, bias, kernel_shape=[PATCH] * 2, strides=[PATCH] * 2)
    x = _reshaped(graph, x, 1, WIDTH, TOKENS - 1)
    x = graph.add("Transpose", x, perm=[0, 2, 1])
    x = graph.add("Concat", graph.random((1, 1, WIDTH), 0.5), x, axis=1)
    x = graph.add("Add", x, graph.random((1, TOKENS, WIDTH), 0.2))
    for _ in range(DEPTH):
        x = graph.add("Add", x, _attention(graph, x))
        x = graph.add("Add", x, _perceptron(graph, x))
    x = graph.add("Gather", _normalized(graph, x), graph.constant(np.array(0)), axis=1)
    graph.head(x, WIDTH, 0.001)
    return graph


def _attention(graph: Graph, x: str) -> str:
    """Append multi-head self-attention: queries, keys, and values from one product."""
    size = WIDTH // HEADS
    # Scores twice as far apart as usual: otherwise every token attends to all others equally.
    x = _linear(graph, _normalized(graph, x), WIDTH, 3 * WIDTH, gain=1.4)
    x = _reshaped(graph, x, 1, TOKENS, 3, HEADS, size)
    x = graph.add("Transpose", x, perm=[2, 0, 3, 1, 4])
    query, key, value = (
        graph.add("Gather", x, graph.constant(np.array(part))) for part in range(3)
    )
    query = graph.add("Mul", query, graph.constant(np.float32(size**-0.5)))
    key = graph.add("Transpose", key, perm=[0, 1, 3, 2])
    shares = graph.add("Softmax", graph.add("MatMul", query, key), axis=-1)
    x = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    return _linear(graph, _reshaped(graph, x, 1, TOKENS, WIDTH), WIDTH, WIDTH, gain=RESIDUAL)


def _perceptron(graph: Graph, x: str) -> str:
    """Append a perceptron: widen, Gelu, narrow."""
    x = _linear(graph, _normalized(graph, x), WIDTH, 4 * WIDTH)
    share = graph.add("Div", x, graph.constant(np.float32(np.sqrt(2))))
    share = graph.add("Add", graph.add("Erf", share), graph.constant(np.float32(1)))
    x = graph.add("Mul", graph.add("Mul", x, share), graph.constant(np.float32(0.5)))
    return _linear(graph, x, 4 * WIDTH, WIDTH, gain=RESIDUAL)


def _linear(graph: Graph, x: str, inputs: int, outputs: int, *, gain: float = 1.0) -> str:
    """Append a product and a bias."""
    weight = graph.random((inputs, outputs), gain / float(np.sqrt(inputs)))
    bias = graph.random((outputs,), 0.02)
    return graph.add("Add", graph.add("MatMul", x, weight), bias)


def _normalized(graph: Graph, x: str) -> str:
    scale = graph.constant(np.ones(WIDTH, np.float32))
    bias = graph.random((WIDTH,), 0.02)
    return graph.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)


def _reshaped(graph: Graph, x: str, *shape: int) -> str:
    return graph.add("Reshape", x, graph.constant(np.array(shape)))


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of model."""

    build: Callable[[], Graph]
    mean: tuple[float, float, float]
    scale: tuple[float, float, float]
    quantized: Collection[str] = ()
    """Kinds of operators in eight bits; empty: a float32 network."""


_IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
_HALVES = ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
_KINDS = {
    "resnet50-fp32": _Kind(resnet50, *_IMAGENET),
    "resnet50-int8": _Kind(resnet50, *_IMAGENET, CONVOLUTIONS),
    "vit-b16-fp32": _Kind(vit_b16, *_HALVES),
    "vit-b16-int8": _Kind(vit_b16, *_HALVES, PRODUCTS),
}
NAMES = tuple(_KINDS)


def generated(name: str, cache: Path, report_progress: Callable[[str], None]) -> Path:
    """Return the folder of one of `NAMES` in a cache, made again if the generator has changed."""
    folder = cache / f"generator-{VERSION}" / name
    if folder.is_dir():
        return folder
    report_progress(f"{name}: being made of random weights, kept in {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for old in cache.glob("generator-*"):
        if old != folder.parent:
            shutil.rmtree(old)
    # Made beside its place, so that it appears there complete or not at all.
    with TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as place:
        made = Path(place) / name
        make(name, made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another run was faster
                raise
    return folder


def make(name: str, folder: Path) -> None:
    """Write the model folder of one of `NAMES`."""
    kind = _KINDS[name]
    folder.mkdir(parents=True)
    if kind.quantized:
        _save_quantized(kind, folder / "model.onnx")
    else:
        _save(kind.build(), folder / "model.onnx")
    (folder / "labels.txt").write_text("".join(f"{n}\n" for n in range(CLASSES)))
    (folder / MANIFEST).write_text(
        f'name = "{name}"\nversion = "1"\ntask = "classification"\nfile = "model.onnx"\n\n'
        '[input]\ncolor  = "rgb"\nlayout = "nchw"\nresize = "stretch"\n'
        f"mean   = {list(kind.mean)}\nscale  = {list(kind.scale)}\n\n"
        '[output]\ndecoder   = "logits"\nthreshold = 0.0\nlabels    = "labels.txt"\ntop_k     = 5\n'
    )


def _save(graph: Graph, path: Path) -> None:
    graph.save(path, {"input": [1, 3, SIDE, SIDE]}, {"output": [1, CLASSES]})


def _save_quantized(kind: _Kind, path: Path) -> None:
    """Write an eight-bit network in the QDQ format, calibrated on a few seeded pictures.

    It is for x86 without VNNI, whatever this device is: otherwise answers would depend on the
    processor.
    """
    with scratch_folder("bench") as place:
        whole, ranges = place / "float.onnx", place / "ranges.json"
        _save(kind.build(), whole)
        pictures = [{"input": _picture(seed, kind)} for seed in range(3)]
        calibrate(whole, pictures, ranges, kinds=kind.quantized)
        quantize_onnx(whole, path, ranges, TARGETS["x86"], kinds=kind.quantized)


def _picture(seed: int, kind: _Kind) -> Array:
    """Make an input [1, 3, 224, 224] of coarse and fine patches over the full range of pixels."""
    chance = np.random.default_rng(seed)
    pixels = np.zeros((3, SIDE, SIDE))
    for size, share in ((56, 0.6), (8, 0.3), (1, 0.1)):
        patches = chance.uniform(0, 255, (3, SIDE // size, SIDE // size))
        pixels += share * patches.repeat(size, axis=1).repeat(size, axis=2)
    mean, scale = (np.array(each).reshape(3, 1, 1) for each in (kind.mean, kind.scale))
    made: Array = ((pixels - mean) / scale)[None].astype(np.float32)
    return made
