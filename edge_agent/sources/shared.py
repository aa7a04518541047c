"""One opened source that several captures read, each with its own queue.

It has no thread: a capture thread that needs a reading while no other thread reads opens and reads
the source for all, and passes on the readings. If one finds that the source is lost, hangs or has
ended, that applies to all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

from ..core.errors import SampleError, SourceError
from ..core.types import Reading
from .source import OPEN_SECONDS, SourceContext
from .spec import SourceSpec

TICK = 0.25
"""Seconds between a reader's checks whether to stop."""
CLOSE_SECONDS = 2.0
"""Time for a source to close before it is opened again."""
STUCK_READS = 4
"""Most reads of a source stuck in a driver at a time; then no new one is begun."""

Wanted = Callable[[float], bool]
"""Returns whether any capture wants a picture, given its seconds since the first one."""


class Producer(Protocol):
    """Something that delivers readings by itself."""

    def read(self, timeout: float, wanted: Wanted) -> Sequence[Reading | SampleError] | None:
        """Return new readings, oldest first; wait about *timeout* seconds for one.

        Unwanted pictures are left out. None: the source has ended.

        Raises:
            SourceError: the source is lost.
        """

    def close(self) -> None:
        """Close the source; may be called twice."""


class Tap:
    """One capture's view of a shared source."""

    def __init__(self, shared: Shared, context: SourceContext) -> None:
        """Get readings from `attach` on until the context's `closing` is set."""
        self.waiting: deque[Reading | SampleError] = deque()
        self.closing = context.closing
        self.context = context
        self._shared = shared
        self._next: Reading | SampleError = SampleError("nothing was grabbed")

    @property
    def trouble(self) -> str | None:
        """Trouble of the source so far that did not end it, or None."""
        return None

    def wants(self, at: float) -> bool:
        """Whether it wants the reading *at* seconds after the first; called once for each."""
        del at
        return not self.closing.is_set()

    def offer(self, item: Reading | SampleError) -> None:
        """Add a reading; the caller holds the lock of the shared source."""
        raise NotImplementedError

    def check(self) -> None:
        """Check how long nothing has arrived; called often during that time."""

    def grab(self) -> bool:
        while not self.closing.is_set():
            self.context.alive()
            if self._shared.wait(self):
                self._next = self.waiting.popleft()
                return True
            if self._shared.over and not self.waiting:
                return False
            self.check()
        return False

    def retrieve(self) -> Reading:
        if isinstance(self._next, SampleError):
            raise self._next
        return self._next

    def close(self) -> None:
        self._shared.detach(self)
        self.waiting.clear()
        self._next = SampleError("closed")


T = TypeVar("T", bound=Tap)


class Kept:
    """The state of a source that is kept when it is reopened."""

    def __init__(self, name: str, twin: int) -> None:
        """Begin unopened; *twin* other sources with this name differ only in secrets."""
        self.name = name
        self.twin = twin
        self.number = 0
        """Number of the next reading."""
        self.producer: Producer | None = None
        """The last opened producer."""
        self.closing: threading.Event | None = None
        """Set when it is closed."""
        self.stuck: set[Tap] = set()
        """Producers whose threads hang in the driver."""


