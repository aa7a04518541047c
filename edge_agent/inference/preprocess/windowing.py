"""Cuts the rows of a signal into the windows that a model takes.

Knows neither sources nor engines: rows come in pieces of any length, windows go out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError
from ...core.types import Array
from ...models.manifest import InputSpec

Window = tuple[NDArray[np.float32], int, float]
"""The data, and wall clock (ns) and monotonic clock (s) of its last sample."""


class Windower:
    """Picks channels, thins samples out and cuts windows, as a manifest's `[input]` says."""

    def __init__(self, spec: InputSpec, columns: tuple[str, ...] = ()) -> None:
        """Prepare for a source whose channels have these names, if any.

        Raises:
            ModelError: the manifest names a channel that the source has not.

        """
        self._columns = columns
        self._every = spec.every
        self._window = spec.window
        self._hop = spec.hop or spec.window or 1
        self._wanted = spec.channels
        self._picked: list[int] | None = None
        self._shape: tuple[int, ...] | None = None
        if columns:
            self._picked = self._pick(len(columns))
        self.reset()

    def reset(self) -> None:
        """Drop what was pushed: what comes next does not follow on it."""
        self._skip = 0
        """Samples still to be passed over, before thinning out."""
        self._gap = 0
        """Samples still to be passed over because hop is larger than window."""
        self._buffer: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._start = self._end = 0
        """What the buffer holds; the next window begins at start."""
        self._shared = 0
        """How many of those a window has included already."""

    @property
    def rest(self) -> int:
        """Samples that wait for a window to be complete and that no window has included yet."""
        return self._end - self._start - self._shared

    def push(self, rows: Array, time_ns: int, since: float) -> list[Window]:
        """Add further rows, oldest first; return the windows that they complete.

        Args:
            rows: (n, channels), or (n, …) of ready model inputs where no window is set.
            time_ns: wall clock of the last row.
            since: monotonic clock of the last row, seconds.

        Returns:
            Of each window float32 (window, channels), owned by the caller. Where the manifest sets
            no window: of each row its own array, (channels) or the shape of a ready input.

        Raises:
            ModelError: these rows do not fit the manifest.

        """
        self._check(rows)
        kept = rows[self._skip :: self._every]
        # Where the next sample to keep lies, counted from the end of these rows.
        self._skip = (self._skip - len(rows)) % self._every
        if rows.ndim == 2 and self._picked is not None:
            kept = kept[:, self._picked]
        if np.isnan(kept).any():
            self._blame(kept)
        if self._window is None:
            return [(_own(row), time_ns, since) for row in kept]
        return [(data, time_ns, since) for data in self._cut(kept, self._window)]

    def _cut(self, rows: Array, window: int) -> list[NDArray[np.float32]]:
        """Add rows to the buffer, piece by piece, taking out each window that gets complete."""
        if self._buffer.shape[1] != rows.shape[1]:
            self._buffer = self._allocate(window, rows.shape[1])
        done: list[NDArray[np.float32]] = []
        passed = min(self._gap, len(rows))
        self._gap -= passed
        rows = rows[passed:]
        while len(rows):
            if self._end == len(self._buffer):
                # Fewer than a window are held, in a buffer of two: moving them costs each sample
                # one copy at most.
                held = self._end - self._start
                self._buffer[:held] = self._buffer[self._start : self._end].copy()
                self._start, self._end = 0, held
            count = min(len(rows), len(self._buffer) - self._end)
            self._buffer[self._end : self._end + count] = rows[:count]
            self._end += count
            rows = rows[count:]
            while self._end - self._start >= window:
                done.append(self._buffer[self._start : self._start + window].copy())
                self._shared = max(0, window - self._hop)
                self._start += self._hop
                if self._start > self._end:
                    ahead = self._start - self._end
                    self._start = self._end
                    passed = min(ahead, len(rows))
                    self._gap = ahead - passed
                    rows = rows[passed:]
        return done

    def _allocate(self, window: int, channels: int) -> NDArray[np.float32]:
        try:
            return np.empty((2 * window, channels), np.float32)
        except MemoryError:
            raise ModelError(
                f"input.window: {window} samples of {channels} channels do not fit into memory"
            ) from None

    def _check(self, rows: Array) -> None:
        """Check the first rows, and those whose shape changes, against the manifest."""
        if rows.shape[1:] == self._shape:
            return
        if self._window is not None and rows.ndim != 2:
            shape = " by ".join(str(size) for size in rows.shape[1:])
            raise ModelError(
                f"input.window: the source gives ready inputs of {shape}, which cannot be cut "
                "into windows; leave `window` out of the manifest"
            )
        if self._shape is not None:
            raise ModelError(
                f"the source changed from {self._shape} values a row to {rows.shape[1:]}"
            )
        if rows.ndim == 2 and self._wanted:
            self._picked = self._pick(rows.shape[1])
        self._shape = rows.shape[1:]

    def _pick(self, count: int) -> list[int] | None:
        """Find the channels that the manifest names among *count*."""
        if not self._wanted:
            return None
        return [self._find(channel, count) for channel in self._wanted]

    def _find(self, channel: int | str, count: int) -> int:
        if isinstance(channel, int):
            if 0 <= channel < count:
                return channel
            raise ModelError(
                f"input.channels: {channel} is not a channel of the source, which has {count}, "
                "counted from 0"
            )
        if not self._columns:
            raise ModelError(
                f"input.channels: the source has no names for its {count} channels, so that "
                f"{channel!r} cannot be found; use numbers, counted from 0"
            )
        places = [place for place, name in enumerate(self._columns) if name == channel]
        if len(places) != 1:
            what = "is the name of several columns" if places else "is not a column"
            raise ModelError(
                f"input.channels: {channel!r} {what} of the source, which has "
                f"{', '.join(self._columns)}"
            )
        return places[0]

    def _blame(self, kept: Array) -> None:
        """Raise with the channel that is no number: sources give NaN for text only."""
        place = int(np.argwhere(np.isnan(kept))[0][-1])
        number = place if self._picked is None else self._picked[place]
        name = repr(self._columns[number]) if number < len(self._columns) else str(number)
        raise ModelError(
            f"input.channels: column {name} of the source is text, not numbers; "
            "name the channels to use in input.channels"
        )


def _own(row: Array) -> NDArray[np.float32]:
    # A copy: a view would keep the whole piece alive while one row waits.
    return np.array(row, np.float32)
