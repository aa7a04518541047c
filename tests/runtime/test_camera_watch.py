"""What is said of a camera, and that nothing is said of one that is well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.runtime.pipelines.camera_watch import CameraWatch
from edge_agent.sources.opencv import load
from tests.helpers.support import ASSETS, CHECKOUT, needs_assets

Picture = NDArray[np.uint8]
NOISE = np.random.default_rng(9).normal(0, 1, 4 * 640 * 768).astype(np.float32)
CLIPS = ("bottle-detection.mp4", "one-by-one-person-detection.mp4")


def scene(seed: int = 0) -> Picture:
    """Make a picture with things of all sizes in it."""
    chance = np.random.default_rng(seed)
    made = np.full((180, 320, 3), 120, np.uint8)
    for size in range(100, 4, -1):
        y, x = chance.integers(0, 180), chance.integers(0, 320)
        made[y : y + size // 2, x : x + size] = chance.integers(10, 245, 3)
    return made


def noisy(picture: Any, second: int, sigma: float = 2.0) -> Picture:
    """Add a sensor's noise."""
    light = np.asarray(picture, np.float32)
    start = 7919 * second % (NOISE.size - light.size)
    noise = NOISE[start : start + light.size].reshape(light.shape)
    return np.asarray(np.clip(light + sigma * noise, 0, 255), np.uint8)


def said(show: Callable[[int], Picture], seconds: int) -> list[tuple[int, str]]:
    """Show a picture each second; give what is said from when on."""
    watch = CameraWatch()
    return [(at, watch.trouble) for at in range(1, seconds) if watch.look(show(at), float(at))]


def clip(name: str) -> list[Picture]:
    """Give a picture a second of a clip."""
    capture = load().VideoCapture(name)
    rate, found = round(capture.get(5)), []
    while (read := capture.read())[0]:
        found.append(np.asarray(read[1], np.uint8))
    return found[::rate]


STILL = scene()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda picture: picture * 0.002, "dark"),
        (lambda picture: picture * 0.01, "dark"),
        (lambda picture: load().GaussianBlur(picture, (0, 0), 3), "blurred"),
        (lambda picture: np.full_like(picture, 190), "blurred"),
        (lambda picture: np.roll(picture, 32, 1), "turned"),
        (lambda picture: np.rot90(picture, 2), "turned"),
        (lambda _: scene(1), "turned"),
    ],
)
def test_what_is_wrong_is_said_within_seconds(wrong: Callable[[Picture], Any], word: str) -> None:
    """Once it has lasted, and until it is over; a second of it is nothing."""
    troubled = {20, *range(30, 60)}
    told = said(lambda at: noisy(wrong(STILL) if at in troubled else STILL, at, 1.0), 80)
    late = word == "turned"  # another view has to stand still first
    assert told == [(34 + late, word), (64, "")]


def test_a_picture_that_is_repeated_is_frozen() -> None:
    """To the last pixel: one in which only noise changes is not."""
    assert said(lambda at: noisy(STILL, min(at, 10), 1.0), 60) == [(39, "frozen")]
    assert said(lambda at: noisy(STILL, at, 0.3), 60) == []


def test_light_is_no_trouble() -> None:
    """It fades to 5 % over minutes, jumps, comes from another side; something stands before it."""
    side = np.linspace(0.2, 1.3, 320)[None, :, None]

    def dusk(at: int) -> Picture:
        return noisy(STILL * max(0.05, 1 - at / 120), at, 1.5)

    def jumps(at: int) -> Picture:
        return noisy(STILL * [1, 0.2, 2, 0.5, 0.1][at // 15 % 5], at)

    def lorry(at: int) -> Picture:
        passing = STILL.copy()
        if at > 40:
            passing[50:, 100:260] = scene(2)[50:, 100:260]
        return noisy(passing * side if at > 80 else passing, at)

    for show in (dusk, jumps, lorry):
        assert said(show, 150) == []


@pytest.mark.parametrize("size", [(48, 64), (5, 7), (1, 1), (200, 20)])
def test_small_pictures_and_others_sizes_do_no_harm(size: tuple[int, int]) -> None:
    """Of what is too small to be judged only that it is dark or frozen is said."""

    def show(at: int) -> Picture:
        return noisy(STILL if at % 7 == 0 else np.full((*size, 3), 90), at)

    assert said(show, 60) == []
    assert said(lambda _: np.zeros((*size, 3), np.uint8), 60) == [(5, "dark")]


@needs_assets
@pytest.mark.parametrize("name", CLIPS)
def test_real_clips(name: str) -> None:
    """Looped for minutes they are well; blurred, turned a little and dark they are not."""
    frames = clip(str(ASSETS / "media" / name))
    assert said(lambda at: frames[at % len(frames)], 200) == []
    blurred = [load().GaussianBlur(each, (0, 0), 3) for each in frames]
    assert said(lambda at: blurred[at % len(frames)], 20) == [(5, "blurred")]
    turned = [np.roll(each, each.shape[1] // 10, 1) for each in frames]
    told = said(lambda at: (turned if at > 40 else frames)[at % len(frames)], 60)
    assert [word for _, word in told] == ["turned"]


def test_the_bundled_clip_is_well() -> None:
    """A belt on which everything moves."""
    frames = clip(f"{CHECKOUT}/models/media/conveyor.mp4")
    assert said(lambda at: frames[at % len(frames)], 200) == []


@pytest.mark.parametrize("sigma", [0.0, 1.0, 2.0])
def test_one_sharp_part_on_a_plain_belt_is_sharp(sigma: float) -> None:
    """Few pixels are at its edges: it was called blurred for good. Out of focus it is."""
    belt = np.full((384, 640, 3), 90, np.uint8)
    belt += np.linspace(0, 20, 640).astype(np.uint8)[None, :, None]
    belt[150:230, 200:300] += 140

    def show(picture: Any) -> Callable[[int], Picture]:
        return lambda at: noisy(picture, at, sigma)

    assert said(show(belt), 20) == []
    if not sigma:  # as a lens blurs before the sensor's noise, which hides that of so few edges
        assert said(show(load().GaussianBlur(belt, (0, 0), 3)), 20) == [(5, "blurred")]
