"""A network run in stages by ONNX Runtime: sessions one after the other, tensors passed between.

A stage may be built by another thread while earlier ones already run. Lies on the way to the first
result: ONNX Runtime is imported when the first session is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.errors import EngineError
from .ort_options import FATAL_ONLY, Words, session_options

if TYPE_CHECKING:
    from pathlib import Path

    from ...core.types import Array, Tensors


def open_session(
    graph: str | Path | bytes,
    words: Words,
    name: str,
    error: type[EngineError] = EngineError,
    *,
    attributes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Open a session of a graph on the CPU.

    Args:
        graph: its file, or its bytes.
        words: options of the session.
        name: of the graph, for errors.
        error: what to raise.
        attributes: of the session's options, beside those in *words*.
        options: as for `session_options`.

    Raises:
        EngineError: ONNX Runtime cannot read or run it; of the class *error*.
    """
    try:
        import onnxruntime as ort

        ort.set_default_logger_severity(FATAL_ONLY)
        settings = session_options(words, **options)
        for key, value in (attributes or {}).items():
            setattr(settings, key, value)
        return ort.InferenceSession(graph, settings, providers=["CPUExecutionProvider"])
    except Exception as problem:  # its exceptions have no common class but this one
        line = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise error(f"{name}: {line}") from problem


class Stage:
    """A part of a network and, once it is built, its session."""

    __slots__ = (*("_done", "_session", "inputs", "name", "outputs", "problem", "spent"),)

    def __init__(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Describe a stage that is not built yet.

        Args:
            name: of its graph.
            inputs: tensors from the network's inputs and from stages before.
            outputs: tensors that later stages take, and outputs of the network.
        """
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.spent: Sequence[str] = ()
        """Tensors to release after this stage; see `release_early`."""
        self.problem: BaseException | None = None
        self._session: Any = None
        self._done = threading.Event()

    def build(self, open_it: Callable[[], Any]) -> None:
        """Open the session and wake those that wait for it; `ready` raises what goes wrong."""
        try:
            session = open_it()
        except BaseException as problem:  # noqa: BLE001 - raised in `ready`
            self.fail(problem)
            return
        # Failed meanwhile, that is closed: it will not be asked for.
        if self.problem is None:
            self._session = session
        self._done.set()

    def fail(self, problem: BaseException) -> None:
        """Release the session, or record that there will be none."""
        self._session, self.problem = None, problem
        self._done.set()

    def ready(self) -> Any:
        """Wait for the session.

        Raises:
            EngineError: there is none.
        """
        self._done.wait()
        session = self._session
        if session is None:
            if isinstance(self.problem, EngineError):
                raise self.problem
            raise EngineError(f"{self.name}: {self.problem}")
        return session

    def run(self, session: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the stage on values of ONNX Runtime's own; return those that it makes, by name."""
        feeds = {name: values[name] for name in self.inputs}
        made = session.run_with_ort_values(self.outputs, feeds)
        return dict(zip(self.outputs, made, strict=True))


def run_stages(
    stages: Iterable[tuple[Stage, Any]], tensors: Tensors, outputs: Sequence[str]
) -> list[Array]:
    """Run stages in order and return the network's outputs.

    Args:
        stages: each with its session; asked for the next one when the one before has run, so it
            may wait for a stage, and release what a stage needed.
        tensors: inputs of the network.
        outputs: names of the outputs.
    """
    import onnxruntime as ort

    # Values of ONNX Runtime's own go from stage to stage without being copied.
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in tensors.items()}
    for stage, session in stages:
        values.update(stage.run(session, values))
        for name in stage.spent:
            del values[name]
    return [values[name].numpy() for name in outputs]


def release_early(stages: Sequence[Stage], outputs: Collection[str]) -> None:
    """Make each stage release the tensors that no later one takes: where memory is scarce."""
    needed = set(outputs)
    for stage in reversed(stages):
        names = dict.fromkeys((*stage.inputs, *stage.outputs))
        stage.spent = [name for name in names if name not in needed]
        needed.update(stage.inputs)
