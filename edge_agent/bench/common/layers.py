"""Large public networks, layer by layer, of random weights: ResNet-50 v1.5 and ViT-B/16.

Built as their usual exports to ONNX look (batch normalization folded into the convolutions,
attention as products, Gelu as Erf), because what loading them costs depends on operators, sizes
and bytes, and not on the values. Knows no engine and no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.types import Array

OPSET = 17
"""The first with LayerNormalization."""
SIDE = 224
CLASSES = 1000
SEED = 4
RESIDUAL = 0.3
"""Deviation of what a block adds to its input: of 1, sixteen blocks would grow the numbers
beyond what eight bits can tell apart."""


@dataclass(slots=True)
class Graph:
    """A network from "input" [1, 3, 224, 224] to "output" [1, 1000], float32."""

    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    _chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))

    def random(self, name: str, shape: Sequence[int], deviation: float) -> str:
        """Make a weight of normally distributed numbers."""
        array = self._chance.standard_normal(shape, np.float32)
        array *= np.float32(deviation)
        return self.constant(name, array)

    def constant(self, name: str, array: Any) -> str:
        self.weights[name] = np.asarray(array)
        return name

    def add(self, kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Append a node with one output, which bears its name."""
        from onnx import helper

        self.nodes.append(
            helper.make_node(kind, inputs, [name], name=f"{name}.{kind}", **attributes)
        )
        return name

    def head(self, features: str, count: int, scale: float) -> None:
        """Append the last layer.

        Its rows differ much in length, so that one class is clearly ahead: engines that round
        otherwise must still agree on it.
        """
        lengths = self._chance.lognormal(0.0, 2.0, (CLASSES, 1)).astype(np.float32)
        weight = self.random("head.weight", (CLASSES, count), scale)
        self.weights[weight] *= lengths
        bias = self.constant("head.bias", np.zeros(CLASSES, np.float32))
        self.add("Gemm", [features, weight, bias], "output", transB=1)


def resnet50() -> Graph:
    """Build ResNet-50 v1.5 (He et al. 2015, the stride in the 3 by 3 one): 25.5 M weights."""
    graph = Graph()
    x = _convolution(graph, "input", "conv1", 3, 64, kernel=7, stride=2)
    x = graph.add("Relu", [x], "relu1")
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    x = graph.add("MaxPool", [x], "pool1", **window)
    channels = 64
    for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(blocks):
            stride = 2 if number > 1 and block == 0 else 1
            x = _bottleneck(graph, x, f"layer{number}.{block}", channels, width, stride)
            channels = 4 * width
    x = graph.add("GlobalAveragePool", [x], "pooled")
    x = graph.add("Flatten", [x], "features", axis=1)
    graph.head(x, channels, 0.01)
    return graph


def _bottleneck(graph: Graph, x: str, name: str, channels: int, width: int, stride: int) -> str:
    """Append narrow, look around, widen; beside it the input, fitted where the shape changes."""
    y = graph.add("Relu", [_convolution(graph, x, f"{name}.conv1", channels, width)], f"{name}.r1")
    y = _convolution(graph, y, f"{name}.conv2", width, width, kernel=3, stride=stride)
    y = graph.add("Relu", [y], f"{name}.r2")
    y = _convolution(graph, y, f"{name}.conv3", width, 4 * width, gain=RESIDUAL)
    if channels != 4 * width:
        x = _convolution(graph, x, f"{name}.down", channels, 4 * width, stride=stride, gain=0.7)
    return graph.add("Relu", [graph.add("Add", [y, x], f"{name}.sum")], f"{name}.out")


