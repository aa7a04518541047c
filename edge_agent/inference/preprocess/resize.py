"""Resizing pictures: with OpenCV, or with Pillow, which filters over all pixels covered."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from ...models.manifest import Interpolation

QUICKER: frozenset[Interpolation] = frozenset({"linear", "area"})
"""Those that are faster with Intel's IPP, which OpenCV includes on x86 but does not use for them.

By default OpenCV uses IPP only where results are the same bit for bit. These two differ by at most
one level, and linear is closer to exact arithmetic than OpenCV's own (whose weights have 11 bits).
From 768x432 to 320x240 linear takes 0.072 ms instead of 0.134; from 1920x1080 to 160x90 area takes
0.5 ms instead of 1.4. Elsewhere, as on ARM, the switch exists but has no effect."""


def resize(
    picture: NDArray[np.uint8],
    size: tuple[int, int],
    interpolation: Interpolation,
    out: NDArray[np.uint8] | None = None,
    *,
    quick: bool = False,
) -> NDArray[np.uint8]:
    """Resize a picture.

    Args:
        picture: (height, width, channels) or (height, width).
        size: width and height wanted, pixels.
        interpolation: its name in the manifest.
        out: where to put the result; of that size.
        quick: whether a difference of one level does not matter.

    Returns:
        *out*, or a new picture.
    """
    import cv2

    method = getattr(cv2, f"INTER_{interpolation.upper()}")
    quick = quick and interpolation in QUICKER
    if quick:
        # Per thread, and reset at once because it affects all of OpenCV: 0.2 microseconds.
        cv2.ipp.setUseIPP_NotExact(True)
    try:
        made = cv2.resize(picture, size, dst=out, interpolation=method)
    finally:
        if quick:
            cv2.ipp.setUseIPP_NotExact(False)
    return cast("NDArray[np.uint8]", made)


def resize_antialiased(
    picture: NDArray[np.uint8],
    size: tuple[int, int],
    interpolation: Interpolation,
    out: NDArray[np.uint8],
    box: tuple[float, float, float, float] | None = None,
) -> None:
    """Resize a picture as torchvision does: each pixel is averaged over all that it covers.

    OpenCV's `linear` and `cubic` use the nearest 4 or 16 pixels, however many become one, which
    looks like noise to a network trained on filtered pictures. From 1920x1080 to 224x224 it takes
    8 ms (linear) or 13 ms (cubic), from the middle of it 5 or 7 ms.

    Args:
        picture: (height, width, 3).
        size: width and height wanted, pixels.
        interpolation: linear or cubic.
        out: where to put the result; of that size.
        box: the part of the picture to resize, x1, y1, x2, y2 in its pixels; None: all of it.
    """
    from PIL import Image

    filters = {"linear": Image.Resampling.BILINEAR, "cubic": Image.Resampling.BICUBIC}
    resized = Image.fromarray(picture).resize(size, filters[interpolation], box)
    np.copyto(out, np.asarray(resized))
