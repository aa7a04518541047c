"""The ONNX reader: nodes, tensors and values of a file, each with where its bytes lie.

Reads `bytes`, a mapped file, and a file that is still being written (see `Sliceable`); weights are
never read, nor is the file ever whole in memory. Names are text whose bytes are not lost where they
are not UTF-8: `name_bytes` turns them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ModelError
from . import onnx_schema as proto
from .protobuf import LENGTH, DamagedError, Field, Sliceable, fields

MAX_DEPTH = 60
"""Messages within messages; each graph within a node takes three."""

Span = tuple[int, int]
"""First byte, and the one after the last."""


class Node(NamedTuple):
    """One operation."""

    position: int
    """Among the nodes of its graph."""
    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Span]
    """By name; `read_attribute` reads them."""
    field: Field
    """In its graph."""


class Attribute(NamedTuple):
    """What an attribute of a node holds."""

    integer: int
    tensors: tuple[Span, ...]
    graphs: tuple[Span, ...]
    sparse: tuple[Span, ...]


class Tensor(NamedTuple):
    """A constant: what it is, and where its numbers lie."""

    name: str
    dtype: int
    """TensorProto.DataType."""
    span: Span
    """Of the message."""
    raw: Field | None
    """Numbers as bytes."""
    data: Span
    """The longest of the fields with numbers, raw or not; empty where there is none."""
    external: Mapping[str, str]
    """Entries of its external data; they may be there though the data is not external."""
    is_external: bool


class Value(NamedTuple):
    """An input or output of a graph, as declared."""

    name: str
    dtype: int | None
    """TensorProto.DataType; None: none is declared, or it is not a tensor."""
    shape: tuple[int | None, ...] | None
    """None for a size that is left open; None: no shape is declared."""


def map_file(path: Path) -> mmap:
    """Map a file for reading.

    Raises:
        ModelError: it cannot be read, or is empty.

    """
    try:
        with path.open("rb") as file:
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as problem:
        raise ModelError(f"{path}: cannot be read: {problem}") from None


def name_bytes(name: str) -> bytes:
    """Return the bytes of a name as they are in the file."""
    return name.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """Return a text with names in it as one that can be written out."""
    return name_bytes(text).decode("utf-8", "replace")


def read_node(data: Sliceable, field: Field, position: int = -1) -> Node:
    """Read a node; of its attributes only the names."""
    inputs, outputs = [], []
    operator = domain = ""
    attributes: dict[str, Span] = {}
    for part in fields(data, field.begin, field.end):
        match part.number:
            case proto.NODE_INPUT:
                inputs.append(_text(data, part))
            case proto.NODE_OUTPUT:
                outputs.append(_text(data, part))
            case proto.NODE_OPERATOR:
                operator = printable(_text(data, part))
            case proto.NODE_DOMAIN:
                domain = printable(_text(data, part))
            case proto.NODE_ATTRIBUTE:
                span = (part.begin, part.end)
                attributes[read_name(data, span, proto.ATTRIBUTE_NAME)] = span
    return Node(position, operator, domain, tuple(inputs), tuple(outputs), attributes, field)


def read_attribute(data: Sliceable, span: Span) -> Attribute:
    """Read an attribute, as far as it is a whole number or holds tensors or graphs."""
    integer = 0
    tensors: list[Span] = []
    graphs: list[Span] = []
    sparse: list[Span] = []
    for part in fields(data, *span):
        match part.number:
            case proto.ATTRIBUTE_INT:
                integer = part.value
            case proto.ATTRIBUTE_TENSOR | proto.ATTRIBUTE_TENSORS:
                tensors.append((part.begin, part.end))
            case proto.ATTRIBUTE_GRAPH | proto.ATTRIBUTE_GRAPHS:
                graphs.append((part.begin, part.end))
            case proto.ATTRIBUTE_SPARSE | proto.ATTRIBUTE_SPARSES:
                sparse.append((part.begin, part.end))
    return Attribute(integer, tuple(tensors), tuple(graphs), tuple(sparse))


def read_tensor(data: Sliceable, span: Span) -> Tensor:
    """Read all of a tensor but its numbers; where a field comes twice the last one counts."""
    name, dtype, raw, is_external = "", 0, None, False
    longest = (0, 0)
    external: dict[str, str] = {}
    for part in fields(data, *span):
        match part.number:
            case proto.TENSOR_NAME:
                name = _text(data, part)
            case proto.TENSOR_TYPE:
                dtype = part.value
            case proto.TENSOR_DATA_LOCATION:
                is_external = part.value == proto.EXTERNAL
            case proto.TENSOR_EXTERNAL_DATA:
                entry = {p.number: _text(data, p) for p in fields(data, part.begin, part.end)}
                external[entry.get(proto.ENTRY_KEY, "")] = entry.get(proto.ENTRY_VALUE, "")
        if part.wire == LENGTH and part.number in proto.TENSOR_DATA:
            raw = part if part.number == proto.TENSOR_RAW else raw
            longest = max(longest, (part.begin, part.end), key=lambda each: each[1] - each[0])
    return Tensor(name, dtype, span, raw, longest, external, is_external)


def read_value(data: Sliceable, span: Span) -> Value:
    """Read the declaration of an input or output."""
    name = read_name(data, span, proto.VALUE_NAME)
    tensor = find(data, find(data, span, proto.VALUE_TYPE), proto.TYPE_TENSOR)
    if tensor is None:
        return Value(name, None, None)
    dtype: int | None = None
    shape: tuple[int | None, ...] | None = None
    for part in fields(data, *tensor):
        if part.number == proto.TENSOR_ELEMENT:
            dtype = part.value
        elif part.number == proto.TENSOR_SHAPE:
            shape = tuple(
                _size(data, (size.begin, size.end))
                for size in fields(data, part.begin, part.end)
                if size.number == proto.SHAPE_SIZE
            )
    return Value(name, dtype, shape)


def _size(data: Sliceable, span: Span) -> int | None:
    """Read one size of a shape; None: it is open, or is none that an array can have."""
    size = 0
    for part in fields(data, *span):
        if part.number == proto.SIZE_NUMBER:
            size = part.value
    return size if 0 < size < 2**31 else None


def read_name(data: Sliceable, span: Span, number: int) -> str:
    """Read the field of a message that is its name."""
    found = find(data, span, number)
    return "" if found is None else _decode(data[found[0] : found[1]])


def find(data: Sliceable, span: Span | None, number: int) -> Span | None:
    """Find the content of a field; the last, where it comes more than once."""
    found = None
    if span is not None:
        for part in fields(data, *span):
            if part.number == number:
                found = (part.begin, part.end)
    return found


def iter_tensors(data: Sliceable, end: int) -> Iterator[Tensor]:
    """Iterate over every tensor of a model: of functions, of graphs within nodes, sparse ones too.

    Raises:
        DamagedError: it is not a model, or is nested more than `MAX_DEPTH` deep.

    """
    for part in fields(data, 0, end):
        if part.number == proto.MODEL_GRAPH:
            yield from _of_graph(data, (part.begin, part.end), 1)
        elif part.number == proto.MODEL_FUNCTION:
            for inner in fields(data, part.begin, part.end):
                if inner.number == proto.FUNCTION_NODE:
                    yield from _of_node(data, inner, 2)


def _of_graph(data: Sliceable, span: Span, depth: int) -> Iterator[Tensor]:
    if depth > MAX_DEPTH:
        raise DamagedError("graphs within graphs, too deep")
    for part in fields(data, *span):
        if part.number == proto.GRAPH_NODE:
            yield from _of_node(data, part, depth + 1)
        elif part.number == proto.GRAPH_INITIALIZER:
            yield read_tensor(data, (part.begin, part.end))
        elif part.number == proto.GRAPH_SPARSE:
            yield from _of_sparse(data, (part.begin, part.end))


def _of_node(data: Sliceable, field: Field, depth: int) -> Iterator[Tensor]:
    for part in fields(data, field.begin, field.end):
        if part.number == proto.NODE_ATTRIBUTE:
            found = read_attribute(data, (part.begin, part.end))
            for span in found.tensors:
                yield read_tensor(data, span)
            for span in found.sparse:
                yield from _of_sparse(data, span)
            for span in found.graphs:
                yield from _of_graph(data, span, depth + 2)


def _of_sparse(data: Sliceable, span: Span) -> Iterator[Tensor]:
    for part in fields(data, *span):
        if part.number in {proto.SPARSE_VALUES, proto.SPARSE_INDICES}:
            yield read_tensor(data, (part.begin, part.end))


def _text(data: Sliceable, field: Field) -> str:
    return _decode(data[field.begin : field.end])


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
