"""A network's own outputs, which its artifact must reproduce bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np

from ....core.errors import EngineError
from ....core.types import Array, Tensors, TensorSpec
from ....device.allocator import return_freed_memory
from ...agreement import compare_likeness, margin_of, strict_distance
from ...engines.engine import Engine
from ...golden import read_golden
from ...model import Model
from ...probe import probe_inputs
from ..artifact import Artifact, ArtifactError
from ..engine import OrtPreparedEngine
from ..load import Load

SEEDS = (11, 12, 13)
_CASES = 4
"""Most golden inputs that are tried: each takes a run."""


class Reference:
    """Inputs, and the network's own outputs for them."""

    def __init__(self, engine: Engine, model: Model) -> None:
        """Run the original network.

        Raises:
            EngineError: it runs on none of the inputs.
            ModelError: its golden inputs are damaged.
        """
        self._margin = margin_of(model)
        samples = [probe_inputs(engine.inputs, seed) for seed in SEEDS]
        try:
            results = [engine.infer(tensors) for tensors in samples]
        except EngineError:
            # Its inputs may be indices, for which most random numbers are invalid.
            samples = [_zeros(engine.inputs)]
            results = [engine.infer(tensors) for tensors in samples]
        golden = [case.inputs for case in read_golden(model)[:_CASES]]
        self.samples: list[Tensors] = [*samples, *golden]
        self._expected = [*results, *(engine.infer(tensors) for tensors in golden)]

    def distance_from(self, engine: Engine) -> float:
        """Return the distance of an engine's outputs from the network's; 0: equal bit for bit.

        It is the largest relative L2 distance of any output; infinite if a shape, type, or NaN
        differs.
        """
        return max(
            distance_of(expected, engine.infer(tensors))
            for tensors, expected in zip(self.samples, self._expected, strict=True)
        )

    def check_like(self, plain: Engine) -> None:
        """Check that the network's outputs agree with those of a session without optimization.

        Args:
            plain: that session; it is closed afterwards.
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

    def check_identical(self, artifact: Artifact) -> None:
        """Check that an artifact computes the network's outputs bit for bit.

        Raises:
            ArtifactError: the outputs differ, or the artifact does not load or run.
        """
        engine = OrtPreparedEngine(Load(artifact))
        try:
            distance = self.distance_from(engine)
        finally:
            engine.close()
        if distance != 0:
            way = artifact.table["way"]
            raise ArtifactError(
                f"loaded as {way} its numbers are not the network's: {distance:.2g} away"
            )


def settle_stages(artifact: Artifact, reference: Reference, shared: int, budget: int) -> int:
    """Run an artifact in stages; return how many of the first ones may stay in memory.

    Args:
        artifact: the artifact, in whose table that number is also written.
        reference: the network's own outputs.
        shared: bytes that several stages need.
        budget: bytes that the model may take.

    Raises:
        ArtifactError: its outputs differ from the network's, or it does not load or run.
    """
    # Nothing is kept at first: the memory left over is known once it has run.
    least = artifact.table["kept"] = min(1, shared)
    reference.check_identical(artifact)
    gc.collect()
    return_freed_memory()
    before = _anonymous_bytes()
    engine = OrtPreparedEngine(Load(artifact))
    engine.infer(reference.samples[0])
    taken = max(0, _anonymous_bytes() - before)
    engine.close()
    sizes = [
        last - first for first, last, _ in (each["range"] for each in artifact.table["stages"])
    ]
    left = budget - taken - 2 * max(sizes)
    kept = 0
    while kept < len(sizes) - 1 and sum(sizes[: kept + 1]) <= left:
        kept += 1
    kept = artifact.table["kept"] = max(kept, least)
    reference.check_identical(artifact)
    return kept


def _anonymous_bytes() -> int:
    """Return the bytes of this process's memory that are not mapped from files."""
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel's
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def distance_of(expected: Tensors, found: Tensors) -> float:
    """Return the largest relative distance of any output."""
    if expected.keys() != found.keys():
        return float("inf")
    distances = (strict_distance(array, found[name]) for name, array in expected.items())
    return max(distances, default=0.0)


def _zeros(specs: Sequence[TensorSpec]) -> dict[str, Array]:
    return {spec.name: np.zeros([size or 1 for size in spec.shape], spec.dtype) for spec in specs}
