"""Outputs that are the result themselves: one score, named numbers, or raw tensors."""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.types import Anomaly, Findings, RawTensors, Tensors, TensorSpec, Values
from .decoder import (
    Decoder,
    Floats,
    Network,
    Output,
    Pattern,
    count_of,
    ensure_finite,
    floats_of,
    judged,
)

_INDEX_BYTES = 4


def score(network: Network) -> Decoder:
    """One number: an anomaly's score, or a regression's value.

    Role `score`: a tensor of one element; or, for anomalies in pictures, their map [1, H, W],
    [1, 1, H, W] or [1, H, W, 1], whose highest number is the score, as anomalib has it. A
    regression's value is named after the only label, else after the output.
    """
    network.check_roles("score")
    # Beside a float score, an integer is the class that the exporter's own threshold gave it.
    classes = [spec for spec in network.outputs if not spec.dtype.startswith("float")]
    if len(classes) == len(network.outputs) or "score" in network.manifest.output.names:
        classes = []
    task, labels = network.manifest.task, network.labels
    single: list[Pattern] = [(1,) * rank for rank in range(6)]
    names = ("score", "scores", "output")
    output = None
    if task == "anomaly" and network.size is not None:
        if "score" not in network.manifest.output.names:
            output = network.find("score", single, names=names, without=classes)
        single = [*single, (1, None, None), (1, 1, None, None), (1, None, None, 1)]
    output = output or network.need("score", single, names=names, without=classes)
    others = {one.name for one in network.outputs if one.dtype == "int64"} - {output.spec.name}
    signs = others & {"label"}
    if len(labels) > 1:
        raise ModelError(
            f"output.labels: expected at most 1 label for one number, found {len(labels)}"
        )
    name = labels[0] if labels else output.spec.name
    above = network.manifest.output.label_above

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Anomaly | Values:
        value = output.read(outputs)
        ensure_finite(output.spec.name, value)
        number = float(value.max())
        # scikit-learn's own class of an outlier is -1, and its score has the same sign.
        if task == "anomaly" and any(outputs[name].ravel()[0] * number > 0 for name in signs):
            raise SampleError(
                f"output {output.spec.name}: falls where a row is anomalous, as scikit-learn's "
                "scores do, and a higher one is to be worse: export the network with a Neg behind"
            )
        return judged(number, threshold, above) if task == "anomaly" else Values({name: number})

    return decode


def raw(network: Network) -> Decoder:
    """Tensors as the network returns them (task raw), or all their numbers by name (regression).

    Integers of task raw stay as they are unless the manifest itself gives their steps, which those
    of 32 bits and more, such as indices, have not.

    No roles. A regression's labels name its numbers, in the order of outputs and elements; without
    labels they are named after their output, with "[i]" if it has several.
    """
    network.check_roles()
    return _values(network) if network.manifest.task == "regression" else _tensors(network)


def _tensors(network: Network) -> Decoder:
    names = [output.name for output in network.outputs]
    given = network.manifest.output
    told = (given.scale, given.zero_point) != (1, 0)

    def decode(outputs: Tensors, _inputs: Tensors, _threshold: float) -> Findings:
        tensors = {name: outputs[name] for name in names}
        for name, array in tensors.items():
            if array.dtype.kind == "f":
                ensure_finite(name, array)
            elif told and array.dtype.kind in "iu" and array.dtype.itemsize < _INDEX_BYTES:
                tensors[name] = floats_of(array, given.scale, given.zero_point)
        return RawTensors(tensors)

    return decode


def _values(network: Network) -> Decoder:
    labels, settings = network.labels, network.manifest.output
    readers = [
        Output(spec, (spec.shape,), settings.scale, settings.zero_point) for spec in network.outputs
    ]
    counts = [count_of(spec) for spec in network.outputs]
    total = sum(count or 0 for count in counts)
    if labels and None not in counts and total != len(labels):
        raise ModelError(
            f"output.labels: expected {total} labels, one for each number of "
            f"{', '.join(map(str, network.outputs))}, found {len(labels)}"
        )

    def decode(outputs: Tensors, _inputs: Tensors, _threshold: float) -> Values:
        read = [(reader.spec.name, reader.read(outputs).reshape(-1)) for reader in readers]
        for name, numbers in read:
            ensure_finite(name, numbers)
        if not labels:
            return Values(dict(pair for name, numbers in read for pair in _named(name, numbers)))
        found = np.concatenate([numbers for _, numbers in read])
        if len(found) != len(labels):
            raise SampleError(f"outputs: expected {len(labels)} numbers, found {len(found)}")
        return Values(dict(zip(labels, found.tolist(), strict=True)))

    return decode


def _named(name: str, numbers: Floats) -> list[tuple[str, float]]:
    if len(numbers) == 1:
        return [(name, float(numbers[0]))]
    return [(f"{name}[{place}]", float(number)) for place, number in enumerate(numbers)]


def reconstruction(network: Network) -> Decoder:
    """Mean squared difference between input and output, both in source units divided by `scale`.

    Role `reconstruction`: as many numbers as the input has, in its order. An input of integers is
    q * scale + mean in source units, an output of integers (q - output.zero_point) * output.scale.
    In a network of floats, input and output are compared as they are; with an integer input, a
    float output is assumed to be in source units.
    """
    network.check_roles("reconstruction")
    fed = _fed(network)
    output = _find_output(network, fed)
    total = prod(size or 1 for size in fed.shape)
    scale, offset = _units(network, total)
    step = np.float32(network.step)
    above = network.manifest.output.label_above
    source_units = "float" not in output.spec.dtype or "float" not in fed.dtype

    def decode(outputs: Tensors, inputs: Tensors, threshold: float) -> Anomaly:
        given = inputs[fed.name].reshape(-1).astype(np.float32, copy=False)
        made = output.read(outputs).reshape(-1)
        if made.shape != given.shape:
            raise SampleError(
                f"output {output.spec.name}: expected {len(given)} numbers as input {fed.name} "
                f"has, found {len(made)}"
            )
        apart = (given + offset - made / scale) * step if source_units else given - made
        score = float(np.dot(apart, apart)) / len(apart)
        if not np.isfinite(score):
            raise SampleError(
                f"output {output.spec.name}: holds values that are not finite (NaN or infinity)"
            )
        return judged(score, threshold, above)

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
    """Find the output with as many numbers as the input, whatever its axes."""
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
    """Return `scale` and mean / scale for each number of the flattened input, or for all."""
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
        # Ready inputs have their channels in the last axis.
        channels_first = spec.window is not None and (spec.layout or "ct").endswith("ct")
    if channels_first:
        return np.repeat(scale, total // channels), np.repeat(offset, total // channels)
    return np.tile(scale, total // channels), np.tile(offset, total // channels)
