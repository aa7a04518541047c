"""Checks whether the readings of a live signal are contiguous, by their own times or by arrival.

Independent of devices and windows. Rows that are late, duplicate or in the future are dropped and
counted; a silence that is too long is a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from time import monotonic, strftime

import numpy as np
from numpy.typing import NDArray

from .. import BUILD_DATE
from ..core.errors import SampleError
from ..core.frozen import record
from ..core.types import Array, Reading
from ..device.wall_clock import may_be_behind

USUAL = 3
"""A silence of this many usual intervals is a gap."""
IRREGULAR = 1.5
"""If a tenth of the intervals are this many times the median, the longest one is still usual: the
device reports now and then."""
LEARNED = 4
"""Number of intervals needed to know the usual one."""
OFTEN = 5
"""So many gaps in a row, or in 32 single readings, are intervals, too."""
ARRIVAL_SECONDS = 0.5
"""Shortest gap, seconds, of readings without own times: a network may delay messages and then
deliver them at once."""
FUTURE_SECONDS = 60.0
"""A reading this far in the future has a wrong time."""
EARLIEST_NS = int((BUILD_DATE.timestamp() - 86400) * 1e9)
"""A reading before this was not made by a sensor of this agent: its clock is not set, or counts
from its own start."""
STEP_SECONDS = 10.0
"""A time this far before the latest one means that the sender's clock was set."""
STEP_READINGS = 10
"""This many late readings in a row also mean that the sender's clock was set."""
REMEMBERED = 512
"""Messages whose copies are known: a broker sends again what was not acknowledged, others what they
could not send."""
SLOW_COPIES, SLOW_SECONDS = 3, 2.0
"""This many copies with times in order, over so many seconds and as slowly as their times pass, are
none: the sender's clock was set back, and it says the same again."""


@record(quick=True, eq=False)
class Rows:
    """Rows that a device delivered at once."""

    data: Array
    """float32 or float64 (rows, channels), oldest first."""
    time_ns: int
    """Wall clock at their arrival."""
    since: float
    """Monotonic clock at their arrival, seconds."""
    columns: tuple[str, ...] = ()
    times: NDArray[np.int64] | None = None
    """Times by the sender's clock, ns: of each row, or only of the last one."""
    rate_hz: float | None = None
    gap: bool = False
    """Whether the device itself reports that something is missing before them."""
    flaw: Callable[[int, int], SampleError] | None = None
    """For rows with missing numbers (NaN): returns why, by row and column."""
    unknown: Mapping[str, str] | None = None
    """See `Reading.unknown`; with words for what the device says instead of a number."""


@dataclass(slots=True)
class Counts:
    """Counters of a signal, in rows except for gaps and refused."""

    samples: int = 0
    """Handed on."""
    late: int = 0
    doubled: int = 0
    refused: int = 0
    """Readings that could not be used."""
    gaps: int = 0


@dataclass(slots=True)
class _Copies:
    """Messages in a row that have come before, in the order of their times."""

    count: int
    """Of different times."""
    since: float
    """When the first one came, monotonic seconds."""
    first: int
    """Its time by the sender's clock, ns."""
    last: int
    """That of the last one."""


