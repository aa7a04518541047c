"""Cuts the rows of a signal into the windows that a model takes.

Independent of sources and engines: rows come in pieces of any length, windows are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError, SampleError
from ...core.text import counted
from ...core.types import Array, Reading, Sample
from ...models.manifest import InputSpec, Manifest

if TYPE_CHECKING:
    from .resampling import Resampler

MOST_JOINED = 100_000
"""Most rows that resampling makes between two readings: the sender's clock may have been set, and
nobody knows yet how long its usual silence is."""

_CUT = ("channels", "every", "window", "hop", "lead", "rate_hz", "resample_hz")
"""Keys of `[input]` that say how a signal is cut."""


def windows_apart(one: InputSpec, other: InputSpec) -> str:
    """Return the keys in which two models cut a signal differently; "" if they share windows."""
    return ", ".join(f"input.{key}" for key in _CUT if getattr(one, key) != getattr(other, key))


def split_troubles(models: Sequence[Manifest]) -> list[str]:
    """List why models of a split get none of the frames, which are cut for the first of them."""
    found = (split_trouble(models[0], other) for other in models[1:])
    return [why for why in found if why is not None]


def split_trouble(first: Manifest, other: Manifest) -> str | None:
    """Return why *other* cannot take some of the frames that are cut for *first*; None: it can."""
    words = f"{other.id} gets no frames of this split"
    for each in (first, other):
        if each.input.state:
            return f"{words}: {each.id} hands a state from window to window and must see them all"
    keys = windows_apart(first.input, other.input)
    if not keys:
        return None
    return f"{words}: it takes other windows than {first.id} ({keys}); give it its own pipeline"


def rate_trouble(spec: InputSpec, stated: float | None) -> str | None:
    """Return why a model does not take *stated* samples a second; None: it does, or none are known.

    `rate_hz` counts what `every` keeps. Without a transform, to which frequencies matter, it may
    also be the source's own.
    """
    known = spec.rate_hz
    if not stated or not known or stated == known * spec.every:
        return None
    if stated == known and spec.transform == "none":
        return None
    kept = (
        "" if spec.every == 1 else f", of which every = {spec.every} keeps {stated / spec.every:g}"
    )
    mend = f"set input.resample_hz = {known * spec.every:g}"
    if stated == known:
        mend = f"set input.rate_hz = {stated / spec.every:g}"
    return f"{stated:g} samples a second{kept}, the model takes {known:g}; {mend}"


UNCOUNTED = -1
"""The `seq` of a sample that its pipeline has not counted yet."""


def moments(reading: Reading, times: Sequence[int]) -> list[float]:
    """Return when the rows of a reading were measured that have these times, see `Sample.at`."""
    at, last = reading.since if reading.at is None else reading.at, reading.time_ns
    # Most readings have a single row, for which an array would take longer.
    return [at - (last - time_ns) / 1e9 for time_ns in times]


def part_of(reading: Reading, begin: int, end: int) -> Reading:
    """Return some of the rows of a reading, which keep the times that they have in it."""
    times = None if reading.times is None else reading.times[begin:end]
    return replace(reading, data=reading.data[begin:end], times=times)


class Windower:
    """Picks channels, thins out samples, and cuts windows, as a manifest's `[input]` says.

    A window is a sample, (window, channels) float32, that the caller has still to count (`seq`).
    Those from one push are views of the same rows, so overlap does not make them cost more.
    """

    def __init__(self, spec: InputSpec, columns: tuple[str, ...] = ()) -> None:
        """Prepare for a source whose channels have these names, if any.

        Raises:
            ModelError: the manifest names a channel that the source does not have.
        """
        self._spec = spec
        self._hop = spec.hop or spec.window or 1
        self._resampler: Resampler | None = None
        self._latest: Reading | None = None
        """The latest reading, if readings are resampled."""
        self.reset()
        self._channels = Channels(spec, columns, self.reset)

    def reset(self) -> None:
        """Drop the rows pushed so far: the next ones do not continue them."""
        self._skip = 0
        """Samples still to be skipped for thinning out."""
        self._gap = 0
        """Samples still to be skipped because hop is larger than window."""
        self._held: list[tuple[NDArray[np.float32], NDArray[np.int64]]] = []
        """Rows from the start of the next window on, and the wall-clock time of each, ns."""
        self._count = 0
        """Number of rows held."""
        self._shared = 0
        """How many of them are already in a window, or did not come from the source."""
        self._follows = False
        if self._resampler is not None:
            self._resampler.reset()

    def skip(self) -> None:
        """Drop the rows pushed so far, as a row that cannot be used comes between.

        No window spans it; rows that are inputs by themselves go on without it.
        """
        follows = self._follows and self._spec.window is None
        self.reset()
        self._follows = follows

    @property
    def rest(self) -> int:
        """Number of samples that are in no window yet, waiting for one to be complete."""
        return max(0, self._count - self._shared)

    def usable(self, reading: Reading) -> Iterator[Reading | SampleError]:
        """Yield the parts of a reading without missing numbers, and an error for the rows between.

        Only the channels that the model takes count. Call `skip` after each error.

        Raises:
            ModelError: these rows do not fit the manifest.
        """
        if reading.flaw is None:
            yield reading
            return
        missing = np.isnan(self._channels.pick(reading))
        if not missing.any():
            yield reading
            return
        begin = 0
        for row in map(int, np.flatnonzero(missing.any(axis=1))):
            if row > begin:
                yield part_of(reading, begin, row)
            yield reading.flaw(row, self._channels.number(int(missing[row].argmax())))
            begin = row + 1
        if begin < len(missing):
            yield part_of(reading, begin, len(missing))

    def push(self, reading: Reading) -> list[Sample]:
        """Add rows, oldest first; return the windows that they complete.

        If the manifest sets no window, each row is returned as an array, (channels,) or the shape
        of a ready input.

        Raises:
            ModelError: these rows do not fit the manifest.
        """
        rows, times = self._channels.pick(reading), reading.times
        if self._spec.resample_hz:
            rows, times = self._resample(rows, reading)
        elif why := rate_trouble(self._spec, reading.rate_hz):
            raise ModelError(f"input.rate_hz: the source gives {why}")
        return self._windows(rows, times, reading)

    def finish(self) -> list[Sample]:
        """Return the windows that the end of a signal completes.

        Resampled rows come later than those that they are made of.
        """
        rows = None if self._resampler is None else self._resampler.finish()
        if rows is None or self._latest is None:
            return []
        return self._windows(rows, None, self._latest)

    def _windows(
        self, rows: Array, times: NDArray[np.int64] | None, reading: Reading
    ) -> list[Sample]:
        """Add rows of the chosen channels; return the windows that they complete."""
        every = self._spec.every
        kept = rows[self._skip :: every]
        if times is not None:
            times = times[self._skip :: every]
        # Index of the next sample to keep, counted from the end of these rows.
        self._skip = (self._skip - len(rows)) % every
        window, since = self._spec.window, reading.since
        clocks = np.full(len(kept), reading.time_ns, np.int64) if times is None else times
        if window is None:
            lasts = clocks.tolist()
            each = zip(kept, lasts, moments(reading, lasts), strict=True)
            return [self._single(row, last, since, at) for row, last, at in each]
        names, cut = self._channels.names, list(self._cut(kept, clocks, window))
        lasts = [int(clock[start + window - 1]) for _, clock, start, _ in cut]
        return [
            Sample(
                block[start : start + window],
                UNCOUNTED,
                last,
                since,
                picture=False,
                began_ns=None if times is None else int(clock[start]),
                follows=follows,
                names=names,
                cut=self._spec,
                at=at,
            )
            for (block, clock, start, follows), last, at in zip(
                cut, lasts, moments(reading, lasts), strict=True
            )
        ]

    def _single(self, row: Array, last: int, since: float, at: float) -> Sample:
        """Return a row that is an input by itself."""
        follows, self._follows = self._follows, True
        # A copy: a view would keep the whole piece alive while one row waits.
        data = np.array(row, np.float32)
        return Sample(
            *(data, UNCOUNTED, last, since), picture=False, follows=follows, cut=self._spec, at=at
        )

    def _resample(self, rows: Array, reading: Reading) -> tuple[Array, NDArray[np.int64] | None]:
        if rows.ndim != 2:
            raise ModelError("input.resample_hz: the source gives ready inputs; leave it out")
        if self._resampler is None:
            from .resampling import Resampler

            self._resampler = Resampler(
                self._spec.resample_hz, reading.rate_hz or self._spec.rate_hz
            )
        at, times = None, reading.times
        # A source that states its rate is steady; its times are those of arrival, which are not.
        if times is not None and reading.rate_hz is None:
            at = np.array(moments(reading, times.tolist()))
            most = MOST_JOINED / self._spec.resample_hz
            if len(at) > 1 and np.diff(at).max() > most:
                raise ModelError(f"input.resample_hz: more than {most:.0f} s between two rows")
            latest = self._latest
            if latest is not None and latest.at is not None and at[0] - latest.at > most:
                self.reset()
        self._latest = reading
        made, after = self._resampler.push(rows, at)
        if times is None or not len(times):
            return made, None
        return made, int(times[-1]) + np.rint(after * 1e9).astype(np.int64)

    def _cut(
        self, rows: Array, times: NDArray[np.int64], window: int
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64], int, bool]]:
        """Add rows to those held; yield rows, times, start, and `follows` of each window."""
        if self._held and self._held[0][0].shape[1] != rows.shape[1]:
            self._held = []
        if not self._held:
            self._begin(rows, times, window)
        passed = min(self._gap, len(rows))
        self._gap -= passed
        self._hold(rows[passed:], times[passed:])
        if self._count < window:
            return
        try:
            rows, times = (np.concatenate(each) for each in zip(*self._held, strict=True))
        except MemoryError:
            raise ModelError(
                f"input.window: {window} samples of {counted(rows.shape[1], 'channel')} "
                "do not fit into memory"
            ) from None
        start = 0
        while start + window <= len(rows):
            yield rows, times, start, self._follows
            self._follows = True
            start += self._hop
        self._shared = max(0, window - self._hop)
        self._gap = max(0, start - len(rows))
        self._held, self._count = [], 0
        self._hold(rows[start:], times[start:])

    def _begin(self, rows: Array, times: NDArray[np.int64], window: int) -> None:
        """Prepend the zeros that `lead` asks for."""
        lead = min(self._spec.lead, window - 1)
        self._shared, self._count = lead, 0
        first = times[0] if len(times) else 0
        self._hold(np.zeros((lead, rows.shape[1])), np.full(lead, first, np.int64))

    def _hold(self, rows: Array, times: NDArray[np.int64]) -> None:
        # Copies: a view would keep the whole piece alive while a few rows wait.
        self._held.append((np.array(rows, np.float32), np.array(times)))
        self._count += len(rows)


PREVAILS = 10
"""Consecutive readings before names that were rarer come back; after as many, none are added."""
ODD = 3
"""Consecutive readings with another number of channels before that becomes the source's number."""


