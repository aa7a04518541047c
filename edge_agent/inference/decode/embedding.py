"""Vectors for texts, made from a network's outputs as sentence-transformers does, and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...core.errors import ModelError, SampleError
from ...core.text_findings import Embeddings
from ...core.types import Array, Findings, Match, Tensors
from ...models.files.facts import IDS, MASK
from ...models.npz import read_npz
from .decoder import Decoder, Floats, Network, Output, ensure_finite

SMALLEST = 1e-9
"""Least number of tokens, to avoid division by 0."""


def pooled(network: Network) -> Decoder:
    """One vector of length 1: the mean or the first of the tokens' vectors, or the only one.

    Role `vectors`: (1, tokens, n), or (1, n) if the network has pooled them itself; for pictures
    also (1, n, 1, 1) or (1, 1, 1, n). A picture's vector is compared with those of a gallery.
    """
    network.check_roles("vectors")
    patterns: list[tuple[int | None, ...]] = [(1, None, None), (1, None)]
    if not network.manifest.input.tokenizer:
        network.picture_size()
        patterns += [(1, None, 1, 1), (1, 1, 1, None)]
    output = network.need(
        "vectors",
        patterns,
        names=(
            *("sentence_embedding", "last_hidden_state", "token_embeddings"),
            *("image_embeds", "embedding", "embeddings"),
        ),
    )
    mean = network.manifest.output.pooling == "mean"
    matched = None if network.manifest.input.tokenizer else _Gallery(network, output)

    def decode(outputs: Tensors, inputs: Tensors, threshold: float) -> Findings:
        found = output.read(outputs)[0]
        ensure_finite(output.spec.name, found)
        if found.ndim == 2 and mean:
            weights = np.asarray(inputs[MASK] if MASK in inputs else np.ones((1, len(found))))
            weights = weights.reshape(-1, 1).astype(np.float32)
            found = (found * weights).sum(axis=0) / max(float(weights.sum()), SMALLEST)
        elif found.ndim == 2:
            found = found[0]
        length = float(np.linalg.norm(found))
        vector = (found / max(length, SMALLEST)).astype(np.float32).reshape(-1)
        if matched is not None:
            return matched.find(vector, threshold)
        tokens = inputs[MASK].sum() if MASK in inputs else inputs[IDS].size
        return Embeddings(vector[None], int(tokens))

    return decode


class _Gallery:
    """Labeled vectors, with a search for the one most similar to another."""

    def __init__(self, network: Network, output: Output) -> None:
        """Read the gallery of a model.

        Raises:
            ModelError: it is damaged, its vectors do not fit the network's, or the manifest gives
                no threshold for the similarity.
        """
        self._names: list[str] = []
        self._vectors: Floats | None = None
        path, spec = network.gallery, network.manifest.output
        if path is not None and path.exists():
            sizes = output.spec.shape[1:]
            last = len(sizes) == 2 or sizes[0] == 1
            self._vectors = self._read(path, sizes[-1] if last else sizes[0])
            if spec.threshold is None:
                raise ModelError(
                    f"output.threshold: is missing; it is the least similarity to {path.name}, "
                    "without which every picture would match"
                )
        self._asked = self._vectors is None if spec.vector is None else spec.vector

    def _read(self, path: Path, width: int | None) -> Floats:
        vectors: list[Array] = []
        for label, array in read_npz(path, str(path)).items():
            each = np.atleast_2d(array.astype(np.float32))
            lengths = np.linalg.norm(each, axis=-1, keepdims=True)
            if each.ndim != 2 or each.shape[1] != (width or (*vectors, each)[0].shape[1]):
                raise ModelError(
                    f"{path}: {label}: expected vectors of {width or 'the same'} numbers, "
                    f"found {list(array.shape)}"
                )
            if not np.isfinite(lengths).all() or not lengths.all():
                raise ModelError(f"{path}: {label}: a vector is all zeros, or not finite")
            vectors.append(each / lengths)
            self._names += [label] * len(each)
        if not vectors:
            raise ModelError(f"{path}: holds no vectors; an array for each label, (n, d)")
        return np.concatenate(vectors)

    def find(self, vector: Floats, threshold: float) -> Match:
        """Return the label of the vector most similar to this one (d,), if similar enough."""
        if self._vectors is None:
            return Match((), (), vector, self._asked)
        if len(vector) != self._vectors.shape[1]:
            raise SampleError(
                f"the network gives {len(vector)} numbers, the vectors of its gallery have "
                f"{self._vectors.shape[1]}"
            )
        alike = self._vectors @ vector
        best = int(alike.argmax())
        match = Match((self._names[best],), (float(alike[best]),), vector, self._asked)
        return match.above(threshold)
