"""The two functions that turn logits into chances, without overflow."""

from __future__ import annotations

import numpy as np

from .decoder import Floats


def sigmoid(logits: Floats) -> Floats:
    """Return the probability of each logit by itself; any shape."""
    # By tanh, which does not overflow where exp does.
    half = np.float32(0.5)
    chances: Floats = half + half * np.tanh(logits * half)
    return chances


def softmax(logits: Floats) -> Floats:
    """Return probabilities (…, classes) that sum to 1 along the last axis."""
    weights: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights
