"""Rows of `.npy` files and of bare float32 files.

Read in pieces with plain reads. A memory map would kill the whole process (SIGBUS) when another
program cuts the file short while it is mapped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..core.errors import SampleError, SourceError
from ..core.text import naming
from ..core.types import Array

# Rows are read in pieces of at most this many bytes.
PIECE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an array lies in a file, and how."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    """At least two sizes, the first counts the rows."""
    offset: int
    """Bytes before the array."""
    column_major: bool = False

    @property
    def row_values(self) -> int:
        """How many values a row has."""
        return math.prod(self.shape[1:])


class ArrayRows:
    """The rows of one array in a file."""

    columns: tuple[str, ...] = ()
    flaw = None
    rate_hz: float | None = None

    def __init__(self, file: BinaryIO, name: str, layout: Layout) -> None:
        """Make rows of an opened file, which they own from now on; *name* is for errors."""
        self._file = file
        self._name = name
        self._layout = layout
        row_bytes = layout.row_values * max(4, layout.dtype.itemsize)
        self._most = max(1, PIECE // row_bytes)
        self._next = 0

    def read(self, limit: int) -> Array | None:
        """Read up to *limit* rows (n, channels), ending before one with NaN or infinity."""
        start, shape = self._next, self._layout.shape
        count = min(limit, self._most, shape[0] - start)
        if count == 0:
            return None
        try:
            flat = (
                self._columns(start, count)
                if self._layout.column_major
                else (
                    self._values(
                        start * self._layout.row_values, count * self._layout.row_values
                    ).reshape(count, self._layout.row_values)
                )
            )
        except OSError as problem:
            raise SourceError(f"{self._name}: cannot be read: {problem.strerror}") from None
        with np.errstate(over="ignore"):
            rows: NDArray[np.float32] = flat.astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if bad.size and bad[0] == 0:
            self._next = start + 1
            place = int(np.flatnonzero(~np.isfinite(rows[0]))[0])
            raise SampleError(
                f"{self._name}: row {start}, value {place} is not a finite float32 number, "
                f"found {flat[0, place]}"
            )
        count = int(bad[0]) if bad.size else count
        self._next = start + count
        rows = rows[:count].reshape(
            (count, *shape[1:]), order="F" if self._layout.column_major else "C"
        )
        return np.ascontiguousarray(rows)

    def rewind(self) -> None:
        """Go back to the first row."""
        self._next = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _columns(self, start: int, count: int) -> Array:
        """Gather (count, values of a row) from a file that stores column after column."""
        rows = self._layout.shape[0]
        return np.stack(
            [self._values(k * rows + start, count) for k in range(self._layout.row_values)], axis=1
        )

    def _values(self, start: int, count: int) -> Array:
        """Read *count* values from the *start*-th of the file on."""
        size = self._layout.dtype.itemsize
        self._file.seek(self._layout.offset + start * size)
        data = self._file.read(count * size)
        if len(data) < count * size:
            raise SourceError(f"{self._name}: was cut short while it was read")
        return np.frombuffer(data, self._layout.dtype)


def open_raw(path: Path, name: str, channels: int) -> ArrayRows:
    """Open a file of nothing but float32, little endian, *channels* values a row.

    Raises:
        SourceError: it cannot be read, is empty, or does not hold whole rows only: then either
            `channels` is wrong or the file was cut short, and the rows could be shifted.
    """
    file = _open(path, name)
    size, row = path.stat().st_size, 4 * channels
    if size == 0 or size % row:
        file.close()
        found = f"{size} bytes, {size % row} more than {size // row} rows" if size else "no bytes"
        raise SourceError(
            f"{name}: expected rows of {channels} float32 values ({row} bytes), found {found}; "
            "set ?channels= to the number of values a row, or repair the file"
        )
    return ArrayRows(file, name, Layout(np.dtype("<f4"), (size // row, channels), 0))


def open_npy(path: Path, name: str) -> ArrayRows:
    """Open a NumPy array: time by channels, or any more sizes as ready model inputs.

    Raises:
        SourceError: it cannot be read, is no array of real numbers, or is cut short.
    """
    file = _open(path, name)
    try:
        return ArrayRows(file, name, _npy_layout(file, name, path.stat().st_size))
    except SourceError:
        file.close()
        raise


def _npy_layout(file: BinaryIO, name: str, size: int) -> Layout:
    """Read the header (numpy.lib.format, versions 1 and 2; 3 is for structured types only)."""
    try:
        version = npy.read_magic(file)
        if version == (1, 0):
            shape, column_major, dtype = npy.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, column_major, dtype = npy.read_array_header_2_0(file)
        else:
            raise SourceError(f"{name}: .npy format {version} is not supported; save it anew")
    except (ValueError, OSError) as problem:
        why = str(problem).splitlines()[0]
        raise SourceError(f"{name}: is not a .npy file that can be read: {why}") from None
    if dtype.kind not in "biuf":
        raise SourceError(f"{name}: expected an array of real numbers, found type {dtype}")
    if not shape or 0 in shape:
        raise SourceError(f"{name}: expected rows, found an array of shape {shape}")
    rows = shape if len(shape) > 1 else (*shape, 1)
    layout = Layout(dtype, rows, file.tell(), column_major)
    held, needed = (size - layout.offset) // dtype.itemsize, math.prod(shape)
    if held < needed:
        raise SourceError(f"{name}: is cut short: expected {needed} values, found {held}")
    return layout


def _open(path: Path, name: str) -> BinaryIO:
    try:
        # Each read is large already.
        return path.open("rb", buffering=0)
    except OSError as problem:
        raise SourceError(f"{naming(name, path)}: {problem.strerror}") from None
