"""Features as computed by Edge Impulse's blocks "Audio (MFE)" and "Spectral Analysis".

Follows the code that models are trained with, github.com/edgeimpulse/processing-blocks, and its
peculiarities: pre-emphasis takes the sample before the first from the window's end, a frame longer
than the transform is truncated, triangles have their corners on bins, and mel energies have 256
levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError
from ...core.text import counted
from ...models.edge_impulse import MOST_FRAMES, Mfe, Spectral
from .features import htk_mels
from .window_stats import kurtosis, rms, skewness

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
_PREEMPHASIS = 0.98
_LOUDEST_DB = 12.0
_NOTHING = 1e-10
"""Replaces zero before a logarithm."""
_MOMENTS = 3
"""Number of moments: RMS, skewness, kurtosis."""


@dataclass(frozen=True, slots=True, eq=False)
class MfeFeatures:
    """Computes mel energies in 0..1 from a window of one channel. Thread-safe."""

    samples: int
    """Samples in a window."""
    frame: int
    step: int
    mel: Doubles
    """(fft // 2 + 1, bins) weights of the mel bands."""
    block: Mfe

    @property
    def shape(self) -> tuple[int, int]:
        """Number of frames, and of features per frame."""
        return (self.samples - self.frame + self.step) // self.step, self.mel.shape[1]

    @property
    def window(self) -> tuple[int, int]:
        """Number of rows and channels of the window."""
        return self.samples, 1

    @property
    def words(self) -> str:
        """The output, in words."""
        return f"{self.shape[0]} frames of {self.shape[1]} mel energies"

    def __call__(self, samples: Floats) -> Floats:
        """Return the features (frames, bins) of a window of one channel."""
        samples = samples.reshape(-1)
        changes = samples - np.float32(_PREEMPHASIS) * np.roll(samples, 1)
        views = np.lib.stride_tricks.sliding_window_view(changes, self.frame)
        frames = views[:: self.step].astype(np.float64)
        fft, floor = self.block.fft, self.block.noise_floor_db
        energy = (np.abs(np.fft.rfft(frames, fft, axis=1)) ** 2 / fft) @ self.mel
        energy[energy == 0] = _NOTHING
        level = (10 * np.log10(np.maximum(energy, 1e-30)) - floor) / (_LOUDEST_DB - floor)
        steps = np.minimum(np.around(np.clip(level, 0, 1) * 256), 255)
        return (steps / 256).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SpectralFeatures:
    """Computes moments and powers of each channel of a window. Thread-safe."""

    window: tuple[int, int]
    """Number of rows and channels of the window."""
    bins: slice
    """Bins of the transform that are returned."""
    sections: tuple[tuple[float, float, float, float], ...]
    """Sections of the filter, in order: gain, the middle one of three numerator coefficients, and
    the coefficients of the last two outputs, which are subtracted."""
    block: Spectral

    @property
    def shape(self) -> tuple[int, int]:
        """Number of channels, and of features per channel."""
        moments = _MOMENTS if self.block.version < 4 else 2 * _MOMENTS - 1
        return self.window[1], moments + self.bins.stop - self.bins.start

    @property
    def words(self) -> str:
        """The output, in words."""
        return f"{self.shape[1]} features of {counted(self.window[1], 'channel')}"

    def __call__(self, rows: Floats) -> Floats:
        """Return the features (channels, features) of a window (rows, channels)."""
        block = self.block
        scaled = rows.reshape(self.window).astype(np.float64) * block.scale_axes
        values = np.stack([self._filtered(channel) for channel in scaled.T], axis=1)
        values -= values.mean(axis=0)
        powers = self._powers(values)
        found = [rms(values), skewness(values), kurtosis(values)]
        if block.version >= 4:
            found += [skewness(powers), kurtosis(powers)]
        if block.log:
            powers = np.log10(np.where(powers == 0, _NOTHING, powers))
        return np.ascontiguousarray(np.vstack([*found, powers[self.bins]]).T, np.float32)

    def _filtered(self, values: Doubles) -> Doubles:
        """Apply the filter's sections to one channel."""
        made = values.tolist()
        for gain, middle, first, second in self.sections:
            one = two = 0.0
            for place, value in enumerate(made):
                scaled = gain * value
                out = scaled + one
                one = middle * scaled - first * out + two
                two = scaled - second * out
                made[place] = out
        return np.array(made)

    def _powers(self, values: Doubles) -> Doubles:
        """Return the largest power of each bin over all parts of the window: (bins, channels)."""
        size = self.block.fft
        step = size // 2 if self.block.overlap else size
        powers = np.zeros((size // 2 + 1, values.shape[1]))
        for start in range(0, len(values), step):
            spectrum = np.fft.rfft(values[start : start + size], size, axis=0)
            powers = np.maximum(powers, np.abs(spectrum) ** 2 / size)
        return powers


def mfe_of(block: Mfe, samples: int, rate: float) -> MfeFeatures:
    """Prepare the block for windows of *samples* samples at *rate* Hz.

    Raises:
        ModelError: the window has no frame or too many, or a mel band has no bin.
    """
    frame, step = _whole(rate * block.frame_ms / 1e3), _whole(rate * block.step_ms / 1e3)
    made = MfeFeatures(samples, frame, step, _mel(block, rate), block)
    if not 1 <= made.shape[0] <= MOST_FRAMES:
        raise ModelError(
            f"input.mfe: a window of {samples} samples holds {max(0, made.shape[0])} frames of "
            f"{frame} in steps of {step}, expected 1 to {MOST_FRAMES}"
        )
    empty = int((made.mel == 0).all(axis=0).sum())
    if empty:
        raise ModelError(
            f"input.mfe.bins: {empty} of {block.bins} mel bands hold no bin of a transform of "
            f"{block.fft}; Edge Impulse makes no such model: compare fft and bins with its export"
        )
    return made


def spectral_of(block: Spectral, window: tuple[int, int], rate: float) -> SpectralFeatures:
    """Prepare the block for windows (rows, channels) at *rate* Hz.

    Raises:
        ModelError: its filter leaves no bin.
    """
    place = min(block.cutoff_hz, rate / 2) * block.fft / rate
    first, stop = 1, block.fft // 2 + 1
    if block.filter == "high":
        first = max(1, int(place - 0.5) + 1)
    elif block.filter == "low":
        stop = int(place + 0.5) + 1
    if stop <= first:
        raise ModelError(
            f"input.spectral.cutoff_hz: {block.cutoff_hz:g} leaves no bin of a transform of "
            f"{block.fft} at {rate:g} Hz"
        )
    sections = () if block.filter == "none" else _butterworth(block, rate)
    return SpectralFeatures(window, slice(first, stop), sections, block)


def _whole(samples: float) -> int:
    """Round up, ignoring rounding errors of floats just above a whole number."""
    floor = math.floor(samples)
    return floor if samples - floor < 0.001 else floor + 1


def _mel(block: Mfe, rate: float) -> Doubles:
    """Return mel weights (fft // 2 + 1, bins): triangles between bins, 1 at the middle one."""
    size = block.fft // 2 + 1
    low, high = htk_mels(np.array([block.low_hz, block.high_hz or rate / 2]))
    hertz = 700.0 * np.expm1(np.linspace(low, high, block.bins + 2) / 1127.0)
    hertz[-1] -= 0.001  # so that rounding does not add a bin
    # Version 3 mistook the number of bins for the number of samples.
    points = block.fft if block.version >= 4 else size
    corners = np.floor((points + 1) * hertz / rate).astype(int)
    places, weights = np.arange(size), np.zeros((size, block.bins))
    for band in range(block.bins):
        left, middle, right = corners[band : band + 3]
        rising, falling = (
            (places > left) & (places <= middle),
            (places >= middle) & (places < right),
        )
        weights[rising, band] = (places[rising] - left) / (middle - left)
        weights[falling, band] = (right - places[falling]) / (right - middle)
    return weights


def _butterworth(block: Spectral, rate: float) -> tuple[tuple[float, float, float, float], ...]:
    """Return the sections of a Butterworth filter by the bilinear transform."""
    turn = math.tan(math.pi * block.cutoff_hz / rate)
    sections = []
    for number in range(block.order // 2):
        damping = 2 * turn * math.sin(math.pi * (2 * number + 1) / (2 * block.order))
        whole = turn * turn + damping + 1
        low = block.filter == "low"
        sections.append(
            (
                (turn * turn if low else 1.0) / whole,
                2.0 if low else -2.0,
                2 * (turn * turn - 1) / whole,
                (turn * turn - damping + 1) / whole,
            )
        )
    return tuple(sections)
