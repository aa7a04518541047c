"""Protocol buffers, read where they lie and written field by field; no parser, no classes.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from .arrived import UnfitError

_LONGEST = 20
"""Bytes that tag and length of a field can take."""


class Readable(Protocol):
    """Something that gives bytes by their place."""

    def read(self, start: int, stop: int) -> bytes: ...


class Held:
    """Bytes that are all there."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]


class Field(NamedTuple):
    """Where a field of a message lies."""

    number: int
    start: int
    """Of its tag."""
    begin: int
    """Of its content."""
    end: int
    value: int
    """Of a number; of anything else 0."""


def fields(data: Readable, at: int, end: int) -> Iterator[Field]:
    """Give the fields of the message from *at* to *end*; no content is read.

    Raises:
        UnfitError: it is no message.

    """
    while at < end:
        head = data.read(at, min(at + _LONGEST, end))
        tag, size = _number(head, 0)
        value = 0
        begin = at + size
        match tag & 7:
            case 0:
                value, size = _number(head, size)
                stop = at + size
            case 1:
                stop = begin + 8
            case 2:
                length, size = _number(head, size)
                begin = at + size
                stop = begin + length
            case 5:
                stop = begin + 4
            case _:
                raise UnfitError("a field of a kind that does not exist")
        if stop > end or tag < 8:
            raise UnfitError("a field that is longer than its message")
        yield Field(tag >> 3, at, begin, stop, value)
        at = stop


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint, 64 bits at most; gives where it ends, too."""
    value = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise UnfitError("a number that does not end")


def message(number: int, content: bytes) -> bytes:
    """Write a field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def numeral(number: int, value: int) -> bytes:
    """Write a field of a number."""
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """Write a number of seven bits a byte, lowest first."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
