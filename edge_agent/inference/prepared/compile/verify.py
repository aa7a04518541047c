"""What an artifact must prove: the network's own numbers, on inputs that are not its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....core.errors import EngineError
from ....core.types import Array, Tensors, TensorSpec
from ...agreement import compare_likeness, margin_of, strict_distance
from ...engines.engine import Engine
from ...golden import read_golden
from ...model import Model
from ...probe import probe_inputs
from ..artifact import Artifact, ArtifactError
from ..engine import OrtPreparedEngine
from ..load import load_artifact

SEEDS = (11, 12, 13)
_CASES = 4
"""Golden inputs that are tried: each takes a run of each strategy."""


class Reference:
    """Inputs, and the network's own outputs for them."""

    def __init__(self, engine: Engine, model: Model) -> None:
        """Run the network itself.

        Raises:
            EngineError: it runs on none of the inputs.
            ModelError: its golden inputs are damaged.
        """
        self._margin = margin_of(model)
        samples = [probe_inputs(engine.inputs, seed) for seed in SEEDS]
        try:
            results = [engine.infer(tensors) for tensors in samples]
        except EngineError:
            # Indices, for example, of which most numbers mean nothing.
            samples = [_zeros(engine.inputs)]
            results = [engine.infer(tensors) for tensors in samples]
        golden = [case.inputs for case in read_golden(model)[:_CASES]]
        self.samples: list[Tensors] = [*samples, *golden]
        self._expected = [*results, *(engine.infer(tensors) for tensors in golden)]

    def timed_sample(self, artifact: Artifact) -> Tensors:
        """Return the inputs that loads are timed with, as frames will come."""
        fold = artifact.fold
        return self.samples[0] if fold is None else fold.feed(self.samples[0])

    def distance(self, artifact: Artifact, strategy: str) -> float:
        """Load an artifact; return how far its numbers are from the network's: 0 bit for bit.

        Returns:
            The largest relative distance (L2) of any output; infinite where a shape, type or NaN
            differs.

        Raises:
            ArtifactError: it does not load or run.
        """
        engine = OrtPreparedEngine(load_artifact(artifact, strategy))
        try:
            return self.distance_from(engine)
        finally:
            engine.close()

    def distance_from(self, engine: Engine) -> float:
        """Return how far an engine's numbers are from the network's, as `distance` does."""
        return max(
            distance_of(expected, engine.infer(tensors))
            for tensors, expected in zip(self.samples, self._expected, strict=True)
        )

    def check_like(self, plain: Engine) -> None:
        """Check that the network's numbers are what a session without optimization gives.

        Args:
            plain: that session; it is closed.

        Raises:
            ArtifactError: they are not.
            EngineError: it cannot run the network.
        """
        try:
            for tensors, expected in zip(self.samples, self._expected, strict=True):
                agreement = compare_likeness(plain.infer(tensors), expected, self._margin)
                if not agreement.passed:
                    raise ArtifactError(
                        f"{plain.label} computes it wrongly: unlike without optimization: "
                        f"{agreement.why}"
                    )
        finally:
            plain.close()

    def check_identical(self, artifact: Artifact, strategy: str) -> None:
        """Check that an artifact gives the network's numbers bit for bit.

        Raises:
            ArtifactError: it does not.
        """
        distance = self.distance(artifact, strategy)
        if distance != 0:
            raise ArtifactError(
                f"loaded as {strategy} its numbers are not the network's: {distance:.2g} away"
            )


def distance_of(expected: Tensors, found: Tensors) -> float:
    """Return the largest relative distance of the outputs."""
    if expected.keys() != found.keys():
        return float("inf")
    distances = (strict_distance(array, found[name]) for name, array in expected.items())
    return max(distances, default=0.0)


def _zeros(specs: Sequence[TensorSpec]) -> dict[str, Array]:
    return {spec.name: np.zeros([size or 1 for size in spec.shape], spec.dtype) for spec in specs}
