"""Live signals: a device that delivers rows by itself, read once for all its pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ..core.errors import SampleError, SilentError, SourceError
from ..core.types import Reading
from .continuity import Continuity, Counts, Rows
from .shared import Shared, Tap, Wanted
from .shared import share as share_source
from .source import SourceContext
from .spec import SourceSpec

MAX_WAITING = 4096
"""Most readings waiting for a pipeline; if it falls further behind, it loses all of them."""


class EmptyError(SampleError):
    """A message is an object that holds none of the values, or only nulls."""

    def __init__(self, words: str, *, null: bool) -> None:
        """*null*: it holds one of them, of which nothing is known at the moment."""
        super().__init__(words)
        self.null = null


class Device(Protocol):
    """Something that delivers rows by itself."""

    def read(self, timeout: float) -> list[Rows | SampleError]:
        """Return new rows, oldest first; wait up to *timeout* seconds if there are none.

        Raises:
            SourceError: the device is lost.
        """

    def close(self) -> None:
        """Close the device; may be called twice."""


class Signal:
    """The readings of a device, checked for continuity."""

    def __init__(self, spec: SourceSpec, device: Device, counts: Counts | None) -> None:
        """Read an opened device; *counts* continue."""
        self.continuity = Continuity(spec.options["gap_s"], counts)
        self._name = spec.redacted
        self._device = device

    def read(self, timeout: float, wanted: Wanted) -> list[Reading | SampleError]:
        del wanted
        found: list[Reading | SampleError] = []
        for item in self._device.read(timeout):
            if isinstance(item, EmptyError) and not (item.null or self.continuity.is_silent()):
                continue  # it is of something else
            try:
                if isinstance(item, SampleError):
                    raise item
                found += self.continuity.pieces(item)
            except SampleError as problem:
                self.continuity.counts.refused += 1
                found.append(SampleError(f"{self._name}: {problem}"))
        return found

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
        return Signal(spec, open_device(), counts)

    def make(shared: Shared) -> LiveSignal:
        return LiveSignal(shared, context, spec, reopened=reopened)

    return share_source(spec, context, open_signal, make)
