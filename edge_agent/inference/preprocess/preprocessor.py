"""Samples to model-ready tensors, as the manifest's `[input]` says.

Knows no engine and no decoder: it is given the network's inputs and says where a picture came to
lie in them, so that boxes found there can be carried back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...core.types import Array, Kind, TensorSpec
from ...models.manifest import InputSpec
from .placement import Placement

if TYPE_CHECKING:
    from ..folding.fold import Fold


class Preprocessor(Protocol):
    """Turns one sample into all inputs of a network. May be called by several threads at a time."""

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height of the network's picture; None if it takes no picture."""

    def __call__(
        self, data: Array, *, stream: bool = False
    ) -> tuple[dict[str, Array], Placement | None]:
        """Make the network's inputs of *data*.

        Args:
            data: as `core.types.Sample` has it.
            stream: it comes from a camera or a clip, whose pixels are what a codec left of them:
                it may be resized in a quicker way where that is no more than a step of the
                network's own quantization.

        Returns:
            One C-contiguous array for each input, which the caller owns but for the manifest's
            constants, and where the picture lies in it (None for signals).

        Raises:
            SampleError: this sample does not fit or is not finite; the next one may.
        """


def build_preprocessor(
    spec: InputSpec,
    inputs: tuple[TensorSpec, ...],
    kind: Kind,
    fold: Fold | None = None,
    *,
    folder: Path = Path(),
) -> Preprocessor:
    """Decide once, for a network and its manifest, how every sample will be prepared.

    Args:
        spec: the manifest's `[input]`.
        inputs: the network's inputs, after `fixed_shapes` has settled their open sizes.
        kind: of the source's samples.
        fold: an input that the engine takes in bytes; pictures are prepared as bytes for it.
        folder: of the model, with further files for preparing a sample.

    Raises:
        ModelError: manifest and network do not fit each other; expected and found.
    """
    if kind == "text":
        from .text import TextPreprocessor

        return TextPreprocessor(folder / spec.tokenizer, inputs)
    if kind == "picture":
        from .picture import picture_preprocessor

        return picture_preprocessor(spec, inputs, fold)
    from .signal import signal_preprocessor

    return signal_preprocessor(spec, inputs)
