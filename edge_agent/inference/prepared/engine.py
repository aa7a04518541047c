"""An artifact as an engine: however it was loaded, its numbers are the original network's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ...core.errors import EngineError
from ...core.types import Array, Tensors, TensorSpec
from ..engines.engine import Engine, EngineChoice, FixShapes, check_inputs, fix_inputs
from ..engines.registry import capabilities
from .artifact import GRAPH, Artifact, ArtifactError
from .load import Load

Run = Callable[[Tensors], list[Array]]
"""Returns the outputs in the network's order."""


class PreparedEngine(Engine, Protocol):
    """An engine loaded from an artifact, whichever library runs it."""

    artifact: Artifact
    is_streaming: bool
    """Whether its weights are read for each frame."""

    def finish_load(self, threads: int | None = None) -> bool:
        """Build the permanent session; see `PreparedForm`."""


class OrtPreparedEngine:
    """A network that ONNX Runtime loads from an artifact."""

    def __init__(self, load: Load) -> None:
        artifact = load.artifact
        self.label: str = artifact.table["label"]
        self.inputs = tensor_specs(artifact, "inputs")
        self.outputs = tensor_specs(artifact, "outputs")
        self.artifact = artifact
        self.prepared = None
        self.widened = None
        self.fold = artifact.fold
        self._taken = self.inputs if self.fold is None else self.fold.specs(self.inputs)
        self._names = [spec.name for spec in self.outputs]
        self.is_streaming = load.is_streamed
        self._load: Load | None = load
        self._unchecked = True
        self._stop: Callable[[], None] = lambda: None
        if load.is_streamed:
            from .streaming import StreamingRunner  # not needed for models that fit

            streamer = StreamingRunner(load)
            self._run: Run = streamer.run
            self._stop = streamer.close
        else:
            self._run = self._run_whole(load.stages[0].session)

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network; the first call returns once all weights have been checked.

        Raises:
            ArtifactError: the artifact is damaged. Close the engine and load the original network.
            EngineError: as for every engine.
        """
        if self.fold is not None:
            tensors = self.fold.feed(tensors)
        check_inputs(self._taken, tensors)
        # Local names keep them alive for this call if the engine is closed meanwhile.
        load, run = self._load, self._run
        if load is None:
            raise EngineError(f"{self.label}: the network has been closed")
        try:
            results = run(tensors)
        except EngineError:
            raise
        except Exception as problem:  # its exceptions have no common class but this one
            if self._unchecked:
                load.wait_checked()  # damage is the likelier reason
            from ..engines.engine import native_reason

            raise EngineError(f"{self.label}: {native_reason(problem, Path('model'))}") from problem
        if self._unchecked:
            load.wait_checked()
            self._unchecked = False
        return dict(zip(self._names, results, strict=True))

    def finish_load(self, threads: int | None = None) -> bool:
        """Replace the session with one of *threads* threads; calls of `infer` continue."""
        load = self._load
        if load is None or load.is_streamed:
            return False
        if threads in {None, self.artifact.table["session"]["threads"]}:
            return False
        load.wait_checked()
        self._run = self._run_whole(load.session(GRAPH, threads))
        load.stages.clear()
        return True

    def _run_whole(self, session: Any) -> Run:
        def run(tensors: Tensors) -> list[Array]:
            results: list[Array] = session.run(self._names, dict(tensors))
            return results

        return run

    def close(self) -> None:
        """Release the network; memory is freed when the last running call returns."""
        self._load, self._run = None, _closed
        stop, self._stop = self._stop, lambda: None
        stop()


def _closed(_: Tensors) -> list[Array]:
    raise EngineError("the network has been closed")


def open_artifact(
    choice: EngineChoice, source: Artifact | Load, fix_shapes: FixShapes
) -> PreparedEngine:
    """Load a network from its artifact, or continue a load in progress.

    Raises:
        ArtifactError: it cannot be used: load the original network, and prepare it again.
    """
    artifact = source.artifact if isinstance(source, Load) else source
    if choice.engine != artifact.engine:
        raise ArtifactError(f"form of {artifact.engine}, not of {choice.engine}")
    declared, inputs = (tensor_specs(artifact, key) for key in ("declared", "inputs"))
    wanted = fix_inputs(declared, fix_shapes, Path(GRAPH))
    if wanted != inputs:
        raise ArtifactError(f"form for {_shown(inputs)}, not for {_shown(wanted)}")
    if isinstance(source, Load):
        return OrtPreparedEngine(source)
    module = import_module(capabilities(artifact.engine).prepared_module)
    engine: PreparedEngine = module.open_prepared(choice, artifact)
    return engine


def open_prepared(choice: EngineChoice, artifact: Artifact) -> OrtPreparedEngine:
    """Load an artifact of this engine; `open_artifact` has checked that it fits."""
    del choice  # the artifact contains all of it
    return OrtPreparedEngine(Load(artifact))


def tensor_specs(artifact: Artifact, key: str) -> tuple[TensorSpec, ...]:
    """Return the "declared" inputs, the "inputs", or the "outputs" of an artifact's network."""
    return tuple(
        TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in artifact.table[key]
    )


def accepts_batches(artifact: Artifact) -> bool:
    """Whether the original network of an artifact for one sample takes several, too."""
    declared = tensor_specs(artifact, "declared")
    return any(len(spec.shape) > 1 and spec.shape[0] is None for spec in declared)


def _shown(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(str(spec) for spec in specs)
