"""Finds the quantization at an ONNX network's input that can be cut off without changing a number.

What lies between the input and its quantization may move numbers about, but not change them. A
network that is built otherwise is left as it is, and the reason is returned.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ModelError
from ...core.types import Kind
from ...models.decoders import DECODERS
from ...models.files import onnx_schema as proto
from ...models.files.external_weights import Data
from ...models.files.onnx_reader import (
    Node,
    Span,
    Value,
    contents,
    map_file,
    name_bytes,
    printable,
    read_integer,
    read_name,
    read_node,
    read_value,
)
from ...models.files.onnx_schema import FLOAT, INT8, UINT8
from ...models.files.protobuf import Field, fields, number_at
from ...models.manifest import ModelFolder
from .cut import InputCut
from .fold import Fold

log = logging.getLogger(__name__)

MOST = 64
"""Tensors between an input and its quantization: YOLOX, which takes a picture apart, has seven."""

_ONNX = frozenset({"", "ai.onnx"})
_QUANTIZERS = frozenset({*_ONNX, "com.microsoft"})
# These pass on the numbers that they take, whatever their type is, and nothing else …
_MOVERS = frozenset(
    {"Concat", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
# … and these do not use them.
_SIZES = frozenset({"Shape", "Size"})
# Convolutions do these on the way.
_CLAMPS = frozenset({"Clip", "Relu"})
_ATTRIBUTES = frozenset({"axis", "saturate", "output_dtype", "block_size"})


def cut_for(folder: ModelFolder, kind: Kind) -> InputCut | None:
    """Find the cut for the network of a model, or None if there is none, and the log says why.

    Only for pictures: their pixels have so few values. Only where the decoder does not compare the
    outputs with the inputs, whose numbers it needs.
    """
    spec = folder.manifest.input
    if kind != "picture" or DECODERS[folder.manifest.decoder].compares_input:
        return None
    found = find(folder.network, spec.tensor, spec.fixed)
    if isinstance(found, str):
        log.debug("model %s: its input is not folded: %s", folder.manifest.id, found)
        return None
    return found


def find(
    network: Path, tensor: str | None = None, constants: Container[str] = ()
) -> InputCut | str:
    """Find what can be cut off; or return why nothing can.

    Args:
        network: an ONNX file.
        tensor: the input that takes the sample; None: the only one that is not constant.
        constants: names of inputs that always get the same.
    """
    if network.suffix.lower() != ".onnx":
        return f"{network.name} is no ONNX file"
    try:
        with map_file(network) as data:
            return _find(data, network, tensor, constants)
    except UnfoldableError as reason:
        return printable(str(reason))
    except (ModelError, ValueError, IndexError) as problem:
        # Loading it raises what is wrong with it.
        return f"{network.name} cannot be looked into: {problem}"


def _find(data: Data, network: Path, tensor: str | None, constants: Container[str]) -> InputCut:
    graph = Graph(data)
    inputs = graph.inputs()
    names = [name for name in inputs if name not in constants]
    if tensor is not None:
        names = [name for name in names if name == tensor]
    if len(names) != 1:
        raise UnfoldableError(f"{len(names)} inputs might take the sample")
    (given,) = names
    if inputs[given].dtype != FLOAT:
        raise UnfoldableError(f"{given} does not take float32")
    way = _Way(graph, given)
    scale, zero = way.step
    fold = Fold(given, "int8" if zero.dtype == INT8 else "uint8", scale.value, int(zero.value))
    back = None if way.back is None else frozenset(way.back)
    sizes = inputs[given].shape or ()
    convolved = len(sizes) == 4 and sizes[1] == 3 and way.convolved()
    return InputCut(network, fold, way.quantizers, frozenset(way.passed), back, convolved)


class _Way:
    """The nodes between an input and its quantization."""

    def __init__(self, graph: Graph, given: str) -> None:
        """Follow an input to its quantization.

        Raises:
            UnfoldableError: some of its numbers are used as they are, or quantized differently.
        """
        self.passed = [given]
        self.quantizers: dict[int, tuple[str, str]] = {}
        self.back: set[int] | None = set()
        self._shape_is_read = False
        self._graph = graph
        steps: set[tuple[Scalar, Scalar]] = set()
        joined: set[str] = set()
        for name in self.passed:  # it grows meanwhile
            if name in graph.outputs:
                raise UnfoldableError(f"{name} is an output, too")
            if len(self.passed) > MOST:
                raise UnfoldableError(f"more than {MOST} tensors lie before its quantization")
            for node in graph.users(name):
                if node.operator == "QuantizeLinear" and node.domain in _QUANTIZERS:
                    steps.add(self._quantizer(node, name))
                elif node.operator in _MOVERS and node.domain in _ONNX:
                    others = node.inputs[1:] if node.inputs[0] == name else node.inputs
                    if node.operator == "Concat":
                        joined.update(node.inputs)
                    elif name in others:
                        raise UnfoldableError(f"{node.operator} goes by {name}")
                    if node.outputs[0] not in self.passed:
                        self.passed.append(node.outputs[0])
                elif node.operator in _SIZES and node.domain in _ONNX:
                    self._shape_is_read = True
                else:
                    raise UnfoldableError(f"{node.operator} takes {name} as it is")
        if joined - set(self.passed):
            raise UnfoldableError("other numbers are joined to the input's before they are steps")
        if len(steps) != 1:
            raise UnfoldableError("is quantized in several ways" if steps else "is not quantized")
        (self.step,) = steps

    def convolved(self) -> bool:
        """Whether the steps are at once convolved, in eight bits, and nothing else is done."""
        if self._shape_is_read or len(self.passed) > 1 or len(self.quantizers) != 1:
            return False
        ((_, steps),) = self.quantizers.values()
        users = list(self._graph.users(steps))
        if self.back:
            users = [after for user in users for after in self._graph.users(user.outputs[0])]
        return bool(users) and all(self._in_eight_bits(user) for user in users)

    def _in_eight_bits(self, node: Node) -> bool:
        """Whether a convolution is computed in eight bits: weights and result are quantized."""
        if node.operator == "QLinearConv":
            return True
        if node.operator != "Conv":
            return False
        weights = self._graph.maker(node.inputs[1])
        after = list(self._graph.users(node.outputs[0]))
        if len(after) == 1 and after[0].operator in _CLAMPS:
            after = list(self._graph.users(after[0].outputs[0]))
        return (
            weights is not None
            and weights.operator == "DequantizeLinear"
            and [each.operator for each in after] == ["QuantizeLinear"]
        )

    def _quantizer(self, node: Node, name: str) -> tuple[Scalar, Scalar]:
        """Read scale and zero point of a quantization, and check that the way ends there."""
        if node.inputs[0] != name or name in node.inputs[1:]:
            raise UnfoldableError("the input is a scale")
        if not node.attributes.keys() <= _ATTRIBUTES or self._graph.integer(node, "block_size"):
            raise UnfoldableError("its quantization is of another kind")
        scale = self._graph.scalar(node.inputs[1])
        if len(node.inputs) > 2 and node.inputs[2]:
            zero = self._graph.scalar(node.inputs[2])
        else:
            zero = Scalar(self._graph.integer(node, "output_dtype") or UINT8, 0)
        fits = scale.dtype == FLOAT and 0 < scale.value < math.inf and zero.dtype in {UINT8, INT8}
        if not fits:
            raise UnfoldableError("its quantization is not to eight bits of float32")
        (steps,) = node.outputs
        if steps in self._graph.outputs:
            raise UnfoldableError("its steps are an output, too")
        self.quantizers[node.position] = (name, steps)
        # Two quantizations one behind the other are made one by ONNX Runtime, with other numbers.
        for user in self._graph.users(steps):
            back = user.operator == "DequantizeLinear"
            if back and any(
                n.operator == "QuantizeLinear" for n in self._graph.users(user.outputs[0])
            ):
                raise UnfoldableError("it is quantized twice")
            if not (back and len(user.inputs) > 2 and user.inputs[1:] == node.inputs[1:]):
                self.back = None
            elif self.back is not None:
                self.back.add(user.position)
        return scale, zero


_SMALL = 1024
"""Bytes of a tensor of one number at most, its name included."""


class UnfoldableError(Exception):
    """The input is left as it is, for this reason."""


class Scalar(NamedTuple):
    """A tensor of one number."""

    dtype: int
    """TensorProto.DataType."""
    value: float


class Graph:
    """The main graph of a model."""

    def __init__(self, data: Data) -> None:
        """Find where everything lies.

        Raises:
            ValueError: it is not an ONNX file.
            UnfoldableError: it has no graph, or several pieces of one.
        """
        self._data = data
        graphs = [each for each in fields(data, 0, len(data)) if each.number == proto.MODEL_GRAPH]
        if len(graphs) != 1:
            raise UnfoldableError("it has no graph, or one in pieces")
        found: dict[int, list[Field]] = {}
        for field in fields(data, graphs[0].begin, graphs[0].end):
            found.setdefault(field.number, []).append(field)
        self._nodes = found.get(proto.GRAPH_NODE, [])
        self._initializers = found.get(proto.GRAPH_INITIALIZER, [])
        self._inputs = found.get(proto.GRAPH_INPUT, [])
        self.outputs = {
            read_name(data, (each.begin, each.end), proto.VALUE_NAME)
            for each in found.get(proto.GRAPH_OUTPUT, [])
        }

    def inputs(self) -> dict[str, Value]:
        """Return the inputs that must be fed: those that are not initializers."""
        values = [read_value(self._data, (each.begin, each.end)) for each in self._inputs]
        named = {value.name: value for value in values}
        if len(named) > 1:
            for each in self._initializers:
                named.pop(read_name(self._data, (each.begin, each.end), proto.TENSOR_NAME), None)
        return named

    def users(self, name: str) -> Iterator[Node]:
        """Iterate over the nodes that take a tensor.

        Raises:
            UnfoldableError: one takes it within a branch or loop.
        """
        for node in self._mentioning(name):
            if self._is_used_within(name, node.attributes.values()):
                raise UnfoldableError(f"{name} is used within {node.operator}")
            if name in node.inputs:
                yield node

    def maker(self, name: str) -> Node | None:
        """Find the node that makes a tensor."""
        return next((node for node in self._mentioning(name) if name in node.outputs), None)

    def scalar(self, name: str) -> Scalar:
        """Read a constant of one number.

        Raises:
            UnfoldableError: it is no constant, or not one number.
        """
        wanted = name_bytes(name)
        for each in self._initializers:
            span = (each.begin, each.end)
            if (
                each.end - each.begin <= _SMALL
                and self._data.find(wanted, *span) >= 0
                and read_name(self._data, span, proto.TENSOR_NAME) == name
            ):
                return self._one_number(span, name)
        for node in self._mentioning(name):
            if node.outputs == (name,) and node.operator == "Constant":
                for attribute in node.attributes.values():
                    for span in contents(self._data, attribute, {proto.ATTRIBUTE_TENSOR}):
                        return self._one_number(span, name)
        raise UnfoldableError(f"{name} is not one number that is known")

    def integer(self, node: Node, attribute: str) -> int:
        """Read an attribute that is a whole number; 0 where it is not there."""
        span = node.attributes.get(attribute, (0, 0))
        return read_integer(self._data, span, proto.ATTRIBUTE_INT)

    def _mentioning(self, name: str) -> Iterator[Node]:
        """Iterate over the nodes whose bytes hold a name."""
        wanted = name_bytes(name)
        for position, field in enumerate(self._nodes):
            if self._data.find(wanted, field.begin, field.end) >= 0:
                yield read_node(self._data, field, position)

    def _is_used_within(self, name: str, attributes: Iterable[Span]) -> bool:
        """Whether anything within a branch or loop takes a tensor."""
        wanted = name_bytes(name)
        return any(
            self._data.find(wanted, *graph) >= 0 and self._is_used_by_graph(name, graph)
            for attribute in attributes
            for graph in contents(self._data, attribute, proto.ATTRIBUTE_GRAPHS)
        )

    def _is_used_by_graph(self, name: str, graph: Span) -> bool:
        for field in fields(self._data, *graph):
            if field.number == proto.GRAPH_OUTPUT:
                if read_name(self._data, (field.begin, field.end), proto.VALUE_NAME) == name:
                    return True
            elif field.number == proto.GRAPH_NODE:
                node = read_node(self._data, field)
                if name in node.inputs or self._is_used_within(name, node.attributes.values()):
                    return True
        return False

    def _one_number(self, span: Span, name: str) -> Scalar:
        dtype, found = 0, b""
        for field in fields(self._data, *span):
            content = self._data[field.begin : field.end]
            match field.number:
                case proto.TENSOR_TYPE:
                    dtype = field.value
                case proto.TENSOR_RAW | proto.TENSOR_FLOATS:
                    found = content
                case proto.TENSOR_INT32S:
                    # One number, alone or as a packed list of one: the same bytes.
                    found = bytes([number_at(content, 0)[0] & 0xFF])
                case proto.TENSOR_DIMS if content.strip(b"\1"):
                    break
        else:
            if dtype == proto.FLOAT and len(found) == 4:
                return Scalar(dtype, struct.unpack("<f", found)[0])
            if dtype in {proto.UINT8, proto.INT8} and len(found) == 1:
                code = "<b" if dtype == proto.INT8 else "<B"
                return Scalar(dtype, struct.unpack(code, found)[0])
        raise UnfoldableError(f"{name} is not one number for the whole input")
