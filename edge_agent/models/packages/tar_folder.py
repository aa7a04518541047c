"""Converts a model folder to the bytes of a tar's members, and back.

A package is sent as this stream, so a device that has unpacked it must be able to reproduce any
part of it: `Layout` has the headers, the folder has the contents.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ...core.errors import ModelError
from ...core.files import fault
from .ustar import MAX_MEMBERS, Member, TarReader


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive bytes of a stream, in memory or in a file."""

    source: bytes | Path
    length: int
    offset: int = 0


class Stream:
    """The bytes of several pieces one after another, any part of which can be read."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = tuple(pieces)
        self._ends = tuple(accumulate(piece.length for piece in pieces))
        self.length = self._ends[-1] if self._ends else 0

    def read(self, offset: int, length: int) -> bytes:
        """Read *length* bytes from *offset*.

        Raises:
            ModelError: a file is shorter than it was.
            OSError: a file cannot be read.
        """
        parts: list[bytes] = []
        index = bisect_right(self._ends, offset)
        while length > 0 and index < len(self._pieces):
            piece = self._pieces[index]
            skip = offset - (self._ends[index] - piece.length)
            count = min(length, piece.length - skip)
            part = _part(piece.source, piece.offset + skip, count)
            if len(part) != count:
                raise ModelError(f"{piece.source!s}: is shorter than it was, it has been changed")
            parts.append(part)
            offset, length, index = offset + count, length - count, index + 1
        return b"".join(parts)


def _part(source: bytes | Path, offset: int, count: int) -> bytes:
    if isinstance(source, bytes):
        return source[offset : offset + count]
    with source.open("rb") as file:
        file.seek(offset)
        return file.read(count)


@dataclass(frozen=True, slots=True)
class Layout:
    """How to reassemble an unpacked stream."""

    pieces: tuple[tuple[str | None, int], ...]
    """In order: a file's name and length, or None and how many bytes of the frame follow."""
    frame: bytes

    def stream(self, folder: Path) -> Stream:
        """Rebuild the stream from the files now in *folder*."""
        at = 0
        pieces: list[Piece] = []
        for name, length in self.pieces:
            if name is None:
                pieces.append(Piece(self.frame[at : at + length], length))
                at += length
            else:
                pieces.append(Piece(folder / name, length))
        return Stream(pieces)

    def files(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over the files: name, offset of its content in the stream, and length."""
        end = 0
        for name, size in self.pieces:
            begin, end = end, end + size
            if name is not None:
                yield name, begin, size

    def files_in(self, offset: int, length: int) -> list[str]:
        """List the files that overlap a part of the stream."""
        return [
            name
            for name, begin, size in self.files()
            if begin < offset + length and offset < begin + size
        ]


def unpack(
    reader: TarReader,
    folder: Path,
    where: str,
    rename: Callable[[str], str | None] = str,
    taken: Callable[[int, int], bool] = lambda _offset, _length: True,
) -> Layout:
    """Write all remaining members into *folder*, durably except for the folders' own entries.

    Args:
        reader: positioned at the first of them.
        folder: an existing empty folder.
        where: the archive's name in errors.
        rename: returns the name to write a member under, or None to leave it out.
        taken: whether a file's content is present, by offset in the stream and length; a file that
            is not is left out, but has its place in the layout.

    Raises:
        ModelError: the archive cannot be unpacked; *folder* then contains part of it.
        OSError: the disk is full or broken.
    """
    pieces: list[tuple[str | None, int]] = []
    seen: set[str] = set()
    framed = content = 0
    while member := reader.next():
        pieces.append((None, len(reader.frame) - framed))
        framed = len(reader.frame)
        begin, content = framed + content, content + member.size
        name = rename(member.name)
        if name is None or name == ".":
            for _ in reader.content():
                pass
            continue
        if name in seen:
            raise ModelError(f"{where}: member {name!r} is there twice")
        seen.add(name)
        if len(seen) > MAX_MEMBERS:
            raise ModelError(f"{where}: more than {MAX_MEMBERS} members")
        if taken(begin, member.size):
            _place(reader, member, folder / name, where)
        else:
            for _ in reader.content():
                pass
        if member.kind == "file":
            pieces.append((name, member.size))
            fault("install.file")
    pieces.append((None, len(reader.frame) - framed))
    return Layout(tuple(pieces), bytes(reader.frame))


def _place(reader: TarReader, member: Member, path: Path, where: str) -> None:
    """Create the file or folder of one member."""
    try:
        if member.kind == "folder":
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            return
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except (FileExistsError, NotADirectoryError):
        raise ModelError(f"{where}: member {member.name!r} is both a file and a folder") from None
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(reader.content())
        file.flush()
        os.fsync(descriptor)
