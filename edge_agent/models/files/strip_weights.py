"""An ONNX file without its weights, made by scanning its bytes before any parser sees them.

A parser builds an object for every part of a message, and an empty one takes 2 bytes in the file
but 75 in memory (measured), so a file of 64 MB can take 5 GB. Here parts are counted as they are
read, and for the large ones, the weights, only their place is recorded.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...core.errors import ModelError
from .onnx_reader import MAX_DEPTH
from .onnx_schema import TENSOR_DOC, TENSOR_RAW, new_model
from .protobuf import LENGTH, DamagedError, fields, message

MAX_PARTS = 2_000_000
"""Most fields in all messages, at any depth; ViT-B/16 has a few thousand."""
MAX_SHORT_BYTES = 512 * 2**20
"""Most bytes left without the weights. Weights that are not stored as raw bytes count."""
SMALL = 1024
"""Weights up to this many bytes stay: constants whose values control a node."""

_TENSOR = "onnx.TensorProto"


def without_weights(network: Path, data: bytes | mmap.mmap | None = None) -> bytes:
    """Return an ONNX file as a message without the `raw_data` of larger tensors.

    The `doc_string` of such a tensor, otherwise unused, is "offset:length" of its data in the file;
    that of all other tensors is empty. The weights themselves are not read.

    Raises:
        ModelError: it is not such a message, or has too many parts.
        OSError: the file cannot be read.
    """
    if data is not None:
        return _walk(data, network)
    if network.stat().st_size == 0:
        return b""
    with network.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return _walk(mapped, network)


def _walk(data: mmap.mmap | bytes, network: Path) -> bytes:
    try:
        return _Walk(data, network).message(0, len(data), "onnx.ModelProto", 0)
    except DamagedError:
        raise ModelError(
            f"{network}: not a valid ONNX file: it is cut short, damaged or something else"
        ) from None


def place_of(doc_string: str) -> tuple[int, int] | None:
    """Parse a place written by `without_weights`: offset and length."""
    offset, colon, length = doc_string.partition(":")
    return (int(offset), int(length)) if colon else None


@cache
def _inner(kind: str) -> Mapping[int, str]:
    """Return the kinds of the fields of a message that are messages themselves, by number.

    Taken from the parser, not from our own table: in every version of it, each part for which it
    would build an object must be counted.
    """
    descriptor: Any = new_model().DESCRIPTOR.file.pool.FindMessageTypeByName(kind)
    return {
        field.number: field.message_type.full_name
        for field in descriptor.fields
        if field.message_type is not None
    }


class _Walk:
    """The scan of one file."""

    def __init__(self, data: mmap.mmap | bytes, network: Path) -> None:
        self._data = data
        self._network = network
        self._parts = 0

    def message(self, at: int, end: int, kind: str, depth: int) -> bytes:
        """Return the message from *at* to *end* of the file, without its weights."""
        if depth > MAX_DEPTH:
            raise ModelError(f"{self._network}: nested more than {MAX_DEPTH} levels deep")
        inner, is_tensor = _inner(kind), kind == _TENSOR
        pieces: list[bytes] = []
        raw: bytes | None = None
        kept = at
        """Offset from which on nothing has been changed."""
        for field in fields(self._data, at, end):
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise ModelError(f"{self._network}: more than {MAX_PARTS} parts")
            length = field.end - field.begin
            if field.wire != LENGTH:
                continue
            if field.number in inner:
                if not length:
                    continue
                changed = self.message(field.begin, field.end, inner[field.number], depth + 1)
                if len(changed) == length:
                    continue  # nothing was left out of it
                changed = message(field.number, changed)
            elif is_tensor and field.number == TENSOR_DOC:
                changed = b""
            elif is_tensor and field.number == TENSOR_RAW:
                # If a field is repeated, the last one counts.
                small = length <= SMALL
                place = f"{field.begin}:{length}".encode()
                raw = self._data[field.start : field.end] if small else message(TENSOR_DOC, place)
                changed = b""
            else:
                continue
            pieces += (self._copy(kept, field.start, pieces), changed)
            kept = field.end
        return b"".join((*pieces, self._copy(kept, end, pieces), raw or b""))

    def _copy(self, start: int, end: int, before: list[bytes]) -> bytes:
        """Copy a part that stays, unless the total becomes too large."""
        size = end - start + sum(map(len, before)) if end - start > 2**20 else 0
        if size > MAX_SHORT_BYTES:
            raise ModelError(
                f"{self._network}: {size} bytes beside its weights, expected at most "
                f"{MAX_SHORT_BYTES}; store weights as raw or external data"
            )
        return self._data[start:end]
