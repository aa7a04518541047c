"""An ONNX file read from the start as it arrives: its nodes, then its weights one by one.

Another process fills the file of the transfer: a read waits until its bytes have arrived. Only
bytes that the writer has authenticated count; it reports how many in `PROGRESS`.

Writers of protocol buffers order fields by their numbers, so nodes come before weights; inputs and
outputs come after them, and are searched for in the file's last bytes, which are requested early.
They are compared again when the file is complete.

Source: onnx.proto.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from ...core.errors import AgentError
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

PROGRESS = struct.Struct("<Q?")
"""How many bytes from the start have arrived, and whether those requested early have."""


class UnfitError(AgentError):
    """The model cannot be run while it arrives; nothing is wrong with it."""


class GrowingFile:
    """The members of a package, in the file of its transfer. Used by one thread."""

    def __init__(self, progress: socket.socket) -> None:
        """Map the file, which may have been unlinked.

        *progress* delivers its descriptor, then records of `PROGRESS`. The file has its full length
        from the start.
        """
        _, (descriptor,), _, _ = socket.recv_fds(progress, PROGRESS.size, 1)
        try:
            self.length = os.fstat(descriptor).st_size
            self.buffer = mmap.mmap(descriptor, self.length, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._progress = progress
        self._have = 0
        self._wish = (0, 0)
        self._granted = False

    def wish(self, start: int, stop: int) -> None:
        """Record which bytes to request early; call it once."""
        self._wish = (start, stop)

    def wait(self, start: int, stop: int) -> None:
        """Wait until some bytes have arrived.

        Raises:
            UnfitError: they are outside the file, or will not come.
        """
        if not 0 <= start <= stop <= self.length:
            raise UnfitError(f"bytes {start} to {stop} of {self.length}")
        wished = self._wish[0] <= start and stop <= self._wish[1]
        while not (stop <= self._have or (wished and self._granted)):
            record = self._progress.recv(PROGRESS.size)
            if not record:
                raise UnfitError("the rest of it did not arrive")
            have, granted = PROGRESS.unpack(record)
            self._have = max(self._have, have)
            self._granted |= granted

    def read(self, start: int, stop: int) -> bytes:
        """Return some bytes as soon as they have arrived."""
        self.wait(start, stop)
        return self.buffer[start:stop]

    def __getitem__(self, place: slice, /) -> bytes:
        return self.read(place.start, place.stop)


MAX_GRAPH_BYTES = 4 * 2**20
"""Limit for all nodes: in an engine's parser they take up to 40 times as much."""
TAIL_BYTES = 64 * 1024
_OLDEST = 4
"""The first version of the format in which weights need not be inputs."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The part of the file after the weights."""

    start: int
    """Offset of the graph's part of it."""
    inputs: Mapping[str, bytes]
    """Inputs by name, as encoded in the file."""
    outputs: Mapping[str, bytes]
    opsets: bytes


class OnnxFile:
    """An arriving file; read in this order: nodes, ends, tensors.

    UnfitError is raised if it cannot be read this way, because it has too many parts, in another
    order, or outside the standard; DamagedError for data that is not a protocol buffer.
    """

    def __init__(self, data: GrowingFile, begin: int, end: int) -> None:
        """Wait for the first bytes of the file, which is in *data* from *begin* to *end*."""
        self._data = data
        self.begin, self.end = begin, end
        self.front = b""
        """Fields of the model before its graph."""
        for field in fields(data, begin, end):
            if field.number == proto.MODEL_GRAPH:
                break
            if field.end - begin > MAX_GRAPH_BYTES:
                raise UnfitError("too much comes before its graph")
            if field.number == proto.MODEL_IR_VERSION and field.value < _OLDEST:
                raise UnfitError("its version of ONNX is too old")
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

    def nodes(self) -> list[Node]:
        """Wait for all nodes."""
        found: list[Node] = []
        for field in self._walk:
            if field.number == proto.GRAPH_INITIALIZER:
                self._first = field
                return found
            if field.end - self.graph[0] > MAX_GRAPH_BYTES:
                raise UnfitError("it has too many nodes")
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
            raise UnfitError(f"operator {node.domain}.{node.operator} is not in the standard")
        return node

    def ends(self) -> Ends:
        """Wait for the network's inputs and outputs, which come after its weights."""
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
        raise UnfitError("its inputs and outputs are not among its last bytes")

    def tensors(self, ends: Ends) -> Iterator[Tensor]:
        """Iterate over the weights, each as it arrives."""
        last = self._first
        while last is not None and last.number == proto.GRAPH_INITIALIZER:
            tensor = read_tensor(self._data, (last.begin, last.end))
            if tensor.external or tensor.is_external:
                raise UnfitError("its weights are in another file")
            self._data.wait(last.start, last.end)
            if tensor.name in ends.inputs:
                raise UnfitError("its weights are inputs, too")
            yield tensor
            last = next(self._walk, None)
        if last is None or last.start != ends.start:
            raise UnfitError("its parts come in another order")


def declared(name: str, field: bytes) -> TensorSpec:
    """Read the declaration of an input or output of a network.

    Raises:
        UnfitError: it is not a tensor of numbers, or has no shape.
    """
    (whole,) = fields(field, 0, len(field))
    value = read_value(field, (whole.begin, whole.end))
    kind, _ = proto.DTYPES.get(value.dtype or 0, ("", 0))
    if kind not in proto.NUMBERS or value.shape is None:
        raise UnfitError(f"{name} is not a tensor of numbers with a known shape")
    return TensorSpec(name, value.shape, kind)


_TAG_INPUT = bytes([proto.GRAPH_INPUT << 3 | 2])


def _values(data: bytes) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return inputs and outputs, if *data* is exactly the part after the weights."""
    found: dict[int, dict[str, bytes]] = {proto.GRAPH_INPUT: {}, proto.GRAPH_OUTPUT: {}}
    for field in fields(data, 0, len(data)):
        if field.number not in proto.GRAPH_AFTER_WEIGHTS:
            raise UnfitError("something else")
        if field.number in found:
            span = (field.begin, field.end)
            name = read_name(data, span, proto.VALUE_NAME)
            if not name or find(data, span, proto.VALUE_TYPE) == (0, 0):
                raise UnfitError("something without name or type")
            name.encode()  # bytes that are not UTF-8 are not a name
            found[field.number][name] = data[field.start : field.end]
    if not all(found.values()):
        raise UnfitError("it has no inputs or no outputs")
    return found[proto.GRAPH_INPUT], found[proto.GRAPH_OUTPUT]
