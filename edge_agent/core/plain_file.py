"""Opening of files that must be plain: a pipe would be waited for, a device read without end.

It imports little: the start waits for it.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

NO_PLAIN_FILE = "is no plain file"
MOST_BYTES = 64 * 2**20
"""Largest file that is read as a whole: the agent's own are far smaller, and read at its start."""


class NoPlainFileError(OSError):
    """A folder, pipe, socket, device or endless file is where a file should be."""


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a plain file, or a link to one, without waiting; return its descriptor.

    Raises:
        NoPlainFileError: it is something else.
        OSError: it cannot be opened.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits until somebody opens its other end.
        # What is made is not executable, unlike by default.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    except OSError as problem:
        if problem.errno not in {errno.ENXIO, errno.EISDIR}:  # a socket; a folder to be written
            raise
        mode = os.stat(path).st_mode  # noqa: PTH116 - pathlib may not be there yet
    else:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
    what = "is a folder" if stat.S_ISDIR(mode) else NO_PLAIN_FILE
    raise NoPlainFileError(errno.EINVAL, what, str(path))


def open_plain_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a plain file for reading.

    Raises:
        NoPlainFileError: it is something else.
        OSError: it cannot be opened.
    """
    return open(open_plain(path), "rb")


def read_plain_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a plain file of up to `MOST_BYTES`.

    Raises:
        NoPlainFileError: it is something else, or larger.
        OSError: it cannot be opened or read.
    """
    with open_plain_file(path) as file:
        # Not all at once: damage to a file system leaves files of any length.
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise NoPlainFileError(errno.EFBIG, f"is larger than {MOST_BYTES >> 20} MiB", str(path))
        return file.read()


def read_secret(path: str | os.PathLike[str]) -> str:
    """Read a text such as a password, without the byte order mark and line end of an editor.

    Raises:
        OSError: the file cannot be read, or is no plain file.
        UnicodeDecodeError: it is not UTF-8 text.
    """
    return read_plain_bytes(path).decode("utf-8-sig").rstrip("\r\n")
