"""An ONNX file without its weights: a graph of some kilobytes that says where each tensor lies.

The file is never read as a whole. Its tensors stay where they are and are given to the engine as
stretches of the mapped file, so that a network larger than the memory can be taken apart.
"""

from __future__ import annotations

from mmap import ACCESS_READ, mmap
from pathlib import Path

from ...core.errors import ModelError
from .protobuf import DamagedError, fields, message, numeral

# The numbers of the few fields of onnx.proto on the way to a tensor's bytes.
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9
_TENSOR_EXTERNAL_DATA = 13
_TENSOR_DATA_LOCATION = 14
_EXTERNAL = 1

Data = mmap | bytes

LEAST = 1024
"""Bytes below which a tensor stays in the graph; shapes and scales are looked at while it loads."""


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
        for number, start, end, begin, _ in fields(data, 0, len(data)):
            if number == _MODEL_GRAPH:
                parts.append(message(number, _graph(data, begin, end, location, elsewhere)))
            else:
                parts.append(data[start:end])
        return b"".join(parts)
    except (DamagedError, UnicodeDecodeError):
        raise ModelError(f"{location}: not a valid ONNX file") from None


def _graph(data: Data, start: int, end: int, location: str, elsewhere: set[str] | None) -> bytes:
    parts = []
    for number, first, last, begin, _ in fields(data, start, end):
        if number == _GRAPH_INITIALIZER:
            parts.append(message(number, _tensor(data, begin, last, location, elsewhere)))
        else:
            parts.append(data[first:last])
    return b"".join(parts)


def _tensor(data: Data, start: int, end: int, location: str, elsewhere: set[str] | None) -> bytes:
    """Copy a tensor; in the place of its bytes, where they are many, say where they lie."""
    raw, outside = None, False
    for each in fields(data, start, end):
        if each.number == _TENSOR_RAW_DATA:
            raw = each
        elif each.number == _TENSOR_DATA_LOCATION:
            outside = each.value == _EXTERNAL
    if raw is None or outside or raw.end - raw.begin < LEAST:
        if elsewhere is not None:
            for each in fields(data, start, end):
                if each.number == _TENSOR_EXTERNAL_DATA:
                    elsewhere |= _location(data, each.begin, each.end)
        return data[start:end]
    # Quantisers leave word of where the bytes lie also where they lie here: the last word counts.
    told = {_TENSOR_RAW_DATA, _TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION}
    parts = [data[f.start : f.end] for f in fields(data, start, end) if f.number not in told]
    for key, value in (
        ("location", location),
        ("offset", str(raw.begin)),
        ("length", str(raw.end - raw.begin)),
    ):
        entry = message(1, key.encode()) + message(2, value.encode())
        parts.append(message(_TENSOR_EXTERNAL_DATA, entry))
    parts.append(numeral(_TENSOR_DATA_LOCATION, _EXTERNAL))
    return b"".join(parts)


def _location(data: Data, start: int, end: int) -> set[str]:
    """Read the file's name of an entry of a tensor's external data, if that is what it says."""
    entry = {number: data[begin:last] for number, _, last, begin, _ in fields(data, start, end)}
    return {entry[2].decode()} if entry.get(1) == b"location" and 2 in entry else set()
