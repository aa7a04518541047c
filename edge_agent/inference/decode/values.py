"""Outputs that are the result: one score, named numbers, or tensors as they are."""

from __future__ import annotations

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.types import Anomaly, Findings, RawTensors, Tensors, Values
from .decoder import Decoder, Floats, Network, Output, count_of, ensure_finite, judged


def score(network: Network) -> Decoder:
    """One number: an anomaly's score, or a regression's value.

    Role `score`: a tensor of one element. A regression's value is called by the only label, else by
    the output's name.
    """
    network.check_roles("score")
    # Beside a score of floats, an integer is the class that somebody else's threshold makes of it.
    classes = [spec for spec in network.outputs if not spec.dtype.startswith("float")]
    if len(classes) == len(network.outputs) or "score" in network.manifest.output.names:
        classes = []
    output = network.need(
        "score",
        [(1,) * rank for rank in range(6)],
        names=("score", "scores", "output"),
        without=classes,
    )
    task, labels = network.manifest.task, network.labels
    if len(labels) > 1:
        raise ModelError(
            f"output.labels: expected at most 1 label for one number, found {len(labels)}"
        )
    name = labels[0] if labels else output.spec.name

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Anomaly | Values:
        value = output.read(outputs)
        ensure_finite(output.spec.name, value)
        number = float(value.reshape(()))
        return judged(number, threshold) if task == "anomaly" else Values({name: number})

    return decode


def raw(network: Network) -> Decoder:
    """Tensors as the network gives them (task raw), or all their numbers by name (regression).

    No roles. A regression's labels name its numbers, in the order of outputs and elements; without
    labels they are called by their output, with "[i]" where it has several.
    """
    network.check_roles()
    return _values(network) if network.manifest.task == "regression" else _tensors(network)


def _tensors(network: Network) -> Decoder:
    names = [output.name for output in network.outputs]

    def decode(outputs: Tensors, _inputs: Tensors, _threshold: float) -> Findings:
        for name in names:
            if outputs[name].dtype.kind == "f":
                ensure_finite(name, outputs[name])
        return RawTensors({name: outputs[name] for name in names})

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
