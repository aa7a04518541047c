"""Golden inputs for a network that nobody has given samples of: seeded, in the range it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import ModelError
from ..core.types import Array, TensorSpec
from ..inference.probe import probe_input
from ..models.files.facts import NetworkFacts
from ..models.files.infer_layout import picture_input

CASES = 4
MAX_BYTES = 64 * 2**20
"""Of all cases, unpacked."""
_UNKNOWN = ((127.5,), (64.0,))
"""Mean and scale where they are not known: about -2 to 2, where most networks' inputs lie."""


def golden_inputs(
    facts: NetworkFacts, sizes: Sequence[Sequence[int]], given: Mapping[str, Any]
) -> tuple[list[dict[str, Array]], str]:
    """Make golden inputs.

    A picture is made of flat squares, larger ones from case to case: it packs well, and
    convolutions find edges in it. All else is noise.

    Args:
        facts: of the network.
        sizes: of each of its inputs.
        given: [input] of its manifest, as far as it is known.

    Returns:
        The inputs of each case, and what they are in words.

    """
    random = np.random.default_rng(0)
    try:
        picture, _ = picture_input(facts, "")
    except ModelError:
        picture = None
    known = "scale" in given or "mean" in given
    total = sum(
        int(np.prod(size)) * np.dtype(spec.dtype).itemsize
        for spec, size in zip(facts.inputs, sizes, strict=True)
    )
    count = max(1, min(CASES, MAX_BYTES // max(total, 1)))
    cases = [
        {
            spec.name: _picture(spec, size, given if known else None, 4 << number, random)
            if picture is not None and spec.name == picture.name
            else probe_input(TensorSpec(spec.name, tuple(size), spec.dtype), random)
            for spec, size in zip(facts.inputs, sizes, strict=True)
        }
        for number in range(count)
    ]
    if picture is None:
        return cases, "seeded noise"
    if known or "int" in picture.dtype:
        return cases, "seeded pictures, 0 to 255 before mean and scale"
    return cases, "seeded pictures, -2 to 2, as mean and scale are not known"


def _picture(
    spec: TensorSpec,
    size: Sequence[int],
    given: Mapping[str, Any] | None,
    side: int,
    random: np.random.Generator,
) -> Array:
    """Return one picture, ready for the network, of squares of *side* pixels."""
    channels_last = size[1] not in {1, 3}
    height, width, channels = size[1:] if channels_last else (size[2], size[3], size[1])
    few = random.integers(0, 256, (-(-height // side), -(-width // side), channels))
    pixels = few.repeat(side, 0).repeat(side, 1)[:height, :width].astype(np.float64)
    if "int" in spec.dtype and given is None:
        ready = pixels - (128 if spec.dtype == "int8" else 0)
    else:
        mean, scale = _UNKNOWN if given is None else (given.get("mean", 0), given.get("scale", 1))
        ready = (pixels - np.array(mean)) / np.array(scale)
    if "int" in spec.dtype:
        bounds = np.iinfo(spec.dtype)
        ready = np.clip(np.round(ready), bounds.min, bounds.max)
    ready = ready if channels_last else ready.transpose(2, 0, 1)
    return np.ascontiguousarray(ready[None], spec.dtype)
