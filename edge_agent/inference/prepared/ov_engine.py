"""A prepared form of OpenVINO: the compiled network as it was exported, imported from mapped bytes.

Importing skips reading the model and the common transformations (and in eight bits the expensive
ones); the weights are still laid out for the processor at every import.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov

from ...core.types import Array, Tensors, TensorSpec
from ..engines.native_error import native_reason
from ..engines.ov import NAME, VERSION, OvEngine, core, properties
from ..engines.protocol import EngineChoice
from .artifact import BLOB, Artifact, ArtifactError, need_version
from .mapped import MappedWeights, WeightCheck


def open_prepared(
    choice: EngineChoice,
    form: Artifact,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> OvPreparedEngine:
    """Load a form of this engine; see `prepared.engine.open_artifact`, which has checked it."""
    return OvPreparedEngine(choice, form, inputs, outputs)


class OvPreparedEngine:
    """A network that was imported; the first for one lane, those for the others behind it."""

    mode = "resident"
    prepared = None
    widened = None

    def __init__(
        self,
        choice: EngineChoice,
        form: Artifact,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        """Import the network once.

        Raises:
            ArtifactError: it is damaged, of another version of OpenVINO, or refused.

        """
        need_version(form, NAME, VERSION)
        self.label: str = form.table["label"]
        self.artifact = form
        self.fold = form.fold
        self.inputs = inputs
        self.outputs = outputs
        self._choice = choice
        try:
            weights = MappedWeights(form.path(BLOB))
        except OSError as problem:
            raise ArtifactError(f"{form.path(BLOB)}: {problem.strerror}") from None
        (stage,) = form.table["stages"]
        # Before the import, not beside it: the blob is parsed by native code that trusts it.
        WeightCheck(weights, [tuple(stage["range"])]).wait()
        self._lanes = 1
        # OpenVINO takes no read-only memory; what it writes to, if anything, is its own copy.
        self._bytes: Array = np.memmap(form.path(BLOB), np.uint8, "c")
        self._engine = OvEngine([self._import()], self.label, inputs, outputs, self.fold)

    def _import(self) -> ov.CompiledModel:
        try:
            # Not from bytes: that takes the memory twice and is slower (measured).
            tensor = ov.Tensor(self._bytes, shared_memory=True)
            return core.import_model(tensor, self._choice.device, properties(self._choice))
        except Exception as problem:  # RuntimeError mostly, but plugins raise others
            raise ArtifactError(
                f"{self.artifact.path(BLOB)}: {native_reason(problem, Path(BLOB))}"
            ) from problem

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network; the arrays returned are copies of the request's own buffers."""
        return self._engine.infer(tensors)

    def finish_load(self, threads: int | None = None) -> bool:
        """Import the network for the other lanes; gives whether there were any.

        One network of several streams would not do: it has been seen to give wrong numbers.

        Args:
            threads: not looked at: a blob keeps those that it was compiled for.

        Raises:
            ArtifactError: it is refused.

        """
        del threads
        before = self._lanes
        while self._lanes < self._choice.lanes:
            self._engine.widen(self._import())
            self._lanes += 1
        return self._lanes > before

    def close(self) -> None:
        """Let go of the network; memory is freed when the last running call returns."""
        self._engine.close()
