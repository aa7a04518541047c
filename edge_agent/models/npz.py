"""Archives of arrays written by NumPy, read as untrusted: bounded, and without pickles."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from ..core.containment import words
from ..core.errors import AgentError, ModelError
from ..core.types import Array

MAX_BYTES = 256 * 2**20
"""Limit for all its arrays together, unpacked."""
MAX_ARRAYS = 1000


def read_npz(path: Path, where: str) -> dict[str, Array]:
    """Read an untrusted archive of arrays: bounded, and without pickles.

    Raises:
        ModelError: it is damaged, too large, or contains anything but numbers.
    """
    try:
        _check_listing(path, where)
        with zipfile.ZipFile(path) as archive:
            # The unpacked size counts, not the packed one.
            total = sum(member.file_size for member in archive.infolist())
        if total > MAX_BYTES:
            raise ModelError(
                f"{where}: {total >> 20} MiB of arrays, expected at most {MAX_BYTES >> 20}"
            )
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except AgentError:
        raise
    except Exception as problem:
        raise ModelError(f"{where}: cannot be read: {_why(problem)}") from problem
    for name, array in arrays.items():
        # NumPy returns a member that is not an array as bytes.
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise ModelError(f"{where}: {name}: is not an array of numbers")
    return arrays


def _why(problem: Exception) -> str:
    # A RuntimeError: encrypted, or packed by a method that this Python lacks.
    told = (OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
    if isinstance(problem, told) and not isinstance(problem, RecursionError):
        return words(problem)
    if "allow_pickle" in str(problem):
        return "it holds Python objects"
    # NumPy has Python's parser read an array's header, whose errors are of many kinds.
    return "an array's header is damaged"


def _check_listing(path: Path, where: str) -> None:
    """Check that an archive lists few members, before the listing is read.

    A member takes 46 bytes in the listing, and ten times that in memory. Source: PKWARE,
    APPNOTE.TXT, 4.3.16; the end record is searched for where Python's zipfile does.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 22 - 0xFFFF))
        tail = file.read()
    plain = tail[-22:-18] == b"PK\5\6" and tail[-2:] == b"\0\0"
    at = len(tail) - 22 if plain else tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < 22:
        raise zipfile.BadZipFile("File is not a zip file")
    _, _, _, _, count, listing = struct.unpack_from("<4s4HL", tail, at)
    # An archive that needs more room has another record before this one (zip64).
    larger = tail[max(0, at - 20) : max(0, at - 16)] == b"PK\6\7"
    if larger or count > MAX_ARRAYS or listing > MAX_ARRAYS * 1024:
        raise ModelError(f"{where}: more than {MAX_ARRAYS} arrays")
