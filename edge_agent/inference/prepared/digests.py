"""SHA-256 of the files of models and forms: remembered, and compared with what is there now."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import ModelError
from ...core.files import copy_owner
from ...core.state_file import StateFile
from ...models.store.store import NOTES
from ..golden import GOLDEN
from .artifact import FOLDER

FILE = "digests.json"
_PIECE = 1024 * 1024

Pace = Callable[[], object]
"""Called after each piece of a file that is read; may wait, or raise to break it off."""


def digests(state: Path, folder: Path) -> dict[str, str]:
    """Give the SHA-256 of each file that decides what a model computes.

    Those of files that have neither changed nor moved since are remembered: 100 MB take 70 ms.

    Args:
        state: the state folder, where they are remembered.
        folder: of the model.

    Raises:
        ModelError: a file of the model cannot be read.

    """
    memo = _memo(state)
    files = list(_files(folder))
    fresh: dict[str, Any] = {}
    for path in files:
        try:
            stamp = _stamp(path)
            found = memo.get(str(path))
            if found is None or found[0] != stamp:
                fresh[str(path)] = memo[str(path)] = [stamp, sha256(path)]
        except OSError as problem:
            raise ModelError(f"{path}: cannot be read: {problem.strerror}") from None
    if fresh:
        kept = {name: entry for name, entry in memo.items() if Path(name).is_file()}
        _remember(state, kept)
    return {str(path.relative_to(folder)): memo[str(path)][1] for path in files}


def model_digest(state: Path, folder: Path) -> str:
    """Give one digest of all that decides what a model computes; arguments as for `digests`.

    Raises:
        ModelError: a file of the model cannot be read.

    """
    files = digests(state, folder)
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def corrupted_files(state: Path, folder: Path, pace: Pace) -> Iterator[str]:
    """Read a model's files again; say which are not what they were, though nobody has written them.

    Raises:
        OSError: one cannot be read; also from *pace*.

    """
    memo = _memo(state)
    for path in _files(folder):
        stamp, digest = memo.get(str(path), (None, None))
        # Between two stamps that are the same nobody has written to it.
        if stamp == _stamp(path) and sha256(path, pace) != digest and stamp == _stamp(path):
            yield str(path)


def corrupted_file(checksums: Mapping[str, str], pace: Pace) -> str | None:
    """Read a form's files again; return the path of the first that is not what was written.

    Args:
        checksums: SHA-256 of each when it was written, by path.
        pace: see `Pace`.

    Raises:
        OSError: one cannot be read; also from *pace*.

    """
    for path, digest in checksums.items():
        if sha256(Path(path), pace) != digest:
            return path
    return None


def sha256(path: Path, pace: Pace | None = None) -> str:
    """Give the SHA-256 of a file, hexadecimal.

    Args:
        path: of the file.
        pace: with it, what is read is what is on the disk, not a copy in memory, and none is left.

    Raises:
        OSError: it cannot be read; also from *pace*.

    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while True:
            if pace is not None:
                # Pages that somebody has mapped stay.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            piece = file.read(_PIECE)
            if not piece:
                return digest.hexdigest()
            digest.update(piece)
            if pace is not None:
                pace()


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        apart = any(part.startswith(".") or part == NOTES for part in inside)
        if path.name != GOLDEN and not apart and path.is_file():
            yield path


def _stamp(path: Path) -> list[int]:
    known = path.stat()
    return [known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino]


def _memo(state: Path) -> dict[str, Any]:
    return StateFile(state / FOLDER / FILE).read(_parse) or {}


def _parse(content: Any) -> dict[str, Any]:
    return {
        name: entry
        for name, entry in content.items()
        if isinstance(entry, list) and len(entry) == 2
    }


def _remember(state: Path, memo: dict[str, Any]) -> None:
    folder = state / FOLDER
    with suppress(OSError):  # it is only remembered
        if not folder.is_dir():
            folder.mkdir()
            copy_owner(folder, state)
        StateFile(folder / FILE).save(memo)
