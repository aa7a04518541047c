"""OpenVINO's artifact as an engine: the exported compiled network, imported from mapped bytes.

Importing skips reading the model and the common transformations (and in eight bits the expensive
ones); the weights are still rearranged for the processor at every import.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov

from ...core.types import Array, Tensors
from ..engines.engine import EngineChoice, native_reason
from ..engines.ov import NAME, VERSION, OvEngine, core, properties
from .artifact import BLOB, Artifact, ArtifactError, MappedWeights, check_weights, need_version
from .engine import tensor_specs


def open_prepared(choice: EngineChoice, artifact: Artifact) -> OvPreparedEngine:
    """Load an artifact of this engine; `engine.open_artifact` has checked that it fits."""
    return OvPreparedEngine(choice, artifact)


class OvPreparedEngine:
    """An imported network: one copy for the first lane, and one for each other lane later."""

    is_streaming = False
    prepared = None
    widened = None

    def __init__(self, choice: EngineChoice, artifact: Artifact) -> None:
        """Import the network once.

        Raises:
            ArtifactError: it is damaged, of another version of OpenVINO, or refused.
        """
        need_version(artifact, NAME, VERSION)
        self.label: str = artifact.table["label"]
        self.artifact = artifact
        self.fold = artifact.fold
        self.inputs = tensor_specs(artifact, "inputs")
        self.outputs = tensor_specs(artifact, "outputs")
        self._choice = choice
        try:
            weights = MappedWeights(artifact.path(BLOB))
        except OSError as problem:
            raise ArtifactError(f"{artifact.path(BLOB)}: {problem.strerror}") from None
        (stage,) = artifact.table["stages"]
        # Before the import, not during it: the blob is parsed by native code that trusts it.
        check_weights(weights, [tuple(stage["range"])])
        self._lanes = 1
        # OpenVINO takes no read-only memory; writes, if any, go to a private copy.
        self._bytes: Array = np.memmap(artifact.path(BLOB), np.uint8, "c")
        self._engine = OvEngine([self._import()], self.label, self.inputs, self.outputs, self.fold)

    def _import(self) -> ov.CompiledModel:
        try:
            # Not from bytes: that takes the memory twice and is slower (measured).
            tensor = ov.Tensor(self._bytes, shared_memory=True)
            return core.import_model(tensor, self._choice.device, properties(self._choice))
        except Exception as problem:  # mostly RuntimeError, but plugins raise others
            raise ArtifactError(
                f"{self.artifact.path(BLOB)}: {native_reason(problem, Path(BLOB))}"
            ) from problem

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        """Run the network; returns copies of the request's buffers."""
        return self._engine.infer(tensors)

    def finish_load(self, threads: int | None = None) -> bool:
        """Import the network for the other lanes; return whether there were any.

        One network with several streams is not an option: it has computed wrong outputs.

        Args:
            threads: no effect: a blob keeps the number that it was compiled for.

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
        """Release the network; memory is freed when the last running call returns."""
        self._engine.close()
