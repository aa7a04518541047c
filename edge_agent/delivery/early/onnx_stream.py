"""An ONNX file read from its front, as it arrives: its nodes, then its weights one by one.

Writers of protocol buffers put fields in the order of their numbers, so nodes come before weights;
what the network takes and gives comes behind them, and is looked for in the file's last bytes,
which are asked for early. What is found there is compared when the file is whole.

Source: onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...core.types import TensorSpec
from ...models.files.protobuf import DamagedError, Field, Sliceable, fields
from .growing_file import GrowingFile, UnfitError

MAX_GRAPH_BYTES = 4 * 2**20
"""Of all nodes: what an engine's parser makes of them is 40 times as much at the worst."""
TAIL_BYTES = 64 * 1024
_OLDEST = 4
"""The first version of the format in which weights are no inputs."""

# Fields of a model, of its graph, and of what they hold.
_IR_VERSION, _GRAPH, _OPSET, _FUNCTION = 1, 7, 8, 25
_NODE, _NAME, _INITIALIZER, _SPARSE, _INPUT, _OUTPUT = 1, 2, 5, 15, 11, 12
_BEHIND = frozenset({10, 11, 12, 13, 14, 16})
"""What may follow the weights of a graph."""
_TAKES, _GIVES, _OPERATOR, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7
_BRANCHES = frozenset({6, 11})
_TENSOR_NAME, _RAW, _EXTERNAL, _LOCATION = 8, 9, 13, 14

TYPES: Mapping[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}
"""By NumPy's name of it, the number of a type."""
_NAMES = {number: name for name, number in TYPES.items()}


class Node(NamedTuple):
    """One operation."""

    operator: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    field: bytes
    """As it is in the file."""


class Tensor(NamedTuple):
    """Where the weights of one name lie."""

    name: str
    begin: int
    end: int
    raw: tuple[int, int, int] | None
    """Where its numbers are bytes: the start of their field, their begin and their end."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands behind the weights."""

    start: int
    """Where the graph's part of it begins."""
    inputs: Mapping[str, bytes]
    """By name, as it is in the file."""
    outputs: Mapping[str, bytes]
    opsets: bytes


class OnnxFile:
    """A file on its way; to be read in this order: nodes, ends, tensors."""

    def __init__(self, data: GrowingFile, begin: int, end: int) -> None:
        """Wait for the first bytes.

        Args:
            data: the package.
            begin: of the file in it.
            end: of the file in it.

        Raises:
            UnfitError: it is no file that can be read like this.

        """
        self._data = data
        self.begin, self.end = begin, end
        self.front = b""
        """Fields of the model that come before its graph."""
        for field in _fields(data, begin, end):
            if field.number == _GRAPH:
                break
            if field.end - begin > MAX_GRAPH_BYTES:
                raise UnfitError("much comes before its graph")
            if field.number == _IR_VERSION and field.value < _OLDEST:
                raise UnfitError("it is of an old version of ONNX")
            if field.number < _GRAPH:
                self.front += data.read(field.start, field.end)
        else:
            raise UnfitError("it has no graph")
        self.graph = (field.begin, field.end)
        self._walk = _fields(data, *self.graph)
        self._first: Field | None = None

    @property
    def tail(self) -> tuple[int, int]:
        """The bytes that `ends` needs."""
        return max(self.graph[0], self.graph[1] - TAIL_BYTES), self.end

    def nodes(self) -> list[Node]:
        """Wait for all nodes.

        Raises:
            UnfitError: they do not come first, are too many, hold graphs of their own, or are
            none of the standard's.

        """
        found: list[Node] = []
        for field in self._walk:
            if field.number == _INITIALIZER:
                self._first = field
                return found
            if field.end - self.graph[0] > MAX_GRAPH_BYTES:
                raise UnfitError("its nodes are too many")
            if field.number == _NODE:
                found.append(_node(self._data.read(field.start, field.end)))
        raise UnfitError("it has no weights of its own")

    def ends(self) -> Ends:
        """Wait for what the network takes and gives, without its weights.

        Raises:
            UnfitError: it is not among the last bytes.

        """
        start = self.tail[0]
        opsets = b""
        for field in _fields(self._data, self.graph[1], self.end):
            if field.number == _OPSET:
                opsets += self._data.read(field.start, field.end)
            elif field.number in {_GRAPH, _FUNCTION}:
                raise UnfitError("it has functions of its own")
        data = self._data.read(start, self.graph[1])
        at = data.find(_TAG_INPUT)
        while at >= 0:
            try:
                inputs, outputs = _values(data[at:])
            except (UnfitError, UnicodeDecodeError):
                at = data.find(_TAG_INPUT, at + 1)
                continue
            return Ends(start + at, inputs, outputs, opsets)
        raise UnfitError("what it takes and gives is not among its last bytes")

    def tensors(self, ends: Ends) -> Iterator[Tensor]:
        """Give the weights, each when it is there.

        Raises:
            UnfitError: something else is among them, or *ends* was no more than a resemblance.

        """
        last = self._first
        while last is not None and last.number == _INITIALIZER:
            tensor = self._tensor(last)
            self._data.wait(last.start, last.end)
            if tensor.name in ends.inputs:
                raise UnfitError("its weights are inputs, too")
            yield tensor
            last = next(self._walk, None)
        if last is None or last.start != ends.start:
            raise UnfitError("its parts come in another order")

    def _tensor(self, field: Field) -> Tensor:
        name, raw = "", None
        for part in _fields(self._data, field.begin, field.end):
            if part.number == _TENSOR_NAME:
                name = self._data.read(part.begin, part.end).decode("utf-8", "replace")
            elif part.number == _RAW:
                raw = (part.start, part.begin, part.end)
            elif part.number == _EXTERNAL or (part.number == _LOCATION and part.value):
                raise UnfitError("its weights lie in another file")
        return Tensor(name, field.begin, field.end, raw)


