"""Live signals: a device that gives rows by itself, read once for all pipelines that want it.

There is no thread of its own: whichever capture thread wants a reading and finds nobody reading
reads the device for all, and hands the others theirs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..core.errors import SampleError, SourceError
from ..core.types import Kind, Reading
from .continuity import Continuity, Counts, Rows
from .source import SourceContext
from .spec import SourceSpec

TICK = 0.25
"""Seconds after which a reader looks whether it is to stop."""
MAX_WAITING = 4096
"""Readings that may wait for a pipeline; one that falls behind further loses all of them."""


class Device(Protocol):
    """Something that gives rows by itself."""

    def read(self, timeout: float) -> list[Rows | SampleError]:
        """Return what has come, oldest first, at once; wait *timeout* seconds where nothing has.

        Raises:
            SourceError: it is lost.

        """

    def close(self) -> None:
        """Close it; may be called twice."""


class LiveSignal:
    """One pipeline's view of a device."""

    kind: Kind = "signal"
    lossless = False
    trouble = None

    def __init__(self, hub: Hub, spec: SourceSpec, closing: threading.Event) -> None:
        """Make a source of what comes to a hub, from now on."""
        self.waiting: deque[Reading | SampleError] = deque()
        self.lost: SourceError | None = None
        self.closing = closing
        self._hub = hub
        self._stall: float | None = spec.options["stall_s"]
        self._name = spec.redacted
        self._heard = time.monotonic()
        self._next: Reading | SampleError = SampleError("nothing was grabbed")
        hub.attach(self)

    @property
    def counts(self) -> Counts:
        """What has come of the device since it was opened."""
        return self._hub.counts

    def offer(self, item: Reading | SampleError) -> None:
        """Take a reading, under the hub's lock."""
        if len(self.waiting) >= MAX_WAITING:
            self.waiting.clear()
            self.waiting.append(
                SampleError(f"{self._name}: {MAX_WAITING} readings waited and were given up")
            )
        self.waiting.append(item)

    def grab(self) -> bool:
        """Wait for the next reading; False when it is to be closed."""
        while not self.closing.is_set():
            if self._hub.wait(self):
                self._next = self.waiting.popleft()
                self._heard = time.monotonic()
                return True
            if self._stall is not None and time.monotonic() - self._heard > self._stall:
                raise SourceError(f"{self._name}: gave nothing for {self._stall:g} s")
        return False

    def retrieve(self) -> Reading:
        """Return the rows that came."""
        if isinstance(self._next, SampleError):
            raise self._next
        return self._next

    def close(self) -> None:
        """Leave the device; the last one closes it."""
        self._hub.detach(self)


class Hub:
    """One device and the sources that share it."""

    def __init__(self, name: str, gap_s: float | None, counts: Counts | None) -> None:
        """Begin without a device; *name* is what errors call it, *counts* go on."""
        self._name = name
        self._continuity = Continuity(gap_s, counts)
        self._device: Device | None = None
        self._taps: list[LiveSignal] = []
        self._changed = threading.Condition()
        self._busy = False
        """Some thread reads the device."""
        self.ended = False
        """Nobody may join any more."""

    @property
    def counts(self) -> Counts:
        return self._continuity.counts

    def join(
        self, open_device: Callable[[], Device], spec: SourceSpec, closing: threading.Event
    ) -> LiveSignal | None:
        """Return a source; None: the device is being closed, make another hub.

        Raises:
            SourceError: it cannot be opened.

        """
        with self._changed:
            if self.ended:
                return None
            if self._device is None:
                try:
                    self._device = open_device()
                except SourceError:
                    self.ended = True
                    raise
            return LiveSignal(self, spec, closing)

    def attach(self, tap: LiveSignal) -> None:
        with self._changed:
            self._taps.append(tap)

    def detach(self, tap: LiveSignal) -> None:
        with self._changed:
            if tap in self._taps:
                self._taps.remove(tap)
            if not self._taps:
                self.ended = True
                if not self._busy:
                    self._close()

    def wait(self, tap: LiveSignal) -> bool:
        """Wait a moment for a reading, reading the device where nobody else does.

        Raises:
            SourceError: it is lost.

        """
        with self._changed:
            if not tap.waiting and tap.lost is None and self._busy:
                self._changed.wait(TICK)
            if tap.waiting:
                return True
            if tap.lost is not None:
                raise tap.lost
            device = self._device
            if self._busy or device is None:
                return False
            self._busy = True
        found: list[Reading | SampleError] = []
        lost: SourceError | None = None
        try:
            found = self._judged(device.read(TICK))
        except SourceError as problem:
            lost = problem
        finally:
            with self._changed:
                self._busy = False
                for each in self._taps:
                    for item in found:
                        each.offer(item)
                    each.lost = lost
                if lost is not None or not self._taps:
                    self.ended = True
                    self._close()
                self._changed.notify_all()
        if lost is not None:
            raise lost
        return bool(tap.waiting)

    def _judged(self, items: list[Rows | SampleError]) -> list[Reading | SampleError]:
        found: list[Reading | SampleError] = []
        counts = self._continuity.counts
        for item in items:
            if isinstance(item, SampleError):
                counts.refused += 1
                found.append(SampleError(f"{self._name}: {item}"))
                continue
            try:
                reading = self._continuity.judge(item)
            except SampleError as problem:
                counts.refused += 1
                found.append(SampleError(f"{self._name}: {problem}"))
            else:
                if reading is not None:
                    found.append(reading)
        return found

    def _close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None


def share(
    spec: SourceSpec, context: SourceContext, open_device: Callable[[], Device]
) -> LiveSignal:
    """Return a source of a device, which is opened where no other pipeline has it open.

    Raises:
        SourceError: it cannot be opened.

    """
    while True:
        with context.sharing:
            hub = context.hubs.get(spec.text)
            if not isinstance(hub, Hub) or hub.ended:
                counts = hub.counts if isinstance(hub, Hub) else None
                hub = Hub(spec.redacted, spec.options["gap_s"], counts)
                context.hubs[spec.text] = hub
        source = hub.join(open_device, spec, context.closing)
        if source is not None:
            return source
