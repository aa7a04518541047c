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
from .artifact import GRAPH, WEIGHTS, Form, FormError, need_version, read
from .mapped import Check, Mapped
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


def warm(folder: str) -> None:
    """Have the kernel read a form's files; may wait for the disk, so call it in a thread."""
    for name in (GRAPH, WEIGHTS):
        try:
            weights = Mapped(f"{folder}/{name}")
        except OSError:
            return  # `begin` says what is wrong
        weights.fetch(0, len(weights.buffer))


def begin(folder: str) -> Begun:
    """Load what a form's folder holds, on ONNX Runtime's CPU.

    Args:
        folder: of the form.

    Returns:
        When it can run, or with `staged`: when its first stage can.

    Raises:
        FormError: it cannot be used here.

    """
    return start(read(folder))


def start(form: Form, rung: str | None = None) -> Begun:
    """Do what `begin` does with a form that has been read; *rung*: instead of the best one."""
    if form.engine != ENGINE:
        raise FormError(f"{form.folder}: is not of ONNX Runtime")
    table = form.table
    rung = rung or table["only"]
    if rung is None:
        rung = choose(table["rungs"], spare_core())
    return Begun(form, rung)


class Begun:
    """A form that is being loaded; `inference.prepared.engine` makes an engine of it."""

    def __init__(self, form: Form, rung: str) -> None:
        """Load, as far as `begin` says."""
        self.form = form
        self.rung = rung
        try:
            self.weights = Mapped(form.path(WEIGHTS))
        except OSError as problem:
            raise FormError(f"{form.path(WEIGHTS)}: {problem.strerror}") from None
        stages = form.table["stages"]
        self.check: Check | None = None
        if rung != "streaming":
            # Before the engine is imported: the disk reads while Python does not need it.
            self.check = Check(self.weights, [tuple(stage["range"]) for stage in stages])
        import onnxruntime as ort

        ort.set_default_logger_severity(FATAL_ONLY)
        need_version(form, ENGINE, ort.__version__)
        if rung in {"staged", "streaming"}:
            parts = [Part(stage["graph"], stage["takes"], stage["gives"]) for stage in stages]
        else:
            inputs = [name for name, _, _ in form.table["inputs"]]
            outputs = [name for name, _, _ in form.table["outputs"]]
            parts = [Part(GRAPH, inputs, outputs)]
        self.parts = parts
        for part in parts:
            self._see_graph(part.graph)
        if rung == "staged":
            threading.Thread(target=self._build, name="loader", daemon=True).start()
        else:
            self._build()
        parts[0].ready()

    def _see_graph(self, name: str) -> None:
        """Check a graph before the engine parses it; they are small."""
        with open(self.form.path(name), "rb") as file:  # noqa: PTH123 - pathlib is not there yet
            if xxh3_64_hexdigest(file.read()) != self.form.table["files"][name][1]:
                raise FormError(f"{self.form.path(name)}: damaged")

    def _build(self) -> None:
        for part in self.parts:
            part.build(partial(self.session, part.graph, self.rung))
            if part.problem is not None:
                for other in self.parts:
                    other.fail(part.problem)
                return

    def session(self, graph: str, rung: str, threads: int | None = None) -> Any:
        """Make a session of one of the form's graphs; with *threads* instead of the form's.

        Raises:
            FormError: ONNX Runtime refuses what it has itself written.

        """
        import onnxruntime as ort

        words = self.form.table["session"]
        if threads is not None:
            words = {**words, "threads": threads, "spins": False}
        options = session_options(
            words, weights={WEIGHTS: self.weights.buffer}, ready=True, extra=_ENTRIES.get(rung)
        )
        if rung == "streaming":
            # What is kept for the next run is memory that somebody else could use.
            options.enable_cpu_mem_arena = False
        try:
            return ort.InferenceSession(
                self.form.path(graph), options, providers=["CPUExecutionProvider"]
            )
        except Exception as problem:  # its exceptions have no common class but this one
            line = next(iter(str(problem).splitlines()), type(problem).__name__)
            raise FormError(f"{self.form.path(graph)}: {line}") from problem

    def verdict(self) -> None:
        """Wait until all weights have been checked.

        Raises:
            FormError: some are damaged.

        """
        if self.check is not None:
            self.check.wait()

    def close(self) -> None:
        """Let go of everything that no running inference holds."""
        for part in self.parts:
            part.fail(FormError(f"{self.form.folder}: closed"))


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
            FormError: there is none.

        """
        self._done.wait()
        session = self._session
        if session is None:
            if isinstance(self.problem, FormError):
                raise self.problem
            raise FormError(f"{self.graph}: {self.problem}")
        return session

    def run(self, session: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the stage on values of ONNX Runtime's own; give those that it makes, by name."""
        start = time.perf_counter()
        feeds = {name: values[name] for name in self.takes}
        made = session.run_with_ort_values(self.gives, feeds)
        self.run_ms = (time.perf_counter() - start) * 1e3
        return dict(zip(self.gives, made, strict=True))
