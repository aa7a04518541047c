"""Temporary folders that do not stay for ever where the process that made them was killed.

Whoever makes one removes those that nobody uses anymore. A folder is in use as long as its process
holds a lock on it, which ends with the process, however that ends.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import drop_lock, take_lock


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Make a temporary folder for as long as the context lasts."""
    prefix = f"edge-agent-{purpose}-"
    _sweep(Path(tempfile.gettempdir()), prefix)
    while True:
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
            lock = _lock(name)
            try:
                # Another process may have swept it before it was opened, or before it was locked.
                if Path(name).is_dir():
                    yield Path(name)
                    return
            finally:
                if lock is not None:
                    drop_lock(lock)


def _lock(name: str) -> int | None:
    """Lock a folder that was just made; None: its file system knows no locks, so none is swept."""
    try:
        return take_lock(Path(name), wait=True)
    except OSError:
        return None


def _sweep(place: Path, prefix: str) -> None:
    """Remove the folders of killed processes, except those that cannot be removed."""
    for folder in place.glob(f"{prefix}*"):
        try:
            found = folder.lstat()
            # A link, or somebody else's folder, is none of ours: /tmp is everybody's.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            lock = take_lock(folder)
        except OSError:
            continue  # in use, or gone
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            drop_lock(lock)
