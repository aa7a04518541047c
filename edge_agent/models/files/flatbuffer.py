"""A reader of FlatBuffers that reads no byte before checking that it exists.

The library's own reader for Python has no verifier. Source: FlatBuffers, "Internals": numbers are
little-endian; an offset is relative to its own position; a table begins with the signed distance to
its vtable, which lists where in the table each field is, 0 for a missing one.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any

from .protobuf import DamagedError

Buffer = bytes | mmap.mmap
SHARED = 4
"""How often the bytes of a file may be read, on average: a file whose tables all point to the same
long vector would be read forever."""
FREE_BYTES = 2**20

_ALIGNED = 4
"""Alignment of everything in bytes; writers differ about 8, and no reader needs more."""


class Budget:
    """The number of bytes of a file that may still be read."""

    def __init__(self, size: int) -> None:
        self._left = FREE_BYTES + SHARED * size

    def spend(self, count: int) -> None:
        """Count bytes.

        Raises:
            DamagedError: none are left.
        """
        self._left -= count
        if self._left < 0:
            raise DamagedError("its parts lead to the same bytes over and over")


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its offset, and that of its vtable, both within the file."""

    data: Buffer
    at: int
    vtable: int
    fields: int
    size: int
    """Bytes of the table itself."""
    budget: Budget

    @classmethod
    def root(cls, data: Buffer) -> Table:
        """Return a file's root table.

        Raises:
            DamagedError: the file ends too early.
        """
        return cls._at(data, _unsigned(data, 0), Budget(len(data)))

    @classmethod
    def _at(cls, data: Buffer, at: int, budget: Budget) -> Table:
        if at % 4:
            raise DamagedError("a table is misaligned")
        vtable = at - int(_read(data, "<i", at))
        length, size = int(_read(data, "<H", vtable)), int(_read(data, "<H", vtable + 2))
        if length < 4 or length % 2 or size < 4 or vtable % 2:
            raise DamagedError("a table has an impossible size")
        if vtable + length > len(data) or at + size > len(data):
            raise DamagedError("a table reaches beyond the file")
        budget.spend(length + size)
        return cls(data, at, vtable, (length - 4) // 2, size, budget)

    def place(self, field: int, size: int) -> int | None:
        """Return the offset of a field of *size* bytes, or None if the field is absent."""
        if field >= self.fields:
            return None
        offset = int(_read(self.data, "<H", self.vtable + 4 + 2 * field))
        if offset == 0:
            return None
        if offset < 4 or offset + size > self.size or (self.at + offset) % min(size, _ALIGNED):
            raise DamagedError("a field lies outside its table")
        return self.at + offset

    def number(self, field: int, form: str) -> int:
        """Return an integer field in a `struct` format; 0 if the field is absent."""
        at = self.place(field, struct.calcsize(form))
        return 0 if at is None else int(_read(self.data, form, at))

    def table(self, field: int) -> Table | None:
        """Return the table that a field points to, or None if the field is absent."""
        at = self._follow(field)
        return None if at is None else Table._at(self.data, at, self.budget)

    def text(self, field: int) -> str:
        """Return a text field; empty if the field is absent."""
        at = self._follow(field)
        return "" if at is None else self._text(at)

    def tables(self, field: int) -> list[Table]:
        """Return a vector of tables."""
        found = self.vector(field, "<I")
        if found is None:
            return []
        start, count = found
        return [
            Table._at(self.data, place + _unsigned(self.data, place), self.budget)
            for place in range(start, start + 4 * count, 4)
        ]

    def vector(self, field: int, form: str) -> tuple[int, int] | None:
        """Return the offset and number of a vector's items, all in the file; None: it is absent."""
        at = self._follow(field)
        if at is None:
            return None
        return self._vector(at, struct.calcsize(form))

    def numbers(self, field: int, form: str) -> tuple[Any, ...]:
        """Return a vector of numbers in a `struct` format."""
        found = self.vector(field, form)
        if found is None or found[1] == 0:
            return ()
        start, count = found
        return struct.unpack_from(f"<{count}{form.lstrip('<')}", self.data, start)

    def _follow(self, field: int) -> int | None:
        at = self.place(field, 4)
        return None if at is None else at + _unsigned(self.data, at)

    def _vector(self, at: int, size: int) -> tuple[int, int]:
        if at % _ALIGNED:
            raise DamagedError("a vector is misaligned")
        count = _unsigned(self.data, at)
        if at + 4 + count * size > len(self.data):
            raise DamagedError("a vector reaches beyond the file")
        self.budget.spend(4 + count * size)
        return at + 4, count

    def _text(self, at: int) -> str:
        start, count = self._vector(at, 1)
        # Readers in C expect a terminating zero.
        if start + count >= len(self.data) or self.data[start + count] != 0:
            raise DamagedError("a text does not end")
        return self.data[start : start + count].decode("utf-8", "replace")


def _unsigned(data: Buffer, at: int) -> int:
    return int(_read(data, "<I", at))


def _read(data: Buffer, form: str, at: int) -> Any:
    if at < 0 or at + struct.calcsize(form) > len(data):
        raise DamagedError("something lies beyond the file")
    return struct.unpack_from(form, data, at)[0]
