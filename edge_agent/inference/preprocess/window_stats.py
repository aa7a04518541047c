"""Statistics of each channel of a window, by SciPy's definitions.

`kurtosis` is `scipy.stats.kurtosis`: from biased moments, 0 for a normal distribution. A band is
the RMS of the frequencies in it, the lower limit included: the root of the sum of
`scipy.signal.periodogram(x, rate, "hann")` there times the frequency step. For a constant window
SciPy has no kurtosis, and for zeros there is no crest factor: these are 0 here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...core.text import counted
from ...models.transforms import band_of

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class WindowStats:
    """Computes a few numbers for each channel of a window. Thread-safe."""

    window: tuple[int, int]
    """Number of rows and channels of the window."""
    of: tuple[str, ...]
    rate: float | None
    """Rows per second; None if no band is wanted."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of channels, and of statistics per channel."""
        return self.window[1], len(self.of)

    @property
    def words(self) -> str:
        """A description of the output."""
        return f"{len(self.of)} statistics of {counted(self.window[1], 'channel')}"

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the statistics (channels, statistics) of a window (rows, channels)."""
        window = rows.astype(np.float64)
        found = [self._measure(name)(window) for name in self.of]
        return np.stack(found, axis=1).astype(np.float32)

    def _measure(self, name: str) -> Callable[[Doubles], Doubles]:
        band = band_of(name)
        if band is None:
            return _MEASURES[name]
        return partial(_band, rate=self.rate or 1.0, low=band[0], high=band[1])


def rms(window: Doubles) -> Doubles:
    """Return the root mean square of each channel of a window (rows, channels)."""
    return np.asarray(np.sqrt((window * window).mean(axis=0)))


def _peak(window: Doubles) -> Doubles:
    return np.asarray(np.abs(window).max(axis=0))


def _crest(window: Doubles) -> Doubles:
    usual = rms(window)
    return np.divide(_peak(window), usual, out=np.zeros_like(usual), where=usual > 0)


def skewness(window: Doubles) -> Doubles:
    """Return the skewness of each channel of a window (rows, channels)."""
    return _moment(window, 3, still=0.0)


def kurtosis(window: Doubles) -> Doubles:
    """Return the kurtosis of each channel of a window (rows, channels)."""
    return _moment(window, 4, still=3.0) - 3.0


def _moment(window: Doubles, order: int, still: float) -> Doubles:
    """Return the standardized moment of each channel; *still* for constant channels."""
    apart = window - window.mean(axis=0)
    second = (apart**2).mean(axis=0)
    # Rounding errors of a constant are not variance; SciPy uses the same bound.
    least = (np.finfo(np.float64).resolution * window.mean(axis=0)) ** 2
    found = np.full_like(second, still)
    above = (apart**order).mean(axis=0)
    return np.asarray(np.divide(above, second ** (order / 2), out=found, where=second > least))


def _band(window: Doubles, *, rate: float, low: float, high: float) -> Doubles:
    count = len(window)
    taper = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(count) / count) if count > 1 else np.ones(1)
    spectrum = np.fft.rfft((window - window.mean(axis=0)) * taper[:, None], axis=0)
    power = np.abs(spectrum) ** 2 * 2
    power[0] /= 2
    if count % 2 == 0:
        power[-1] /= 2
    places = np.arange(len(power)) * rate / count
    within = power[(places >= low) & (places < high)].sum(axis=0)
    return np.asarray(np.sqrt(within / (count * (taper @ taper))))


_MEASURES: dict[str, Callable[[Doubles], Doubles]] = {
    "rms": rms,
    "peak": _peak,
    "kurtosis": kurtosis,
    "crest": _crest,
}
