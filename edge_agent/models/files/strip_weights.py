"""An ONNX file without its weights, made by walking its bytes before any parser sees them.

A parser builds an object for every part of a message, and an empty one takes 2 bytes in the file
but 75 in memory (measured), so a file of 64 MB can cost 5 GB. Here parts are counted as they are
passed, and what is large, the weights, is left where it is: only its place is noted.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from ...core.errors import ModelError
from .protobuf import DamagedError, message, number_at

MAX_PARTS = 2_000_000
"""Fields of all messages, how deep ever; ViT-B/16 has some thousands."""
MAX_DEPTH = 60
MAX_SHORT_BYTES = 512 * 2**20
"""What is left without the weights. Those that are not stored as raw bytes count."""
SMALL = 1024
"""Weights up to this size stay: constants whose values say what a node does."""

_TENSOR = "onnx.TensorProto"


def without_weights(network: Path) -> bytes:
    """Give an ONNX file as a message whose larger tensors have lost their `raw_data`.

    Of such a tensor `doc_string`, which nobody needs, is "offset:length" of its data in the file;
    of all other tensors it is empty. Nothing but these places is read of the weights.

    Raises:
        ModelError: it is no such message, or has too many parts.
        OSError: the file cannot be read.

    """
    if network.stat().st_size == 0:
        return b""
    with network.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Walk(data, network).message(0, len(data), "onnx.ModelProto", 0)


def place_of(doc_string: str) -> tuple[int, int] | None:
    """Read a place as `without_weights` writes it: offset and length."""
    offset, colon, length = doc_string.partition(":")
    return (int(offset), int(length)) if colon else None


@cache
def _inner(kind: str) -> Mapping[int, str]:
    """By number, the fields of a message that are messages themselves, and what they are."""
    return {
        field.number: field.message_type.full_name
        for field in _descriptor(kind).fields
        if field.message_type is not None
    }


@cache
def _descriptor(kind: str) -> Any:
    from onnx import ModelProto

    return ModelProto.DESCRIPTOR.file.pool.FindMessageTypeByName(kind)


class _Walk:
    """One file."""

    def __init__(self, data: mmap.mmap, network: Path) -> None:
        self._data = data
        self._network = network
        self._parts = 0
        tensor = _descriptor(_TENSOR).fields_by_name
        self._raw: int = tensor["raw_data"].number
        self._doc: int = tensor["doc_string"].number

    def message(self, at: int, end: int, kind: str, depth: int) -> bytes:
        """Give the message from *at* to *end* of the file, without its weights."""
        if depth > MAX_DEPTH:
            raise ModelError(f"{self._network}: nested more than {MAX_DEPTH} levels deep")
        inner, is_tensor = _inner(kind), kind == _TENSOR
        pieces: list[bytes] = []
        raw: bytes | None = None
        kept = at
        """From here on nothing has been changed."""
        while at < end:
            start = at
            key, at = self._number(at, end)
            number, form = key >> 3, key & 7
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise ModelError(f"{self._network}: more than {MAX_PARTS} parts")
            if form == 0:
                _, at = self._number(at, end)
                continue
            if form != 2:
                at += {1: 8, 5: 4}.get(form) or self._damaged()
                continue
            length, body = self._number(at, end)
            at = body + length
            if at > end:
                self._damaged()
            if number in inner:
                changed: bytes | None = self.message(body, at, inner[number], depth + 1)
                if changed is not None and len(changed) == length:
                    continue  # nothing was left out of it
                changed = message(number, changed or b"")
            elif is_tensor and number == self._doc:
                changed = b""
            elif is_tensor and number == self._raw:
                # Where a field comes twice the last one counts.
                small = length <= SMALL
                place = f"{body}:{length}".encode()
                raw = self._data[start:at] if small else message(self._doc, place)
                changed = b""
            else:
                continue
            pieces += (self._copy(kept, start, pieces), changed)
            kept = at
        if at > end:
            self._damaged()
        return b"".join((*pieces, self._copy(kept, end, pieces), raw or b""))

    def _copy(self, start: int, end: int, before: list[bytes]) -> bytes:
        """Copy what stays, if with what stayed before it is not too much."""
        size = end - start + sum(map(len, before)) if end - start > 2**20 else 0
        if size > MAX_SHORT_BYTES:
            raise ModelError(
                f"{self._network}: {size} bytes beside its weights, expected at most "
                f"{MAX_SHORT_BYTES}; store weights as raw or external data"
            )
        return self._data[start:end]

    def _number(self, at: int, end: int) -> tuple[int, int]:
        """Read a number; gives where it ends, too."""
        try:
            number, behind = number_at(self._data, at)
        except DamagedError:
            self._damaged()
        return (number, behind) if behind <= end else self._damaged()

    def _damaged(self) -> NoReturn:
        raise ModelError(
            f"{self._network}: not a valid ONNX file: it is cut short, damaged or something else"
        )
