"""The decoders there are: raw outputs of a network to findings, by the name of the format.

What can be seen in the network's declared shapes is checked when a decoder is built (ModelError);
what only an inference shows (sizes that the network leaves open, class indices, numbers that are
not finite) is checked at each call (SampleError).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from ...core.types import TensorSpec
from ...models.manifest import DecoderName, Manifest
from .outputs import Decoder, Network

DECODERS: Mapping[DecoderName, str] = {
    "ultraface": ".faces:ultraface",
    "yunet": ".faces:yunet",
    "yolox": ".yolo:yolox",
    "yolov8": ".yolo:yolov8",
    "yolo-e2e": ".yolo:end_to_end",
    "yolov5": ".yolo:yolov5",
    "nanodet": ".nanodet:nanodet",
    "ssd": ".ssd:ssd",
    "detr": ".detr:detr",
    "softmax": ".classification:softmax",
    "logits": ".classification:logits",
    "reconstruction": ".reconstruction:reconstruction",
    "score": ".numbers:score",
    "raw": ".numbers:raw",
}
"""Module and function, by the name in manifests. A new decoder is one function and one line here. A
module is imported when it is first asked for: a box needs one or two of them."""


def build_decoder(
    manifest: Manifest,
    labels: tuple[str, ...],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    size: tuple[int, int] | None,
) -> Decoder:
    """Return the decoder that a manifest names, once it is checked to fit the network.

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
    module, _, function = DECODERS[manifest.decoder].partition(":")
    decoder: Decoder = getattr(import_module(module, __package__), function)(network)
    return decoder
