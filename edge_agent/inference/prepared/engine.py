"""A prepared form as an engine: whichever way it was loaded, the numbers are those of the network.

What is loaded the quick way is exchanged for what runs fastest by `finish_load`, between two calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...core.errors import EngineError
from ...core.types import Array, Tensors, TensorSpec
from ..engines.protocol import Engine, EngineChoice, FixShapes, check_inputs, fix_inputs
from ..engines.registry import capabilities
from .artifact import GRAPH, Artifact, ArtifactError
from .load import Load, load_artifact

if TYPE_CHECKING:
    from .streaming import StreamingRunner

log = logging.getLogger(__name__)

Run = Callable[[Tensors], list[Array]]
"""Gives the outputs in the network's order."""

# By strategy; every other is "resident".
_MODES = {"staged": "staged", "bare": "bare", "streaming": "streaming"}
AGREE = 1e-3
"""Relative distance allowed between a bare session and its twin: they add in another order."""


class PreparedEngine(Engine, Protocol):
    """An engine that was loaded from a form, whichever."""

    mode: str
    artifact: Artifact

    def finish_load(self, threads: int | None = None) -> bool:
        """Build what runs fastest in the long run, behind; gives whether anything has changed.

        Args:
            threads: of one inference from now on, where the first had more; None: as before.

        Raises:
            EngineError: it cannot be built; all is as before.

        """


