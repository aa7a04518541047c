"""Live signals: a device that delivers rows by itself, read once for all its pipelines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from ..core.errors import SampleError, SilentError, SourceError
from ..core.names import ALONE, names_of
from ..core.types import Reading
from ..device.wall_clock import may_be_behind
from .continuity import OFTEN, Continuity, Counts, Rows
from .shared import Shared, Tap, Wanted
from .shared import share as share_source
from .source import SourceContext
from .spec import SourceSpec

log = logging.getLogger(__name__)

MAX_WAITING = 4096
"""Most readings waiting for a pipeline; if it falls further behind, it loses all of them."""
EMPTY = 10
"""So many messages in a row without any value are an error once the values are overdue; fewer are
of something else, as the battery."""
UNREAD = 3
"""A value that so many messages in a row say is not known is a problem; fewer may pass."""
MOST_UNREAD = 100
"""Most values that are counted so."""


class EmptyError(SampleError):
    """A message holds none of the values, or says that they are not known."""

    def __init__(self, words: str, unknown: Mapping[str, str], *, null: bool) -> None:
        """*unknown*: see `Rows`, empty for null; *null*: it is about one of the values."""
        super().__init__(words)
        self.unknown = unknown
        self.null = null


class Device(Protocol):
    """Something that delivers rows by itself."""

    def read(self, timeout: float) -> list[Rows | SampleError]:
        """Return new rows, oldest first; wait up to *timeout* seconds if there are none.

        Of an EmptyError `quiet_at` is when it came; whether it is quiet is decided by `Signal`.

        Raises:
            SourceError: the device is lost.
        """

    def close(self) -> None:
        """Close the device; may be called twice."""


class Signal:
    """The readings of a device, checked for continuity."""

    def __init__(
        self,
        spec: SourceSpec,
        device: Device,
        counts: Counts | None,
        clock_behind: Callable[[], bool] = may_be_behind,
    ) -> None:
        """Read an opened device; *counts* continue."""
        self.continuity = Continuity(spec.options["gap_s"], counts, clock_behind)
        self.unread: dict[str, str] = {}
        """Values that the latest messages say are not known, each with the words of the last."""
        self._unread: dict[str, int] = {}
        """In how many messages in a row."""
        self._empty = EMPTY
        """Messages in a row without a value; as if many had come before the first one, so that
        what may be misspelled is told at once."""
        self._null = EMPTY
        """How many of them have said that a value is not known."""
        self._columns: set[str] = set()
        """What has been a number so far."""
        self._gap_s: float | None = spec.options["gap_s"]
        self._gaps = 0
        """Readings in a row that came after a gap, counted until it was told."""
        self._name = spec.redacted
        self._device = device

    def read(self, timeout: float, wanted: Wanted) -> list[Reading | SampleError]:
        del wanted
        found: list[Reading | SampleError] = []
        for item in self._device.read(timeout):
            self._note(item)
            if isinstance(item, EmptyError) and not self._is_told(item):
                continue  # it is of something else
            try:
                if isinstance(item, SampleError):
                    raise item
                pieces = self.continuity.pieces(item)
                self._count_gaps(pieces)
                found += pieces
            except SampleError as problem:
                if problem.quiet_at is not None:
                    found.append(problem)
                    continue
                self.continuity.counts.refused += 1
                found.append(SampleError(f"{self._name}: {problem}"))
        return found

    def _count_gaps(self, readings: list[Reading]) -> None:
        """Tell once that each reading comes after a gap where `gap_s` may be the reason."""
        if self._gap_s is None or self._gaps >= OFTEN:
            return
        for reading in readings:
            self._gaps = self._gaps + 1 if reading.gap else 0
        if self._gaps >= OFTEN:
            log.warning(
                "%s: each reading comes after a gap, so that no for_s passes and no window spans "
                "two of them: gap_s is shorter than the usual silence",
                self._name,
            )

    def _is_told(self, empty: EmptyError) -> bool:
        """Whether a message without a value is passed on, as it says that one is not known.

        Or as an error, where the values are overdue.
        """
        self._empty += 1
        empty.null |= not self._columns.isdisjoint(empty.unknown)
        self._null += empty.null
        if not empty.null or self._null >= EMPTY:
            empty.quiet_at = None
        return empty.null or (self._empty >= EMPTY and self.continuity.is_silent())

    def _note(self, item: Rows | SampleError) -> None:
        """Count in how many messages in a row each value is not known."""
        if isinstance(item, Rows):
            self._empty = self._null = 0
            self._unread.pop(ALONE, None)
            self.unread.pop(ALONE, None)
            if len(self._columns) < MOST_UNREAD:
                self._columns.update(names_of(item.columns, item.data.shape[1]))
            if item.flaw is None and not (item.unknown or self._unread):
                return  # as nearly always
            unknown = dict(item.unknown or {})
            names = names_of(item.columns, item.data.shape[1])
            for place, (name, column) in enumerate(zip(names, item.data.T, strict=True)):
                if not np.isnan(column).all():
                    self._unread.pop(name, None)
                    self.unread.pop(name, None)
                elif item.unknown is None and item.flaw is not None:
                    unknown[name] = str(item.flaw(0, place))
        else:
            unknown = dict(item.unknown) if isinstance(item, EmptyError) else {}
        for name, words in unknown.items():
            if not words:
                continue  # null
            if name in self._unread or len(self._unread) < MOST_UNREAD:
                self._unread[name] = count = self._unread.get(name, 0) + 1
                if count >= UNREAD:
                    self.unread[name] = f"{self._name}: {words}"

    def close(self) -> None:
        self._device.close()


class LiveSignal(Tap):
    """One pipeline's view of a device."""

    def __init__(
        self, shared: Shared, context: SourceContext, spec: SourceSpec, *, reopened: bool
    ) -> None:
        """Create a source of the rows from now on; *reopened*: where it is silent for too long."""
        self._stall: float | None = spec.options["stall_s"]
        self._name = spec.redacted
        self._reopened = reopened
        self._heard = time.monotonic()
        super().__init__(shared, context)

    @property
    def counts(self) -> Counts | None:
        """Counters of the device since it was first opened."""
        signal = self._shared.producer
        return signal.continuity.counts if isinstance(signal, Signal) else None

    @property
    def unread(self) -> Mapping[str, str]:
        """See `Signal.unread`."""
        signal = self._shared.producer
        return signal.unread if isinstance(signal, Signal) else {}

    def offer(self, item: Reading | SampleError) -> None:
        if len(self.waiting) >= MAX_WAITING:
            self.waiting.clear()
            self.waiting.append(
                SampleError(f"{self._name}: {MAX_WAITING} readings waited and were given up")
            )
        self.waiting.append(item)

    def grab(self) -> bool:
        there = super().grab()
        self._heard = time.monotonic()
        return there

    def check(self) -> None:
        if self._stall is None or time.monotonic() - self._heard <= self._stall:
            return
        why = f"{self._name}: gave nothing for {self._stall:g} s"
        if not self._reopened:
            self._heard = time.monotonic()
            raise SilentError(why)
        self._shared.lose(SourceError(why))


def share(
    spec: SourceSpec,
    context: SourceContext,
    open_device: Callable[[], Device],
    *,
    reopened: bool = True,
) -> LiveSignal:
    """Return a source for a device, opening it unless another pipeline has it open.

    *reopened*: whether opening it again may help where it is silent.

    Raises:
        SourceError: it cannot be opened.
    """

    def open_signal(shared: Shared) -> Signal:
        before = shared.kept.producer
        counts = before.continuity.counts if isinstance(before, Signal) else None
        return Signal(spec, open_device(), counts, context.clock_behind)

    def make(shared: Shared) -> LiveSignal:
        return LiveSignal(shared, context, spec, reopened=reopened)

    return share_source(spec, context, open_signal, make)
