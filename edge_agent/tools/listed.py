"""Lists of boxes by score, as TFLite_Detection_PostProcess gives them on different engines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..core.types import Array, Tensors

CLEAR = 0.02
"""Least distance between scores whose order does not depend on rounding: a few eight-bit steps."""


def comparable(
    expected: Tensors, found: Tensors, detected: Mapping[str, str]
) -> dict[str, tuple[Array, Array]]:
    """Return pairs of outputs; of boxes and their classes those whose place in the list is certain.

    Rounding decides the order of boxes with nearly the same score, and which are the last.

    Args:
        expected: outputs by name.
        found: the same of another engine.
        detected: by role the outputs with a list of boxes; empty: there is none.
    """
    pairs = {name: (expected[name], each) for name, each in found.items()}
    scores = expected[detected["scores"]] if detected else np.empty(0)
    alike = all(one.shape == other.shape for one, other in pairs.values())
    if not detected or not alike or scores.dtype.kind != "f":  # integers are in steps
        return pairs
    gaps = np.abs(np.diff(scores, axis=1))
    first, last = np.ones((len(scores), 1)), np.zeros((len(scores), 1))
    certain = np.minimum(np.hstack((first, gaps)), np.hstack((gaps, last))) >= CLEAR
    for role in ("boxes_yxyx", "classes"):
        one, other = pairs[detected[role]]
        pairs[detected[role]] = one[certain], other[certain]
    return pairs


def without_rest(outputs: Tensors, detected: Mapping[str, str]) -> dict[str, Array]:
    """Return outputs with zeros behind the boxes that are counted.

    LiteRT leaves there what is in memory, which may be any score.
    """
    cleared = dict(outputs)
    counts = [each for name, each in outputs.items() if name not in detected.values()]
    if detected and len(counts) == 1 and counts[0].size == 1 and counts[0].dtype.kind == "f":
        for name in detected.values():
            cleared[name] = outputs[name].copy()
            cleared[name][:, int(counts[0].item()) :] = 0
    return cleared
