"""What becomes of a pixel's value: mean, scale, rounding, saturation and type, as tables.

A pixel has 256 values, so all of it is 256 numbers for each channel, worked out once in double
precision. Looking up is exact for every type and was as fast as any arithmetic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError
from ...core.types import Array
from ...models.manifest import InputSpec

_TOP_BIT = 0x80


class Tables:
    """The tables of a network's channels, and the cheapest way to apply them."""

    __slots__ = ("_flip", "_whole", "gentle", "same", "values")

    def __init__(self, values: NDArray[np.generic]) -> None:
        """Prepare.

        Args:
            values: (channels, 256), of the tensor's type, in the network's order of channels.
        """
        bits = values.view(np.uint8) if values.dtype.itemsize == 1 else None
        steps = np.arange(256, dtype=np.uint8)
        self.values = values.view(np.uint16) if values.dtype == np.float16 else values
        self.same = bits is not None and bool((bits == steps).all())
        """Whether pixels go in as they are."""
        self._flip = bits is not None and bool((bits == steps ^ _TOP_BIT).all())
        """Whether only the highest bit is another: signed bytes, the usual way to take pixels."""
        self.gentle = bits is not None and bool((np.abs(np.diff(values.astype(int))) <= 1).all())
        """Whether a level more or less is a step of the network's quantization, at most."""
        one = bool((self.values == self.values[0]).all())
        # One table for all channels, or (1, 256, channels): one for each of interleaved pixels.
        self._whole = self.values[0] if one else np.ascontiguousarray(self.values.T)[None]

    def place(self, target: Array, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Say where pixels should be put before they are looked up: at once in place if they can.

        Args:
            target: part of the tensor, (height, width, channels) or (channels, height, width).
            buffer: bytes of its shape.
        """
        return target.view(np.uint8) if self.same or self._flip else buffer

    def look_up(self, pixels: Array, target: Array) -> None:
        """Write what becomes of pixels into the tensor.

        Args:
            pixels: uint8 (height, width) or (height, width, channels).
            target: part of the tensor, of the same shape; may be where the pixels are.
        """
        import cv2

        if self._flip:
            np.bitwise_xor(pixels, np.uint8(_TOP_BIT), out=target.view(np.uint8))
        elif not self.same:
            cv2.LUT(pixels, self._whole, dst=target)
        elif not np.may_share_memory(pixels, target):
            target.view(np.uint8)[...] = pixels

    def look_up_planes(self, pixels: Array, target: Array) -> None:
        """Do the same with planes, (channels, height, width)."""
        import cv2

        if self._whole.ndim == 1:
            channels, height, width = pixels.shape
            wide = (channels * height, width)
            self.look_up(pixels.reshape(wide), target.reshape(wide))
        else:
            for plane, table, part in zip(pixels, self.values, target, strict=True):
                cv2.LUT(plane, table, dst=part)


def table_of(spec: InputSpec, dtype: str, channels: int) -> NDArray[np.generic]:
    """Work out what each pixel value becomes, for each channel.

    Args:
        spec: the manifest's `[input]`.
        dtype: of the tensor, by NumPy's name.
        channels: how many.

    Returns:
        (channels, 256), of that type.

    Raises:
        ModelError: a value goes beyond what the type can hold.
    """
    mean = np.array(spec.per_channel("mean", channels))[:, None]
    scale = np.array(spec.per_channel("scale", channels))[:, None]
    values = (np.arange(256.0) - mean) / scale
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        values = np.clip(np.rint(values), np.iinfo(kind).min, np.iinfo(kind).max)
    elif np.abs(values).max() > np.finfo(kind).max:
        raise ModelError(f"input.scale: (pixel - mean) / scale goes beyond what {dtype} can hold")
    table: NDArray[np.generic] = values.astype(kind)
    return table
