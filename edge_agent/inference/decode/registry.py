"""Raw outputs of a network to findings, by the name of the format.

What can be seen in the network's declared shapes is checked when a decoder is built (ModelError);
what only an inference shows (sizes that the network leaves open, class indices, numbers that are
not finite) is checked at each call (SampleError). Which decoders there are: `models.decoders`.
"""

from __future__ import annotations

from importlib import import_module

from ...core.types import TensorSpec
from ...models.decoders import DECODERS
from ...models.manifest import Manifest
from .decoder import Decoder, Network


def build_decoder(
    manifest: Manifest,
    labels: tuple[str, ...],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    size: tuple[int, int] | None,
) -> Decoder:
    """Make the decoder that a manifest names, having checked that it fits the network.

    Args:
        manifest: decides the format and its settings.
        labels: of the classes, already read from where the manifest says.
        inputs: the network's, after all sizes were settled.
        outputs: the network's; sizes may still be open.
        size: width and height of the picture in the input; None where it takes none.

    Raises:
        ModelError: manifest and network do not fit each other; expected and found.
    """
    network = Network(manifest, labels, inputs, outputs, size)
    module, _, function = DECODERS[manifest.decoder].function.rpartition(".")
    decoder: Decoder = getattr(import_module(module, __package__), function)(network)
    return decoder
