"""Resizing: OpenCV's own, or the quick way that is right to one level; nothing else changes."""

from __future__ import annotations

from typing import Any, get_args

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.inference.preprocess.resize import QUICKER, resize
from edge_agent.models.manifest import Interpolation

METHODS = get_args(Interpolation)
SHAPES = [
    ((768, 432), (320, 240)),
    ((768, 432), (224, 224)),
    ((1920, 1080), (160, 90)),
    ((3840, 2160), (640, 640)),
    ((3840, 2160), (1, 1)),
    ((640, 480), (320, 240)),
    ((320, 240), (640, 480)),
    ((97, 61), (61, 97)),
    ((1, 1), (224, 224)),
    ((2, 500), (300, 3)),
    ((1, 400), (400, 1)),
    ((13, 7), (5, 11)),
]


def plain(picture: Any, size: tuple[int, int], method: str) -> NDArray[Any]:
    """Resize as a script would."""
    return np.asarray(
        cv2.resize(picture, size, interpolation=getattr(cv2, f"INTER_{method.upper()}"))
    )


def noise(width: int, height: int, channels: int = 3) -> NDArray[np.uint8]:
    """Make the hardest picture there is: nothing in it is like its neighbor."""
    random = np.random.default_rng(width * 10_000 + height)
    return random.integers(0, 256, (height, width, channels), np.uint8)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("given", "size"), SHAPES)
def test_as_opencv_to_one_level(
    method: Interpolation, given: tuple[int, int], size: tuple[int, int]
) -> None:
    """Larger and smaller, wide and narrow, of one pixel: and at the edges as well."""
    picture = noise(*given)
    wanted = plain(picture, size, method)
    np.testing.assert_array_equal(resize(picture, size, method), wanted)
    apart = resize(picture, size, method, quick=True).astype(np.int16) - wanted
    assert np.abs(apart).max() <= (1 if method in QUICKER else 0)


@pytest.mark.skipif(not cv2.ipp.useIPP(), reason="OpenCV has no IPP here, and is 1.3 levels off")
@pytest.mark.parametrize(("given", "size"), SHAPES)
def test_linear_is_what_arithmetic_gives(given: tuple[int, int], size: tuple[int, int]) -> None:
    """Worked out in floats, whatever OpenCV's own whole numbers make of it."""
    picture = noise(*given)
    exact = plain(picture.astype(np.float32), size, "linear")
    assert np.abs(resize(picture, size, "linear", quick=True) - exact).max() < 1


@pytest.mark.parametrize("quick", [False, True])
def test_parts_of_pictures_and_of_tensors(quick: bool) -> None:
    """Crops are read in their place, and a letterbox is filled in its place."""
    whole = noise(200, 150)
    canvas = np.full((64, 64, 3), 114, np.uint8)
    made = resize(whole[13:101, 31:174], (50, 31), "linear", canvas[9:40, 5:55], quick=quick)
    assert np.shares_memory(made, canvas)
    alone = resize(whole[13:101, 31:174].copy(), (50, 31), "linear", quick=quick)
    np.testing.assert_array_equal(canvas[9:40, 5:55], alone)
    canvas[9:40, 5:55] = 114
    assert (canvas == 114).all()


def test_one_channel() -> None:
    """Gray pictures have no third dimension."""
    gray = noise(100, 80, 1)[..., 0]
    assert resize(gray, (30, 20), "area", quick=True).shape == (20, 30)


def test_the_switch_is_as_it_was() -> None:
    """Nothing else that OpenCV does in this thread becomes another, also after an error."""
    assert not cv2.ipp.useIPP_NotExact()
    resize(noise(8, 8), (4, 4), "linear", quick=True)
    with pytest.raises(cv2.error):
        resize(noise(8, 8), (0, 0), "linear", quick=True)
    assert not cv2.ipp.useIPP_NotExact()


@pytest.mark.parametrize("method", sorted(QUICKER))
def test_the_quick_way_is_taken(method: Interpolation) -> None:
    """Where OpenCV has IPP, the result is IPP's; elsewhere both are the same."""
    picture = noise(768, 432)
    cv2.ipp.setUseIPP_NotExact(True)
    try:
        quick = plain(picture, (320, 240), method)
    finally:
        cv2.ipp.setUseIPP_NotExact(False)
    np.testing.assert_array_equal(resize(picture, (320, 240), method, quick=True), quick)
    if cv2.ipp.useIPP():
        assert (quick != plain(picture, (320, 240), method)).any()
