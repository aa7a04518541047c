"""Vectors of texts, as sentence-transformers makes them of a network's outputs."""

from __future__ import annotations

import numpy as np

from ...core.types import Embeddings, Findings, Tensors
from ..text_inputs import MASK
from .decoder import Decoder, Network, ensure_finite

SMALLEST = 1e-9
"""Least count of tokens, so that nothing is divided by 0."""


def pooled(network: Network) -> Decoder:
    """One vector of length 1: of the tokens' vectors their mean or the first, or as it is.

    Role `vectors`: (1, tokens, n), or (1, n) where the network has pooled them itself.
    """
    network.check_roles("vectors")
    output = network.need(
        "vectors",
        [(1, None, None), (1, None)],
        names=("sentence_embedding", "last_hidden_state", "token_embeddings"),
    )
    mean = network.manifest.output.pooling == "mean"

    def decode(outputs: Tensors, inputs: Tensors, _threshold: float) -> Findings:
        found = output.read(outputs)[0]
        ensure_finite(output.spec.name, found)
        if found.ndim == 2 and mean:
            weights = np.asarray(inputs[MASK] if MASK in inputs else np.ones((1, len(found))))
            weights = weights.reshape(-1, 1).astype(np.float32)
            found = (found * weights).sum(axis=0) / max(float(weights.sum()), SMALLEST)
        elif found.ndim == 2:
            found = found[0]
        length = float(np.linalg.norm(found))
        return Embeddings((found / max(length, SMALLEST)).astype(np.float32)[None])

    return decode
