"""Plain tar archives: written deterministically, read strictly.

The format is POSIX.1-1988 "ustar": 512 bytes of header, the content, zeros up to the next 512.
Reading accepts what `tar cf` on any system makes from plain files and folders and refuses the rest
by name: links, devices, sparse files, paths that lead elsewhere. Independent of models and keys.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ...core.errors import ModelError

RECORD = 512
MAX_MEMBERS = 1000
MAX_DEPTH = 8
MAX_NAME_BYTES = 255
_CHUNK = 1 << 20

Read = Callable[[int], bytes]
"""Returns the next bytes of a stream, at most the given number; b"" at its end."""


@dataclass(frozen=True, slots=True)
class Member:
    """The header of one member."""

    name: str
    """Relative path without leading "./", checked by `check_name`."""
    size: int
    kind: Literal["file", "folder"]


def header(name: str, size: int) -> bytes:
    """Return the header of a plain file, reproducible: owner 0, mode 0644, time 0.

    Raises:
        ModelError: the name or the size does not fit this format.
    """
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, 0
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        raise ModelError(
            f"{name}: the name or the size does not fit a package; shorten it"
        ) from None


def padding(size: int) -> bytes:
    """Return the zeros that pad a content of *size* bytes to whole records."""
    return bytes(-size % RECORD)


def check_name(name: str, where: str) -> str:
    """Check that a member's name stays inside the folder it is unpacked to; return it normalized.

    Raises:
        ModelError: it does not.
    """
    plain = name.removeprefix("./").rstrip("/") or "."
    parts = plain.split("/")
    bad = (
        name.startswith("/")
        or ".." in parts
        or "" in parts
        or ("." in parts and plain != ".")
        or "\\" in name
        or not name.isprintable()
    )
    if bad:
        raise ModelError(f"{where}: member {name!r} does not stay inside the model folder")
    if len(parts) > MAX_DEPTH or len(plain.encode()) > MAX_NAME_BYTES:
        raise ModelError(
            f"{where}: member {name[:80]!r}… is too deep or too long;"
            f" at most {MAX_DEPTH} levels and {MAX_NAME_BYTES} bytes"
        )
    return plain


class TarReader:
    """Reads one member after another, once, and accounts for every byte."""

    def __init__(self, read: Read, length: int, where: str) -> None:
        self._read = read
        self._left = length
        self._where = where
        self._content = 0
        self._padding = 0
        self._headers = 0
        self.frame = bytearray()
        """All bytes read so far that are not a file's content."""

    def next(self) -> Member | None:
        """Return the next member, or None at the end; read the previous one's content first.

        Raises:
            ModelError: it is not a plain file or folder, or not a tar at all.
        """
        if self._content:
            raise AssertionError("the content of the member before has not been read")
        # The padding after the last content may be missing: nothing depends on it.
        self._frame(min(self._padding, self._left))
        self._padding = 0
        longer_name: str | None = None
        while self._left:
            record = self._frame(RECORD)
            if not record.strip(b"\0"):
                self._end()
                return None
            self._headers += 1
            if self._headers > 2 * MAX_MEMBERS:
                raise ModelError(f"{self._where}: more than {MAX_MEMBERS} members")
            name, size, kind = _fields(record, self._where)
            if size > self._left:
                raise ModelError(
                    f"{self._where}: member {name!r}: {size} bytes announced, {self._left} there"
                )
            if kind == b"x":
                longer_name = self._extended(size)
                continue
            return self._member(longer_name or name, size, kind)
        return None

    def content(self) -> Iterator[bytes]:
        """Read the content of the current member in pieces."""
        while self._content:
            data = self._exactly(min(self._content, _CHUNK))
            self._content -= len(data)
            yield data

    def _member(self, name: str, size: int, kind: bytes) -> Member:
        if kind not in {b"0", b"\0", b"5"}:
            raise ModelError(
                f"{self._where}: member {name!r} is {_KINDS.get(kind, 'of an unknown kind')};"
                " only plain files and folders can be in a package (tar --format=ustar -h)"
            )
        plain = check_name(name, self._where)
        if kind == b"5":
            if size:
                raise ModelError(f"{self._where}: folder {name!r} has {size} bytes of content")
            return Member(plain, 0, "folder")
        if plain == "." or name.endswith("/"):
            raise ModelError(f"{self._where}: member {name!r} is a file with the name of a folder")
        self._content, self._padding = size, -size % RECORD
        return Member(plain, size, "file")

    def _extended(self, size: int) -> str | None:
        r"""Read a pax header, which Python's tarfile writes for a time with fractions.

        Source: POSIX.1-2001, pax, "Extended Header": records "length key=value\n".
        """
        if size > 8 * RECORD:
            raise ModelError(
                f"{self._where}: extended header of {size} bytes, at most {8 * RECORD}"
            )
        data = bytes(self._frame(size))
        self._frame(min(-size % RECORD, self._left))
        name = None
        while data:
            digits, _, rest = data.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) < 5 else 0
            key, equals, value = rest[: max(0, length - len(digits) - 1)].partition(b"=")
            if not equals or not value.endswith(b"\n"):
                raise ModelError(f"{self._where}: damaged extended header")
            if key == b"path":
                name = _text(value[:-1], self._where)
            elif key not in _HARMLESS:
                raise ModelError(
                    f"{self._where}: extended header {key.decode('ascii', 'replace')!r};"
                    " make the archive with tar --format=ustar"
                )
            data = data[length:]
        return name

    def _end(self) -> None:
        """Check that nothing follows the end of the archive."""
        if self._left > _CHUNK or self._frame(self._left).strip(b"\0"):
            raise ModelError(f"{self._where}: something follows the end of the archive")

    def _frame(self, count: int) -> bytes:
        data = self._exactly(count)
        self.frame += data
        return data

    def _exactly(self, count: int) -> bytes:
        """Read exactly this many bytes."""
        parts: list[bytes] = []
        missing = count
        while missing:
            data = self._read(missing) if missing <= self._left else b""
            if not data:
                raise ModelError(f"{self._where}: is cut off")
            parts.append(data)
            missing -= len(data)
            self._left -= len(data)
        return b"".join(parts)


_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"7": "a contiguous file",
    b"g": "a global extended header",
    b"L": "a long name in GNU's manner",
    b"K": "a long link in GNU's manner",
    b"S": "a sparse file",
}
_HARMLESS = frozenset(
    {b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment"}
)


def _fields(record: bytes, where: str) -> tuple[str, int, bytes]:
    """Return name, size, and kind from a header record."""
    magic = record[257:265]
    if magic not in {b"ustar\x0000", b"ustar  \0"}:
        mend = "; unpack it first" if record[:2] in {b"\x1f\x8b", b"PK", b"BZ"} else ""
        raise ModelError(f"{where}: is not a plain tar archive{mend}")
    # The checksum counts its own field as eight spaces.
    expected = sum(record) - sum(record[148:156]) + 8 * 0x20
    if _octal(record[148:156], where) != expected:
        raise ModelError(f"{where}: damaged header of a member")
    name = record[:100].split(b"\0", 1)[0]
    prefix = record[345:500].split(b"\0", 1)[0]
    # GNU tar's own format has other fields where ustar has the beginning of a long name.
    if prefix and magic == b"ustar\x0000":
        name = prefix + b"/" + name
    return _text(name, where), _octal(record[124:136], where), record[156:157]


def _octal(field: bytes, where: str) -> int:
    digits = field.strip(b" \0")
    if not digits or digits.strip(b"01234567"):
        raise ModelError(f"{where}: damaged number in the header of a member")
    return int(digits, 8)


def _text(name: bytes, where: str) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{where}: the name of a member is not UTF-8: {name!r}") from None
