"""The check that the numbers in a network's weights are finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.errors import ModelError
from ...core.types import Array

# Weights are checked in chunks to save memory.
_CHUNK = 1 << 22
_BOX = 4


def ensure_finite(values: Array, what: str) -> None:
    """Check that weights are finite numbers.

    Infinities are accepted if everything else is zero: that is a mask or a bound, which networks do
    have as constants. They are also accepted if they fill whole rows of four, as RT-DETR, D-FINE
    and DEIM mark anchors at the border (`_generate_anchors` in their decoders). Among other numbers
    they mean damage, as NaN does anywhere.

    Args:
        values: any shape, in memory order; float16, float32, float64, or uint16 for the bits of
            bfloat16.
        what: names the tensor and its file.

    Raises:
        ModelError: NaN or an infinity.
    """
    others = infinite = False
    boxes = values.size % _BOX == 0
    for chunk in _chunks(values):
        if _all_finite(chunk):
            others = others or bool(chunk.any())
            continue
        numbers = _widen(chunk)
        if np.isnan(numbers).any():
            raise ModelError(f"{what} holds NaN; the file is damaged or its training diverged")
        infinite = True
        others = others or bool((np.isfinite(numbers) & (numbers != 0)).any())
        boxes = boxes and _rows_are_whole(numbers)
    if infinite and others and not boxes:
        raise ModelError(
            f"{what} holds infinities among its numbers; the file is damaged or its training "
            "diverged"
        )


def _rows_are_whole(numbers: Array) -> bool:
    """Whether each row of four is either finite or only positive infinities."""
    infinite = np.isposinf(numbers).reshape(-1, _BOX)
    return bool((infinite.all(1) == infinite.any(1)).all()) and not bool(np.isneginf(numbers).any())


def _chunks(values: Array) -> Iterator[Array]:
    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK]


def _all_finite(chunk: Array) -> bool:
    """Whether all are finite, computed as cheaply as each type allows."""
    if chunk.dtype == np.uint16:  # bfloat16: all eight bits of the exponent set
        return not bool(((chunk & 0x7F80) == 0x7F80).any())
    if chunk.dtype == np.float16:
        return not bool(((chunk.view(np.uint16) & 0x7C00) == 0x7C00).any())
    # A sum is only finite if every term is, and needs no array of booleans.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(chunk.sum())) or bool(np.isfinite(chunk).all())


def _widen(chunk: Array) -> Array:
    if chunk.dtype == np.uint16:
        return (chunk.astype(np.uint32) << 16).view(np.float32)
    return chunk