def _convolution(
    graph: Graph,
    x: str,
    name: str,
    channels: int,
    filters: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    gain: float = 1.0,
) -> str:
    """Append a convolution as it is once its batch normalization is folded in: with a bias."""
    deviation = gain * float(np.sqrt(2 / (channels * kernel * kernel)))
    weight = graph.random(f"{name}.weight", (filters, channels, kernel, kernel), deviation)
    # What passed a Relu is above nought on average. Summed up over fifty layers that average would
    # be all that is left, the same for every picture; filters whose weights sum to nought do not
    # see it.
    graph.weights[weight] -= graph.weights[weight].mean(axis=(1, 2, 3), keepdims=True)
    bias = graph.random(f"{name}.bias", (filters,), 0.1 * gain)
    return graph.add(
        "Conv",
        [x, weight, bias],
        name,
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[kernel // 2] * 4,
        dilations=[1, 1],
        group=1,
    )


WIDTH, HEADS, DEPTH, PATCH = 768, 12, 12, 16
TOKENS = (SIDE // PATCH) ** 2 + 1


def vit_b16() -> Graph:
    """Build ViT-B/16 (Dosovitskiy et al. 2020) as timm's exports have it: 86.6 M weights."""
    graph = Graph()
    scale = 1 / np.sqrt(3 * PATCH * PATCH)
    weight = graph.random("patch.weight", (WIDTH, 3, PATCH, PATCH), scale)
    bias = graph.random("patch.bias", (WIDTH,), 0.02)
    kernel: dict[str, Any] = {"kernel_shape": [PATCH, PATCH], "strides": [PATCH, PATCH]}
    x = graph.add("Conv", ["input", weight, bias], "patch", **kernel)
    shape = graph.constant("patch.shape", np.array([1, WIDTH, TOKENS - 1]))
    x = graph.add("Reshape", [x, shape], "patch.flat")
    x = graph.add("Transpose", [x], "patches", perm=[0, 2, 1])
    first = graph.random("class_token", (1, 1, WIDTH), 0.5)
    x = graph.add("Concat", [first, x], "tokens", axis=1)
    x = graph.add("Add", [x, graph.random("positions", (1, TOKENS, WIDTH), 0.2)], "embedded")
    for number in range(DEPTH):
        name = f"block{number}"
        x = graph.add("Add", [x, _attention(graph, x, f"{name}.attention")], f"{name}.attended")
        x = graph.add("Add", [x, _perceptron(graph, x, f"{name}.mlp")], f"{name}.out")
    x = _normalized(graph, x, "norm")
    index = graph.constant("norm.first", np.array(0))
    graph.head(graph.add("Gather", [x, index], "features", axis=1), WIDTH, 0.001)
    return graph


def _attention(graph: Graph, x: str, name: str) -> str:
    """Append multi-head self-attention: queries, keys and values from one product."""
    size = WIDTH // HEADS
    x = _normalized(graph, x, f"{name}.norm")
    # Scores twice as far apart as usual: else every token looks at all others alike.
    x = _linear(graph, x, f"{name}.qkv", WIDTH, 3 * WIDTH, gain=1.4)
    shape = graph.constant(f"{name}.shape", np.array([1, TOKENS, 3, HEADS, size]))
    x = graph.add("Reshape", [x, shape], f"{name}.split")
    x = graph.add("Transpose", [x], f"{name}.stacked", perm=[2, 0, 3, 1, 4])
    query, key, value = (
        graph.add(
            "Gather", [x, graph.constant(f"{name}.{part}.index", np.array(i))], f"{name}.{part}"
        )
        for i, part in enumerate(("query", "key", "value"))
    )
    scale = graph.constant(f"{name}.scale", np.float32(size**-0.5))
    query = graph.add("Mul", [query, scale], f"{name}.scaled")
    key = graph.add("Transpose", [key], f"{name}.turned", perm=[0, 1, 3, 2])
    x = graph.add("MatMul", [query, key], f"{name}.scores")
    x = graph.add("Softmax", [x], f"{name}.shares", axis=-1)
    x = graph.add("MatMul", [x, value], f"{name}.mixed")
    x = graph.add("Transpose", [x], f"{name}.heads", perm=[0, 2, 1, 3])
    shape = graph.constant(f"{name}.joined.shape", np.array([1, TOKENS, WIDTH]))
    x = graph.add("Reshape", [x, shape], f"{name}.joined")
    return _linear(graph, x, f"{name}.out", WIDTH, WIDTH, gain=RESIDUAL)


def _perceptron(graph: Graph, x: str, name: str) -> str:
    """Append widen, Gelu, narrow."""
    x = _linear(graph, _normalized(graph, x, f"{name}.norm"), f"{name}.wide", WIDTH, 4 * WIDTH)
    root = graph.constant(f"{name}.root", np.float32(np.sqrt(2)))
    one = graph.constant(f"{name}.one", np.float32(1))
    half = graph.constant(f"{name}.half", np.float32(0.5))
    share = graph.add("Erf", [graph.add("Div", [x, root], f"{name}.divided")], f"{name}.erf")
    x = graph.add("Mul", [x, graph.add("Add", [share, one], f"{name}.share")], f"{name}.product")
    x = graph.add("Mul", [x, half], f"{name}.gelu")
    return _linear(graph, x, f"{name}.narrow", 4 * WIDTH, WIDTH, gain=RESIDUAL)


def _linear(
    graph: Graph, x: str, name: str, inputs: int, outputs: int, *, gain: float = 1.0
) -> str:
    """Append a product and a bias."""
    weight = graph.random(f"{name}.weight", (inputs, outputs), gain / float(np.sqrt(inputs)))
    bias = graph.random(f"{name}.bias", (outputs,), 0.02)
    return graph.add("Add", [graph.add("MatMul", [x, weight], f"{name}.product"), bias], name)


def _normalized(graph: Graph, x: str, name: str) -> str:
    scale = graph.constant(f"{name}.weight", np.ones(WIDTH, np.float32))
    bias = graph.random(f"{name}.bias", (WIDTH,), 0.02)
    return graph.add("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=1e-6)
