"""Loading an artifact of ONNX Runtime, and the load while it is in progress.

Imports ONNX Runtime and almost nothing else: it is the first step toward the first result, before
the rest of the program is imported. Loaded bytes are only used once their checksum matches.

An artifact is loaded whole, in one session with mapped weights, or, if it does not fit in memory,
in stages whose weights are read for each frame. (Running the first stages while the last are built,
and sessions whose weights are not rearranged for computing, were never clearly faster.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xxhash import xxh3_64_hexdigest

from ...core.plain_file import read_plain_bytes
from ..engines.ort_session import NAME, Stage, open_session
from .artifact import (
    GRAPH,
    STREAMED,
    WEIGHTS,
    Artifact,
    ArtifactError,
    MappedWeights,
    WeightCheck,
    need_version,
    read,
)

ENGINE = NAME
"""The engine whose forms are loaded here."""
# Each stage has its own threads: waiting ones must not take cores from the others.
_STREAMED_ENTRIES: Mapping[str, str] = {
    "session.intra_op.allow_spinning": "0",
    "session.disable_prepacking": "1",
}


def prefetch(folder: str) -> None:
    """Ask the kernel to read an artifact's files; may wait for the disk, so call it in a thread."""
    for name in (GRAPH, WEIGHTS):
        try:
            weights = MappedWeights(f"{folder}/{name}")
        except OSError:
            return  # `load_folder` reports the problem
        weights.fetch(0, len(weights.buffer))


def load_folder(folder: str) -> Load:
    """Load the artifact in a folder, on ONNX Runtime's CPU.

    Raises:
        ArtifactError: it cannot be used here.
    """
    return Load(read(folder))


class Load:
    """A loaded artifact; `inference.prepared.engine` makes an engine from it."""

    def __init__(self, artifact: Artifact) -> None:
        """Open its sessions.

        Raises:
            ArtifactError: it cannot be used here.
        """
        if artifact.engine != ENGINE:
            raise ArtifactError(f"{artifact.folder}: is not of ONNX Runtime")
        table = artifact.table
        self.artifact = artifact
        self.is_streamed: bool = table["way"] == STREAMED
        try:
            self.weights = MappedWeights(artifact.path(WEIGHTS))
        except OSError as problem:
            raise ArtifactError(f"{artifact.path(WEIGHTS)}: {problem.strerror}") from None
        self._check: WeightCheck | None = None
        if not self.is_streamed:
            # Before the engine is imported: the disk would be idle then.
            ranges = [tuple(stage["range"]) for stage in table["stages"]]
            self._check = WeightCheck(self.weights, ranges)
        import onnxruntime as ort

        need_version(artifact, ENGINE, ort.__version__)
        inputs, outputs = ([name for name, _, _ in table[key]] for key in ("inputs", "outputs"))
        parts = [(GRAPH, inputs, outputs)]
        if self.is_streamed:
            parts = [(each["graph"], each["takes"], each["gives"]) for each in table["stages"]]
        self.stages = [Stage(takes, gives, self.session(graph)) for graph, takes, gives in parts]

    def session(self, graph: str, threads: int | None = None) -> Any:
        """Open a session of one of the artifact's graphs; *threads* replaces its number of threads.

        Raises:
            ArtifactError: it is damaged, or ONNX Runtime refuses a graph that it wrote itself.
        """
        path = self.artifact.path(graph)
        # Checked before the engine parses it; graphs are small.
        if xxh3_64_hexdigest(read_plain_bytes(path)) != self.artifact.table["files"][graph][1]:
            raise ArtifactError(f"{path}: damaged")
        words = self.artifact.table["session"]
        if threads is not None:
            words = {**words, "threads": threads, "spins": False}
        return open_session(
            path,
            words,
            path,
            ArtifactError,
            # Memory kept for the next run could be used for something else.
            attributes={"enable_cpu_mem_arena": False} if self.is_streamed else None,
            weights={WEIGHTS: self.weights.buffer},
            ready=True,
            extra=_STREAMED_ENTRIES if self.is_streamed else None,
        )

    def wait_checked(self) -> None:
        """Wait until all weights have been checked.

        Raises:
            ArtifactError: some are damaged.
        """
        if self._check is not None:
            self._check.wait()
