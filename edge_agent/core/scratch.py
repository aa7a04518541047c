"""Temporary folders that do not stay forever if the process that created them is killed.

Creating one removes those no longer in use. A folder is in use as long as its process holds a lock
on it; the kernel releases the lock whenever the process ends.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .files import drop_lock, take_lock


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Create a temporary folder for the duration of the context."""
    prefix = f"edge-agent-{purpose}-"
    _sweep(Path(tempfile.gettempdir()), prefix)
    while True:
        made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        lock = _lock(made.name)
        try:
            # Another process may have removed it before it was opened, or before it was locked.
            if Path(made.name).is_dir():
                yield Path(made.name)
                return
        finally:
            if lock is not None:
                drop_lock(lock)
            # Of root, who has become another user since: the next one of root's removes it.
            with suppress(PermissionError):
                made.cleanup()


def _lock(name: str) -> int | None:
    """Lock a new folder; None: its file system supports no locks, so no folder there is removed."""
    try:
        return take_lock(Path(name), wait=True)
    except OSError:
        return None


def _sweep(place: Path, prefix: str) -> None:
    """Remove the folders of killed processes, except those that cannot be removed."""
    for folder in place.glob(f"{prefix}*"):
        try:
            found = folder.lstat()
            # Not a link, and not another user's folder: everyone can write to /tmp.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            lock = take_lock(folder)
        except OSError:
            continue  # in use, or gone
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            drop_lock(lock)
