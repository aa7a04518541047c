"""Pictures made larger or smaller: by OpenCV, or filtered over all that they cover, by Pillow."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from ...models.manifest import Interpolation

QUICKER: frozenset[Interpolation] = frozenset({"linear", "area"})
"""Those that Intel's IPP does quicker, which OpenCV brings along on x86 and does not use for them.

By default OpenCV takes of IPP only what gives its own results bit for bit. These two differ from
them by one level at most, and linear is closer to exact arithmetic than OpenCV's own (whose weights
have 11 bits). Of 768x432 to 320x240 linear takes 0.072 ms instead of 0.134; of 1920x1080 to 160x90
area takes 0.5 ms instead of 1.4. Elsewhere, as on ARM, the switch is there and does nothing."""


def resize(
    picture: NDArray[np.uint8],
    size: tuple[int, int],
    interpolation: Interpolation,
    out: NDArray[np.uint8] | None = None,
    *,
    quick: bool = False,
) -> NDArray[np.uint8]:
    """Bring a picture to a size.

    Args:
        picture: (height, width, channels) or (height, width).
        size: width and height wanted, pixels.
        interpolation: by its name in the manifest.
        out: where it shall be put; of that size.
        quick: a level more or less does not matter.

    Returns:
        *out*, or a new picture.
    """
    import cv2

    method = getattr(cv2, f"INTER_{interpolation.upper()}")
    quick = quick and interpolation in QUICKER
    if quick:
        # Each thread's own, and put back at once, as it is for all of OpenCV: 0.2 microseconds.
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
    """Bring a picture to a size as torchvision does: each pixel made of all that it covers.

    OpenCV's `linear` and `cubic` look at the nearest 4 or 16 pixels, however many become one; to a
    network trained on filtered pictures the others are noise. Of 1920x1080 to 224x224 it takes 8 ms
    (linear) or 13 ms (cubic), of the middle of it 5 or 7 ms.

    Args:
        picture: (height, width, 3).
        size: width and height wanted, pixels.
        interpolation: linear or cubic.
        out: where it shall be put; of that size.
        box: the part of the picture to resize, x1, y1, x2, y2 in its pixels; None: all of it.
    """
    from PIL import Image

    filters = {"linear": Image.Resampling.BILINEAR, "cubic": Image.Resampling.BICUBIC}
    resized = Image.fromarray(picture).resize(size, filters[interpolation], box)
    np.copyto(out, np.asarray(resized))