class Shared:
    """One opened source and the taps on it."""

    def __init__(
        self, spec: SourceSpec, open_producer: Callable[[Shared], Producer], kept: Kept
    ) -> None:
        """Begin unopened; *open_producer* opens the source when a tap first waits."""
        self.kept = kept
        self.producer: Producer | None = None
        self.ended = False
        """Whether to refuse further readers."""
        self.lost: SourceError | None = None
        """Why it has ended."""
        self.taps: tuple[Tap, ...] = ()
        """Replaced as a whole, never modified."""
        self._closed = threading.Event()
        self._open = open_producer
        self._stall = spec.stall_seconds
        self._live = spec.live
        self._changed = threading.Condition()
        self._reader: Tap | None = None
        """The tap whose thread opens or reads."""
        self._since = 0.0
        """When that thread last made progress, monotonic seconds."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.ended and self.lost is None

    @cached_property
    def hash(self) -> str:
        """Its name in results: without secrets, but distinct from sources that differ in these."""
        import hashlib

        text = self.kept.name + f" {self.kept.twin}" * bool(self.kept.twin)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def attach(self, tap: Tap) -> bool:
        """Add a reading capture; False: the source has ended."""
        with self._changed:
            if not self.ended:
                self.taps += (tap,)
            return not self.ended

    def detach(self, tap: Tap) -> None:
        with self._changed:
            left = tuple(each for each in self.taps if each is not tap)
            close = bool(self.taps) and not left and self._reader is None
            self.ended = self.ended or not left
            self.taps = left
        if close:
            self._close()

    def lose(self, why: SourceError) -> None:
        """Mark it as lost for all."""
        with self._changed:
            self._end(why)

    def alive(self) -> None:
        """Record that the reading thread waits in our own code, not in a driver."""
        self._since = time.monotonic()
        reader = self._reader
        if reader is not None:
            reader.context.alive()

    def hangs(self) -> bool:
        """Whether its driver hangs; then the source is lost and its thread left behind."""
        with self._changed:
            limit = OPEN_SECONDS if self.producer is None and self._live else self._stall
            hangs = time.monotonic() - self._since > limit
            if not self.ended and hangs and self._reader is not None:
                self.kept.stuck.add(self._reader)
                self._end(SourceError(silence(limit)))
            return self.ended

    def wait(self, tap: Tap) -> bool:
        """Wait briefly for a reading, opening or reading the source if no other thread does.

        Raises:
            SourceError: it is lost.
        """
        with self._changed:
            if self._reader is not None:
                if not (tap.waiting or self.ended):
                    self._changed.wait(TICK)
                self.hangs()
            if tap.waiting:
                return True
            if self.lost is not None:
                raise self.lost
            if self.ended or self._reader is not None:
                return False
            self._reader, self._since = tap, time.monotonic()
        self._work(tap)
        return bool(tap.waiting)

    def _work(self, tap: Tap) -> None:
        """Open the source or read it once for all taps."""
        takers: list[Tap] | None = None
        found: Sequence[Reading | SampleError] | None = ()
        lost: SourceError | None = None

        def wanted(at: float) -> bool:
            nonlocal takers
            takers = [each for each in self.taps if each.wants(at)]
            return bool(takers)

        try:
            if self.producer is None:
                # A device that is still open cannot be opened again.
                if self.kept.closing is not None and not self.kept.stuck:
                    self.kept.closing.wait(CLOSE_SECONDS)
                self.kept.closing = self._closed
                self.producer = self._open(self)
                self.kept.producer = self.producer
            else:
                found = self.producer.read(TICK, wanted)
        except SourceError as problem:
            lost = problem
        finally:
            with self._changed:
                self._reader = None
                self.kept.stuck.discard(tap)
                if not self.ended:
                    for item in found or ():
                        self._offer(item, takers)
                if lost is not None or found is None:
                    self._end(lost)
                close = self.ended
                self._changed.notify_all()
            if close:
                self._close()
        if lost is not None:
            raise self.lost or lost

    def _offer(self, item: Reading | SampleError, takers: Sequence[Tap] | None) -> None:
        """Pass a reading to *takers*; None: to all."""
        several = len(self.taps) > 1
        if several and isinstance(item, Reading):
            # A tap that writes to it must copy it.
            item.data.flags.writeable = False
            item = replace(item, capture=(self.hash, self.kept.number))
        self.kept.number += 1
        for tap in self.taps:
            if takers is None or tap in takers:
                tap.offer(item)

    def _end(self, why: SourceError | None) -> None:
        if not self.ended:
            if why is not None:
                # Until the first tap that gets it has set the time.
                why.again_at = time.monotonic() + 2 * TICK
                # It is kept, and would keep the pictures of the functions that it came through.
                why.__traceback__ = why.__context__ = None
            self.lost = why
            self.ended = True
        self._changed.notify_all()

    def _close(self) -> None:
        if self.producer is not None:
            self.producer.close()
        self._closed.set()


class Everyone(threading.Event):
    """An event that is set once all sharers of a source must leave it."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared

    def is_set(self) -> bool:
        """Whether no sharer may continue reading."""
        return self._shared.ended or all(tap.closing.is_set() for tap in self._shared.taps)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most *timeout* seconds; this does not count as hanging."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = TICK if until is None else until - time.monotonic()
            if left <= 0:
                return False
            self._shared.alive()
            super().wait(min(left, TICK))
        return True


def silence(seconds: float) -> str:
    """Return the message that a source was silent for too long."""
    return f"gave nothing for {seconds:.0f} s"


def sharing_key(spec: SourceSpec, context: SourceContext) -> Any:
    """Return a key that is equal for sources that can be shared."""
    return spec.text, tuple(spec.options.values()), context.decode, context.alone


def share(
    spec: SourceSpec,
    context: SourceContext,
    open_producer: Callable[[Shared], Producer],
    make: Callable[[Shared], T],
) -> T:
    """Return a tap on a source, opening it unless another capture has it open.

    Raises:
        SourceError: it cannot be opened.
    """
    key = sharing_key(spec, context)
    while True:
        with context.sharing:
            shared: Shared | None = context.shared.get(key)
            if shared is None:
                twin = sum(each.kept.name == spec.redacted for each in context.shared.values())
                shared = Shared(spec, open_producer, Kept(spec.redacted, twin))
            elif shared.hangs():
                kept, lost = shared.kept, shared.lost
                soon = lost is not None and lost.again_at > time.monotonic()
                if lost is not None and (soon or len(kept.stuck) >= STUCK_READS):
                    raise lost
                shared = Shared(spec, open_producer, kept)
            context.shared[key] = shared
        tap = make(shared)
        if shared.attach(tap):
            break
    try:
        while shared.producer is None and not context.closing.is_set():
            context.alive()
            shared.wait(tap)
    except BaseException:
        shared.detach(tap)
        raise
    return tap