class Continuity:
    """Checks rows in their order of arrival. For use by one thread at a time."""

    def __init__(
        self,
        gap_s: float | None,
        counts: Counts | None = None,
        clock_behind: Callable[[], bool] = may_be_behind,
    ) -> None:
        """Set up; *gap_s*: longest silence that is not a gap, seconds; None: by usual intervals."""
        self._clock_behind = clock_behind
        self.counts = counts or Counts()
        self._gap_s = gap_s
        self._steps: deque[float] = deque(maxlen=32)
        """Seconds between arrivals, or between the sender's times."""
        self._lately: deque[float] = deque(maxlen=32)
        """The same where they were a gap, else 0."""
        self._per_row: deque[float] = deque(maxlen=32)
        self._since: float | None = None
        self._last: int | None = None
        """Time of the latest row, ns."""
        self._said: int | None = None
        """Time of the latest row by the sender's clock, ns."""
        self._at = 0.0
        """See `Reading.at`."""
        self._row: Array | None = None
        self._backward = 0
        self._known: dict[int, None] = {}
        """Hashes of the latest messages with the sender's times that were handed on, the oldest
        first."""
        self._copies: _Copies | None = None
        self._unplaced = False
        """Whether the latest rows came together with one time, and how far apart is not known."""

    def judge(self, rows: Rows) -> Reading | None:
        """Return the rows to pass on, with times, or None if there are none.

        Raises:
            SampleError: their times are impossible.
        """
        if not len(rows.data):
            return None
        times = rows.times
        placed = self._by_arrival(rows) if times is None else self._by_sender(rows, times)
        if placed is None:
            return None
        data, times, gap = placed
        gap = gap or rows.gap
        self.counts.samples += len(data)
        self.counts.gaps += gap
        self._at = self._moment(rows, int(times[-1]))
        self._since, self._last = rows.since, int(times[-1])
        self._said = None
        if rows.times is not None:
            self._said = int(rows.times.max())
            self._copies = None
            self._known[_hash(rows, rows.times)] = None
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        self._row = data[-1]
        return Reading(
            data,
            int(times[-1]),
            rows.since,
            columns=rows.columns,
            times=times,
            rate_hz=rows.rate_hz,
            gap=gap,
            flaw=rows.flaw,
            at=self._at,
            unknown=rows.unknown,
        )

    def pieces(self, rows: Rows) -> list[Reading]:
        """Return the rows to pass on as `judge` does, cut where their own times have a gap.

        Raises:
            SampleError: their times are impossible.
        """
        limit, reading = self._limit(0.0), self.judge(rows)
        if reading is None:
            return []
        times = reading.times
        if times is None or limit is None or rows.times is None or len(rows.times) == 1:
            return [reading]
        cuts = np.flatnonzero(np.diff(times) > limit * 1e9) + 1
        self.counts.gaps += len(cuts)
        made = []
        for begin, end in pairwise([0, *cuts.tolist(), len(times)]):
            last = int(times[end - 1])
            piece = replace(
                reading,
                data=reading.data[begin:end],
                times=times[begin:end],
                time_ns=last,
                at=self._at - (reading.time_ns - last) / 1e9,
                gap=reading.gap or begin > 0,
            )
            made.append(piece)
        return made

    def is_silent(self) -> bool:
        """Whether nothing has come yet, or not for so long that it is a gap by now."""
        limit = self._limit(ARRIVAL_SECONDS)
        return self._since is None or (limit is not None and monotonic() - self._since > limit)

    def _moment(self, rows: Rows, last: int) -> float:
        """Return when the last row was measured; *last* is its time, ns.

        Messages may be held up and then come at once, so that between two with the sender's times
        as much time has passed as these say. If its clock was set back, arrival decides.
        """
        if self._since is None or self._last is None:
            return rows.since
        if rows.times is not None and self._said is not None and last > self._last:
            return self._at + (last - self._last) / 1e9
        return max(self._at, rows.since + (self._at - self._since))

    def _by_arrival(self, rows: Rows) -> tuple[Array, NDArray[np.int64], bool]:
        count, gap = len(rows.data), False
        if self._since is not None:
            passed = max(0.0, rows.since - self._since)
            gap = self._too_long(passed, count, ARRIVAL_SECONDS, rows)
        per = 1.0 / rows.rate_hz if rows.rate_hz else self._usual_row
        step = int(per * 1e9)
        if not gap and self._since is not None and count > 1:
            # Never before the previous row; the wall clock may have been set meanwhile.
            step = min(step, max(0, int((rows.since - self._since) * 1e9)) // count)
        return rows.data, rows.time_ns - np.arange(count - 1, -1, -1) * step, gap

    def _by_sender(
        self, rows: Rows, times: NDArray[np.int64]
    ) -> tuple[Array, NDArray[np.int64], bool] | None:
        data, said = rows.data, times
        latest = int(times.max())
        # As long as this device's own clock is not set, it is no measure of others.
        if (
            latest > rows.time_ns + FUTURE_SECONDS * 1e9
            and rows.time_ns >= EARLIEST_NS
            and not self._clock_behind()
        ):
            ahead = (latest - rows.time_ns) / 1e9
            raise SampleError(
                f"its time lies {ahead:.0f} s in the future; is the sender's clock set, and this "
                f"device's? One that names no zone is taken as local time here, {strftime('%Z')}"
            )
        if latest < EARLIEST_NS:
            raise SampleError(
                f"its time lies {(EARLIEST_NS - latest) / 86400e9 + 1:.0f} days before this agent "
                "was built; is the sender's clock set, or does it count from its own start?"
            )
        if latest == self._said and len(times) == 1:
            if self._row is None or np.array_equal(data[-1], self._row):
                self.counts.doubled += len(data)
                return None
            return data, self._within_unit(rows, latest), False
        single = len(times) != len(data)
        if single:
            times = latest - np.arange(len(data) - 1, -1, -1) * int(self._usual_row * 1e9)
        elif len(times) > 1:
            data, times = self._sorted(data, times)
        unplaced, self._unplaced = self._unplaced, False
        if self._last is None:
            self._unplaced = single and len(data) > 1
            return data, times, False
        copied = latest < self._last and self._is_copy(rows, said, latest)
        if copied or (latest <= self._last and not self._was_set(self._last - latest)):
            if copied or latest == self._last:
                self.counts.doubled += len(data)
            else:
                self.counts.late += len(data)
            return None
        if latest <= self._last:
            self._backward = 0
            return data, times, True
        self._backward = 0
        if single:
            if times[0] <= self._last or not self._usual_row:
                room = (latest - self._last) // len(data)
                times = latest - np.arange(len(data) - 1, -1, -1) * room
            # Nothing is made across rows that all have the time of the last one.
            gap = self._too_long((latest - self._last) / 1e9, len(data), 0.0, rows)
            return data, times, gap or unplaced
        if times[0] <= self._last:
            new = times > self._last
            self.counts.late += int((~new).sum())
            data, times = data[new], times[new]
        # Each row has its own time: check them one by one, as if they had arrived alone.
        return data, times, self._too_long((int(times[0]) - self._last) / 1e9, 1, 0.0, rows)

    def _within_unit(self, rows: Rows, said: int) -> NDArray[np.int64]:
        """Assign times to rows whose sender repeats a time because its clock is coarse.

        They follow by arrival, up to the next whole second or millisecond.
        """
        unit = next(unit for unit in (10**9, 10**6, 10**3, 1) if said % unit == 0)
        last, since = self._last or said, self._since or rows.since
        passed = int(max(0.0, rows.since - since) * 1e9)
        # Never as far as the next one: half of the rest.
        step = max(1, min(passed, (said + unit - last) // 2) // len(rows.data))
        return last + np.arange(1, len(rows.data) + 1) * step

    def _sorted(self, data: Array, times: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
        """Sort the rows of one message, keeping each time once."""
        if (np.diff(times) > 0).all():
            return data, times
        kept, first = np.unique(times, return_index=True)
        self.counts.doubled += len(times) - len(kept)
        return data[first], kept

    def _is_copy(self, rows: Rows, times: NDArray[np.int64], latest: int) -> bool:
        """Whether a message has come before.

        A clock that was set back may say the same again, but as slowly as it did then.
        """
        if _hash(rows, times) not in self._known:
            return False
        before = self._copies
        if before is None or latest < before.last:
            before = _Copies(1, rows.since, latest, latest)
        self._copies = before
        before.count, before.last = before.count + (latest > before.last), latest
        passed = (latest - before.first) / 1e9
        return before.count < SLOW_COPIES or rows.since - before.since < max(
            passed / 2, SLOW_SECONDS
        )

    def _was_set(self, back_ns: int) -> bool:
        """Whether the sender's clock was set back, so that this row is not late."""
        self._backward += 1
        return back_ns > STEP_SECONDS * 1e9 or self._backward >= STEP_READINGS

    @property
    def _usual_row(self) -> float:
        """Usual seconds between rows; 0: not known yet."""
        return median(self._per_row) if self._per_row else 0.0

    @property
    def _usual_step(self) -> float:
        """Usual seconds between times."""
        steps = sorted(self._steps)
        often, usual = steps[int(0.9 * (len(steps) - 1))], median(steps)
        return steps[-1] if often > IRREGULAR * usual else usual

    def _limit(self, least: float) -> float | None:
        """Return the longest silence that is no gap, at least *least* seconds; None: not known."""
        if self._gap_s is not None or len(self._steps) < LEARNED:
            return self._gap_s
        return max(USUAL * self._usual_step, least)

    def _too_long(self, passed: float, count: int, least: float, rows: Rows) -> bool:
        """Whether *passed*, the seconds until the last of *count* new ones of *rows*, has a gap."""
        silence = passed - (count - 1) * self._usual_row
        limit = self._limit(least)
        gap = limit is not None and silence > limit
        self._lately.append(passed if gap else 0.0)
        if not gap:
            self._steps.append(passed)
            self._per_row.append(passed / count)
            return False
        if rows.rate_hz is None:  # else its intervals are known
            self._learn_from_gaps(single=len(rows.data) == 1)
        return True

    def _learn_from_gaps(self, *, single: bool) -> None:
        """Count gaps among the usual intervals where they are no exception.

        A sensor that began with a few quick messages, now reports less often, or gives some at once
        now and then, would have one at each reading or pause. Of a stream in blocks, not *single*
        readings, what is missing now and then stays a gap.
        """
        silences = [each for each in self._lately if each]
        latest = [*self._lately][-OFTEN:]
        if len(latest) == OFTEN and all(latest):
            self._steps.clear()
        elif len(silences) < OFTEN or not single:
            return
        self._steps.extend(silences[-OFTEN:])
        self._lately.clear()


def _hash(rows: Rows, times: NDArray[np.int64]) -> int:
    return hash((rows.columns, times.tobytes(), rows.data.tobytes()))
