"""Code that engines have compiled for a GPU or an NPU, kept for the next start.

Compiling for these takes seconds to minutes. The files are the engines' own; this module decides
which an engine may read: those whose content is unchanged since the engine wrote them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...core.containment import words
from ...core.files import drop_lock, remove_tree, sha256, subfolders, take_lock
from ...core.state_file import StateFile

log = logging.getLogger(__name__)

LIMIT = 2 * 2**30
"""Most bytes of the cache; the oldest files are removed first."""
_DIGESTS = "digests.json"


@contextmanager
def compiled_cache(engine: str, version: str, network: Path) -> Iterator[Path | None]:
    """Lend the folder in which an engine keeps compiled code, while a network is opened.

    Yields:
        The folder; None if none can be written, or another process is opening the same network: it
            is then compiled, and the code not kept.
    """
    try:
        kept = _base() / f"{engine}-{version.replace('/', '_')}"
        folder = kept / f"{network.parent.name}-{network.stat().st_size}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = take_lock(folder)
        try:
            _tidy(kept, folder)
        except BaseException:
            drop_lock(lock)
            raise
    except (OSError, RuntimeError) as problem:
        log.info("%s: compiled code is not kept: %s", engine, words(problem))
        yield None
        return
    try:
        yield folder
        with suppress(OSError):  # it is compiled again at the next start
            noted = {path.name: sha256(path) for path in _files(folder)}
            StateFile(folder / _DIGESTS).write(noted)
    finally:
        drop_lock(lock)


def _base() -> Path:
    """Return the folder for files that may be deleted at any time (systemd.exec(5), XDG)."""
    given = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given) / "compiled"
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return base / "edge-agent" / "compiled"


def _tidy(kept: Path, folder: Path) -> None:
    """Remove files of other versions, files beyond the limit, and files that have changed."""
    engine = kept.name.partition("-")[0]
    for other in subfolders(kept.parent):
        if other != kept and other.name.partition("-")[0] == engine:
            remove_tree(other)
    known = StateFile(folder / _DIGESTS).read(dict) or {}
    left = LIMIT
    for path in _files(kept):
        left -= path.stat().st_size
        changed = path.parent == folder and known.get(path.name) != sha256(path)
        if left < 0 or changed:
            path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    """List the files that engines have written, newest first."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != _DIGESTS]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
