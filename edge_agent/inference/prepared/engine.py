"""An artifact as an engine: by whichever strategy it was loaded, the numbers are the network's.

What is loaded the quick way is exchanged for what runs fastest by `finish_load`, between two calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...core.errors import EngineError
from ...core.types import Array, Tensors, TensorSpec
from ..engines.engine import Engine, EngineChoice, FixShapes, check_inputs, fix_inputs
from ..engines.registry import capabilities
from .artifact import GRAPH, Artifact, ArtifactError
from .load import Load, load_artifact

if TYPE_CHECKING:
    from .streaming import StreamingRunner

log = logging.getLogger(__name__)

Run = Callable[[Tensors], list[Array]]
"""Returns the outputs in the network's order."""

# By strategy; every other is "resident".
_MODES = {"bare": "bare", "streaming": "streaming"}
AGREE = 1e-3
"""Relative distance allowed between a bare session and its twin: they add in another order."""


class PreparedEngine(Engine, Protocol):
    """An engine that was loaded from an artifact, of whichever engine that is."""

    mode: str
    artifact: Artifact

    def finish_load(self, threads: int | None = None) -> bool:
        """Build what runs fastest in the long run, in the background; whether anything has changed.

        Args:
            threads: of one inference from now on, where the first had more; None: as before.

        Raises:
            EngineError: it cannot be built; all is as before.
        """


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
        self.mode: str = _MODES.get(load.strategy, "resident")
        self._load: Load | None = load
        self._streamer: StreamingRunner | None = None
        self._unchecked = True
        self._last: Tensors | None = None
        if load.strategy == "streaming":
            from .streaming import StreamingRunner  # not on the way of models that fit

            self._streamer = StreamingRunner(load)
            self._run: Run = self._streamer.run
        else:
            self._run = self._run_whole(load.stages[0].ready())

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network; the arrays returned are new ones, made for this call.

        The first call returns when all weights have been checked.

        Raises:
            ArtifactError: the artifact is damaged. Close the engine and load the network itself.
            EngineError: as for every engine.
        """
        if self.fold is not None:
            tensors = self.fold.feed(tensors)
        check_inputs(self._taken, tensors)
        # Local names: closing the engine meanwhile does not pull them from under this call.
        load, run = self._load, self._run
        if load is None:
            raise EngineError(f"{self.label}: the network has been closed")
        try:
            results = run(tensors)
        except EngineError:
            raise
        except Exception as problem:  # its exceptions have no common class but this one
            if self._unchecked:
                load.wait_checked()  # what is damaged is the likelier reason
            from ..engines.engine import native_reason

            raise EngineError(f"{self.label}: {native_reason(problem, Path('model'))}") from problem
        if self._unchecked:
            load.wait_checked()
            self._unchecked = False
        if self.mode == "bare":
            self._last = tensors
        return dict(zip(self._names, results, strict=True))

    def finish_load(self, threads: int | None = None) -> bool:
        """Build what runs fastest, and exchange it for what was loaded first.

        To be called in the background, after the first result. Calls of `infer` go on meanwhile.

        Args:
            threads: of one inference from now on; the first had all cores. None: as before.

        Returns:
            Whether anything has been exchanged.

        Raises:
            EngineError: what was built cannot be used; all is as before.
        """
        load = self._load
        if load is None or self.mode == "streaming":
            return False
        table = self.artifact.table
        if threads == table["session"]["threads"]:
            threads = None
        runs_best = self.mode == "resident" or table["settled"][load.strategy] == load.strategy
        if threads is None and runs_best:
            return False
        load.wait_checked()
        run = self._run_whole(load.session(GRAPH, "whole", threads))
        last = self._last
        if last is not None:
            # Also its first run, which is slower, so that no frame waits for it.
            self._compare(self._run(last), run(last))
        self._run, self.mode, self._last = run, "resident", None
        for stage in load.stages:
            stage.fail(ArtifactError(f"{self.artifact.folder}: exchanged"))
        return True

    def _compare(self, expected: list[Array], found: list[Array]) -> None:
        from ..agreement import strict_distance

        for name, one, other in zip(self._names, expected, found, strict=True):
            distance = strict_distance(one, other)
            if not distance <= AGREE:
                raise EngineError(
                    f"{self.label}: output {name} of the prepared twin is {distance:.2g} away"
                )

    def _run_whole(self, session: Any) -> Run:
        def run(tensors: Tensors) -> list[Array]:
            results: list[Array] = session.run(self._names, dict(tensors))
            return results

        return run

    def close(self) -> None:
        """Release the network; memory is freed when the last running call returns."""
        load, self._load = self._load, None
        self._last = None
        if self._streamer is not None:
            self._streamer.close()
        if load is not None:
            self._run = _closed
            load.close()


def _closed(_: Tensors) -> list[Array]:
    raise EngineError("the network has been closed")


def open_artifact(
    choice: EngineChoice, source: Artifact | Load, fix_shapes: FixShapes
) -> PreparedEngine:
    """Load a network from its artifact, or go on with a load in progress.

    Args:
        choice: that the artifact was made for.
        source: the artifact as it was read, or the load.
        fix_shapes: decides the sizes that the network itself leaves open.

    Raises:
        ArtifactError: it cannot be used: load the network itself, and prepare it again.
    """
    load = source if isinstance(source, Load) else None
    artifact = source.artifact if isinstance(source, Load) else source
    if choice.engine != artifact.engine:
        raise ArtifactError(f"form of {artifact.engine}, not of {choice.engine}")
    declared, inputs = (tensor_specs(artifact, key) for key in ("declared", "inputs"))
    try:
        wanted = fix_inputs(declared, fix_shapes, Path(GRAPH))
        if wanted != inputs:
            raise ArtifactError(f"form for {_shown(inputs)}, not for {_shown(wanted)}")
        if load is not None:
            return OrtPreparedEngine(load)
        module = import_module(capabilities(artifact.engine).prepared_module)
        engine: PreparedEngine = module.open_prepared(choice, artifact)
        return engine
    except BaseException:
        if load is not None:
            load.close()
        raise


def open_prepared(choice: EngineChoice, artifact: Artifact) -> OrtPreparedEngine:
    """Load an artifact of this engine; see `open_artifact`, which has checked that it fits."""
    del choice  # all of it is in the artifact
    return OrtPreparedEngine(load_artifact(artifact))


def tensor_specs(artifact: Artifact, key: str) -> tuple[TensorSpec, ...]:
    """Return the "declared" inputs of an artifact's network, its "inputs" or "outputs"."""
    return tuple(
        TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in artifact.table[key]
    )


def accepts_batches(artifact: Artifact) -> bool:
    """Whether the network of an artifact that takes one sample takes several, too."""
    declared = tensor_specs(artifact, "declared")
    return any(len(spec.shape) > 1 and spec.shape[0] is None for spec in declared)


def _shown(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(str(spec) for spec in specs)
