"""Resamples the rows of a signal to a fixed rate, piece by piece.

Rows at a steady rate are filtered with a windowed sinc, which removes frequencies too high for the
new rate; rows that came when they came, however irregular, are interpolated linearly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError
from ...core.types import Array

LOBES = 16
"""Zero crossings of the sinc on either side."""
MOST_RATIO = 50_000
"""Most times that the source's rate may be the new one: a step needs 32 times so many rows."""
PASS = 0.94
"""Share of half the lower rate up to which a tone keeps its amplitude."""


class Resampler:
    """Resamples one signal; `reset` drops the rows pushed before."""

    def __init__(self, to_hz: float, from_hz: float | None) -> None:
        """Prepare to resample to *to_hz*; *from_hz* is the rate of rows pushed without times."""
        self._to = to_hz
        self._from = from_hz
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self._rows: NDArray[np.float32] | None = None
        """Rows that are still needed; the first has index `_first`."""
        self._first = 0
        self._pushed = 0
        self._next = 0
        """The index of the next row to be returned."""
        self._last: float | None = None
        """Time of the last row, in seconds after `_origin`."""
        self._origin = 0.0

    def push(
        self, rows: Array, times: NDArray[np.float64] | None
    ) -> tuple[Array, NDArray[np.float64]]:
        """Add rows (n, channels), with times in seconds of a clock that only goes forward, or None.

        Returns:
            The resampled rows that are ready, (m, channels); how many seconds after the last row
            pushed each of them is, at most 0.

        Raises:
            ModelError: neither times nor a rate are known.
        """
        if not len(rows):
            return rows, np.empty(0)
        if times is not None:
            return self._join(rows, times)
        if self._from is None:
            raise ModelError(
                "input.resample_hz: the source has no times, and its rate is not known; give the "
                "rate that it was recorded at as input.rate_hz"
            )
        if self._from > MOST_RATIO * self._to:
            raise ModelError(
                f"input.resample_hz: {self._to:g} is too low for a source of {self._from:g} rows a "
                f"second; at least {self._from / MOST_RATIO:g}"
            )
        if self._from == self._to:
            return rows, np.arange(1 - len(rows), 1) / self._from
        self._pushed += len(rows)
        made, end = self._filter(rows, self._from), self._next
        last = (self._pushed - 1) / self._from
        return made, np.arange(end - len(made), end) / self._to - last

    def finish(self) -> NDArray[np.float32] | None:
        """Return the last resampled rows (n, channels) of a signal that has ended; None: none.

        A row needs others after it, up to which the last one is repeated.
        """
        if self._rows is None or self._last is not None or self._from is None:
            return None  # rows with times of their own need none
        ratio = self._from / self._to
        whole = int(np.ceil((self._first + len(self._rows)) / ratio - 1e-6))
        beyond = int(np.ceil(LOBES * max(1.0, ratio))) + int(np.ceil(ratio))
        return self._filter(np.repeat(self._rows[-1:], beyond, axis=0), self._from, whole)

    def _join(
        self, rows: Array, times: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Interpolate linearly at each step of the new rate, starting at the first row."""
        if self._last is None or self._rows is None:
            self._origin = float(times[0])
            seconds = times - self._origin
        else:
            seconds = np.concatenate([[self._last], times - self._origin])
            rows = np.concatenate([self._rows, rows])
        # Rows of one message may be placed before the last one of the message before.
        seconds = np.maximum.accumulate(seconds)
        end = int(np.floor(seconds[-1] * self._to + 1e-6)) + 1
        at = np.arange(self._next, max(end, self._next)) / self._to
        self._next = max(end, self._next)
        self._last, self._rows = float(seconds[-1]), np.array(rows[-1:], np.float32)
        made = np.empty((len(at), rows.shape[1]), np.float32)
        for channel in range(rows.shape[1]):
            made[:, channel] = np.interp(at, seconds, rows[:, channel])
        return made, at - seconds[-1]

    def _filter(self, rows: Array, rate: float, whole: int | None = None) -> NDArray[np.float32]:
        """Sum the sincs of the rows around each step of the new rate, up to *whole* of them."""
        ratio = rate / self._to
        half = int(np.ceil(LOBES * max(1.0, ratio)))
        if self._rows is None:
            # As if it had begun with its first row: from 0 a sensor at 9.81 would seem to rise.
            self._rows = np.repeat(rows[:1].astype(np.float32), half, axis=0)
            self._first = -half
        self._rows = np.concatenate([self._rows, rows.astype(np.float32, copy=False)])
        end = self._first + len(self._rows)
        # A step needs the rows up to `half` after it.
        count = max(0, int(np.floor((end - 1 - half) / ratio)) + 1 - self._next)
        if whole is not None:
            count = min(count, max(0, whole - self._next))
        places = (self._next + np.arange(count)) * ratio
        self._next += count
        below = np.floor(places).astype(np.int64)
        around = below[:, None] + np.arange(1 - half, half + 1)
        away = places[:, None] - around
        cut = min(1.0, 1.0 / ratio) * PASS
        weights = cut * np.sinc(cut * away) * np.cos(np.pi / 2 * away / (half + 1)) ** 2
        weights /= weights.sum(axis=1, keepdims=True)
        made = np.einsum("nt,ntc->nc", weights, self._rows[around - self._first], optimize=True)
        keep = int(np.floor(self._next * ratio)) + 1 - half - self._first
        self._first += max(0, keep)
        self._rows = self._rows[max(0, keep) :]
        return np.asarray(made, np.float32)
