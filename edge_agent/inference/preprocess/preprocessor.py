"""From samples to the network's input tensors, as the manifest's `[input]` says.

Independent of engines and decoders: given the network's inputs, it reports where a picture was
placed in them, so that boxes found there can be mapped back.
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
    """Makes all inputs of a network from one sample. May be called by several threads at a time."""

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height of the network's picture; None if it takes no picture."""

    def __call__(
        self, data: Array, *, stream: bool = False
    ) -> tuple[dict[str, Array], Placement | None]:
        """Make the network's inputs from *data*.

        Args:
            data: the data of a `core.types.Sample`.
            stream: whether it comes from a camera or a clip, whose codec is lossy anyway: it may
                then be resized in a quicker way if that changes the input by at most one step of
                the network's own quantization.

        Returns:
            One C-contiguous array for each input, owned by the caller except for the manifest's
            constants, and where the picture is in it (None for signals).

        Raises:
            SampleError: this sample does not fit or is not finite.
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
        inputs: the network's inputs, after `fixed_shapes` has decided their open sizes.
        kind: kind of the source's samples.
        fold: an input that the engine takes as bytes; pictures are prepared as bytes for it.
        folder: the model's folder, with other files for preparing a sample.

    Raises:
        ModelError: manifest and network do not fit each other; says expected and found.
    """
    if kind == "text":
        from .text import TextPreprocessor

        return TextPreprocessor(folder / spec.tokenizer, inputs)
    if kind == "picture":
        from .picture import picture_preprocessor

        return picture_preprocessor(spec, inputs, fold)
    from .signal import signal_preprocessor

    return signal_preprocessor(spec, inputs)
