"""The artifact of a prepared form: its files, its table, and whether it can be used here.

On the path to the first result: imports almost nothing, and reads no more than it must.

    state_dir/prepared/<key>/
        form.json       its table: all facts about it, with a checksum
      graph.onnx      the whole network, as the engine has optimized it, without weights
      stage-<n>.onnx  the same graph cut up, where it does not fit in memory
      weights.bin     all weights, in order of execution
"""

from __future__ import annotations

import json
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import finalize

from xxhash import xxh3_64_hexdigest

from ...core.errors import EngineError
from ...core.plain_file import open_plain, read_plain_bytes
from ...device.resources import instructions

if TYPE_CHECKING:
    from ..folding.fold import Fold

FORMAT = 8
"""Version of artifacts: increased with every change in how they are written or read."""
FOLDER = "prepared"
FILE = "form.json"
GRAPH = "graph.onnx"
WEIGHTS = "weights.bin"
BLOB = "network.blob"
WHOLE, STREAMED = "whole", "streaming"
"""How an artifact of ONNX Runtime is loaded; "way" in its table."""

# The table comes after a checksum of its exact bytes.
_HEAD = b'{"xxh3": "%s", "form": '
_HEAD_LENGTH = len(_HEAD) - 2 + 16


class ArtifactError(EngineError):
    """An artifact that cannot be used: load the model itself, and prepare it again."""


class Artifact:
    """An artifact whose table has been read."""

    __slots__ = ("folder", "table")

    def __init__(self, folder: str, table: dict[str, Any]) -> None:
        self.folder = folder
        self.table = table

    @property
    def key(self) -> str:
        key: str = self.table["key"]
        return key

    @property
    def engine(self) -> str:
        engine: str = self.table["engine"]
        return engine

    @property
    def fold(self) -> Fold | None:
        """How the prepared network's input differs from the original's."""
        fold = self.table["fold"]
        if fold is None:
            return None
        from ..folding.fold import Fold

        return Fold(**fold)

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


def read(folder: str) -> Artifact:
    """Read an artifact's table; check that the artifact is complete and fits this processor.

    The contents of the other files are checked while they are loaded.

    Raises:
        ArtifactError: it is damaged, truncated, or was made elsewhere or by another program.
    """
    try:
        data = read_plain_bytes(f"{folder}/{FILE}")
    except OSError as problem:
        raise ArtifactError(f"{folder}: no prepared form: {problem.strerror}") from None
    body = data[_HEAD_LENGTH:-2]
    if data != seal(body):
        raise ArtifactError(f"{folder}/{FILE}: damaged: its checksum is another")
    artifact = Artifact(folder, json.loads(body))
    table = artifact.table
    if table["format"] != FORMAT:
        raise ArtifactError(f"{folder}: form {table['format']}, expected {FORMAT}")
    if table["cpu"] != processor():
        raise ArtifactError(f"{folder}: made on a processor with other instructions")
    for name, (size, _) in table["files"].items():
        try:
            found = os.stat(artifact.path(name)).st_size  # noqa: PTH116 - likewise
        except OSError as problem:
            raise ArtifactError(f"{folder}/{name}: {problem.strerror}") from None
        if found != size:
            raise ArtifactError(f"{folder}/{name}: {found} bytes, expected {size}; it is damaged")
    return artifact


def seal(body: bytes) -> bytes:
    """Return a table's text, preceded by its checksum."""
    return _HEAD % xxh3_64_hexdigest(body).encode() + body + b"}\n"


def encode(table: Mapping[str, Any]) -> bytes:
    """Return the content of an artifact's table file."""
    return seal(json.dumps(table, indent=1).encode())


def processor() -> str:
    """Return a short name for the instructions that this processor has."""
    return xxh3_64_hexdigest(instructions().encode())


def need_version(artifact: Artifact, engine: str, version: str) -> None:
    """Check that an artifact was made by the engine that will load it.

    Raises:
        ArtifactError: it was made by another engine or version.
    """
    found = (artifact.table["engine"], artifact.table["version"])
    if found != (engine, version):
        raise ArtifactError(
            f"{artifact.folder}: made by {' '.join(found)}, here is {engine} {version}"
        )


_POPULATE_READ = 22
"""madvise advice since Linux 5.14, missing in `mmap`: maps pages before they are accessed."""
_AHEAD = 16 * 1024 * 1024
_PAGE = 4096


class MappedWeights:
    """A mapped file of weights. It must live as long as any session that uses it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = open_plain(path)
        # Closed when no longer referenced: a thread may still read for an engine that is closed.
        finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        self._map = mmap.mmap(self._file, size, mmap.MAP_SHARED, mmap.PROT_READ) if size else None
        self.buffer: mmap.mmap | bytes = self._map or b""

    def fetch(self, start: int, end: int) -> None:
        """Ask the kernel to read a range ahead, normally without waiting."""
        os.posix_fadvise(self._file, start, end - start, os.POSIX_FADV_WILLNEED)

    def check(self, start: int, end: int, expected: str) -> None:
        """Read a range and compare its checksum.

        Raises:
            ArtifactError: it differs.
        """
        if self._map is None or end == start:
            return
        with suppress(OSError):  # an older kernel maps pages when they are accessed
            self._map.madvise(_POPULATE_READ, start, end - start)
        with memoryview(self._map)[start:end] as content:
            found = xxh3_64_hexdigest(content)
        if found != expected:
            raise ArtifactError(f"{self.path}: bytes {start} to {end} are damaged")

    def drop(self, start: int, end: int) -> None:
        """Release the memory of a range; it is read again when needed."""
        end -= end % _PAGE
        if self._map is not None and end > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
            os.posix_fadvise(self._file, start, end - start, os.POSIX_FADV_DONTNEED)


class WeightCheck:
    """A check of the weights in its own thread."""

    def __init__(self, weights: MappedWeights, ranges: Sequence[tuple[int, int, str]]) -> None:
        """Start the thread; the arguments are those of `check_weights`."""
        self._problem: BaseException | None = None

        def work() -> None:
            try:
                check_weights(weights, ranges)
            except BaseException as problem:  # noqa: BLE001 - raised in `wait`
                self._problem = problem

        self._thread = threading.Thread(target=work, name="check of weights", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until all has been checked.

        Raises:
            ArtifactError: something is damaged, or cannot be read.
        """
        self._thread.join()
        if self._problem is not None:
            raise self._problem


def check_weights(weights: MappedWeights, ranges: Sequence[tuple[int, int, str]]) -> None:
    """Check ranges of the weights, each (first byte, end, expected checksum).

    Raises:
        ArtifactError: one is damaged, or cannot be read.
    """
    try:
        for start, end, expected in ranges:
            # Keeps the disk busy while this range is being hashed.
            weights.fetch(start, min(end + _AHEAD, ranges[-1][1]))
            weights.check(start, end, expected)
    except OSError as problem:
        raise ArtifactError(f"{weights.path}: cannot be read: {problem.strerror}") from problem
