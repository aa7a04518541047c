"""An ONNX graph, read from its bytes as far as the way behind an input needs it.

Not by `onnx`: it would be imported for that alone, and makes an object of every weight. Here a node
is taken apart when its bytes hold a name that is looked for; all others are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ...models.files.protobuf import fields, number_at
from ...models.files.skeleton import Data

# Numbers of fields in onnx.proto.
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE = 1, 5, 11, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_INTS, ATTRIBUTE_TYPE = 1, 8, 20
_ATTRIBUTE_INT, _ATTRIBUTE_TENSOR = 3, 5
_ATTRIBUTE_GRAPHS = (6, 11)
TENSOR_TYPE, TENSOR_NAME, TENSOR_RAW = 2, 8, 9
_DIMS, _FLOATS, _INTS = 1, 4, 5
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE = 1, 2, 1, 1, 2
_SHAPE_SIZE, _SIZE_NUMBER = 1, 1
OF_INTS = 7
"""The type of an attribute that is a list of whole numbers."""
FLOAT, UINT8, INT8 = 1, 2, 3

_SMALL = 1024
"""Bytes of a tensor of one number at most, its name included."""

Place = tuple[int, int]
"""Where a message begins and ends."""


class UnfoldableError(Exception):
    """Why an input is left as it is."""


class Node(NamedTuple):
    """An operation."""

    number: int
    operator: str
    domain: str
    takes: tuple[bytes, ...]
    gives: tuple[bytes, ...]
    attributes: Mapping[bytes, Place]


class Scalar(NamedTuple):
    """A tensor of one number."""

    kind: int
    """As in `onnx.TensorProto.DataType`."""
    value: float


class Graph:
    """The main graph of a model."""

    def __init__(self, data: Data) -> None:
        """Note where everything lies.

        Raises:
            IndexError, ValueError: it is not an ONNX file.
            UnfoldableError: it has no graph, or several pieces of one.

        """
        self._data = data
        graphs = [
            (a, b) for number, _, b, a, _ in fields(data, 0, len(data)) if number == MODEL_GRAPH
        ]
        if len(graphs) != 1:
            raise UnfoldableError("it has no graph, or one in pieces")
        found: dict[int, list[Place]] = {}
        for number, _, end, begin, _ in fields(data, *graphs[0]):
            found.setdefault(number, []).append((begin, end))
        self._nodes = found.get(GRAPH_NODE, [])
        self._initializers = found.get(GRAPH_INITIALIZER, [])
        self._inputs = found.get(GRAPH_INPUT, [])
        self.outputs = {self._name(place, VALUE_NAME) for place in found.get(GRAPH_OUTPUT, [])}

    def inputs(self) -> dict[bytes, Place]:
        """Give the inputs that must be fed: those that are not initializers."""
        named = {self._name(place, VALUE_NAME): place for place in self._inputs}
        if len(named) > 1:
            for place in self._initializers:
                named.pop(self._name(place, TENSOR_NAME), None)
        return named

    def users(self, name: bytes) -> Iterator[Node]:
        """Give the operations that take a tensor.

        Raises:
            UnfoldableError: one takes it within a branch or loop.

        """
        for number, place in enumerate(self._nodes):
            if self._data.find(name, *place) < 0:
                continue
            node = self._node(number)
            if self._within_takes(name, node.attributes.values()):
                raise UnfoldableError(f"{_text(name)} is used within {node.operator}")
            if name in node.takes:
                yield node

    def scalar(self, name: bytes) -> Scalar:
        """Read a constant of one number.

        Raises:
            UnfoldableError: it is no constant, or not one number.

        """
        for begin, end in self._initializers:
            if (
                end - begin <= _SMALL
                and self._data.find(name, begin, end) >= 0
                and self._name((begin, end), TENSOR_NAME) == name
            ):
                return self._one_number((begin, end), name)
        for number, place in enumerate(self._nodes):
            if self._data.find(name, *place) >= 0:
                node = self._node(number)
                if node.gives == (name,) and node.operator == "Constant":
                    for begin, end in node.attributes.values():
                        for field, inner in self._parts(begin, end):
                            if field == _ATTRIBUTE_TENSOR:
                                return self._one_number(inner, name)
        raise UnfoldableError(f"{_text(name)} is not one number that is known")

    def number(self, node: Node, attribute: bytes) -> int:
        """Read an attribute that is a whole number; 0 where it is not there."""
        begin, end = node.attributes.get(attribute, (0, 0))
        for field, (first, _) in self._parts(begin, end):
            if field == _ATTRIBUTE_INT:
                return number_at(self._data, first)[0]
        return 0

    def element(self, value: Place) -> int:
        """Give the type of an input's numbers; 0 where it says none."""
        place = self._within(self._within(value, VALUE_TYPE), TYPE_TENSOR)
        for field, (first, _) in self._parts(*place):
            if field == TENSOR_ELEMENT:
                return number_at(self._data, first)[0]
        return 0

    def sizes(self, value: Place) -> tuple[int, ...]:
        """Give the sizes of an input; 0 where it leaves one open, none where it says nothing."""
        place = self._within(self._within(value, VALUE_TYPE), TYPE_TENSOR)
        found = []
        for field, size in self._parts(*self._within(place, TENSOR_SHAPE)):
            if field == _SHAPE_SIZE:
                begin, end = self._within(size, _SIZE_NUMBER)
                found.append(number_at(self._data, begin)[0] if begin < end else 0)
        return tuple(found)

    def maker(self, name: bytes) -> Node | None:
        """Give the operation that makes a tensor."""
        for number, place in enumerate(self._nodes):
            if self._data.find(name, *place) >= 0:
                node = self._node(number)
                if name in node.gives:
                    return node
        return None

    def _within_takes(self, name: bytes, attributes: Iterable[Place]) -> bool:
        """Whether anything within a branch or loop takes a tensor."""
        for attribute in attributes:
            for field, graph in self._parts(*attribute):
                if field not in _ATTRIBUTE_GRAPHS or self._data.find(name, *graph) < 0:
                    continue
                for inner, place in self._parts(*graph):
                    if inner == GRAPH_OUTPUT and self._name(place, VALUE_NAME) == name:
                        return True
                    if inner == GRAPH_NODE:
                        node = self._node_at(-1, place)
                        if name in node.takes or self._within_takes(name, node.attributes.values()):
                            return True
        return False

    def _node(self, number: int) -> Node:
        return self._node_at(number, self._nodes[number])

    def _node_at(self, number: int, place: Place) -> Node:
        takes, gives, operator, domain = [], [], "", ""
        attributes: dict[bytes, Place] = {}
        for field, (begin, end) in self._parts(*place):
            if field == NODE_INPUT:
                takes.append(self._data[begin:end])
            elif field == NODE_OUTPUT:
                gives.append(self._data[begin:end])
            elif field == NODE_OP:
                operator = _text(self._data[begin:end])
            elif field == NODE_DOMAIN:
                domain = _text(self._data[begin:end])
            elif field == NODE_ATTRIBUTE:
                attributes[self._name((begin, end), ATTRIBUTE_NAME)] = (begin, end)
        return Node(number, operator, domain, tuple(takes), tuple(gives), attributes)

    def _one_number(self, place: Place, name: bytes) -> Scalar:
        kind, found = 0, b""
        for field, (begin, end) in self._parts(*place):
            if field == TENSOR_TYPE:
                kind = number_at(self._data, begin)[0]
            elif field in {TENSOR_RAW, _FLOATS}:
                found = self._data[begin:end]
            elif field == _INTS:
                found = bytes([number_at(self._data, begin)[0] & 0xFF])
            elif field == _DIMS and self._data[begin:end].strip(b"\1"):
                break
        else:
            if kind == FLOAT and len(found) == 4:
                return Scalar(kind, struct.unpack("<f", found)[0])
            if kind in {UINT8, INT8} and len(found) == 1:
                return Scalar(kind, struct.unpack("<b" if kind == INT8 else "<B", found)[0])
        raise UnfoldableError(f"{_text(name)} is not one number for the whole input")

    def _name(self, place: Place, field: int) -> bytes:
        begin, end = self._within(place, field)
        return self._data[begin:end]

    def _within(self, place: Place, wanted: int) -> Place:
        for field, inner in self._parts(*place):
            if field == wanted:
                return inner
        return (0, 0)

    def _parts(self, begin: int, end: int) -> Iterator[tuple[int, Place]]:
        """Give number and content of each field of a message."""
        for number, _, last, content, _ in fields(self._data, begin, end):
            yield number, (content, last)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
