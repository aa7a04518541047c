"""An ONNX file without its weights: a graph of some kilobytes that says where each tensor lies.

The file is never read as a whole. Its tensors stay where they are and are given to the engine as
stretches of the mapped file, so that a network larger than the memory can be taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap

from ..errors import ModelError

# The wire format of protocol buffers (protobuf.dev/programming-guides/encoding), and the numbers of
# the few fields of onnx.proto on the way to a tensor's bytes.
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9
_TENSOR_EXTERNAL_DATA = 13
_TENSOR_DATA_LOCATION = 14
_EXTERNAL = 1

Data = mmap | bytes

LEAST = 1024
"""Bytes below which a tensor stays in the graph; shapes and scales are looked at while it loads."""


def skeleton(data: Data, location: str, elsewhere: set[str] | None = None) -> bytes:
    """Give the ONNX model in *data* with every large initializer left outside.

    Args:
        data: the whole file, mapped.
        location: by which name the graph refers to the file.
        elsewhere: takes the names of the other files that hold tensors of the graph.

    Raises:
        ModelError: the file is not an ONNX model.

    """
    try:
        parts = []
        for number, start, end, begin in fields(data, 0, len(data)):
            if number == _MODEL_GRAPH:
                parts.append(message(number, _graph(data, begin, end, location, elsewhere)))
            else:
                parts.append(data[start:end])
        return b"".join(parts)
    except (IndexError, ValueError):
        raise ModelError(f"{location}: not a valid ONNX file") from None


def _graph(data: Data, start: int, end: int, location: str, elsewhere: set[str] | None) -> bytes:
    parts = []
    for number, first, last, begin in fields(data, start, end):
        if number == _GRAPH_INITIALIZER:
            parts.append(message(number, _tensor(data, begin, last, location, elsewhere)))
        else:
            parts.append(data[first:last])
    return b"".join(parts)


def _tensor(data: Data, start: int, end: int, location: str, elsewhere: set[str] | None) -> bytes:
    """Copy a tensor; in the place of its bytes, where they are many, say where they lie."""
    parts = []
    for number, first, last, begin in fields(data, start, end):
        if number == _TENSOR_RAW_DATA and last - begin >= LEAST:
            for key, value in (
                ("location", location),
                ("offset", str(begin)),
                ("length", str(last - begin)),
            ):
                entry = message(1, key.encode()) + message(2, value.encode())
                parts.append(message(_TENSOR_EXTERNAL_DATA, entry))
            parts.append(varint(_TENSOR_DATA_LOCATION << 3) + varint(_EXTERNAL))
        else:
            parts.append(data[first:last])
            if number == _TENSOR_EXTERNAL_DATA and elsewhere is not None:
                elsewhere |= _location(data, begin, last)
    return b"".join(parts)


def _location(data: Data, start: int, end: int) -> set[str]:
    """Read the file's name of an entry of a tensor's external data, if that is what it says."""
    entry = {number: data[begin:last] for number, _, last, begin in fields(data, start, end)}
    return {entry[2].decode()} if entry.get(1) == b"location" and 2 in entry else set()


def fields(data: Data, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Give each field of a message: number, where it starts and ends, where its content starts."""
    while at < end:
        start = at
        tag, at = number_at(data, at)
        begin = at
        match tag & 7:
            case 0:
                _, at = number_at(data, at)
            case 1:
                at += 8
            case 2:
                length, begin = number_at(data, at)
                at = begin + length
            case 5:
                at += 4
            case _:
                raise ValueError
        if at > end:
            raise ValueError
        yield tag >> 3, start, at, begin


def number_at(data: Data, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first; give it and the place behind it."""
    value = shift = 0
    while shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError


def message(number: int, content: bytes) -> bytes:
    """Write a field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Write a number, as `number_at` reads it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
