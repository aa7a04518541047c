"""The features of a sound that microWakeWord's networks take, as a part of an OpenVINO graph.

They are those of TensorFlow's microfrontend, which computes in integers: in the quiet bands of a
frame they depend on how its transform rounds. The transform is computed in integers here, too; what
follows it in floats that are rounded where it rounds. Sources: tensorflow/lite/experimental/
microfrontend/lib, and KISS FFT for 16 bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import opset15 as ops

RATE, FRAME, BANDS = 16_000, 480, 40
UNIT = 0.0390625
"""Of a feature, in the numbers that networks are trained with."""
_PAIRS = 256
"""Complex numbers that are transformed: samples in pairs."""
_LOUDEST, _SMALL = 32767, 4096
"""What stands for 1 in the transform; in the taper and the weights of the bands."""
_LOW_HZ, _HIGH_HZ, _BIN_HZ = 125.0, 7500.0, RATE / 2 / _PAIRS
_NOISE = 1024
"""Units of the estimate of noise in one of the level."""
_SHARE = 1 << 14
_NEW, _LEAST = (int(0.025 * _SHARE), int(0.06 * _SHARE)), int(0.05 * _SHARE)
"""What a frame changes of the estimate, in turn for even and odd bands; what is left of a level."""
_SEGMENTS = 128
"""Of a logarithm from one power of two to the next: within each it has the same slope."""
_LN2 = 45426 / 65536

Node = Any
Numbers = NDArray[np.floating[Any]]
_I, _F = partial(np.full, 1, dtype=np.int32), partial(np.full, 1, dtype=np.float32)


def features(samples: Node, noise: Node, frames: int, step: int) -> tuple[Node, Node]:
    """Build the features of frames.

    Args:
        samples: (FRAME + (frames - 1) * step,) samples, int32.
        noise: (1, BANDS) estimate after the frame before, float32; at first zeros.
        frames: how many.
        step: samples from one frame to the next.

    Returns:
        Features (frames, BANDS), whole numbers as float32, and the new estimate.
    """
    places = step * np.arange(frames)[:, None] + np.arange(FRAME)
    angle = np.float32(2 * np.pi / FRAME) * (np.arange(FRAME, dtype=np.float32) + np.float32(0.5))
    taper = np.float32(0.5) - np.float32(0.5) * np.cos(angle)
    heard = _shifted(ops.gather(samples, places, 0) * _whole(taper * _SMALL), 12)
    peak = ops.reduce_max(ops.minimum(ops.abs(heard), _I(_LOUDEST)), [1])
    # Each frame is made as loud as its transform allows, and its levels are divided again.
    louder = ops.unsqueeze(ops.gather(_whole(2.0 ** np.arange(15, -1, -1)), _bits(peak), 0), 1)
    energy = _energy(_transform(heard * louder))
    level = ops.round(ops.sqrt(ops.matmul(energy, _weights(), False, False)), "half_to_even")
    level = ops.floor(level / ops.convert(louder, "f32"))
    estimates = []
    change = (np.resize(_NEW, (1, BANDS)) / _SHARE).astype(np.float32)
    for number in range(frames):
        one = ops.gather(level * _F(_NOISE), np.array([number]), 0)
        noise = ops.floor(noise + (one - noise) * change)
        estimates.append(noise)
    known = ops.concat(estimates, 0)
    over = ops.floor(ops.relu(level * _F(_NOISE) - known) / _F(_NOISE))
    left = ops.maximum(over, ops.floor(level * _F(_LEAST / _SHARE)))
    ratio = ops.floor(left * _gain(known) / _F(64))
    small, large = ratio * ratio / _F(2**20), ratio / _F(64) - _F(64)
    return _logarithm(ops.floor(ops.select(ops.less(ratio, _F(8192)), small, large))), noise


def _transform(heard: Node) -> Node:
    """Build the transform of frames (n, FRAME): (n, 2, _PAIRS), real and imaginary parts.

    Each of four rounds joins groups of four transforms.
    """
    order = np.arange(_PAIRS).reshape(4, 4, 4, 4).transpose(3, 2, 1, 0).reshape(-1, 4, 1)
    padding = [np.array([0, 0]), np.array([0, 2 * _PAIRS - FRAME])]
    padded = ops.pad(heard, *padding, "constant", np.int32(0))
    made = ops.gather(padded, np.concatenate((2 * order, 2 * order + 1), axis=1), 1)
    four = np.arange(4)
    turn = np.pi / 2 * four[:, None] * four
    cosine, sine = np.rint(np.cos(turn)), np.rint(np.sin(turn))
    join = np.block([[cosine, sine], [-sine, cosine]]).astype(np.float32)
    for size in (1, 4, 16, 64):
        turns = _turns(-np.pi / 2 / size * four[:, None] * np.arange(size))
        turns[0, 0] += 1  # the first is not turned: 32768 in place of 32767
        made = _turned(_scaled(made, 4), turns)
        # Floats hold the sums of four.
        made = ops.matmul(join, ops.convert(made, "f32"), False, False)
        made = _wrapped(ops.convert(made, "i32"))
        if size < 64:
            made = ops.reshape(made, [0, -1, 4, 2, 4 * size], True)
            made = ops.reshape(
                ops.transpose(made, np.array([0, 1, 3, 2, 4])), [0, 0, 8, 4 * size], True
            )
    return ops.reshape(made, [0, 2, _PAIRS], True)


def _energy(made: Node) -> Node:
    """Build the energies of frequencies 1 to _PAIRS / 2, then of those from _PAIRS - 1 downward.

    The transform was of pairs of samples.
    """
    places, mirror = np.arange(1, _PAIRS // 2 + 1), np.array([[1], [-1]], np.int32)
    one = _scaled(ops.gather(made, places, 2), 2)
    other = _scaled(ops.gather(made, _PAIRS - places, 2) * mirror, 2)
    turns = _turns(-np.pi * (places / _PAIRS + 0.5))
    turned = _wrapped(_turned(one - other, turns[:, None]))
    ends = [one + other + turned, (one + other - turned) * mirror]
    halves = [_shifted(end, 1) for end in ends]
    powers = [ops.reduce_sum(half * half, [1]) for half in halves]
    return ops.convert(ops.concat(powers, 1), "f32")


def _scaled(number: Node, divisor: int) -> Node:
    return _rounded(number * _I(_LOUDEST // divisor))


def _turns(angle: Numbers) -> NDArray[np.int32]:
    """Return real and imaginary parts (2, ...) of numbers of size 1 at these angles."""
    return _whole(np.stack((np.cos(angle), np.sin(angle))) * _LOUDEST)


def _turned(pairs: Node, turns: NDArray[np.int32]) -> Node:
    """Multiply (n, ..., 2 m, k), real before imaginary parts, by complex constants (2, m, k)."""
    real, imaginary = turns
    axis, count = len(pairs.output(0).shape) - 2, 2 * len(real)
    swapped = ops.gather(pairs, np.roll(np.arange(count), count // 2), axis)
    across = swapped * np.concatenate((-imaginary, imaginary))
    return _rounded(pairs * np.concatenate((real, real)) + across)


def _rounded(product: Node) -> Node:
    return _shifted(product + _I(16384), 15)


def _shifted(number: Node, bits: int) -> Node:
    return ops.bitwise_right_shift(number, _I(bits))


def _wrapped(number: Node) -> Node:
    """Keep 16 bits of sums, which may overflow."""
    return ops.bitwise_and(number + _I(32768), _I(65535)) - _I(32768)


def _whole(numbers: Numbers) -> NDArray[np.int32]:
    return np.array(np.floor(numbers + 0.5), np.int32)


def _bits(number: Node) -> Node:
    """Build how many bits a whole number has."""
    powers = (2.0 ** np.arange(31)).astype(number.output(0).element_type.to_dtype())
    reached = ops.greater_equal(ops.unsqueeze(number, -1), powers)
    return ops.reduce_sum(ops.convert(reached, "i32"), [-1])


def _above(number: Node, bits: Node) -> Node:
    """Build by how much a number is above the greatest power of two in it, in parts of that."""
    return number / ops.gather((2.0 ** np.arange(-1, 31)).astype(np.float32), bits, 0) - _F(1)


def _weights() -> NDArray[np.float32]:
    """Return the weights of energies (_PAIRS, BANDS): triangles between steps of mel.

    In single precision, as a few are rounded up or down by it.
    """
    hertz = np.array((_LOW_HZ, _HIGH_HZ, *_BIN_HZ * np.arange(_PAIRS + 1)), np.float32)
    low, high, *mel = _F(1127) * np.log1p(hertz / _F(700))
    steps = low + (high - low) / _F(BANDS + 1) * np.arange(BANDS + 2, dtype=np.float32)
    made = np.zeros((_PAIRS + 1, BANDS + 2), np.float32)
    for number in range(int(1.5 + _LOW_HZ / _BIN_HZ), _PAIRS + 1):
        band = int((steps[1:] < mel[number]).sum())
        if band <= BANDS:
            falling = (steps[band + 1] - mel[number]) / (steps[band + 1] - steps[band])
            made[number, band : band + 2] = _whole(np.array((falling, 1 - falling)) * _SMALL)
    middle = _PAIRS // 2
    made[middle] /= 2  # it comes twice
    return np.concatenate((made[1 : middle + 1], made[-2 : middle - 1 : -1]))[:, 1:-1]


def _gain(noise: Node) -> Node:
    """Build how much a level counts above such noise: a curve, in parts between powers of two."""
    at = np.array([[1.0], [1.5], [2.0]]) * 2.0 ** np.arange(-1, 31)
    at[:, 0], at[:, 1] = 0, 1
    value = np.floor(np.minimum(2.0**21 * (at / 128 + 80) ** -0.95, _LOUDEST) + 0.5)
    start, middle, end = value
    slope = 4 * (middle - start) - (end - start)
    curve = np.stack((start, slope, end - start - slope)).astype(np.int32)
    bits = _bits(noise)
    part = ops.convert(ops.floor(_above(noise, bits) * _F(1024)), "i32")
    first, second, third = (ops.gather(one, bits, 0) for one in curve)
    bent = (_shifted(third * part, 5) + second * _I(32)) * part
    return ops.convert(_rounded(bent) + first, "f32")


def _logarithm(number: Node) -> Node:
    """Build 64 times the logarithm of eight times a whole number, 0 of 0."""
    bits = _bits(number)
    above = _above(number, bits)
    segment = ops.floor(above * _F(_SEGMENTS)) / _F(_SEGMENTS)
    bent = ops.log(segment + _F(1)) / _F(np.log(2)) - segment
    found = (ops.convert(bits, "f32") + _F(2) + above + bent) * _F(_LN2 * 64)
    return ops.select(ops.less(number, _F(1)), _F(0), ops.floor(found + _F(0.5)))
