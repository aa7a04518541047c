"""The ranges of the tensors in a weight file, found without loading it.

Blocks are cut there, so that an unchanged tensor gives an unchanged block. The ranges are only a
hint: a file that is not what its name says has none, and is cut evenly. Whether it can run is only
known once an engine loads it.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from .flatbuffer import Table
from .onnx_reader import iter_tensors, map_file
from .protobuf import DamagedError

Range = tuple[int, int]
"""Offsets of the first byte and of the one after the last, within a file."""


def tensor_ranges(files: Mapping[str, Path]) -> dict[str, list[Range]]:
    """Find the tensors in the files of a model.

    Returns:
        The ranges of the tensors by file name, in the order in which they were found.
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
        elif suffix == ".tflite":
            found[name] += _tflite(path)
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


def _tflite(path: Path) -> list[Range]:
    """Find the buffers of a TensorFlow Lite file."""
    ranges: list[Range] = []
    if path.stat().st_size == 0:
        return ranges
    with map_file(path) as data:
        try:
            for buffer in Table.root(data).tables(4):
                start, length = buffer.vector(0, "<B") or (0, 0)
                if length:
                    ranges.append((start, start + length))
        except DamagedError:
            return ranges
    return ranges


def _npz(path: Path) -> list[Range]:
    """Find the arrays of an .npz, a zip: if inputs do not change, only outputs are sent again."""
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


def _onnx(name: str, path: Path, found: dict[str, list[Range]]) -> None:
    """Find the tensors of an ONNX file, in itself and in the files of its external data."""
    if path.stat().st_size == 0:
        return
    folder = name.rpartition("/")[0]
    with map_file(path) as data:
        try:
            for tensor in iter_tensors(data, (0, len(data))):
                start, end = tensor.data
                if tensor.external:
                    location, offset, length = _external(tensor.external)
                    location = f"{folder}/{location}" if folder else location
                    if location in found:
                        found[location].append((offset, offset + length))
                elif end > start:
                    found[name].append((start, end))
        except DamagedError:
            # The ranges found so far are still good places to cut.
            return


def _external(entries: Mapping[str, str]) -> tuple[str, int, int]:
    """Parse location, offset and length of external data."""
    offset, length = entries.get("offset", "0"), entries.get("length", "0")
    if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in (offset, length)):
        return "", 0, 0
    return entries.get("location", ""), int(offset), int(length)
