"""Loading from a form, begun: the first thing on the way to the first result.

Imports ONNX Runtime and next to nothing else, so that it can be called before the rest of the
program is imported. Nothing that was loaded counts before its checksum has been seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from xxhash import xxh3_64_hexdigest

from ..engines.ort_options import FATAL_ONLY, NAME, session_options
from .artifact import GRAPH, WEIGHTS, Artifact, ArtifactError, need_version, read
from .mapped import MappedWeights, WeightCheck
from .strategy import choose, spare_core

ENGINE = NAME
"""Whose forms are loaded here."""
_ENTRIES: Mapping[str, Mapping[str, str]] = {
    "parallel": {"session.prepack.enable_parallel": "1"},
    "bare": {"session.disable_prepacking": "1"},
    # Each stage has threads of its own: those that wait must not take the cores from the others
    # (4 stages of a ResNet-50 in INT8, 2 cores: 79 ms with spinning, 38 ms without).
    "staged": {"session.intra_op.allow_spinning": "0"},
    "streaming": {
        "session.intra_op.allow_spinning": "0",
        "session.disable_prepacking": "1",
    },
}


def prefetch(folder: str) -> None:
    """Have the kernel read a form's files; may wait for the disk, so call it in a thread."""
    for name in (GRAPH, WEIGHTS):
        try:
            weights = MappedWeights(f"{folder}/{name}")
        except OSError:
            return  # `load_folder` says what is wrong
        weights.fetch(0, len(weights.buffer))


def load_folder(folder: str) -> Load:
    """Load what a form's folder holds, on ONNX Runtime's CPU.

    Args:
        folder: of the form.

    Returns:
        When it can run, or with `staged`: when its first stage can.

    Raises:
        ArtifactError: it cannot be used here.

    """
    return load_artifact(read(folder))


def load_artifact(form: Artifact, strategy: str | None = None) -> Load:
    """Load an artifact that has been read; *strategy*: instead of the best one."""
    if form.engine != ENGINE:
        raise ArtifactError(f"{form.folder}: is not of ONNX Runtime")
    table = form.table
    strategy = strategy or table["only"]
    if strategy is None:
        strategy = choose(table["rungs"], spare_core())
    return Load(form, strategy)


class Load:
    """A form that is being loaded; `inference.prepared.engine` makes an engine of it."""

    def __init__(self, form: Artifact, strategy: str) -> None:
        """Load, as far as `load_folder` says."""
        self.artifact = form
        self.strategy = strategy
        try:
            self.weights = MappedWeights(form.path(WEIGHTS))
        except OSError as problem:
            raise ArtifactError(f"{form.path(WEIGHTS)}: {problem.strerror}") from None
        stages = form.table["stages"]
        self.check: WeightCheck | None = None
        if strategy != "streaming":
            # Before the engine is imported: the disk reads while Python does not need it.
            self.check = WeightCheck(self.weights, [tuple(stage["range"]) for stage in stages])
        import onnxruntime as ort

        ort.set_default_logger_severity(FATAL_ONLY)
        need_version(form, ENGINE, ort.__version__)
        if strategy in {"staged", "streaming"}:
            parts = [Part(stage["graph"], stage["takes"], stage["gives"]) for stage in stages]
        else:
            inputs = [name for name, _, _ in form.table["inputs"]]
            outputs = [name for name, _, _ in form.table["outputs"]]
            parts = [Part(GRAPH, inputs, outputs)]
        self.parts = parts
        for part in parts:
            self._see_graph(part.graph)
        if strategy == "staged":
            threading.Thread(target=self._build, name="loader", daemon=True).start()
        else:
            self._build()
        parts[0].ready()

    def _see_graph(self, name: str) -> None:
        """WeightCheck a graph before the engine parses it; they are small."""
        with open(self.artifact.path(name), "rb") as file:  # noqa: PTH123 - pathlib is not there yet
            if xxh3_64_hexdigest(file.read()) != self.artifact.table["files"][name][1]:
                raise ArtifactError(f"{self.artifact.path(name)}: damaged")

    def _build(self) -> None:
        for part in self.parts:
            part.build(partial(self.session, part.graph, self.strategy))
            if part.problem is not None:
                for other in self.parts:
                    other.fail(part.problem)
                return

    def session(self, graph: str, strategy: str, threads: int | None = None) -> Any:
        """Make a session of one of the form's graphs; with *threads* instead of the form's.

        Raises:
            ArtifactError: ONNX Runtime refuses what it has itself written.

        """
        import onnxruntime as ort

        words = self.artifact.table["session"]
        if threads is not None:
            words = {**words, "threads": threads, "spins": False}
        options = session_options(
            words, weights={WEIGHTS: self.weights.buffer}, ready=True, extra=_ENTRIES.get(strategy)
        )
        if strategy == "streaming":
            # What is kept for the next run is memory that somebody else could use.
            options.enable_cpu_mem_arena = False
        try:
            return ort.InferenceSession(
                self.artifact.path(graph), options, providers=["CPUExecutionProvider"]
            )
        except Exception as problem:  # its exceptions have no common class but this one
            line = next(iter(str(problem).splitlines()), type(problem).__name__)
            raise ArtifactError(f"{self.artifact.path(graph)}: {line}") from problem

    def verdict(self) -> None:
        """Wait until all weights have been checked.

        Raises:
            ArtifactError: some are damaged.

        """
        if self.check is not None:
            self.check.wait()

    def close(self) -> None:
        """Let go of everything that no running inference holds."""
        for part in self.parts:
            part.fail(ArtifactError(f"{self.artifact.folder}: closed"))


class Part:
    """A graph and, when it is built, its session."""

    __slots__ = (
        *("_done", "_session", "build_ms", "gives", "graph", "problem", "run_ms", "takes"),
    )

    def __init__(self, graph: str, takes: Sequence[str], gives: Sequence[str]) -> None:
        self.graph = graph
        self.takes = takes
        self.gives = gives
        self.problem: BaseException | None = None
        self.build_ms = self.run_ms = 0.0
        """Of its session, and of the last run of it."""
        self._session: Any = None
        self._done = threading.Event()

    def build(self, make: Callable[[], Any]) -> None:
        """Make the session, and let those go on who wait for it."""
        start = time.perf_counter()
        try:
            session = make()
        except BaseException as problem:  # noqa: BLE001 - raised in `ready`
            self.fail(problem)
            return
        self.build_ms = (time.perf_counter() - start) * 1e3
        # Closed meanwhile: nobody will come for it.
        if self.problem is None:
            self._session = session
        self._done.set()

    @property
    def session(self) -> Any:
        """The session, or None where it is not there (yet)."""
        return self._session

    def fail(self, problem: BaseException) -> None:
        """There is no session, and there will be none."""
        self._session, self.problem = None, problem
        self._done.set()

    def ready(self) -> Any:
        """Wait for the session.

        Raises:
            ArtifactError: there is none.

        """
        self._done.wait()
        session = self._session
        if session is None:
            if isinstance(self.problem, ArtifactError):
                raise self.problem
            raise ArtifactError(f"{self.graph}: {self.problem}")
        return session

    def run(self, session: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the stage on values of ONNX Runtime's own; give those that it makes, by name."""
        start = time.perf_counter()
        feeds = {name: values[name] for name in self.takes}
        made = session.run_with_ort_values(self.gives, feeds)
        self.run_ms = (time.perf_counter() - start) * 1e3
        return dict(zip(self.gives, made, strict=True))
