"""The motion gate on pictures that are drawn here, at 25 a second."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from edge_agent.core.types import Array
from edge_agent.runtime.pipelines.motion_gate import LINGER, MotionGate

SIZE = (480, 640, 3)


def ground(noise: float, count: int) -> list[Array]:
    """Draw a smooth ground, with other noise in each picture."""
    rng = np.random.default_rng(1)
    base = cv2.GaussianBlur(rng.integers(60, 180, SIZE).astype(np.uint8), (0, 0), 9)
    return [
        np.clip(base + rng.normal(0.0, noise, SIZE), 0, 255).astype(np.uint8) for _ in range(count)
    ]


def put(picture: Array, x: float, size: int = 60) -> Array:
    """Add a plain square, 37 levels brighter than the ground, at *x*."""
    picture[200 : 200 + size, int(x) : int(x) + size] += 37
    return picture


def longest_rest(gate: MotionGate, pictures: list[Array]) -> int:
    """Give the most pictures in a row in which nothing had moved."""
    rest = most = 0
    for picture in pictures:
        rest = 0 if gate.moved(picture) else rest + 1
        most = max(most, rest)
    return most


@pytest.mark.parametrize(("speed", "most"), [(4.0, 4), (1.0, 15), (0.4, 50)])
def test_what_moves_slowly_or_turns_back_moves(speed: float, most: int) -> None:
    """A learned background took it in: its crossings were neither told nor counted, in silence.

    It has come some 12 pixels when it is looked at again, at whatever speed.
    """
    gate, pictures = MotionGate(), ground(2.0, 240)
    assert longest_rest(gate, pictures[:20]) > LINGER
    places = [100 + speed * (i if i < 100 else 200 - i) for i in range(200)]
    moving = [put(picture, x) for picture, x in zip(pictures[20:220], places, strict=True)]
    assert longest_rest(gate, moving) <= most
    # It stands now.
    assert longest_rest(gate, [put(picture, places[-1]) for picture in pictures[220:]]) > LINGER


@pytest.mark.parametrize("size", [20, 40])
def test_a_person_far_away_moves(size: int) -> None:
    """No object below 0.2 % of the picture was looked at: 0 of 77 crossings were counted."""
    gate, pictures = MotionGate(), ground(2.0, 100)
    assert longest_rest(gate, pictures[:20]) > LINGER
    moving = [put(picture, 100 + 4 * i, size) for i, picture in enumerate(pictures[20:])]
    assert longest_rest(gate, moving) <= 4


@pytest.mark.parametrize("noise", [2.0, 8.0, 20.0])
def test_noise_is_no_motion(noise: float) -> None:
    """Neither at its usual strength nor at that of a camera in the dark."""
    gate, pictures = MotionGate(), ground(noise, 60)
    for picture in pictures[:20]:
        gate.moved(picture)
    assert not any(gate.moved(picture) for picture in pictures[20:])


def test_a_lamp_is_motion_and_dusk_is_seldom() -> None:
    """What fades by a level a second is looked at once it differs."""
    gate, pictures = MotionGate(), ground(2.0, 60)
    for picture in pictures[:10]:
        gate.moved(picture)
    fading = [np.clip(p - np.uint8(i // 25), 0, 255) for i, p in enumerate(pictures[10:])]
    assert not any(gate.moved(picture) for picture in fading)
    assert gate.moved(np.clip(pictures[0].astype(np.int16) + 40, 0, 255).astype(np.uint8))


def test_what_fills_the_picture_is_no_noise() -> None:
    """A camera that turns, and light that changes everywhere with each picture."""
    fields = np.random.default_rng(2).integers(60, 180, (12, 16, 3)).astype(np.uint8)
    wide = cv2.resize(fields, (640, 480), interpolation=cv2.INTER_NEAREST)
    turning = [np.roll(wide, 6 * i, axis=1) for i in range(60)]
    gate = MotionGate()
    assert all(gate.moved(picture) for picture in turning)
    flicker = [np.full(SIZE, 8 * (i % 30), np.uint8) for i in range(90)]
    gate = MotionGate()
    assert longest_rest(gate, flicker) <= 1  # of every other one it is 16 levels
