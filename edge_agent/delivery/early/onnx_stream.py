"""An ONNX file read from its front, as it arrives: its nodes, then its weights one by one.

Writers of protocol buffers put fields in the order of their numbers, so nodes come before weights;
what the network takes and gives comes behind them, and is looked for in the file's last bytes,
which are asked for early. What is found there is compared when the file is whole.

Source: onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from ...core.types import TensorSpec
from ...models.files import onnx_schema as proto
from ...models.files.onnx_reader import (
    Node,
    Span,
    Tensor,
    contents,
    find,
    read_name,
    read_node,
    read_tensor,
    read_value,
)
from ...models.files.protobuf import DamagedError, Field, fields
from .growing_file import GrowingFile, UnfitError

MAX_GRAPH_BYTES = 4 * 2**20
"""Of all nodes: what an engine's parser makes of them is 40 times as much at the worst."""
TAIL_BYTES = 64 * 1024
_OLDEST = 4
"""The first version of the format in which weights are no inputs."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands behind the weights."""

    start: int
    """Where the graph's part of it begins."""
    inputs: Mapping[str, bytes]
    """By name, as it is in the file."""
    outputs: Mapping[str, bytes]
    opsets: bytes


@contextmanager
def _unfit_if_damaged() -> Iterator[None]:
    """Raise UnfitError for bytes that are not a message."""
    try:
        yield
    except DamagedError as problem:
        raise UnfitError(str(problem)) from None


class OnnxFile:
    """A file on its way; to be read in this order: nodes, ends, tensors."""

    @_unfit_if_damaged()
    def __init__(self, data: GrowingFile, begin: int, end: int) -> None:
        """Wait for the first bytes of the file that lies in *data* from *begin* to *end*.

        Raises:
            UnfitError: it is no file that can be read like this.
        """
        self._data = data
        self.begin, self.end = begin, end
        self.front = b""
        """Fields of the model that come before its graph."""
        for field in fields(data, begin, end):
            if field.number == proto.MODEL_GRAPH:
                break
            if field.end - begin > MAX_GRAPH_BYTES:
                raise UnfitError("much comes before its graph")
            if field.number == proto.MODEL_IR_VERSION and field.value < _OLDEST:
                raise UnfitError("it is of an old version of ONNX")
            if field.number < proto.MODEL_GRAPH:
                self.front += data.read(field.start, field.end)
        else:
            raise UnfitError("it has no graph")
        self.graph = (field.begin, field.end)
        self._walk = fields(data, *self.graph)
        self._first: Field | None = None

    @property
    def tail(self) -> Span:
        """The bytes that `ends` needs."""
        return max(self.graph[0], self.graph[1] - TAIL_BYTES), self.end

    @_unfit_if_damaged()
    def nodes(self) -> list[Node]:
        """Wait for all nodes.

        Raises:
            UnfitError: they do not come first, are too many, hold graphs of their own, or are
            none of the standard's.
        """
        found: list[Node] = []
        for field in self._walk:
            if field.number == proto.GRAPH_INITIALIZER:
                self._first = field
                return found
            if field.end - self.graph[0] > MAX_GRAPH_BYTES:
                raise UnfitError("its nodes are too many")
            if field.number == proto.GRAPH_NODE:
                found.append(self._node(field))
        raise UnfitError("it has no weights of its own")

    def _node(self, field: Field) -> Node:
        node = read_node(self._data, field)
        graphs = (
            contents(self._data, span, proto.ATTRIBUTE_GRAPHS) for span in node.attributes.values()
        )
        if any(True for _ in chain.from_iterable(graphs)):
            raise UnfitError("it has branches or loops")
        if node.domain not in {"", "ai.onnx"}:
            raise UnfitError(f"operator {node.domain}.{node.operator} is none of the standard's")
        return node

    @_unfit_if_damaged()
    def ends(self) -> Ends:
        """Wait for what the network takes and gives, without its weights.

        Raises:
            UnfitError: it is not among the last bytes.
        """
        start = self.tail[0]
        opsets = b""
        for field in fields(self._data, self.graph[1], self.end):
            if field.number == proto.MODEL_OPSET:
                opsets += self._data.read(field.start, field.end)
            elif field.number in {proto.MODEL_GRAPH, proto.MODEL_FUNCTION}:
                raise UnfitError("it has functions of its own")
        data = self._data.read(start, self.graph[1])
        at = data.find(_TAG_INPUT)
        while at >= 0:
            try:
                inputs, outputs = _values(data[at:])
            except (UnfitError, DamagedError, UnicodeEncodeError):
                at = data.find(_TAG_INPUT, at + 1)
                continue
            return Ends(start + at, inputs, outputs, opsets)
        raise UnfitError("what it takes and gives is not among its last bytes")

    def tensors(self, ends: Ends) -> Iterator[Tensor]:
        """Iterate over the weights, each when it has arrived.

        Raises:
            UnfitError: something else is among them, or *ends* was no more than a resemblance.
        """
        with _unfit_if_damaged():
            last = self._first
            while last is not None and last.number == proto.GRAPH_INITIALIZER:
                tensor = read_tensor(self._data, (last.begin, last.end))
                if tensor.external or tensor.is_external:
                    raise UnfitError("its weights lie in another file")
                self._data.wait(last.start, last.end)
                if tensor.name in ends.inputs:
                    raise UnfitError("its weights are inputs, too")
                yield tensor
                last = next(self._walk, None)
            if last is None or last.start != ends.start:
                raise UnfitError("its parts come in another order")


@_unfit_if_damaged()
def declared(name: str, field: bytes) -> TensorSpec:
    """Read the declaration of an input or output of a network.

    Raises:
        UnfitError: it is no tensor of numbers, or has no shape.
    """
    (whole,) = fields(field, 0, len(field))
    value = read_value(field, (whole.begin, whole.end))
    kind, _ = proto.DTYPES.get(value.dtype or 0, ("", 0))
    if kind not in proto.NUMBERS or value.shape is None:
        raise UnfitError(f"{name} is no tensor of numbers whose shape is known")
    return TensorSpec(name, value.shape, kind)


_TAG_INPUT = bytes([proto.GRAPH_INPUT << 3 | 2])


def _values(data: bytes) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Read inputs and outputs, if *data* is nothing but what follows the weights.

    Raises:
        UnfitError: it is not.
        DamagedError, UnicodeEncodeError: likewise.
    """
    found: dict[int, dict[str, bytes]] = {proto.GRAPH_INPUT: {}, proto.GRAPH_OUTPUT: {}}
    for field in fields(data, 0, len(data)):
        if field.number not in proto.GRAPH_AFTER_WEIGHTS:
            raise UnfitError("something else")
        if field.number in found:
            span = (field.begin, field.end)
            name = read_name(data, span, proto.VALUE_NAME)
            if not name or find(data, span, proto.VALUE_TYPE) == (0, 0):
                raise UnfitError("something without name or type")
            name.encode()  # bytes that are not UTF-8 are no name
            found[field.number][name] = data[field.start : field.end]
    if not all(found.values()):
        raise UnfitError("nothing goes in, or comes out")
    return found[proto.GRAPH_INPUT], found[proto.GRAPH_OUTPUT]
