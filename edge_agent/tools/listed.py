"""Lists of boxes by score, as TFLite_Detection_PostProcess gives them on different engines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

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
    pairs = {name: _ranked(expected[name], each) for name, each in found.items()}
    scores = expected[detected["scores"]] if detected else np.empty(0)
    alike = all(one.shape == other.shape for one, other in pairs.values())
    if not detected or not alike or scores.dtype.kind != "f":  # integers are in steps
        return pairs
    certain = _certain(scores)
    for role in ("boxes_yxyx", "classes"):
        one, other = pairs[detected[role]]
        pairs[detected[role]] = one[certain], other[certain]
    return pairs


def _ranked(one: Array, other: Array) -> tuple[Array, Array]:
    """Return two outputs; of tables x1, y1, x2, y2, score, class, best first, what is certain."""
    if one.shape != other.shape or one.ndim != 3 or one.shape[2] != 6 or one.dtype.kind != "f":
        return one, other
    scores = one[..., 4], other[..., 4]
    if not all((np.diff(each, axis=1) <= 0).all() for each in scores):
        return one, other
    certain = _certain(scores[0])
    first, second = (
        np.concatenate([each[..., 4].ravel(), each[certain].ravel()]) for each in (one, other)
    )
    return first, second


def _certain(scores: Array) -> NDArray[np.bool_]:
    """Return which places in lists of scores, (n, rows), best first, are clear of those beside."""
    gaps = np.abs(np.diff(scores, axis=1))
    first, last = np.ones((len(scores), 1)), np.zeros((len(scores), 1))
    certain: NDArray[np.bool_] = (
        np.minimum(np.hstack((first, gaps)), np.hstack((gaps, last))) >= CLEAR
    )
    return certain


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
