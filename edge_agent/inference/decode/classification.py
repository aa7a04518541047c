"""Classes of the whole picture or window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...core.errors import SampleError
from ...core.types import Classes, Tensors
from .decoder import (
    Decoder,
    Floats,
    Network,
    Output,
    check_classes,
    count_of,
    ensure_finite,
    labels_of,
    sigmoid,
)
from .decoder import softmax as shares

ROUNDING = 0.02
"""Rounding error of probabilities in float16 or eight bits."""


def softmax(network: Network) -> Decoder:
    """Class probabilities from a network that ends in a softmax (or sigmoids).

    Role `scores`: one number per class; axes of size 1 do not count. Integers become
    (value - output.zero_point) * output.scale. Logarithms of probabilities, as from a LogSoftmax,
    become probabilities.
    """
    return _classifier(network, as_given)


def logits(network: Network) -> Decoder:
    """Logits: the softmax is done here; for a single class, the sigmoid.

    Role `scores`, as for `softmax`.
    """
    return _classifier(network, _chances)


def _classifier(network: Network, finish: Callable[[Floats], Floats]) -> Decoder:
    network.check_roles("scores")
    labels = labels_of(network)
    # A binary classifier ends in one sigmoid: the probability of the second of its two classes, as
    # Keras documents it with `class_names`.
    binary = labels.classes == 2 and labels.first == 0
    output = _find_scores(network, None if binary and _ends_in_one(network) else labels.classes)
    binary = binary and count_of(output.spec) == 1
    if not binary:
        check_classes(labels, count_of(output.spec), f"output {output.spec}")
    top_k = network.manifest.output.top_k

    def decode(outputs: Tensors, _inputs: Tensors, threshold: float) -> Classes:
        values = output.read(outputs).reshape(-1)
        if not binary and labels.classes is not None and len(values) != labels.classes:
            raise SampleError(
                f"output {output.spec.name}: expected {labels.classes} classes as output.labels "
                f"has them, found {len(values)}"
            )
        ensure_finite(output.spec.name, values)
        chances = finish(values)
        if binary:
            chances = np.concatenate((1 - chances, chances))
        indices = np.arange(len(chances))
        kept = indices[labels.is_named(indices) & (chances >= threshold)]
        best = kept[np.argsort(-chances[kept], kind="stable")][:top_k]
        scores = tuple(float(chance) for chance in chances[best])
        return Classes(labels.of(best), scores, every=chances)

    return decode


def _find_scores(network: Network, classes: int | None) -> Output:
    """Find the output with that many classes, else the only one that could have scores."""
    names = (
        *("probabilities", "probs", "prob"),
        "output_probability",  # of scikit-learn's converter
        *("softmax", "logits", "output", "scores"),
    )
    if classes is not None and not network.manifest.output.names:
        output = network.find("scores", _vectors(classes), names=names)
        if output is not None:
            return replace(output, patterns=tuple(_vectors(None)))
    return network.need("scores", _vectors(None), names=names)


def _vectors(count: int | None) -> list[tuple[int | None, ...]]:
    """List the shapes that exporters give a vector."""
    return [
        *((1, count), (count,), (1, 1, count)),
        *((1, count, 1, 1), (1, 1, 1, count), (1, count, 1)),
    ]


def _ends_in_one(network: Network) -> bool:
    return len(network.outputs) == 1 and count_of(network.outputs[0]) == 1


def as_given(values: Floats) -> Floats:
    """Return probabilities, which may be given as their logarithms.

    Raises:
        SampleError: they are neither.
    """
    if len(values) > 1 and values.max() <= 0 and abs(np.exp(values).sum() - 1) < ROUNDING:
        return np.exp(values)
    worst = max(values.min(initial=0), values.max(initial=0), key=lambda value: abs(value - 0.5))
    if abs(worst - 0.5) > 0.5 + ROUNDING:
        raise SampleError(
            f"a score is {worst:.4g}, which is no chance: the network ends without its "
            'softmax (decoder = "logits"), or in integers (output.scale and output.zero_point)'
        )
    return values


def _chances(values: Floats) -> Floats:
    return sigmoid(values) if len(values) == 1 else shares(values)
