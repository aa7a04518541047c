"""Eight-bit form of a float network, as ONNX Runtime's `quantize_static` writes it (format QDQ).

Activations are unsigned with a zero point, weights signed and symmetric, one scale for each output
channel, biases int32; each is followed by its DequantizeLinear, and the engines fuse what belongs
together. Written here because the original takes half a minute over a large network, most of it
for saving it again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from ...core.types import Array
from .layers import Graph

WEIGHT_TOP = 63
"""Seven bits, as `reduce_range` gives: of eight, x86 without VNNI would saturate the sums of
products in 16 bits, and the answers would depend on the processor."""
OUTPUT_AXIS: Mapping[str, int] = {"Conv": 0, "Gemm": 0, "MatMul": 1}
SHARED = ("MaxPool", "Flatten")
"""Operators whose output has its input's scale: they move numbers and make no new ones."""


def activations(graph: Graph, kinds: Collection[str]) -> list[str]:
    """Give the names of what flows into and out of operators of these kinds, input first."""
    names: dict[str, None] = {}
    for node in graph.nodes:
        if node.op_type in kinds:
            names.update((name, None) for name in node.input if name not in graph.weights)
            names[node.output[0]] = None
    return list(names)


def quantize(
    graph: Graph, kinds: Collection[str], ranges: Mapping[str, tuple[float, float]]
) -> Graph:
    """Rewrite a network with numbers of eight bits in and out of operators of these kinds.

    Args:
        graph: float32; left as it is.
        kinds: of operators.
        ranges: least and most that each name of `activations` took.

    """
    made = Graph()
    writer = _Writer(made, graph, set(activations(graph, kinds)), ranges)
    nodes = _without_relu(graph.nodes, kinds)
    if "input" in writer.quantized:
        writer.pair("input", "input", "input")
    for node in nodes:
        writer.node(node, node.op_type in kinds)
    return made


def _without_relu(nodes: Iterable[Any], kinds: Collection[str]) -> list[Any]:
    """Leave out each Relu behind an operator of these kinds: a zero point of 0 clips as it does."""
    from onnx import NodeProto

    nodes = list(nodes)
    uses = Counter(name for node in nodes for name in node.input)
    kept: dict[str, Any] = {}
    """By name of the output, in order."""
    for node in nodes:
        before = kept.get(node.input[0]) if node.op_type == "Relu" else None
        if before is not None and uses[node.input[0]] == 1 and before.op_type in kinds:
            del kept[node.input[0]]
            joined = NodeProto()
            joined.CopyFrom(before)
            joined.output[0] = node.output[0]
            node = joined  # noqa: PLW2901 - takes its place
        kept[node.output[0]] = node
    return list(kept.values())


class _Writer:
    """Writes nodes and their pairs of QuantizeLinear and DequantizeLinear."""

    def __init__(
        self,
        made: Graph,
        source: Graph,
        quantized: set[str],
        ranges: Mapping[str, tuple[float, float]],
    ) -> None:
        self.quantized = quantized
        self._made = made
        self._weights = source.weights
        self._ranges = ranges
        self._scales: dict[str, tuple[str, str]] = {}
        """Names of scale and zero point of each activation."""

    def node(self, node: Any, wanted: bool) -> None:
        """Write one node, its weights before it and the pair of its output behind it."""
        from onnx import NodeProto

        copy = NodeProto()
        copy.CopyFrom(node)
        for position, name in enumerate(node.input):
            if name in self._weights:
                if wanted and self._weights[name].dtype == np.float32:
                    copy.input[position] = self._weight(node, position)
                else:
                    self._made.constant(name, self._weights[name])
            elif name in self.quantized:
                copy.input[position] = f"{name}_DequantizeLinear_Output"
        (output,) = node.output
        self._made.nodes.append(copy)
        if output not in self.quantized:
            return
        if node.op_type in SHARED:
            self._scales[output] = self._scales[node.input[0]]
        if output == "output":  # keeps its name for those who ask for it
            copy.output[0] = f"{output}_QuantizeLinear_Input"
            self.pair(output, copy.output[0], output, output)
        else:
            self.pair(output, output, output)

    def pair(self, name: str, given: str, stem: str, result: str | None = None) -> None:
        """Write the pair of an activation, with the scale that its range asks for."""
        if name not in self._scales:
            least, most = self._ranges[name]
            least, most = min(least, 0.0), max(most, 0.0)
            scale = np.float32(max(most - least, 1e-8) / 255)
            zero = np.uint8(np.clip(np.rint(-least / scale), 0, 255))
            self._scales[name] = (
                self._made.constant(f"{stem}_scale", scale),
                self._made.constant(f"{stem}_zero_point", zero),
            )
        ways = self._scales[name]
        small = self._made.add("QuantizeLinear", [given, *ways], f"{stem}_QuantizeLinear_Output")
        self._made.add(
            "DequantizeLinear", [small, *ways], result or f"{stem}_DequantizeLinear_Output"
        )

    def _weight(self, node: Any, position: int) -> str:
        """Write a weight in integers and its DequantizeLinear; give the latter's output."""
        name = node.input[position]
        array = self._weights[name]
        if position == 2:
            axis, scale = 0, self._bias_scale(node)
            whole = np.rint(array / scale).astype(np.int32)
        elif node.op_type in OUTPUT_AXIS:
            axis = OUTPUT_AXIS[node.op_type]
            others = tuple(i for i in range(array.ndim) if i != axis)
            scale = _scale(np.abs(array).max(axis=others))
            spread = scale.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
            whole = np.rint(array / spread).astype(np.int8)
        else:
            axis, scale = None, _scale(np.abs(array).max())
            whole = np.rint(array / scale).astype(np.int8)
        inputs = [
            self._made.constant(f"{name}_quantized", whole),
            self._made.constant(f"{name}_scale", scale),
            self._made.constant(f"{name}_zero_point", np.zeros(scale.shape, whole.dtype)),
        ]
        attributes = {} if axis is None else {"axis": axis}
        return self._made.add("DequantizeLinear", inputs, f"{name}_DequantizeLinear", **attributes)

    def _bias_scale(self, node: Any) -> Array:
        """Give the scale of a bias, that of the product it is added to."""
        inputs, _ = self._scales[node.input[0]]
        product: Array = self._made.weights[inputs] * self._made.weights[f"{node.input[1]}_scale"]
        return product


def _scale(top: Any) -> Array:
    scale: Array = np.asarray(np.maximum(top, 1e-8) / WEIGHT_TOP, np.float32)
    return scale
