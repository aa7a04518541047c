"""How much a network's first convolution amplifies a picture, which tells how large pixels are.

What comes out of it was normalized in training, to about 1, and exporters fold that into its
weights: of a network for pixels of 0 to 255 they are some 60 times smaller than of the same one for
pixels with ImageNet's mean and scale. Families differ among each other by a factor of 20, so this
decides within one of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...core.errors import ModelError
from ...core.types import Array
from .check_ir import MOST_NUMBERS, first_kernel
from .check_onnx import external_place, parse
from .facts import NetworkFacts
from .onnx_schema import DTYPES, EXTERNAL
from .strip_weights import place_of

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto

FOR_PIXELS, FOR_NORMALIZED = 0.4, 2.5
"""Most gain of a YOLOX for pixels of 0 to 255, and least of one for pixels that are normalized:
YOLOX-nano's are 0.13 and, of its first release, 7.8."""
FOR_DIVIDED = 0.2
"""Least gain of a network for pixels divided by 255. YOLOv5's to v12's are 4.3 and more, and
FastestDet's 1.5; for pixels that are not divided they were 255 times smaller."""
_NOT_FOLDED = frozenset({"BatchNormalization", "BatchNormInference"})
_UNCHANGED = frozenset(
    {
        *("Cast", "Concat", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Slice"),
        *("SpaceToDepth", "Split", "Transpose"),
    }
)
"""Operators that leave a picture's numbers as they are."""
_READ = frozenset({"float16", "float32", "float64", "int8", "uint8", "int32"})


def first_gain(facts: NetworkFacts) -> float | None:
    """Return the gain of the first convolution of a network that has been checked.

    Returns:
        The root mean square, over its outputs, of the norm of their weights; None: its weights
        cannot be read, are not normalized, or something computes before it.
    """
    if facts.operators & _NOT_FOLDED:
        return None
    network = facts.files[0]
    try:
        kernel = None
        if facts.kind == "onnx":
            kernel = _onnx_kernel(network)
        elif facts.kind == "ir":
            kernel = first_kernel(network)
    except (ModelError, OSError, LookupError, ValueError):
        return None  # computed in another way, or the file has changed since
    if kernel is None or kernel.ndim != 4 or not kernel.size:
        return None
    numbers = kernel.astype(float)
    return float(np.sqrt((numbers * numbers).sum() / len(numbers)))


def _onnx_kernel(network: Path) -> Array | None:
    """Return the weights of the first convolution of an ONNX file, output channels first."""
    graph = parse(network).graph
    first = next((each for each in graph.node if each.op_type in {"Conv", "QLinearConv"}), None)
    if first is None:
        return None
    constants = _Constants(network, graph)
    name = first.input[0]
    for _ in graph.node:
        node = constants.makers.get(name)
        if node is None:
            break
        if node.op_type not in _UNCHANGED:
            return None
        name = node.input[0]
    if first.op_type == "Conv":
        return constants.computed(first.input[1])
    return constants.dequantized(first.input[3:6])


class _Constants:
    """The constants of an ONNX file, read one by one."""

    def __init__(self, network: Path, graph: GraphProto) -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._network = network

    def computed(self, name: str) -> Array | None:
        """Return a constant that is stored as it is, or as integers with their scale."""
        node = self.makers.get(name)
        if node is None:
            return self._numbers(self._tensors[name]) if name in self._tensors else None
        if node.op_type == "DequantizeLinear":
            return self.dequantized(node.input)
        if node.op_type in {"Cast", "Identity"}:
            return self._numbers(self._tensors[node.input[0]])
        values = [each.t for each in node.attribute if each.name == "value"]
        return self._numbers(values[0]) if node.op_type == "Constant" and values else None

    def dequantized(self, names: Sequence[str]) -> Array | None:
        """Return integers times their scale, one or one for each output."""
        numbers, scale, *zero = (self._numbers(self._tensors[name]) for name in names)
        if numbers is None or scale is None or scale.size not in {1, *numbers.shape[:1]}:
            return None
        each = (-1, *[1] * (numbers.ndim - 1))
        numbers = numbers.astype(float)
        if zero and zero[0] is not None:
            numbers -= np.broadcast_to(zero[0].reshape(each), numbers.shape)
        return numbers * scale.reshape(each)

    def _numbers(self, tensor: TensorProto) -> Array | None:
        """Read a tensor; None: it is too large, or stored in an unusual way."""
        kind, bits = DTYPES.get(tensor.data_type, ("", 0))
        count = prod(tensor.dims)
        size = count * bits // 8
        if kind not in _READ or count > MOST_NUMBERS:
            return None
        if tensor.data_location == EXTERNAL:
            where = str(self._network)
            path, offset = external_place(tensor, size, self._network, where)
            numbers = np.fromfile(path, kind, count, offset=offset)
        elif place := place_of(tensor.doc_string):
            numbers = np.fromfile(self._network, kind, count, offset=place[0])
        elif tensor.HasField("raw_data"):
            numbers = np.frombuffer(tensor.raw_data, kind)
        elif kind == "float32":
            numbers = np.array(tensor.float_data, kind)
        else:
            return None
        return numbers.reshape(tuple(tensor.dims))