def declared(name: str, value: bytes) -> TensorSpec:
    """Read what a network says of something that it takes or gives.

    Raises:
        UnfitError: it is no tensor of numbers, or has no shape.

    """
    at = (0, len(value))
    # The way down to the tensor's type: field, value, type, tensor.
    for number in (None, 2, 1):
        found = [f for f in _fields(value, *at) if number is None or f.number == number]
        if not found:
            raise UnfitError(f"{name} is no tensor")
        at = (found[-1].begin, found[-1].end)
    parts = {field.number: field for field in _fields(value, *at)}
    if 1 not in parts or 2 not in parts or parts[1].value not in _NAMES:
        raise UnfitError(f"{name} is no tensor of numbers whose shape is known")
    shape: list[int | None] = []
    for size in _fields(value, parts[2].begin, parts[2].end):
        known = [f.value for f in _fields(value, size.begin, size.end) if f.number == 1]
        shape.append(known[-1] if known and 0 < known[-1] < 2**31 else None)
    return TensorSpec(name, tuple(shape), _NAMES[parts[1].value])


def _fields(data: Sliceable, at: int, end: int) -> Iterator[Field]:
    """Give the fields of a message, which may have to arrive first.

    Raises:
        UnfitError: it is no message.

    """
    try:
        yield from fields(data, at, end)
    except DamagedError as problem:
        raise UnfitError(str(problem)) from None


_TAG_INPUT = bytes([_INPUT << 3 | 2])


def _node(data: bytes) -> Node:
    (whole,) = _fields(data, 0, len(data))
    takes, gives, operator, domain = [], [], "", ""
    for part in _fields(data, whole.begin, whole.end):
        if part.number == _ATTRIBUTE:
            if any(f.number in _BRANCHES for f in _fields(data, part.begin, part.end)):
                raise UnfitError("it has branches or loops")
        elif part.number in {_TAKES, _GIVES, _OPERATOR, _DOMAIN}:
            text = data[part.begin : part.end].decode("utf-8", "replace")
            if part.number == _TAKES:
                takes.append(text)
            elif part.number == _GIVES:
                gives.append(text)
            elif part.number == _OPERATOR:
                operator = text
            else:
                domain = text
    if domain not in {"", "ai.onnx"}:
        raise UnfitError(f"operator {domain}.{operator} is none of the standard's")
    return Node(operator, tuple(takes), tuple(gives), data)


def _values(data: bytes) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Read inputs and outputs, if *data* is nothing but what follows the weights.

    Raises:
        UnfitError: it is not.
        UnicodeDecodeError: likewise.

    """
    found: dict[int, dict[str, bytes]] = {_INPUT: {}, _OUTPUT: {}}
    for field in _fields(data, 0, len(data)):
        if field.number not in _BEHIND:
            raise UnfitError("something else")
        if field.number in found:
            parts = {part.number: part for part in _fields(data, field.begin, field.end)}
            if 1 not in parts or 2 not in parts:
                raise UnfitError("something without name or type")
            name = data[parts[1].begin : parts[1].end].decode("utf-8")
            found[field.number][name] = data[field.start : field.end]
    if not found[_INPUT] or not found[_OUTPUT]:
        raise UnfitError("nothing goes in, or comes out")
    return found[_INPUT], found[_OUTPUT]
