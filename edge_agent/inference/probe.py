"""Inputs for probing networks, and timing runs against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ..core.types import Array, TensorSpec
from ..models.files.facts import MASK, TYPES

_ORDINARY = {MASK: 1, TYPES: 0}
"""An ordinary value for inputs that allow few: others crash some networks."""


def probe_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, Array]:
    """Return typical inputs for a network: seeded noise, as zeros can be faster than any picture.

    Open sizes are 1.
    """
    random = np.random.default_rng(seed)
    return {
        spec.name: np.full([size or 1 for size in spec.shape], _ORDINARY[spec.name], spec.dtype)
        if spec.name in _ORDINARY
        else probe_input(spec, random)
        for spec in specs
    }


def probe_input(spec: TensorSpec, random: np.random.Generator, loudness: float = 1.0) -> Array:
    """Return noise for one input: floats about zero, integers over the range of a byte.

    Args:
        spec: the input.
        random: source of the noise.
        loudness: factor for the amplitude of the noise.

    Returns:
        An array of the input's shape, with open sizes 1, and type.
    """
    shape = tuple(size or 1 for size in spec.shape)
    kind = np.dtype(spec.dtype)
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu":
        # Only bytes may be negative: wider integers may be indices.
        low, high = (-128, 127) if kind == np.int8 else (0, 255)
        middle = (low + high + 1) // 2
        span = round((high - middle) * loudness)
        return random.integers(middle - span, middle + span, shape, endpoint=True).astype(kind)
    return (random.standard_normal(shape) * loudness).astype(kind)


def race(runs: Sequence[Callable[[int], object]], rounds: int) -> list[list[float]]:
    """Time functions in turn, so that a disturbance affects all of them.

    Returns:
        For each function the milliseconds of every round.
    """
    took: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        for run, times in zip(runs, took, strict=True):
            start = time.perf_counter()
            run(number)
            times.append((time.perf_counter() - start) * 1e3)
    return took
