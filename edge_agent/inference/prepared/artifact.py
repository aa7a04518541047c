"""The artifact of a prepared form: its files, its table, and whether it can be used here.

On the way to the first result: imports next to nothing, and reads no more than it must.

    state_dir/prepared/<key>/
      form.json       its table: everything that is known of it, with a checksum
      graph.onnx      the whole network, as the engine has optimized it, without weights
      stage-<n>.onnx  the same graph cut up, where it does not fit in memory
      weights.bin     all weights, in order of execution
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_hexdigest

from ...core.errors import EngineError
from ...device.resources import instructions

if TYPE_CHECKING:
    from ..folding.fold import Fold

FORMAT = 7
"""Of artifacts: raised with every change of what is written or how it is read."""
FOLDER = "prepared"
FILE = "form.json"
GRAPH = "graph.onnx"
WEIGHTS = "weights.bin"
BLOB = "network.blob"

# The table follows the checksum of its exact bytes.
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
        """How the input of the prepared network differs from the network's own."""
        fold = self.table["fold"]
        if fold is None:
            return None
        from ..folding.fold import Fold

        return Fold(**fold)

    @property
    def measured(self) -> bool:
        """Whether it is known how it is loaded soonest; until then in one piece."""
        measured: bool = self.table["measured"]
        return measured

    @property
    def weights(self) -> str:
        """Path of the file that the ranges of its stages are of."""
        return self.path(BLOB if BLOB in self.table["files"] else WEIGHTS)

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


def read(folder: str) -> Artifact:
    """Read an artifact's table; check that the artifact is whole and of this processor.

    The contents of the other files are checked while they are loaded.

    Raises:
        ArtifactError: it is damaged, cut short, or was made elsewhere or by another program.
    """
    try:
        with open(f"{folder}/{FILE}", "rb") as file:  # noqa: PTH123 - pathlib may not be there yet
            data = file.read()
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
    """Return a table's text with its checksum before it."""
    return _HEAD % xxh3_64_hexdigest(body).encode() + body + b"}\n"


def encode(table: Mapping[str, Any]) -> bytes:
    """Return the content of an artifact's file."""
    return seal(json.dumps(table, indent=1).encode())


def processor() -> str:
    """Return a short name of the instructions that this processor has."""
    return xxh3_64_hexdigest(instructions().encode())


def need_version(artifact: Artifact, engine: str, version: str) -> None:
    """Check that an artifact was made by the engine that is to load it.

    Raises:
        ArtifactError: it was made by another, or another version of it.
    """
    found = (artifact.table["engine"], artifact.table["version"])
    if found != (engine, version):
        raise ArtifactError(
            f"{artifact.folder}: made by {' '.join(found)}, here is {engine} {version}"
        )
