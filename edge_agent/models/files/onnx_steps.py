"""The steps of the integers that an ONNX network takes or gives, where its graph has them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING

from .onnx_schema import DTYPES, FLOAT

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_RESHAPING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_MOST_RESHAPING = 8
"""Nodes followed between an end of the network and where it quantizes."""
_FORMATS = {"float32": "<f", "int8": "<b", "uint8": "<B"}


Steps = dict[str, tuple[float, int]]
"""Scale and zero point by name."""


def steps_of(graph: GraphProto) -> tuple[Steps, dict[str, float]]:
    """Return the steps of inputs and outputs of integers, and between numbers of float outputs.

    An output of integers has those of the QuantizeLinear that ends in it, one of floats those of
    the DequantizeLinear, an input those of the only DequantizeLinear that takes it, with nodes
    between them that change no number.
    """
    makers = {name: node for node in graph.node for name in node.output}
    takers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            takers.setdefault(name, []).append(node)
    numbers = {tensor.name: tensor for tensor in graph.initializer}

    def taker(name: str) -> NodeProto | None:
        found = takers.get(name, [])
        return found[0] if len(found) == 1 and found[0].input[0] == name else None

    found, floats = {}, {}
    for value in graph.output:
        found[value.name] = _quantizer(value.name, "QuantizeLinear", makers.get, _taken)
        floats[value.name] = _quantizer(value.name, "DequantizeLinear", makers.get, _taken)
    for value in graph.input:
        found[value.name] = _quantizer(value.name, "DequantizeLinear", taker, _made)
    coarse = {name: scale for name, (scale, _) in _steps(floats, numbers).items()}
    return _steps(found, numbers), coarse


def _steps(nodes: Mapping[str, NodeProto | None], numbers: Mapping[str, TensorProto]) -> Steps:
    steps = {name: _step(node, numbers) for name, node in nodes.items() if node is not None}
    return {name: step for name, step in steps.items() if step is not None}


def _taken(node: NodeProto) -> str:
    return node.input[0] if node.input else ""


def _made(node: NodeProto) -> str:
    return node.output[0] if node.output else ""


def _quantizer(
    name: str,
    wanted: str,
    beside: Callable[[str], NodeProto | None],
    onward: Callable[[NodeProto], str],
) -> NodeProto | None:
    """Follow a tensor to the node of type *wanted*; None: another comes first."""
    for _ in range(_MOST_RESHAPING):
        node = beside(name)
        if node is None or node.op_type == wanted:
            return node
        if node.op_type not in _RESHAPING:
            return None
        name = onward(node)
    return None


def _step(node: NodeProto, numbers: Mapping[str, TensorProto]) -> tuple[float, int] | None:
    """Return scale and zero point of a node, if they are one constant each."""
    if len(node.input) != 3:
        return None
    scale, zero = (_number(numbers.get(each)) for each in node.input[1:])
    return None if scale is None or zero is None else (scale, int(zero))


def _number(tensor: TensorProto | None) -> float | None:
    """Return the only number of a constant; None: it has another type or count."""
    if tensor is None or prod(tensor.dims) != 1:
        return None
    if tensor.data_type not in DTYPES:  # a text
        return None
    form = _FORMATS.get(DTYPES[tensor.data_type][0])
    if form is None:
        return None
    if tensor.HasField("raw_data"):
        fits = len(tensor.raw_data) == struct.calcsize(form)
        return float(struct.unpack(form, tensor.raw_data)[0]) if fits else None
    given = tensor.float_data if tensor.data_type == FLOAT else tensor.int32_data
    return float(given[0]) if len(given) == 1 else None
