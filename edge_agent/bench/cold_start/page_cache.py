"""Files as they are after a power cut: not in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from ...core.errors import UsageError

DROP = Path("/proc/sys/vm/drop_caches")
CHUNK = 1024 * 1024


def files_in(places: Iterable[Path]) -> list[Path]:
    """List the files that are, or are anywhere in, these places."""
    found = []
    for place in places:
        parts = place.rglob("*") if place.is_dir() else [place]
        found += [part for part in parts if part.is_file()]
    return found


def evict(places: Iterable[Path]) -> None:
    """Put the files in these places out of memory; needs no privileges.

    What another process has mapped stays: end it first.
    """
    for path in files_in(places):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)  # what is not yet written cannot go
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def ensure_droppable() -> None:
    """Check that `drop_all` can work.

    Raises:
        UsageError: it cannot, and how to mend it.
    """
    if not os.access(DROP, os.W_OK):
        raise UsageError(
            f"--no-page-cache: {DROP} cannot be written; run it as root and outside a container, "
            "or use --no-model-cache, which needs neither"
        )


def drop_all() -> None:
    """Put every file out of memory, the libraries too; needs root.

    What a living process has mapped stays: of this benchmark's own, Python's program and its
    module for TLS, and what the broker is made of.
    """
    os.sync()
    DROP.write_text("3")


def holders(libraries: Collection[str]) -> list[str]:
    """List other processes that have native parts of some Python packages mapped.

    Args:
        libraries: folders of site-packages.

    Returns:
        Number and name of each, as far as it may be looked at.
    """
    marks = [f"/{name}{end}" for name in libraries for end in ("/", ".libs/")]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mapped = (process / "maps").read_text()
            name = (process / "comm").read_text().strip()
        except OSError:
            continue  # it has ended, or is another user's
        if any(mark in mapped for mark in marks):
            found.append(f"{process.name} ({name})")
    return found


def read_rate(path: Path) -> float:
    """Read a file that is not in memory from its start to its end.

    Returns:
        Bytes a second.
    """
    evict([path])
    handle = os.open(path, os.O_RDONLY)
    buffer = memoryview(bytearray(CHUNK))
    try:
        begun, count = time.monotonic(), 0
        while read := os.readv(handle, [buffer]):
            count += read
        return count / (time.monotonic() - begun)
    finally:
        os.close(handle)
