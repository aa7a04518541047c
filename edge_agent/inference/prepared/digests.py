"""SHA-256 of the files of models and artifacts: remembered, and compared with current content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import ModelError
from ...core.files import copy_owner, is_gone, sha256
from ...core.state_file import StateFile, is_looking
from ...models.manifest import GOLDENS
from ...models.store.store import MODELS, NOTES
from .artifact import FOLDER

FILE = "digests.json"
_PIECE = 1024 * 1024


def digests(state: Path, folder: Path, *, goldens: bool = False) -> dict[str, str]:
    """Return the SHA-256 of each file that affects a model's results; *goldens*: or judges them.

    Digests of files that have neither changed nor moved are remembered: 100 MB take 70 ms. A
    version of the store must then still be as it was installed.

    Raises:
        ModelError: a file of the model cannot be read, or has changed since it was installed.
    """
    memo = _memo(state)
    try:
        files = list(_files(folder))
    except OSError as problem:
        where = problem.filename or folder
        raise ModelError(f"{where}: cannot be read: {problem.strerror}") from None
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
        if folder.is_relative_to(state / MODELS):
            from ...models.store.local_blocks import check_unchanged  # only for changed stamps

            check_unchanged(folder, f"{folder.parent.name}@{folder.name}")
        kept = {name: entry for name, entry in memo.items() if not is_gone(Path(name))}
        _remember(state, kept)
    return {
        str(path.relative_to(folder)): memo[str(path)][1]
        for path in files
        if goldens or not path.match(GOLDENS)
    }


def model_digest(state: Path, folder: Path, *, goldens: bool = False) -> str:
    """Return one digest of all files that affect a model's results; arguments as for `digests`.

    Raises:
        ModelError: a file of the model cannot be read.
    """
    files = digests(state, folder, goldens=goldens)
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def corrupted_files(state: Path, folder: Path) -> Iterator[str | None]:
    """Read a model's files again to find any that have changed without being written to.

    Yields:
        The path of such a file, and None after each piece of a file that was read.

    Raises:
        OSError: one cannot be read.
    """
    memo = _memo(state)
    for path in _files(folder):
        stamp, digest = memo.get(str(path), (None, None))
        # If both stamps are equal, the file was not written to in between.
        if stamp == _stamp(path):
            found = yield from _read_again(path)
            if found != digest and stamp == _stamp(path):
                yield str(path)


def corrupted_file(checksums: Mapping[str, str]) -> Iterator[str | None]:
    """Read an artifact's files again, until one differs from its checksum.

    Args:
        checksums: SHA-256 of each when it was written, by path.

    Yields:
        The path of such a file, and None after each piece of a file that was read.

    Raises:
        OSError: one cannot be read.
    """
    for path, digest in checksums.items():
        if (yield from _read_again(Path(path))) != digest:
            yield path
            return


def _read_again(path: Path) -> Generator[None, None, str]:
    """Return the SHA-256 of a file's content on disk; yields after each piece.

    A copy in the page cache is not read, and none is left there.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while True:
            # Mapped pages stay.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            piece = file.read(_PIECE)
            if not piece:
                return digest.hexdigest()
            digest.update(piece)
            yield


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        apart = any(part.startswith(".") or part == NOTES for part in inside)
        if not apart and path.is_file():
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
    if is_looking():
        return
    folder = state / FOLDER
    with suppress(OSError):  # it is only a cache
        if not folder.is_dir():
            folder.mkdir()
            copy_owner(folder, state)
        StateFile(folder / FILE).save(memo)
