"""Read-ahead of the file pages that a start needs, as listed by the last good start.

After a cold boot from flash the libraries outweigh the model: some 100 MB are read for a model of
26 MB, mostly because the kernel reads 128 KiB around each accessed page. This reads exactly what
was mapped or imported when the first result was published, in about the order of its use.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ...core.plain_file import read_plain_bytes

log = logging.getLogger(__name__)

PAGE = 4096
FILE = "pages.json"
SCHEMA = 1
_PRESENT = 1 << 63
_GAP = 4
"""Ranges with at most this many pages between them are read together: a request costs more."""
_PIECE = 256 * 1024
_NO_LIST = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""Errors from a list that is absent or damaged."""


class ReadAhead:
    """A thread that reads the pages accessed by the last start, package by package.

    Accessing a page that has not been read makes the kernel read 128 KiB around it, so a package is
    only imported after it has been read (`wait`).
    """

    def __init__(self, files: Sequence[Any]) -> None:
        self._files = files
        tops = [_package(path) for path, _ in files]
        self._left = {top: len(tops) - 1 - tops[::-1].index(top) for top in set(tops)}
        """By package: the index of its last file."""
        self._next = 0
        self._moved = threading.Condition()
        threading.Thread(target=self._read_all, name="ahead", daemon=True).start()

    def wait(self, package: str | None = None) -> None:
        """Wait until a package's files, and all before them, have been read; None: all files."""
        last = len(self._files) - 1
        if package is not None:
            last = max(self._left.get(package, -1), self._left.get(f"{package}.libs", -1))
        with self._moved:
            self._moved.wait_for(lambda: self._next > last)

    def _read_all(self) -> None:
        buffer = memoryview(bytearray(_PIECE))
        try:
            for path, ranges in self._files:
                _read(path, ranges, buffer)
                self._advance(self._next + 1)
        except (TypeError, ValueError, OverflowError):
            log.warning("%s: damaged; this start reads nothing ahead", FILE)
        finally:
            # In any case: no caller of `wait` may be left waiting.
            self._advance(len(self._files))

    def _advance(self, to: int) -> None:
        with self._moved:
            self._next = to
            self._moved.notify_all()


def start_read_ahead(state: str, origins: str) -> ReadAhead | None:
    """Start reading ahead.

    Returns:
        The running read-ahead; None if there is no list or the files are already in memory.
    """
    try:
        known = json.loads(read_plain_bytes(f"{state}/{FILE}"))
        if (known["schema"], known["origins"]) != (SCHEMA, origins) or cached(*known["probe"]):
            return None
        return ReadAhead([(str(path), ranges) for path, ranges in known["files"]])
    except _NO_LIST:
        return None  # it only makes a start faster


def cached(path: str, offset: int) -> bool:
    """Whether a page of a file is in memory; also True if the file is absent."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # not every file system can tell
    finally:
        os.close(handle)
    return True


def _read(path: str, ranges: Sequence[Sequence[int]], buffer: memoryview) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # deleted meanwhile: its user will report it
    try:
        # Otherwise the kernel reads more than requested.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        for first, count in ranges:
            offset, end = first * PAGE, (first + count) * PAGE
            while offset < end:
                got = os.preadv(handle, [buffer[: min(_PIECE, end - offset)]], offset)
                if got == 0:
                    break
                offset += got
    except OSError:
        return  # likewise
    finally:
        os.close(handle)


def is_known(state: str, origins: str) -> bool:
    """Whether there is a list for this start."""
    try:
        known = json.loads(read_plain_bytes(f"{state}/{FILE}"))
        return (known["schema"], known["origins"]) == (SCHEMA, origins)
    except _NO_LIST:
        return False


def list_touched(origins: str, without: Sequence[str]) -> bytes | None:
    """Return the list of pages that this process has mapped or imported so far.

    Returns:
        The content of the list's file, or None if the kernel does not show the pages.
    """
    try:
        mapped = {path: pages for path, pages in _mapped() if not path.startswith(tuple(without))}
    except OSError:
        return None
    files: dict[str, list[list[int]]] = {}
    # System files first, then package by package, each with its libraries before its modules.
    for path in sorted(mapped):
        if not _package(path):
            files[path] = mapped[path]
    for module in list(sys.modules.values()):
        own: Any = getattr(module, "__file__", None)
        if not isinstance(own, str):
            continue
        top = _package(own)
        for path in sorted(mapped.keys() - files.keys()):
            if _package(path) in {top, f"{top}.libs"}:
                files[path] = mapped[path]
        cached: Any = getattr(module, "__cached__", None)
        size = _size(cached) if isinstance(cached, str) else 0
        if size:
            files[cached] = [[0, -(-size // PAGE)]]
    for path in sorted(mapped.keys() - files.keys()):
        files[path] = mapped[path]
    largest = max(mapped, key=lambda path: sum(count for _, count in mapped[path]))
    known = {
        "schema": SCHEMA,
        "origins": origins,
        "probe": [largest, mapped[largest][len(mapped[largest]) // 2][0] * PAGE],
        "files": [[path, ranges] for path, ranges in files.items()],
    }
    return json.dumps(known).encode()


def _package(path: str) -> str:
    """Return the folder below site-packages; OpenCV's libraries are in one with a longer name."""
    _, found, rest = path.partition("/site-packages/")
    top = rest.split("/")[0] if found else ""
    return "cv2.libs" if top.startswith("opencv_python") and top.endswith(".libs") else top


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0


def _mapped() -> Iterator[tuple[str, list[list[int]]]]:
    """Yield for each mapped file the pages that this process has accessed (proc(5), pagemap)."""
    found: dict[str, set[int]] = {}
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
            lines = maps.readlines()
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) < 6 or not fields[5].startswith("/") or "(deleted)" in fields[5]:
                continue
            start, end = (int(part, 16) for part in fields[0].split("-"))
            entries = os.pread(pagemap, (end - start) // PAGE * 8, start // PAGE * 8)
            first = int(fields[2], 16) // PAGE
            pages = memoryview(entries).cast("Q")
            touched = {first + index for index, entry in enumerate(pages) if entry & _PRESENT}
            if touched:
                found.setdefault(fields[5].rstrip("\n"), set()).update(touched)
    finally:
        os.close(pagemap)
    for name, numbers in found.items():
        yield name, _ranges(sorted(numbers))


def _ranges(pages: Sequence[int]) -> list[list[int]]:
    """Merge adjacent pages into ranges [first, count]."""
    ranges: list[list[int]] = []
    for page in pages:
        if ranges and page - (ranges[-1][0] + ranges[-1][1]) <= _GAP:
            ranges[-1][1] = page - ranges[-1][0] + 1
        else:
            ranges.append([page, 1])
    return ranges
