"""Recorded sensor data: rows delivered as fast as requested, or at a rate.

`.npy`, `.wav` and bare float32 files are read here, `.csv` in `csv_file`. They are read in pieces
with plain reads: a memory map would kill the whole process (SIGBUS) if another program truncated
the mapped file. The header of `.wav` files is parsed here: Python's `wave` supports no floats and,
before 3.12, no extensible format, which 24-bit recorders use.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..core.containment import words
from ..core.errors import SampleError, SourceError
from ..core.text import naming
from ..core.types import Array, Reading
from .csv_file import CsvRows
from .source import Metronome, SourceContext
from .spec import SourceSpec

# Rows per reading unless fewer are requested: few enough for low memory and latency, and enough to
# spread the cost of a reading.
CHUNK = 1024
# At a rate, rows within this time share a reading, seconds.
TOGETHER = 0.01


class Rows(Protocol):
    """A file of rows, read from the start."""

    columns: tuple[str, ...]
    rate_hz: float | None
    """Rows per second of the recording, if the file states it."""
    trouble: str | None
    """The trouble with the file as a whole."""

    def read(self, limit: int) -> Array | None:
        """Read up to *limit* more rows, float32 or float64; NaN marks what `flaw` describes.

        Returns:
            (n, channels), or (n, …) for ready model inputs, with n ≥ 1; None at the end.

        Raises:
            SampleError: the next row cannot be used and was skipped.
            SourceError: the file cannot be read further.
        """

    @property
    def flaw(self) -> Callable[[int, int], SampleError] | None:
        """Returns why numbers in the last rows are missing; None: none ever are."""

    def rewind(self) -> None:
        """Go back to the first row."""

    def close(self) -> None:
        """Close the file; may be called twice."""


class Recording:
    """Rows of a file, once or in a loop."""

    def __init__(self, spec: SourceSpec, rows: Rows, closing: threading.Event) -> None:
        """Create a source from an opened file, which it then owns."""
        self._spec = spec
        self._rows = rows
        self.unread: Mapping[str, str] = rows.unread() if isinstance(rows, CsvRows) else {}
        """Values that are no numbers at the beginning, each with why."""
        self._closing = closing
        self._loop: bool = spec.options["loop"]
        rate: float | None = spec.options["rate"]
        self._beat = Metronome(rate, closing)
        self._limit = CHUNK
        if rate is not None:
            self._limit = min(CHUNK, max(1, int(rate * TOGETHER)))
        self._data: Array | SampleError = SampleError("nothing was grabbed")

    def grab(self) -> bool:
        if self._closing.is_set():
            return False
        try:
            data = self._rows.read(self._limit)
            if data is None and self._loop:
                self._rows.rewind()
                data = self._rows.read(self._limit)
                if data is None:
                    raise SourceError(f"{self._spec.redacted}: no longer has rows")
            if data is None:
                return False
            self._data, count = data, len(data)
        except SampleError as problem:
            # Kept for `retrieve`: an unusable row still counts as a reading.
            self._data, count = problem, 1
        if not self._beat.wait(count):
            return False
        self._time_ns, self._since = time.time_ns(), time.monotonic()
        return True

    def retrieve(self) -> Reading:
        if isinstance(self._data, SampleError):
            raise self._data
        rows = self._rows
        return Reading(
            self._data,
            self._time_ns,
            self._since,
            columns=rows.columns,
            rate_hz=rows.rate_hz,
            flaw=rows.flaw,
        )

    @property
    def trouble(self) -> str | None:
        """The trouble with the file, whose rows could still be read, or None."""
        return self._rows.trouble

    def close(self) -> None:
        self._rows.close()


def open_source(spec: SourceSpec, context: SourceContext) -> Recording:
    """Open recorded sensor data."""
    rows: Rows
    scheme, options = spec.scheme.name, spec.options
    if scheme == "csv":
        rows = CsvRows(spec.local, spec.redacted, options["separator"])
    else:
        rows = open_array(spec.local, spec.redacted, scheme, options.get("channels", 0))
    return Recording(spec, rows, context.closing)


PIECE = 4 * 1024 * 1024
"""Most bytes read at a time."""

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_TYPES = {(_PCM, 8): "u1", (_PCM, 16): "<i2", (_PCM, 24): "V3", (_PCM, 32): "<i4"}
_TYPES |= {(_FLOAT, 32): "<f4", (_FLOAT, 64): "<f8"}
_KNOWN = "PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64"
_CONVERT = "convert it, e.g. with ffmpeg -i FILE -c:a pcm_s16le OUT.wav"
_STREAMED = 0x7FFF0000
"""Sound lengths from here on are placeholders of headers written before the end was known."""
_CHUNKS = 1000
"""Most chunks that are skipped before the samples."""
_MOST_VALUES = 1 << 24
"""Most values per row: headers may be wrong, and each pipeline has some rows in memory."""
_MOST_COLUMNS = 1 << 16
"""Most values per row of an array in column order, which is read column by column."""
_MOST_CHANNELS = 1024
"""Of sound."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The place and format of an array in a file."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    """At least two sizes; the first is the number of rows."""
    offset: int
    """Bytes before the array."""
    column_major: bool = False
    rate_hz: float | None = None
    """Samples per second of sound, whose PCM is read as -1 to 1."""

    trouble: str | None = None

    @property
    def row_values(self) -> int:
        """Number of values per row."""
        return math.prod(self.shape[1:])


