"""Autoencoders: how far what came out is from what went in."""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.types import Anomaly, Tensors, TensorSpec
from .decoder import Decoder, Floats, Network, Output, count_of, judged


def reconstruction(network: Network) -> Decoder:
    """Mean squared distance between input and output, both in source units divided by `scale`.

    Role `reconstruction`: as many numbers as the input has, in its order. An input of integers is
    q * scale + mean in source units, an output of integers (q - output.zero_point) * output.scale.
    Of a network of floats input and output are compared as they are; a float output of an integer
    input is taken to be in source units.
    """
    network.check_roles("reconstruction")
    fed = _fed(network)
    output = _find_output(network, fed)
    total = prod(size or 1 for size in fed.shape)
    scale, offset = _units(network, total)
    source_units = "float" not in output.spec.dtype or "float" not in fed.dtype

    def decode(outputs: Tensors, inputs: Tensors, threshold: float) -> Anomaly:
        given = inputs[fed.name].reshape(-1).astype(np.float32, copy=False)
        made = output.read(outputs).reshape(-1)
        if made.shape != given.shape:
            raise SampleError(
                f"output {output.spec.name}: expected {len(given)} numbers as input {fed.name} "
                f"has, found {len(made)}"
            )
        apart = given + offset - made / scale if source_units else given - made
        score = float(np.dot(apart, apart)) / len(apart)
        if not np.isfinite(score):
            raise SampleError(
                f"output {output.spec.name}: holds values that are not finite (NaN or infinity)"
            )
        return judged(score, threshold)

    return decode


def _fed(network: Network) -> TensorSpec:
    """Find the input that takes the sample."""
    spec = network.manifest.input
    free = [tensor for tensor in network.inputs if tensor.name not in spec.given]
    if spec.tensor is not None:
        free = [tensor for tensor in free if tensor.name == spec.tensor]
    if len(free) != 1:
        found = ", ".join(map(str, free)) or "none"
        raise ModelError(f"input.tensor: expected 1 input to compare with, found {found}")
    return free[0]


def _find_output(network: Network, fed: TensorSpec) -> Output:
    """Find the output of as many numbers as the input, whatever its axes."""
    total = prod(size or 1 for size in fed.shape)
    patterns = [spec.shape for spec in network.outputs if count_of(spec) in {total, None}]
    if not patterns:
        found = ", ".join(map(str, network.outputs))
        raise ModelError(
            f"output.decoder: 'reconstruction' expects an output of {total} numbers as input "
            f"{fed} has, found {found}"
        )
    return network.need("reconstruction", patterns, names=("reconstruction", "output"))


def _units(network: Network, total: int) -> tuple[Floats, Floats]:
    """Return `scale` and mean / scale of each number of the flattened input, or of all."""
    spec = network.manifest.input
    lengths = [
        len(given) for given in (spec.mean, spec.scale) if not isinstance(given, int | float)
    ]
    channels = max([1, *lengths])
    scale = np.array(spec.per_channel("scale", channels), np.float32)
    offset = np.array(spec.per_channel("mean", channels), np.float32) / scale
    if channels == 1:
        return scale, offset
    if total % channels:
        raise ModelError(f"input.scale: {channels} numbers do not divide an input of {total}")
    if network.size is not None:
        channels_first = spec.layout != "nhwc"
    else:
        # Ready inputs have their channels on the last axis.
        channels_first = spec.window is not None and (spec.layout or "ct").endswith("ct")
    if channels_first:
        return np.repeat(scale, total // channels), np.repeat(offset, total // channels)
    return np.tile(scale, total // channels), np.tile(offset, total // channels)