class Channels:
    """The channels that a model takes from a source's rows, and their indices."""

    def __init__(
        self, spec: InputSpec, columns: tuple[str, ...], restart: Callable[[], None]
    ) -> None:
        """Prepare for a source whose channels have these names, if any.

        Raises:
            ModelError: the manifest names a channel that the source does not have.
        """
        self._cut = spec.window is not None
        self._wanted = spec.channels
        self._columns = columns
        self._restart = restart
        self._picked: list[int] | None = None
        """Indices of the channels; None: all, in their order."""
        self._only: tuple[str, ...] | None = None
        """Name of the only channel if another name is wanted; () if it has none."""
        self._named = False
        """Whether the source has given the wanted names."""
        self._shape: tuple[int, ...] | None = None
        self._odd = 0
        self._order: tuple[str, ...] = ()
        """The names that the source gave first, if the manifest names none: keys of an object may
        come in any order."""
        self._whole: tuple[str, ...] = ()
        """The most such names so far, for when a value comes back that was null for a while."""
        self._lasted = 0
        """Readings that had just those."""
        self._usual = 0
        """Readings that had just the names of `_order`."""
        self._longer = 0
        """Consecutive readings that had these and others."""
        if columns:
            self._picked = self._pick(columns, len(columns))

    def pick(self, reading: Reading) -> Array:
        """Return the rows of a reading, (n, channels wanted) or (n, …) of ready inputs.

        Raises:
            ModelError: they do not fit the manifest.
        """
        columns = reading.columns
        if columns != self._columns or not self._wanted:
            self._picked = self._pick(columns, len(columns)) if columns else None
            self._columns = columns
        rows = reading.data
        if columns and rows.ndim == 2:
            # Other values beside them are ignored.
            rows = rows if self._picked is None else rows[:, self._picked]
            self._check(rows)
            return rows
        self._check(rows)
        return rows[:, self._picked] if rows.ndim == 2 and self._picked is not None else rows

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the picked channels if the source has names; else their numbers, if picked."""
        if self._picked is None:
            return self._columns
        return tuple(self._columns[n] if self._columns else str(n) for n in self._picked)

    def number(self, place: int) -> int:
        """Return the source's index of the picked channel at index *place*."""
        return place if self._picked is None else self._picked[place]

    def _check(self, rows: Array) -> None:
        """Check the first rows, and those whose shape changes, against the manifest."""
        if rows.shape[1:] == self._shape:
            self._odd = 0
            return
        if self._cut and rows.ndim != 2:
            shape = " by ".join(str(size) for size in rows.shape[1:])
            raise ModelError(
                f"input.window: the source gives ready inputs of {shape}, which cannot be cut "
                "into windows; leave `window` out of the manifest"
            )
        if self._shape is not None:
            self._odd += 1
            before = self._shape
            if self._odd >= ODD:
                self._shape, self._odd = None, 0
            raise ModelError(
                f"the source changed from {_values(before)} a row to {_values(rows.shape[1:])}"
            )
        if rows.ndim == 2 and self._wanted and not self._columns:
            self._picked = self._pick((), rows.shape[1])
        self._shape = rows.shape[1:]

    def _pick(self, columns: tuple[str, ...], count: int) -> list[int] | None:
        """Find the channels that the manifest names among *count*."""
        if not self._wanted:
            return self._as_before(columns)
        if self._is_only(columns, count):
            return [0]
        picked = [self._find(channel, columns, count) for channel in self._wanted]
        if self._only is not None:
            # Values taken before the channel came by its name do not belong to it.
            self._restart()
            self._only = None
        self._named = bool(columns)
        return None if picked == list(range(count)) else picked

    def _as_before(self, columns: tuple[str, ...]) -> list[int] | None:
        """Find the channels that the source has had so far, whatever came between."""
        names, usual = {*columns}, {*self._order}
        self._usual += names == usual
        self._longer = self._longer + 1 if names > usual else 0
        back = names >= {*self._whole} > usual
        if back and self._longer >= (ODD if self._usual <= self._lasted else PREVAILS):
            self._change(self._whole)
        elif self._longer >= ODD and PREVAILS > self._usual < self._longer:
            self._change(())  # the first readings lacked a value
        elif not names >= usual:
            self._odd += 1
            if self._odd < ODD:
                before, found = ", ".join(self._order[:20]), ", ".join(columns[:20])
                raise ModelError(f"the source changed from {before} to {found}")
            self._change(())
        if not self._order or len({*columns}) < len(columns):
            self._order, self._longer = columns, 0
            return None
        picked = [columns.index(name) for name in self._order]
        return None if picked == list(range(len(columns))) else picked

    def _change(self, order: tuple[str, ...]) -> None:
        """Begin anew with other names; (): those of this reading."""
        if len(self._order) > len(self._whole):
            self._whole, self._lasted = self._order, self._usual
        self._order, self._shape = order, None
        self._odd = self._usual = self._longer = 0
        self._restart()

    def _is_only(self, columns: tuple[str, ...], count: int) -> bool:
        """Whether the only wanted channel is the source's only one, whatever its name.

        False if the source's channels vary, as in JSON objects, where names decide.
        """
        if count != 1 or len(self._wanted) != 1 or not isinstance(self._wanted[0], str):
            return False
        if columns == self._wanted or self._named or self._only not in {None, columns}:
            return False
        self._only = columns
        return True

    def _find(self, channel: int | str, columns: tuple[str, ...], count: int) -> int:
        if isinstance(channel, int):
            if 0 <= channel < count:
                return channel
            raise ModelError(
                f"input.channels: {channel} is not a channel of the source, which has {count}, "
                "counted from 0"
            )
        if not columns:
            raise ModelError(
                f"input.channels: the source has no names for its {count} channels, so that "
                f"{channel!r} cannot be found; use numbers, counted from 0"
            )
        places = [place for place, name in enumerate(columns) if name == channel]
        if len(places) != 1:
            what = "is the name of several columns" if places else "is not a column"
            raise ModelError(
                f"input.channels: {channel!r} {what} of the source, which has {', '.join(columns)}"
            )
        return places[0]


def _values(shape: tuple[int, ...]) -> str:
    return " by ".join(map(str, shape)) + (" value" if shape == (1,) else " values")
