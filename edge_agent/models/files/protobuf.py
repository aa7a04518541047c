"""Protocol buffers: the wire format, read in place and written field by field.

Used instead of a parser, which builds an object for every part of a message: an empty one takes 2
bytes in the file but 75 in memory (measured), so a file of 64 MB can take 5 GB. Here nothing that
has been read is kept.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

_LONGEST = 20
"""Most bytes that the tag and length of a field can take."""
_VARINT_BYTES = 10
"""Most bytes that a 64-bit number can take."""

LENGTH = 2
"""The wire type of messages, texts, bytes, and packed numbers."""


class DamagedError(ValueError):
    """The bytes are not a message."""


class Sliceable(Protocol):
    """Bytes by offset: `bytes`, a mapped file, or one that is still being written."""

    def __getitem__(self, place: slice, /) -> bytes: ...


class Field(NamedTuple):
    """The place of one field of a message."""

    number: int
    wire: int
    """Its wire type."""
    start: int
    """Offset of its tag."""
    begin: int
    """Offset of its content."""
    end: int
    value: int
    """Value of a varint; 0 for any other wire type."""


def fields(data: Sliceable, at: int, end: int) -> Iterator[Field]:
    """Iterate over the fields of the message from *at* to *end*; their content is not read.

    Raises:
        DamagedError: it is not a message.
    """
    while at < end:
        head = data[at : min(at + _LONGEST, end)]
        tag, size = number_at(head, 0)
        wire = tag & 7
        value = 0
        begin = at + size
        if wire == LENGTH:
            length, size = number_at(head, size)
            begin = at + size
            stop = begin + length
        elif wire == 0:
            value, size = number_at(head, size)
            stop = at + size
        elif wire == 1:
            stop = begin + 8
        elif wire == 5:
            stop = begin + 4
        else:
            raise DamagedError("a field of a wire type that does not exist")
        if stop > end or tag < 8:
            raise DamagedError("a field that is longer than its message")
        yield Field(tag >> 3, wire, at, begin, stop, value)
        at = stop


def number_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at *at* (seven bits per byte, lowest first) and the offset after it.

    Raises:
        DamagedError: it does not end within 64 bits.
    """
    if at < len(data) and (value := data[at]) < 0x80:
        return value, at + 1
    value = shift = 0
    for byte in data[at : at + _VARINT_BYTES]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DamagedError("a number that does not end")


def replace_fields(
    data: Sliceable, at: int, end: int, replacement: Callable[[Field], bytes | None]
) -> bytes:
    """Copy the message from *at* to *end*, replacing some of its fields.

    Args:
        data: contains the message.
        at: offset of its first byte.
        end: offset after its last byte.
        replacement: returns the bytes to write instead of a field; None: the field is kept.

    Raises:
        DamagedError: it is not a message.
    """
    parts: list[bytes] = []
    kept = at
    """Everything before this offset has been copied."""
    for field in fields(data, at, end):
        changed = replacement(field)
        if changed is not None:
            parts += (data[kept : field.start], changed)
            kept = field.end
    parts.append(data[kept:end])
    return b"".join(parts)


def message(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field: a message or text."""
    return varint(number << 3 | LENGTH) + varint(len(content)) + content


def numeral(number: int, value: int) -> bytes:
    """Encode a number field."""
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """Encode a number, seven bits per byte, lowest first."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
