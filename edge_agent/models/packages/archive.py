"""A package as one tar: its front, read without interpreting it, and the members after it.

Nothing is trusted: the signature of the front is checked in `package`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ModelError
from ...core.files import disk_errors
from ..manifest import MANIFEST
from .blocks import ENTRY, MAX_BLOCKS, BlockList, reader_of, verified
from .keys import SIGNATURE_BYTES
from .package import BLOCKS, FRONT_NAMES, HEADER, MAX_HEADER, SIGNATURE, PackageHeader, transfer_id
from .tar_folder import Piece, Stream, unpack
from .ustar import RECORD, Read, TarReader

_MAX_TAIL = 1 << 20


@dataclass(frozen=True, slots=True)
class Front:
    """The first three members: the part of a package outside its blocks. Not yet verified."""

    header: bytes
    signature: bytes | None
    block_list: bytes

    @property
    def transfer(self) -> str:
        """The name of this package's transfer."""
        return transfer_id(self.header)


@dataclass(frozen=True, slots=True)
class Archive:
    """A complete tar, of which only the front has been read."""

    where: str
    """Its name in errors."""
    whole: Stream
    front: Front | None
    """None: it was made by hand, and so is unsigned."""
    start: int
    """Offset of the members after the front."""

    def members(self, header: PackageHeader) -> Callable[[int, int], bytes]:
        """Return a reader of the members that make up the blocks, by offset and length.

        Raises:
            ModelError: the archive is truncated, or something follows the last block.
        """
        end = self.start + header.size
        if end > self.whole.length:
            raise ModelError(
                f"{self.where}: is cut off: {header.size} bytes expected after {BLOCKS},"
                f" {self.whole.length - self.start} found"
            )
        tail = self.whole.read(end, min(self.whole.length - end, _MAX_TAIL + 1))
        if len(tail) > _MAX_TAIL or tail.strip(b"\0"):
            raise ModelError(f"{self.where}: something follows the last block")
        start, whole = self.start, self.whole
        return lambda offset, length: whole.read(start + offset, length)


def open_archive(source: bytes | Path, where: str) -> Archive:
    """Open a complete tar, in memory or in a file, and read its front.

    Raises:
        ModelError: it cannot be read, is not a tar, or is truncated in its front.
    """
    with disk_errors(f"{where}: reading the package"):
        length = len(source) if isinstance(source, bytes) else source.stat().st_size
        whole = Stream([Piece(source, length)])
        front, start = _front(TarReader(_sequential(whole), length, where), where)
    return Archive(where, whole, front, start)


def _front(reader: TarReader, where: str) -> tuple[Front | None, int]:
    """Read the first three members."""
    contents: dict[str, bytes] = {}
    limits = {HEADER: MAX_HEADER, SIGNATURE: SIGNATURE_BYTES, BLOCKS: MAX_BLOCKS * ENTRY.size}
    while BLOCKS not in contents:
        member = reader.next()
        if member is None and not contents:
            raise ModelError(f"{where}: is empty, expected a package or a model folder as a tar")
        if member is not None and not contents and member.name != HEADER:
            return None, 0
        if member is None or member.name not in limits or member.name in contents:
            raise ModelError(
                f"{where}: expected {HEADER}, then {SIGNATURE} unless it is unsigned, then"
                f" {BLOCKS}; found {member.name if member else 'the end'}"
            )
        if member.size > limits[member.name]:
            raise ModelError(
                f"{where}: {member.name}: {member.size} bytes, at most {limits[member.name]}"
            )
        contents[member.name] = b"".join(reader.content())
    start = len(reader.frame) + sum(len(data) for data in contents.values())
    start += -start % RECORD
    return Front(contents[HEADER], contents.get(SIGNATURE), contents[BLOCKS]), start


def member_reader(
    header: PackageHeader,
    blocks: BlockList,
    read: Callable[[int, int], bytes],
    taken: Callable[[int], bool] = lambda _index: True,
) -> TarReader:
    """Read the members of a package, each byte only after its block has been checked."""
    return TarReader(reader_of(verified(blocks, read, taken)), header.size, header.id)


def unpack_handmade(archive: Archive, folder: Path) -> None:
    """Unpack a tar that was made by hand into an empty folder.

    It may have one leading folder. Hidden files in it are left out, as `pack` does: some systems'
    tar adds them by itself.

    Raises:
        ModelError: it is not a model, or cannot be unpacked; *folder* then contains part of it.
    """
    where, whole = archive.where, archive.whole
    with disk_errors(f"{where}: unpacking it"):
        names = _visible(TarReader(_sequential(whole), whole.length, where))
        prefix = ""
        if MANIFEST not in names:
            tops = {name.partition("/")[0] for name in names}
            prefix = f"{tops.pop()}/" if len(tops) == 1 else ""
            if f"{prefix}{MANIFEST}" not in names:
                raise ModelError(f"{where}: there is no {MANIFEST} in it")
        for name in FRONT_NAMES:
            if f"{prefix}{name}" in names:
                raise ModelError(
                    f"{where}: {name} is there, but not as the first member; make packages"
                    " with edge-agent pack"
                )

        def rename(name: str) -> str | None:
            return None if _is_hidden(name) else name.removeprefix(prefix)

        unpack(TarReader(_sequential(whole), whole.length, where), folder, where, rename)


def _visible(reader: TarReader) -> set[str]:
    """List the files that are not hidden."""
    names: set[str] = set()
    while member := reader.next():
        for _ in reader.content():
            pass
        if member.kind == "file" and not _is_hidden(member.name):
            names.add(member.name)
    return names


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _sequential(stream: Stream) -> Read:
    """Return a reader of a stream from its beginning on."""
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        data = stream.read(at, count)
        at += len(data)
        return data

    return read