class OrtPreparedEngine:
    """A network that was loaded from a prepared form."""

    def __init__(
        self, begun: Load, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        self.label: str = begun.artifact.table["label"]
        self.inputs = inputs
        self.outputs = outputs
        self.artifact = begun.artifact
        self.prepared = None
        self.widened = None
        self.fold = begun.artifact.fold
        self._taken = inputs if self.fold is None else self.fold.specs(inputs)
        self.mode: str = _MODES.get(begun.strategy, "resident")
        self._begun: Load | None = begun
        self._streamer: StreamingRunner | None = None
        self._unchecked = True
        self._last: Tensors | None = None
        if begun.strategy == "streaming":
            from .streaming import StreamingRunner  # not on the way of models that fit

            self._streamer = StreamingRunner(begun)
            self._run: Run = self._streamer.run
        else:
            self._run = self._runner(begun)

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network; the arrays returned are new ones, made for this call.

        The first call returns when all weights have been checked.

        Raises:
            ArtifactError: the form is damaged. Close the engine and load the network itself.
            EngineError: as for every engine.

        """
        if self.fold is not None:
            tensors = self.fold.feed(tensors)
        check_inputs(self._taken, tensors)
        # Local names: whoever closes the engine meanwhile does not pull them from under this call.
        begun, run = self._begun, self._run
        if begun is None:
            raise EngineError(f"{self.label}: the network has been closed")
        try:
            try:
                results = run(tensors)
            except ArtifactError:
                if self._run is run:
                    raise
                # Exchanged before it had come to the last stage.
                results = self._run(tensors)
        except EngineError:
            raise
        except Exception as problem:  # its exceptions have no common class but this one
            if self._unchecked:
                begun.verdict()  # what is damaged is the likelier reason
            from ..engines.native_error import native_reason

            raise EngineError(f"{self.label}: {native_reason(problem, Path('model'))}") from problem
        if self._unchecked:
            begun.verdict()
            self._unchecked = False
        if self.mode == "bare":
            self._last = tensors
        return {spec.name: array for spec, array in zip(self.outputs, results, strict=True)}

    def finish_load(self, threads: int | None = None) -> bool:
        """Build what runs fastest, and put it in the place of what was loaded first.

        To be called in the background, after the first result. Calls of `infer` go on meanwhile.

        Args:
            threads: of one inference from now on; the first had all cores. None: as before.

        Returns:
            Whether anything has been exchanged.

        Raises:
            EngineError: what was built cannot be used; all is as before.

        """
        begun = self._begun
        if begun is None or self.mode == "streaming":
            return False
        if threads == self.artifact.table["session"]["threads"]:
            threads = None
        runs_best = (
            self.mode == "resident"
            or self.artifact.table["settled"][begun.strategy] == begun.strategy
        )
        if threads is None and runs_best:
            return False
        begun.verdict()
        session = begun.session(GRAPH, "whole", threads)
        names = [spec.name for spec in self.outputs]
        last = self._last

        def run(tensors: Tensors) -> list[Array]:
            results: list[Array] = session.run(names, dict(tensors))
            return results

        if last is not None:
            # Also its first run, which is slower, so that no frame waits for it.
            self._compare(self._run(last), run(last))
        self._run, self.mode, self._last = run, "resident", None
        for part in begun.parts:
            part.fail(ArtifactError(f"{self.artifact.folder}: exchanged"))
        return True

    def _compare(self, expected: list[Array], found: list[Array]) -> None:
        for spec, one, other in zip(self.outputs, expected, found, strict=True):
            distance = relative_distance(one, other)
            if not distance <= AGREE:
                raise EngineError(
                    f"{self.label}: output {spec.name} of the prepared twin is {distance:.2g} away"
                )

    def _runner(self, begun: Load) -> Run:
        """Run one session, or several one after the other."""
        names = [spec.name for spec in self.outputs]
        parts = list(begun.parts)
        if len(parts) == 1:
            whole = parts[0].ready()

            def run_whole(tensors: Tensors) -> list[Array]:
                results: list[Array] = whole.run(names, dict(tensors))
                return results

            return run_whole

        import onnxruntime as ort

        def run_stages(tensors: Tensors) -> list[Array]:
            # Values of ONNX Runtime's own go from stage to stage without being copied.
            values = {
                name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in tensors.items()
            }
            sessions = [part.session for part in parts]
            for part, built in zip(parts, sessions, strict=True):
                session = built or part.ready()
                values.update(part.run(session, values))
            return [values[name].numpy() for name in names]

        return run_stages

    def close(self) -> None:
        """Let go of the network; memory is freed when the last running call returns."""
        begun, self._begun = self._begun, None
        self._last = None
        if self._streamer is not None:
            self._streamer.close()
        if begun is not None:
            self._run = _closed
            begun.close()


def _closed(_: Tensors) -> list[Array]:
    raise EngineError("the network has been closed")


def open_artifact(
    choice: EngineChoice, form: Artifact | Load, fix_shapes: FixShapes
) -> PreparedEngine:
    """Load a network from its prepared form, or go on with what was begun.

    Args:
        choice: that the form was made for.
        form: as it was read, or its loading as it was begun.
        fix_shapes: decides the sizes that the network itself leaves open.

    Raises:
        ArtifactError: it cannot be used: load the network itself, and prepare it anew.

    """
    begun = form if isinstance(form, Load) else None
    form = form.artifact if isinstance(form, Load) else form
    if choice.engine != form.engine:
        raise ArtifactError(f"form of {form.engine}, not of {choice.engine}")
    declared, inputs, outputs = (
        tensor_specs(form, key) for key in ("declared", "inputs", "outputs")
    )
    try:
        wanted = fix_inputs(declared, fix_shapes, Path(GRAPH))
        if wanted != inputs:
            raise ArtifactError(f"form for {_words(inputs)}, not for {_words(wanted)}")
        if begun is not None:
            return OrtPreparedEngine(begun, inputs, outputs)
        module = import_module(capabilities(form.engine).prepared_module)
        engine: PreparedEngine = module.open_prepared(choice, form, inputs, outputs)
        return engine
    except BaseException:
        if begun is not None:
            begun.close()
        raise


def open_prepared(
    choice: EngineChoice,
    form: Artifact,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> OrtPreparedEngine:
    """Load a form of this engine; see `open_artifact`, which has checked that it fits."""
    del choice  # all of it is in the form
    return OrtPreparedEngine(load_artifact(form), inputs, outputs)


def relative_distance(one: Array, other: Array) -> float:
    """Give the distance of two tensors, relative to the first; 0 where they are equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.tobytes() == other.tobytes():
        return 0.0
    if not np.issubdtype(one.dtype, np.number):
        return float("inf")
    first, second = one.astype(np.float64), other.astype(np.float64)
    return float(np.linalg.norm(first - second) / max(float(np.linalg.norm(first)), 1e-30))


def tensor_specs(form: Artifact, key: str) -> tuple[TensorSpec, ...]:
    """Give what a form says of its "declared" inputs, its "inputs" or "outputs"."""
    return tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in form.table[key])


def accepts_batches(form: Artifact) -> bool:
    """Whether the network that a form was made of, which takes one sample, takes several too."""
    return any(len(s.shape) > 1 and s.shape[0] is None for s in tensor_specs(form, "declared"))


def _words(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(str(spec) for spec in specs)
