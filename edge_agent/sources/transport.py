"""MPEG transport streams and FLV, split where their video moves to another identifier or codec.

FFmpeg's libraries continue with the stream that they found first, and ignore the other.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

PACKET = 188
BEGIN = 1024
"""Bytes needed to recognize a transport stream."""
_SYNC = ((0, 188), (4, 192), (0, 204))
"""Offset of the first packet and distance to the next: plain, with times, with parity."""
_VIDEO = frozenset((0x01, 0x02, 0x10, 0x1B, 0x20, 0x21, 0x24, 0x33, 0x42, 0xD1, 0xEA))
"""Stream types in a program map that are video."""
FLV = b"FLV\1\5\0\0\0\x09\0\0\0\0"
"""The beginning of a file with sound and video."""
_TAG, _VIDEO_TAG, _NAMED = 16, 9, 0x80
"""Bytes of a tag that name its codec; a video's type; whether it has the codec's four letters."""


class Readable(Protocol):
    """A file that can be read and closed."""

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class TransportFile:
    """A transport stream for PyAV that ends where another video begins."""

    def __init__(self, file: Readable, place: int = 0) -> None:
        """Take over a file whose position is *place*, bytes."""
        self.rest: int | None = None
        """Position of the tables that announce another video; None: not found yet."""
        self._file = file
        self._place = place
        self._carried = b""
        self._maps: dict[int, frozenset[tuple[int, int]]] = {}
        """Types and identifiers of the videos in each program map, by the map's identifier."""
        self._heads = _heads([0])
        self._index = place
        """Position of the last index of program maps."""
        self._listed: set[int] = set()
        """The program maps found since then."""

    def read(self, size: int) -> bytes:
        """Read up to *size* further bytes; b"" at the end."""
        if self.rest is not None:
            return b""
        data = self._file.read(size)
        # The previous read may have ended in the middle of a packet.
        window, began = self._carried + data, self._place - len(self._carried)
        at = 0
        while (found := self._heads.search(window, at)) is not None:
            at = found.start()
            if at + PACKET > len(window):
                break
            if self._changes(window[at : at + PACKET], began + at):
                data = data[: max(0, (self.rest or 0) - self._place)]
                break
            at += 1
        self._carried = window[-PACKET + 1 :]
        self._place += len(data)
        return data

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _changes(self, packet: bytes, place: int) -> bool:
        """Process a packet that may contain a table; return whether a video has disappeared."""
        table = _table(packet)
        if not table:
            return False
        identifier = _identifier(packet[1:])
        if identifier == table[0] == 0:
            # A program of number 0 is no program, but network information.
            programs = [n for n in range(8, len(table) - 3, 4) if table[n : n + 2] != bytes(2)]
            maps = [_identifier(table[n + 2 :]) for n in programs]
            if self._maps and maps and self._maps.keys().isdisjoint(maps):
                self.rest = place  # recordings of two devices in one file
            self._heads = _heads([0, *maps])
            self._index, self._listed = place, set()
        elif table[0] == 2:
            videos = _videos(table) or self._maps.get(identifier, frozenset())
            if not self._maps.setdefault(identifier, videos) <= videos:
                # Without the preceding index, the data cannot be parsed until the next one.
                self.rest = place if identifier in self._listed else self._index
            self._maps[identifier] = videos
            self._listed.add(identifier)
        return self.rest is not None


class FlvFile:
    """An FLV for PyAV that ends where its video has another codec."""

    def __init__(self, file: Readable, place: int = 0) -> None:
        """Take over a file whose position is *place*, bytes: the beginning, or that of a tag."""
        self.rest: int | None = None
        """Position of the first tag of the other codec; None: not found yet."""
        self._file = file
        self._place = place
        self._next = place or len(FLV)
        """Position of the next tag."""
        self._begun = FLV if place else b""
        self._carried = b""
        self._codec: bytes | None = None

    def read(self, size: int) -> bytes:
        """Read up to *size* further bytes; b"" at the end."""
        if self.rest is not None:
            return b""
        if self._begun:
            begun, self._begun = self._begun, b""
            return begun
        data = self._file.read(size)
        window, began = self._carried + data, self._place - len(self._carried)
        while (at := self._next - began) + _TAG <= len(window):
            if self._changes(window[at : at + _TAG]):
                self.rest = self._next
                data = data[: max(0, self.rest - self._place)]
                break
            self._next += 15 + int.from_bytes(window[at + 1 : at + 4])
        self._carried = window[at:]
        self._place += len(data)
        return data

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _changes(self, tag: bytes) -> bool:
        if tag[0] & 31 != _VIDEO_TAG or tag[1:4] == bytes(3):
            return False
        codec = tag[12:16] if tag[11] & _NAMED else bytes([tag[11] & 15])
        before, self._codec = self._codec, codec
        return before not in {None, codec}


Splitting = TransportFile | FlvFile


def open_splitting(path: Path, place: int = 0) -> Splitting | None:
    """Open a file at the position *place*, bytes; None: it is of another format."""
    file = path.open("rb")
    begun = file.read(BEGIN)
    file.seek(place)
    made = splitting(file, begun, place)
    if made is None:
        file.close()
    return made


def splitting(file: Readable, begun: bytes, place: int = 0) -> Splitting | None:
    """Take over a file whose first bytes are given; None: it is of another format."""
    if begun.startswith(FLV[:3]):
        return FlvFile(file, place)
    return TransportFile(file, place) if is_transport(begun) else None


def is_transport(data: bytes) -> bool:
    """Whether these are the first bytes of a transport stream."""
    return any(data[first::step][:4] == b"G" * 4 for first, step in _SYNC)


def _heads(identifiers: list[int]) -> re.Pattern[bytes]:
    """Return a pattern for the headers of packets in which a table of one of these begins."""
    each = (
        b"[%b%b]%b"
        % (
            *(re.escape(bytes([flags | pid >> 8])) for flags in (0x40, 0x60)),
            re.escape(bytes([pid & 255])),
        )
        for pid in identifiers
    )
    return re.compile(b"G(?:%b)[\x10-\x1f\x30-\x3f]" % b"|".join(each), re.DOTALL)


def _table(packet: bytes) -> bytes:
    """Return the table that begins in a packet, up to the packet's end, without its checksum."""
    start = 4
    if packet[3] & 0x20:
        start += 1 + packet[4]
    table = packet[start + 1 + packet[start] :] if start < PACKET else b""
    if len(table) < 12 or table[1] & 0xF0 != 0xB0:
        return b""
    length = 3 + ((table[1] & 15) << 8 | table[2])
    return table[: length - 4]


def _videos(table: bytes) -> frozenset[tuple[int, int]]:
    """Return the types and identifiers of the videos in a program map."""
    found = set()
    at = 12 + ((table[10] & 15) << 8 | table[11])
    while at + 5 <= len(table):
        if table[at] in _VIDEO:
            found.add((table[at], _identifier(table[at + 1 :])))
        at += 5 + ((table[at + 3] & 15) << 8 | table[at + 4])
    return frozenset(found)


def _identifier(data: bytes) -> int:
    return (data[0] & 31) << 8 | data[1]
