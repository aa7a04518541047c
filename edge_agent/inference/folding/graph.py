"""An ONNX graph, read as far as the way behind an input needs it.

Not by `onnx`: it would be imported for that alone, and makes an object of every weight. Here a node
is taken apart when its bytes hold a name that is looked for; all others are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...models.files import onnx_schema as proto
from ...models.files.external_weights import Data
from ...models.files.onnx_reader import (
    Node,
    Span,
    Value,
    contents,
    name_bytes,
    read_integer,
    read_name,
    read_node,
    read_value,
)
from ...models.files.protobuf import Field, fields, number_at

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
