"""One opened source that several captures read, each with a queue of its own.

There is no thread of its own: whichever capture thread wants a reading and finds nobody reading
reads for all, and hands the others theirs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ..core.errors import SampleError, SourceError
from ..core.types import Reading
from .source import SourceContext
from .spec import SourceSpec

TICK = 0.25
"""Seconds after which a reader looks whether it is to stop."""


class Producer(Protocol):
    """Something that gives readings by itself."""

    def read(self, timeout: float) -> Sequence[Reading | SampleError]:
        """Return what has come, oldest first; wait *timeout* seconds or so where nothing has.

        Raises:
            SourceError: it is lost.
        """

    def close(self) -> None:
        """Close it; may be called twice."""


class Tap:
    """One capture's view of a shared source."""

    trouble = None

    def __init__(self, shared: Shared, closing: threading.Event) -> None:
        """Get what comes from now on, until *closing* is set."""
        self.waiting: deque[Reading | SampleError] = deque()
        self.lost: SourceError | None = None
        self.closing = closing
        self._shared = shared
        self._next: Reading | SampleError = SampleError("nothing was grabbed")
        shared.attach(self)

    def offer(self, item: Reading | SampleError) -> None:
        """Take a reading; called with the lock of what is shared."""
        raise NotImplementedError

    def check(self) -> None:
        """Check how long nothing has come; called every moment while nothing does.

        Raises:
            SourceError: too long.
        """

    def grab(self) -> bool:
        """Wait for the next reading; False when it is to be closed."""
        while not self.closing.is_set():
            if self._shared.wait(self):
                self._next = self.waiting.popleft()
                return True
            self.check()
        return False

    def retrieve(self) -> Reading:
        """Return what came."""
        if isinstance(self._next, SampleError):
            raise self._next
        return self._next

    def close(self) -> None:
        """Leave the source; the last one closes it."""
        self._shared.detach(self)


T = TypeVar("T", bound=Tap)


class Shared:
    """One opened source and the taps on it."""

    def __init__(self, name: str, limit: float) -> None:
        """Begin without a source.

        Args:
            name: what errors call it.
            limit: seconds after which a reader that was given up hangs in the driver.
        """
        self.producer: Producer | None = None
        self.ended = False
        """Refuse further readers."""
        self._name = name
        self._limit = limit
        self._taps: list[Tap] = []
        self._changed = threading.Condition()
        self._reader: Tap | None = None
        """Whose thread reads."""
        self._since = 0.0
        """Since when it reads, monotonic seconds."""

    def join(self, open_producer: Callable[[], Producer], make: Callable[[Shared], T]) -> T | None:
        """Return a tap; None: the source is being closed, make another.

        Raises:
            SourceError: it cannot be opened.
        """
        with self._changed:
            if self.ended or self._hangs():
                self.ended = True
                return None
            if self.producer is None:
                try:
                    self.producer = open_producer()
                except SourceError:
                    self.ended = True
                    raise
            return make(self)

    def attach(self, tap: Tap) -> None:
        with self._changed:
            self._taps.append(tap)

    def detach(self, tap: Tap) -> None:
        with self._changed:
            if tap in self._taps:
                self._taps.remove(tap)
            if not self._taps:
                self.ended = True
                if self._reader is None:
                    self._close()

    def _hangs(self) -> bool:
        """Whether the reader was given up by its capture, as it hangs in a driver."""
        return (
            self._reader is not None
            and self._reader.closing.is_set()
            and time.monotonic() - self._since > self._limit
        )

    def wait(self, tap: Tap) -> bool:
        """Wait a moment for a reading, reading the source where nobody else does.

        Raises:
            SourceError: it is lost.
        """
        with self._changed:
            if not tap.waiting and tap.lost is None and self._reader is not None:
                self._changed.wait(TICK)
            if tap.waiting:
                return True
            if tap.lost is not None:
                raise tap.lost
            if self._hangs():
                self.ended = True
                raise SourceError(f"{self._name}: hangs in its driver")
            producer = self.producer
            if self._reader is not None or producer is None:
                return False
            self._reader, self._since = tap, time.monotonic()
        found: Sequence[Reading | SampleError] = ()
        lost: SourceError | None = None
        try:
            found = producer.read(TICK)
        except SourceError as problem:
            lost = problem
        finally:
            with self._changed:
                self._reader = None
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

    def _close(self) -> None:
        if self.producer is not None:
            self.producer.close()


def share(
    spec: SourceSpec,
    context: SourceContext,
    open_producer: Callable[[Producer | None], Producer],
    make: Callable[[Shared], T],
) -> T:
    """Return a tap on a source, which is opened where no other capture has it open.

    Args:
        spec: captures whose source reads the same share it.
        context: of one of them.
        open_producer: opens it, given what was open of it before.
        make: makes the tap.

    Raises:
        SourceError: it cannot be opened.
    """
    while True:
        with context.sharing:
            shared = context.shared.get(spec.text)
            before = None if shared is None else shared.producer
            if shared is None or shared.ended:
                shared = context.shared[spec.text] = Shared(spec.redacted, spec.stall_seconds)
        tap = shared.join(lambda: open_producer(before), make)  # noqa: B023 - called at once
        if tap is not None:
            return tap
