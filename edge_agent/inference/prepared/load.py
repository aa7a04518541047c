"""Loading an artifact: by which strategy, and the load while it is in progress.

Imports ONNX Runtime and next to nothing else: it is the first step on the way to the first result,
taken before the rest of the program is imported. What was loaded counts once its checksum matches.

Of the first two strategies the one goes that gave the first result soonest when measured on this
device. (Loading in stages of which the first run while the last are built was never the soonest of
ResNet-50 and ViT-B/16, in floats and in INT8, with two cores.)

    whole      one session, its weights mapped
    bare       a session that computes on the weights as they are; its prepared twin follows
    streaming  stages whose weights come and go: for a model that does not fit in memory
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from xxhash import xxh3_64_hexdigest

from ...device.resources import running, usable_cpus
from ..engines.ort_session import NAME, Stage, open_session
from .artifact import (
    GRAPH,
    WEIGHTS,
    Artifact,
    ArtifactError,
    MappedWeights,
    WeightCheck,
    need_version,
    read,
)

STRATEGIES = ("whole", "bare")
"""Those to choose from, in the order in which they are preferred where the difference is small."""
MARGIN = 0.03
SLACK_MS = 1.0

Figures = Mapping[str, Any]
"""build_ms: until it can run; first_ms: its first run; total_ms: from the start of loading to the
first result, the head start included; steady_ms: a later run."""

ENGINE = NAME
"""Whose forms are loaded here."""
_ENTRIES: Mapping[str, Mapping[str, str]] = {
    "bare": {"session.disable_prepacking": "1"},
    # Each stage has threads of its own: those that wait must not take the cores from the others.
    "streaming": {
        "session.intra_op.allow_spinning": "0",
        "session.disable_prepacking": "1",
    },
}


def choose(strategies: Mapping[str, Mapping[str, Figures]], spare: str) -> str:
    """Choose the strategy that gives the first result soonest.

    Args:
        strategies: by name: figures with a core to spare ("idle") and without ("busy").
        spare: "idle" or "busy".
    """
    if not any(spare in figures for figures in strategies.values()):
        spare = "busy"  # measured when there was no core to spare at all
    times = {
        name: float(strategies[name][spare]["total_ms"])
        for name in STRATEGIES
        if spare in strategies.get(name, {})
    }
    least = min(times.values())
    return next(name for name, time in times.items() if time <= least * (1 + MARGIN) + SLACK_MS)


def spare_core() -> str:
    """Return "idle" where a core is free for a loader thread, else "busy"."""
    others = running() - 1  # the thread that imports the rest of the program
    return "idle" if usable_cpus() - max(0, others) >= 2 else "busy"


def prefetch(folder: str) -> None:
    """Let the kernel read an artifact's files; may wait for the disk, so call it in a thread."""
    for name in (GRAPH, WEIGHTS):
        try:
            weights = MappedWeights(f"{folder}/{name}")
        except OSError:
            return  # `load_folder` raises what is wrong
        weights.fetch(0, len(weights.buffer))


def load_folder(folder: str) -> Load:
    """Load the artifact in a folder, on ONNX Runtime's CPU, by the best strategy.

    Raises:
        ArtifactError: it cannot be used here.
    """
    return load_artifact(read(folder))


def load_artifact(artifact: Artifact, strategy: str | None = None) -> Load:
    """Load an artifact that has been read; *strategy*: instead of the best one."""
    if artifact.engine != ENGINE:
        raise ArtifactError(f"{artifact.folder}: is not of ONNX Runtime")
    table = artifact.table
    strategy = strategy or table["only"]
    if strategy is None:
        strategy = choose(table["rungs"], spare_core())
    return Load(artifact, strategy)


class Load:
    """An artifact that has been loaded; `inference.prepared.engine` makes an engine of it."""

    def __init__(self, artifact: Artifact, strategy: str) -> None:
        """Open its sessions."""
        self.artifact = artifact
        self.strategy = strategy
        try:
            self.weights = MappedWeights(artifact.path(WEIGHTS))
        except OSError as problem:
            raise ArtifactError(f"{artifact.path(WEIGHTS)}: {problem.strerror}") from None
        table = artifact.table
        self.check: WeightCheck | None = None
        if strategy != "streaming":
            # Before the engine is imported: the disk reads while Python does not need it.
            ranges = [tuple(stage["range"]) for stage in table["stages"]]
            self.check = WeightCheck(self.weights, ranges)
        import onnxruntime as ort

        need_version(artifact, ENGINE, ort.__version__)
        inputs, outputs = ([name for name, _, _ in table[key]] for key in ("inputs", "outputs"))
        self.stages = [Stage(GRAPH, inputs, outputs)]
        if strategy == "streaming":
            self.stages = [
                Stage(each["graph"], each["takes"], each["gives"]) for each in table["stages"]
            ]
        for stage in self.stages:
            self._check_graph(stage.name)
            stage.build(partial(self.session, stage.name, strategy))
            stage.ready()

    def _check_graph(self, name: str) -> None:
        """Check a graph before the engine parses it; they are small."""
        path = self.artifact.path(name)
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not there yet
            if xxh3_64_hexdigest(file.read()) != self.artifact.table["files"][name][1]:
                raise ArtifactError(f"{path}: damaged")

    def session(self, graph: str, strategy: str, threads: int | None = None) -> Any:
        """Open a session of one of the artifact's graphs; with *threads* instead of its own.

        Raises:
            ArtifactError: ONNX Runtime refuses what it has itself written.
        """
        words = self.artifact.table["session"]
        if threads is not None:
            words = {**words, "threads": threads, "spins": False}
        return open_session(
            path := self.artifact.path(graph),
            words,
            path,
            ArtifactError,
            # What is kept for the next run is memory that something else could use.
            attributes={"enable_cpu_mem_arena": False} if strategy == "streaming" else None,
            weights={WEIGHTS: self.weights.buffer},
            ready=True,
            extra=_ENTRIES.get(strategy),
        )

    def wait_checked(self) -> None:
        """Wait until all weights have been checked.

        Raises:
            ArtifactError: some are damaged.
        """
        if self.check is not None:
            self.check.wait()

    def close(self) -> None:
        """Release everything that no running inference holds."""
        for stage in self.stages:
            stage.fail(ArtifactError(f"{self.artifact.folder}: closed"))
