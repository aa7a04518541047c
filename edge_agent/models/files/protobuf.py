"""Protocol buffers, read where they lie and written field by field; no parser, no classes.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

_LONGEST = 20
"""Bytes that tag and length of a field can take."""


class DamagedError(ValueError):
    """Bytes that are no message."""


class Sliceable(Protocol):
    """Something that gives bytes by their place: bytes, a mapped file."""

    def __getitem__(self, place: slice, /) -> bytes: ...


class Field(NamedTuple):
    """Where a field of a message lies."""

    number: int
    start: int
    """Of its tag."""
    end: int
    begin: int
    """Of its content."""
    value: int
    """Of a number; of anything else 0."""


def fields(data: Sliceable, at: int, end: int) -> Iterator[Field]:
    """Give the fields of the message from *at* to *end*; no content is read.

    Raises:
        DamagedError: it is no message.

    """
    while at < end:
        head = data[at : min(at + _LONGEST, end)]
        tag, size = number_at(head, 0)
        value = 0
        begin = at + size
        match tag & 7:
            case 0:
                value, size = number_at(head, size)
                stop = at + size
            case 1:
                stop = begin + 8
            case 2:
                length, size = number_at(head, size)
                begin = at + size
                stop = begin + length
            case 5:
                stop = begin + 4
            case _:
                raise DamagedError("a field of a kind that does not exist")
        if stop > end or tag < 8:
            raise DamagedError("a field that is longer than its message")
        yield Field(tag >> 3, at, stop, begin, value)
        at = stop


def number_at(data: Sliceable, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first; give it and the place behind it.

    Raises:
        DamagedError: it does not end within 64 bits.

    """
    value = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DamagedError("a number that does not end")


def message(number: int, content: bytes) -> bytes:
    """Write a field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def numeral(number: int, value: int) -> bytes:
    """Write a field of a number."""
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """Write a number, as `number_at` reads it."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