class ArrayRows:
    """The rows of one array in a file."""

    columns: tuple[str, ...] = ()
    flaw = None

    def __init__(self, file: BinaryIO, name: str, layout: Layout) -> None:
        """Create rows from an opened file, which they then own; *name* is for errors."""
        self.rate_hz, self.trouble = layout.rate_hz, layout.trouble
        self._file = file
        self._name = name
        self._layout = layout
        row_bytes = layout.row_values * max(4, layout.dtype.itemsize)
        self._most = max(1, PIECE // row_bytes)
        self._next = 0

    def read(self, limit: int) -> Array | None:
        """Read up to *limit* rows (n, channels), ending before one with NaN or infinity."""
        layout, start = self._layout, self._next
        shape, width = layout.shape, layout.row_values
        count = min(limit, self._most, shape[0] - start)
        if count == 0:
            return None
        try:
            if layout.column_major:
                columns = [self._values(k * shape[0] + start, count) for k in range(width)]
                flat: Array = np.stack(columns, axis=1)
            else:
                flat = self._values(start * width, count * width).reshape(count, width)
        except OSError as problem:
            raise SourceError(f"{self._name}: cannot be read: {problem.strerror}") from None
        with np.errstate(over="ignore"):
            rows = flat.astype(np.float32) if layout.rate_hz is None else _samples(flat)
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if bad.size and bad[0] == 0:
            self._next = start + 1
            if layout.rate_hz is not None:
                raise SampleError(f"{self._name}: sample {start} is not a finite number")
            place = int(np.flatnonzero(~np.isfinite(rows[0]))[0])
            raise SampleError(
                f"{self._name}: row {start}, value {place} is not a finite float32 number, "
                f"found {flat[0, place]}"
            )
        count = int(bad[0]) if bad.size else count
        self._next = start + count
        rows = rows[:count].reshape((count, *shape[1:]), order="F" if layout.column_major else "C")
        return np.ascontiguousarray(rows)

    def rewind(self) -> None:
        self._next = 0

    def close(self) -> None:
        self._file.close()

    def _values(self, start: int, count: int) -> Array:
        """Read *count* values from index *start* of the file on."""
        size = self._layout.dtype.itemsize
        self._file.seek(self._layout.offset + start * size)
        data = self._file.read(count * size)
        if len(data) < count * size:
            raise SourceError(f"{self._name}: was cut short while it was read")
        return np.frombuffer(data, self._layout.dtype)


def _samples(raw: Array) -> NDArray[np.float32]:
    """Return sound, (n, channels) of any type, as float32; PCM from -1 to 1."""
    if raw.dtype.kind == "f":
        return raw.astype(np.float32)
    if raw.dtype.kind == "u":
        return np.asarray((raw.astype(np.float32) - 128) / 128, np.float32)
    if raw.dtype.kind == "V":
        # Into the upper three of four bytes; the lowest is noise.
        wide = np.zeros((*raw.shape, 4), np.uint8)
        wide[..., 1:] = raw.view(np.uint8).reshape(*raw.shape, 3)
        raw = wide.view("<i4")[..., 0]
    scale = np.float32(2.0 ** (8 * raw.dtype.itemsize - 1))
    return np.divide(raw.astype(np.float32), scale, dtype=np.float32)


def open_array(path: Path, name: str, scheme: str, channels: int = 0) -> ArrayRows:
    """Open a file of rows.

    npy: time by channels, or with more dimensions ready model inputs; wav; or f32: only float32,
    little endian, *channels* values per row.

    Raises:
        SourceError: it cannot be read, has another format, is empty, or is truncated.
    """
    try:
        # All reads are large already.
        file = path.open("rb", buffering=0)
    except OSError as problem:
        raise SourceError(f"{naming(name, path)}: {problem.strerror}") from None
    try:
        size = path.stat().st_size
        if scheme == "npy":
            layout = _npy_layout(file, name, size)
        elif scheme == "wav":
            layout = _wav_layout(file, name, size)
        else:
            layout = _raw_layout(name, size, channels)
    except SourceError:
        file.close()
        raise
    return ArrayRows(file, name, layout)


def _raw_layout(name: str, size: int, channels: int) -> Layout:
    """Check that a file has only whole rows.

    Otherwise `channels` is wrong or the file was truncated, and the rows could be shifted.
    """
    row = 4 * channels
    if size == 0 or size % row:
        found = f"{size} bytes, {size % row} more than {size // row} rows" if size else "no bytes"
        raise SourceError(
            f"{name}: expected rows of {channels} float32 values ({row} bytes), found {found}; "
            "set ?channels= to the number of values a row, or repair the file"
        )
    return Layout(np.dtype("<f4"), (size // row, channels), 0)


def _npy_layout(file: BinaryIO, name: str, size: int) -> Layout:
    """Read the header (numpy.lib.format, versions 1 and 2; 3 is for structured types only)."""
    try:
        version = npy.read_magic(file)
        if version == (1, 0):
            shape, column_major, dtype = npy.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, column_major, dtype = npy.read_array_header_2_0(file)
        else:
            raise SourceError(f"{name}: .npy format {version} is not supported; save it again")
    except OSError as problem:
        why = words(problem)
        raise SourceError(f"{name}: is not a .npy file that can be read: {why}") from None
    except Exception as problem:
        # NumPy has Python's parser read the header, whose errors are of many kinds.
        file.seek(0)
        zipped = file.read(2) == b"PK"
        why = "it is an .npz; save its array alone" if zipped else "its header is damaged"
        raise SourceError(f"{name}: is not a .npy file that can be read: {why}") from problem
    if dtype.kind not in "biuf":
        raise SourceError(f"{name}: expected an array of real numbers, found type {dtype}")
    if not shape or any(type(each) is not int or each < 1 for each in shape):
        raise SourceError(f"{name}: expected rows, found an array of shape {shape}")
    rows = shape if len(shape) > 1 else (*shape, 1)
    layout = Layout(dtype, rows, file.tell(), column_major)
    most = _MOST_COLUMNS if column_major else _MOST_VALUES
    if layout.row_values > most:
        advice = "; save it in row order, with numpy.ascontiguousarray" if column_major else ""
        raise SourceError(
            f"{name}: expected rows of at most {most} values, found {layout.row_values}{advice}"
        )
    held, needed = (size - layout.offset) // dtype.itemsize, math.prod(shape)
    if held < needed:
        raise SourceError(f"{name}: is cut short: expected {needed} values, found {held}")
    return layout


def _wav_layout(file: BinaryIO, name: str, size: int) -> Layout:
    try:
        return _wav_header(file, name, size)
    except (OSError, struct.error):
        raise SourceError(f"{name}: is not a .wav file, or is cut short in its header") from None


def _wav_header(file: BinaryIO, name: str, size: int) -> Layout:
    riff, _, wave = struct.unpack("<4sI4s", file.read(12))
    if riff not in {b"RIFF", b"RF64", b"BW64"} or wave != b"WAVE":
        raise SourceError(f"{name}: is not a .wav file (RIFF, WAVE); {_CONVERT}")
    form: tuple[int, int, int, int] | None = None
    long: int | None = None
    for _ in range(_CHUNKS):
        kind, length = struct.unpack("<4sI", file.read(8))
        if kind == b"data":
            break
        begin = file.tell()
        if kind == b"ds64":  # more than 4 GiB: 64-bit lengths
            _, long = struct.unpack("<QQ", file.read(16))
        if kind == b"fmt ":
            form = _read_format(file, length)
        file.seek(begin + length + length % 2)
    else:
        raise SourceError(f"{name}: holds no samples")
    if form is None:
        raise SourceError(f"{name}: its samples stand before their format")
    code, channels, rate, bits = form
    if (code, bits) not in _TYPES or not channels or not rate:
        raise SourceError(
            f"{name}: format {code} of {bits} bits, {channels} channels, {rate} Hz; expected "
            f"{_KNOWN}; {_CONVERT}"
        )
    if channels > _MOST_CHANNELS:
        raise SourceError(
            f"{name}: expected at most {_MOST_CHANNELS} channels, found {channels}; is it damaged?"
        )
    offset = file.tell()
    # A file written as a stream has no true length in its header.
    length = long if long is not None and length == 0xFFFFFFFF else length
    held = min(length, size - offset) if length else size - offset
    count = held // (channels * bits // 8)
    if count == 0:
        raise SourceError(f"{name}: holds no samples")
    dtype, promised = np.dtype(_TYPES[code, bits]), length // (channels * bits // 8)
    short = None
    if held < length < _STREAMED or (long is not None and held < length):
        short = f"ended after {count} of {promised} samples; the file is damaged or cut short"
    shape = count, channels
    return Layout(dtype, shape, offset, rate_hz=float(rate), trouble=short)


def _read_format(file: BinaryIO, length: int) -> tuple[int, int, int, int]:
    """Return format code, channels, samples per second, and bits per sample."""
    code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", file.read(16))
    if code == _EXTENSIBLE and length >= 40:
        file.seek(8, 1)
        code = struct.unpack("<H", file.read(2))[0]
    return code, channels, rate, bits
