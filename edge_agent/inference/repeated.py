"""Networks of a fixed batch: each sample is given so many times, and the first result counts.

That costs as many times the work of one, so an export with a batch of 1 is better where there is a
choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import ModelError
from ..core.types import Array, Findings, Kind, Tensors, TensorSpec
from ..models.manifest import InputSpec
from .decode.decoder import Decoder
from .preprocess.inputs import column_inputs, sample_input
from .preprocess.placement import Placement
from .preprocess.preprocessor import Preprocessor, build_preprocessor

if TYPE_CHECKING:
    from .folding.fold import Fold


@dataclass(frozen=True, slots=True)
class FixedBatch:
    """How many samples a network takes at once, and in which input."""

    name: str
    count: int

    def first(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the inputs as they would be for one sample."""
        return tuple(
            replace(spec, shape=(1, *spec.shape[1:])) if spec.name == self.name else spec
            for spec in specs
        )

    def results(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the outputs as they would be for one sample.

        Raises:
            ModelError: one of them does not have the samples along its first axis.
        """
        for spec in specs:
            if not spec.shape or spec.shape[0] not in {None, self.count}:
                raise ModelError(
                    f"output {spec}: expected {self.count} along its first axis, as input "
                    f"{self.name} has; export the network with a batch of 1"
                )
        return tuple(replace(spec, shape=(1, *spec.shape[1:])) for spec in specs)


@dataclass(frozen=True, slots=True)
class Repeating:
    """Makes a network's inputs from one sample, which it gives several times."""

    prepare: Preprocessor
    batch: FixedBatch

    @property
    def size(self) -> tuple[int, int] | None:
        return self.prepare.size

    def __call__(
        self, data: Array, *, stream: bool = False
    ) -> tuple[dict[str, Array], Placement | None]:
        tensors, placement = self.prepare(data, stream=stream)
        name = self.batch.name
        return {**tensors, name: np.repeat(tensors[name], self.batch.count, axis=0)}, placement


def build_for_one(
    spec: InputSpec,
    inputs: tuple[TensorSpec, ...],
    kind: Kind,
    fold: Fold | None = None,
    *,
    folder: Path = Path(),
) -> tuple[Preprocessor, FixedBatch | None]:
    """Decide how every sample will be prepared, and return the network's fixed batch, if any.

    Arguments and errors are those of `build_preprocessor` and `batch_of`.
    """
    batch = batch_of(spec, inputs, kind)
    if batch is None:
        return build_preprocessor(spec, inputs, kind, fold, folder=folder), None
    prepare = build_preprocessor(spec, batch.first(inputs), kind, fold, folder=folder)
    return Repeating(prepare, batch), batch


def decoding_first(decode: Decoder, batch: FixedBatch) -> Decoder:
    """Return a decoder of the first of several results."""

    def decode_first(outputs: Tensors, inputs: Tensors, threshold: float) -> Findings:
        fed = {name: one[:1] if name == batch.name else one for name, one in inputs.items()}
        return decode({name: one[:1] for name, one in outputs.items()}, fed, threshold)

    return decode_first


def batch_of(spec: InputSpec, inputs: tuple[TensorSpec, ...], kind: Kind) -> FixedBatch | None:
    """Return the fixed batch of a network; None: it takes one sample, or any number.

    Raises:
        ModelError: it is not known which input takes the sample.
    """
    if kind == "text" or spec.state or column_inputs(spec, inputs):
        return None
    tensor = sample_input(spec, inputs)
    count, *others = tensor.shape or (1,)
    sizes = [size for size in others if size is not None]
    if count is None or count == 1 or len(sizes) < len(others):
        return None
    if kind == "picture":
        return FixedBatch(tensor.name, count) if len(sizes) == 3 else None
    channels = len(spec.channels) or 1
    # Without a batch the first axis is that of the channels, or of time.
    if spec.window is None or count * prod(sizes) == spec.window * channels:
        return None
    flat = (spec.layout or "ct").startswith("flat")
    return FixedBatch(tensor.name, count) if len(sizes) >= 2 - flat else None
