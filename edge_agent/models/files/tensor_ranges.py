"""Where the tensors lie in a weight file, without loading it.

Blocks are cut there, so that a tensor that has not changed is a block that has not changed. What
is found is a hint and nothing more: of a file that is not what its name says nothing is found, and
it is cut evenly. Whether it is fit to run is seen when an engine loads it.
"""

from __future__ import annotations

import mmap
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Range = tuple[int, int]
"""First byte, and the one after the last, within a file."""

Buffer = mmap.mmap | bytes


def tensor_ranges(files: Mapping[str, Path]) -> dict[str, list[Range]]:
    """Find the tensors in the files of a model.

    Args:
        files: all files of the model, by their names within its folder.

    Returns:
        By name of the file: where its tensors lie, in the order in which they were found.

    """
    found: dict[str, list[Range]] = {name: [] for name in files}
    for name, path in files.items():
        suffix = path.suffix.lower()
        if suffix == ".onnx":
            _onnx(name, path, found)
        elif suffix == ".xml":
            weights = name[: -len(suffix)] + ".bin"
            if weights in found:
                found[weights] += _ir(path)
        elif suffix == ".npz":
            found[name] += _npz(path)
    for name, ranges in found.items():
        size = files[name].stat().st_size
        found[name] = [(start, end) for start, end in ranges if 0 <= start < end <= size]
    return found


def _ir(path: Path) -> list[Range]:
    """Find the constants of an OpenVINO IR: `<data … offset="0" … size="864"/>`."""
    ranges: list[Range] = []
    for tag in re.finditer(rb"<data\b[^>]*>", path.read_bytes()):
        offset = re.search(rb'\boffset="(\d{1,15})"', tag[0])
        size = re.search(rb'\bsize="(\d{1,15})"', tag[0])
        if offset and size:
            ranges.append((int(offset[1]), int(offset[1]) + int(size[1])))
    return ranges


def _npz(path: Path) -> list[Range]:
    """Find the arrays of an .npz, a zip: where inputs stay, only the outputs are sent anew."""
    ranges: list[Range] = []
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for entry in archive.infolist():
                # PKZIP application note 4.3.7: 30 bytes, then a name and an extra field whose
                # lengths are at 26 and 28; they differ from those in the central directory.
                file.seek(entry.header_offset + 26)
                lengths = file.read(4)
                start = entry.header_offset + 30
                start += int.from_bytes(lengths[:2], "little")
                start += int.from_bytes(lengths[2:], "little")
                ranges.append((start, start + entry.compress_size))
    except (zipfile.BadZipFile, NotImplementedError):
        return []
    return ranges


# --- ONNX: the wire format of protocol buffers, and the few field numbers of onnx.proto on the way
# from the model to the bytes of a tensor. Sources: protobuf.dev/programming-guides/encoding, and
# onnx.proto of ONNX 1.19 (ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto …).

_TENSOR, _SPARSE, _ENTRY = "tensor", "sparse", "entry"
_MESSAGES: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: _TENSOR, 15: _SPARSE},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
}
# float, int32, int64, raw, double and uint64 data; each one stretch of bytes.
_DATA = frozenset({4, 5, 7, 9, 10, 11})
_EXTERNAL = 13
_MAX_DEPTH = 64


def _onnx(name: str, path: Path, found: dict[str, list[Range]]) -> None:
    """Find the tensors of an ONNX file, in itself and in the files of its external data."""
    if path.stat().st_size == 0:
        return
    folder = name.rpartition("/")[0]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            for start, end, external in _walk(data, 0, len(data), "model", 0):
                if external:
                    place, offset, length = _external(data, external)
                    place = f"{folder}/{place}" if folder else place
                    if place in found:
                        found[place].append((offset, offset + length))
                elif end > start:
                    found[name].append((start, end))
        except _NotProtobufError:
            # What was found so far are stretches of the file all the same: still good to cut at.
            return


class _NotProtobufError(Exception):
    """The bytes do not follow the wire format."""


def _walk(
    data: Buffer, start: int, end: int, kind: str, depth: int
) -> Iterator[tuple[int, int, list[Range]]]:
    """Give each tensor below a message: the stretch of its data, and its external entries."""
    if depth > _MAX_DEPTH:
        raise _NotProtobufError
    if kind == _TENSOR:
        stretches = [(a, b) for number, a, b in _fields(data, start, end) if number in _DATA]
        entries = [(a, b) for number, a, b in _fields(data, start, end) if number == _EXTERNAL]
        first, last = max(stretches, key=lambda each: each[1] - each[0], default=(0, 0))
        yield first, last, entries
        return
    inner = _MESSAGES[kind]
    for number, a, b in _fields(data, start, end):
        if number in inner:
            yield from _walk(data, a, b, inner[number], depth + 1)


def _external(data: Buffer, entries: Sequence[Range]) -> tuple[str, int, int]:
    """Read location, offset and length of external data."""
    values: dict[bytes, bytes] = {}
    for start, end in entries:
        pair = {number: data[a:b] for number, a, b in _fields(data, start, end)}
        values[bytes(pair.get(1, b""))] = bytes(pair.get(2, b""))
    offset, length = values.get(b"offset", b"0"), values.get(b"length", b"0")
    if not (offset.isdigit() and length.isdigit() and len(offset) < 16 and len(length) < 16):
        return "", 0, 0
    return values.get(b"location", b"").decode("utf-8", "replace"), int(offset), int(length)


def _fields(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Give number and stretch of each length-delimited field of a message; step over the others."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            _, at = _varint(data, at, end)
        elif wire == 1:
            at += 8
        elif wire == 5:
            at += 4
        elif wire == 2:
            length, at = _varint(data, at, end)
            if at + length > end:
                raise _NotProtobufError
            yield number, at, at + length
            at += length
        else:
            raise _NotProtobufError
    if at != end:
        raise _NotProtobufError


def _varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first; give it and the place behind it."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _NotProtobufError
