"""The ONNX reader: nodes, tensors, and values of a file, each with the place of its bytes.

Reads `bytes`, a mapped file, and a file that is still being written (see `Sliceable`); weights are
never read, and the file is never in memory as a whole. Bytes of names that are not UTF-8 are
preserved.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ModelError
from . import onnx_schema as proto
from .protobuf import LENGTH, DamagedError, Field, Sliceable, fields

MAX_DEPTH = 60
"""Most levels of nested messages; a graph within a node takes three."""

Span = tuple[int, int]
"""Offsets of the first byte and of the one after the last."""


class Node(NamedTuple):
    """One operation."""

    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Span]
    """Their bytes, by name."""
    field: Field
    """The node's field in its graph."""


class Tensor(NamedTuple):
    """A constant: its type and shape, and where its numbers are."""

    name: str
    dtype: int
    """TensorProto.DataType."""
    span: Span
    """Place of the message."""
    raw: Field | None
    """The numbers as raw bytes; None: they are not stored like that."""
    data: Span
    """The longest of the fields with numbers, raw or not; empty if it has none."""
    external: Mapping[str, str]
    """Entries about external data; they may exist even if the data is not external."""
    is_external: bool


class Value(NamedTuple):
    """An input or output of a graph, as declared."""

    name: str
    dtype: int | None
    """TensorProto.DataType; None: none is declared, or it is not a tensor."""
    shape: tuple[int | None, ...] | None
    """Sizes, None for an open one; None: no shape is declared."""


def map_file(path: Path) -> mmap:
    """Map a file for reading.

    Raises:
        ModelError: it cannot be read, or is empty.
    """
    try:
        with path.open("rb") as file:
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except OSError as problem:
        raise ModelError(f"{path}: cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise ModelError(f"{path}: cannot be read: {problem}") from None


def printable(text: str) -> str:
    """Return a text that contains names in a form that can be printed."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_node(data: Sliceable, field: Field) -> Node:
    """Read a node; its attributes are not decoded."""
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
    return Node(operator, domain, tuple(inputs), tuple(outputs), attributes, field)


def read_tensor(data: Sliceable, span: Span) -> Tensor:
    """Read a tensor except its numbers; if a field is repeated, the last one counts."""
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
    dtype: int | None = None
    shape: tuple[int | None, ...] | None = None
    kind = find(data, span, proto.VALUE_TYPE)
    for part in fields(data, *find(data, kind, proto.TYPE_TENSOR)):
        if part.number == proto.TENSOR_ELEMENT:
            dtype = part.value
        elif part.number == proto.TENSOR_SHAPE:
            sizes = contents(data, (part.begin, part.end), {proto.SHAPE_SIZE})
            shape = tuple(_size(data, size) for size in sizes)
    return Value(read_name(data, span, proto.VALUE_NAME), dtype, shape)


def _size(data: Sliceable, span: Span) -> int | None:
    """Read one size of a shape; None if it is open, or impossible for an array."""
    numbers = [part.value for part in fields(data, *span) if part.number == proto.SIZE_NUMBER]
    return numbers[-1] if numbers and 0 < numbers[-1] < 2**31 else None


def read_name(data: Sliceable, span: Span, number: int) -> str:
    """Read the field of a message that is its name; empty if absent."""
    begin, end = find(data, span, number)
    return _decode(data[begin:end])


def find(data: Sliceable, span: Span, number: int) -> Span:
    """Find the content of a field, the last one if it is repeated; (0, 0): it is absent."""
    return [(0, 0), *contents(data, span, {number})][-1]


def contents(data: Sliceable, span: Span, numbers: Container[int]) -> Iterator[Span]:
    """Iterate over the contents of the fields with these numbers."""
    for part in fields(data, *span):
        if part.number in numbers:
            yield part.begin, part.end


def iter_tensors(
    data: Sliceable, span: Span, message: str = "model", depth: int = 0
) -> Iterator[Tensor]:
    """Iterate over all tensors of a model, also sparse ones, in functions and nested graphs.

    Raises:
        DamagedError: it is not a model, or is nested more than `MAX_DEPTH` deep.
    """
    if depth > MAX_DEPTH:
        raise DamagedError("messages within messages, too deep")
    if message == proto.TENSOR:
        yield read_tensor(data, span)
        return
    inner = proto.TENSORS_WITHIN[message]
    for part in fields(data, *span):
        if part.number in inner:
            yield from iter_tensors(data, (part.begin, part.end), inner[part.number], depth + 1)


def _text(data: Sliceable, field: Field) -> str:
    return _decode(data[field.begin : field.end])


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
