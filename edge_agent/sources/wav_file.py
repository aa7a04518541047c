"""Samples of a `.wav` file: PCM of 8, 16, 24 and 32 bits and floats, any number of channels.

The header is read here: Python's `wave` takes no floats, and before 3.12 nothing that names its
format the extensible way, as recorders of 24 bits do.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..core.errors import SampleError, SourceError
from ..core.text import naming
from ..core.types import Array

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_TYPES = {(_PCM, 8): "u1", (_PCM, 16): "<i2", (_PCM, 24): "u1", (_PCM, 32): "<i4"}
_TYPES |= {(_FLOAT, 32): "<f4", (_FLOAT, 64): "<f8"}
_KNOWN = "PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64"
_CHUNKS = 1000
"""Parts before the samples that are passed over, at most."""


class WavRows:
    """The samples of one file, (n, channels) float32; PCM from -1 to 1."""

    columns: tuple[str, ...] = ()
    flaw = None

    def __init__(self, path: Path, name: str) -> None:
        """Open the file and read its header; *name* is what errors call it.

        Raises:
            SourceError: it cannot be read, or is not a `.wav` file of a known format.
        """
        self._name = name
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as problem:
            raise SourceError(f"{naming(name, path)}: {problem.strerror}") from None
        try:
            self._read_header(path.stat().st_size)
        except (OSError, struct.error):
            self._file.close()
            raise SourceError(
                f"{name}: is not a .wav file, or is cut short in its header"
            ) from None
        except SourceError:
            self._file.close()
            raise
        self._next = 0

    def _read_header(self, size: int) -> None:
        file, name = self._file, self._name
        riff, _, wave = struct.unpack("<4sI4s", file.read(12))
        if riff not in {b"RIFF", b"RF64", b"BW64"} or wave != b"WAVE":
            raise SourceError(f"{name}: is not a .wav file (RIFF, WAVE)")
        layout: tuple[int, int, int, int] | None = None
        long: int | None = None
        for _ in range(_CHUNKS):
            kind, length = struct.unpack("<4sI", file.read(8))
            if kind == b"data":
                break
            begin = file.tell()
            if kind == b"ds64":  # of more than 4 GiB: lengths of 64 bits
                _, long = struct.unpack("<QQ", file.read(16))
            if kind == b"fmt ":
                layout = _read_format(file, length)
            file.seek(begin + length + length % 2)
        else:
            raise SourceError(f"{name}: holds no samples")
        if layout is None:
            raise SourceError(f"{name}: its samples stand before their format")
        code, channels, rate, bits = layout
        if (code, bits) not in _TYPES or not channels or not rate:
            raise SourceError(
                f"{name}: format {code} of {bits} bits, {channels} channels, {rate} Hz; expected "
                f"{_KNOWN}; convert it, e.g. with ffmpeg -i FILE -c:a pcm_s16le OUT.wav"
            )
        self.rate_hz: float | None = float(rate)
        self._channels, self._width = channels, bits // 8
        self._type = np.dtype(_TYPES[code, bits])
        self._offset = file.tell()
        # What was written as a stream has no true length in its header.
        length = long if long is not None and length == 0xFFFFFFFF else length
        held = min(length, size - self._offset) if length else size - self._offset
        self._count = held // (channels * self._width)
        if self._count == 0:
            raise SourceError(f"{name}: holds no samples")

    def read(self, limit: int) -> Array | None:
        """Read up to *limit* rows (n, channels), ending before one with NaN or infinity."""
        count = min(limit, self._count - self._next)
        if count == 0:
            return None
        size = count * self._channels * self._width
        try:
            self._file.seek(self._offset + self._next * self._channels * self._width)
            data = self._file.read(size)
        except OSError as problem:
            raise SourceError(f"{self._name}: cannot be read: {problem.strerror}") from None
        if len(data) < size:
            raise SourceError(f"{self._name}: was cut short while it was read")
        rows = self._samples(data).reshape(count, self._channels)
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if bad.size and bad[0] == 0:
            self._next += 1
            raise SampleError(f"{self._name}: sample {self._next - 1} is not a finite number")
        count = int(bad[0]) if bad.size else count
        self._next += count
        return rows[:count]

    def _samples(self, data: bytes) -> NDArray[np.float32]:
        raw = np.frombuffer(data, self._type)
        if self._type.kind == "f":
            with np.errstate(over="ignore"):
                return raw.astype(np.float32)
        if self._width == 1:
            return np.asarray((raw.astype(np.float32) - 128) / 128, np.float32)
        if self._width == 3:
            # To the upper three of four bytes; the lowest is noise below them.
            wide = np.zeros((len(raw) // 3, 4), np.uint8)
            wide[:, 1:] = raw.reshape(-1, 3)
            raw = wide.view("<i4")[:, 0]
        scale = np.float32(2.0 ** (8 * raw.dtype.itemsize - 1))
        return np.divide(raw.astype(np.float32), scale, dtype=np.float32)

    def rewind(self) -> None:
        """Go back to the first sample."""
        self._next = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _read_format(file: BinaryIO, length: int) -> tuple[int, int, int, int]:
    """Return format code, channels, samples a second, and bits of a sample."""
    code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", file.read(16))
    if code == _EXTENSIBLE and length >= 40:
        file.seek(8, 1)
        code = struct.unpack("<H", file.read(2))[0]
    return code, channels, rate, bits
