"""Samples from a source as they come, for commands with a single source."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

from ..core.backoff import Backoff
from ..core.errors import ModelError, SampleError, SourceError
from ..core.text import printable
from ..core.types import Sample
from ..inference.preprocess.windowing import Windower
from ..models.manifest import InputSpec
from ..sources.source import Source, SourceContext, Topics, open_source, readings
from ..sources.spec import SourceSpec

AHEAD = 4
"""Most waiting samples of a lossless source."""
WINDOWS = 256
"""Most waiting windows of a live signal, each of which has unique data."""
STABLE_SECONDS = 10.0
"""A source that has run for this long is reopened at once when it is lost."""
MOST_SKIPPED = 5
"""Number of skipped readings reported with reasons before they are only counted."""
HANG_SECONDS = 2.0
"""Time for a driver to return from a read at the end."""


class Samples:
    """Opens a source and numbers its samples; cuts a signal into windows. A context manager.

    A live source that is lost is opened again, with growing pauses, as in the daemon.

    `first` reads in the caller's thread. From `follow` on the source belongs to its own thread,
    which also closes it: a driver that hangs in a read must not be closed meanwhile.
    """

    def __init__(
        self,
        spec: SourceSpec,
        shape: InputSpec,
        closing: threading.Event,
        topics: Topics | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        """Open the source.

        Args:
            spec: the source.
            shape: how a model takes windows.
            closing: ends all reading.
            topics: source of messages for a topic source; None: there is none.
            tell: takes a line about each skipped reading.
        """
        self._spec = spec
        self._shape = shape
        self._closing = closing
        self._tell = tell
        self.trouble: str | None = None
        """Why the source is currently lost, or None if it is not."""
        self.latest = time.monotonic()
        """Monotonic time of its last sample, or when it was opened."""
        self.columns: tuple[str, ...] = ()
        """Names of a signal's channels, if the source has them."""
        self._seq = 0
        self._context = SourceContext(self._closing, topics=topics)
        self._source: Source = open_source(spec, self._context)
        self._samples = self._read()
        # Only the newest live picture waits; lossless samples are never dropped.
        room = None if spec.lossless else WINDOWS if spec.kind == "signal" else 1
        self._waiting: deque[Sample] = deque(maxlen=room)
        self._changed = threading.Condition()
        self._done = False
        self._error: BaseException | None = None
        self._reader: threading.Thread | None = None
        self._reading = False
        """Whether a thread is in `first`, perhaps forever, in a driver."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._reader is not None:
            self._reader.join(HANG_SECONDS)
        elif not self._reading:
            self._source.close()

    def first(self) -> Sample | None:
        """Wait for the first sample; returns None if the source ends before one comes."""
        self._reading = True
        sample = next(self._samples, None)
        self._reading = False
        return sample

    def follow(self) -> Iterator[Sample]:
        """Yield all samples of a recording, or the newest of a live source from now on.

        Raises:
            SourceError: the source is lost, and not live.
            ModelError: its samples do not fit the model.
        """
        if not self._spec.live:
            # From the beginning, as its clock has advanced since the first one.
            self._source.close()
            self._source = open_source(self._spec, self._context)
            self._samples, self._seq = self._read(), 0
        self._reader = threading.Thread(target=self._read_ahead, name="capture", daemon=True)
        self._reader.start()
        while True:
            with self._changed:
                # With a timeout, because `closing` does not wake this thread.
                while not self._waiting and not self._done and not self._closing.is_set():
                    self._changed.wait(0.25)
                if self._closing.is_set():
                    return
                if not self._waiting:
                    if self._error is not None:
                        raise self._error
                    return
                sample = self._waiting.popleft()
                self._changed.notify_all()
            yield sample

    def _read_ahead(self) -> None:
        backoff = Backoff(first=0.5, most=30.0)
        try:
            while not self._closing.is_set():
                began = time.monotonic()
                try:
                    self._put_all()
                    return
                except SourceError as problem:
                    if not self._spec.live:
                        raise
                    self.trouble = str(problem)
                if time.monotonic() - began > STABLE_SECONDS:
                    backoff.reset()
                self._source.close()
                if not self._reopen(backoff):
                    return
        except BaseException as problem:  # noqa: BLE001 - raised again in the caller's thread
            self._error = problem
        finally:
            self._source.close()
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _put_all(self) -> None:
        """Queue the source's samples for `follow`, until it ends or must end."""
        for sample in self._samples:
            self.trouble, self.latest = None, time.monotonic()
            with self._changed:
                while self._spec.lossless and len(self._waiting) >= AHEAD:
                    if self._closing.is_set():
                        return
                    self._changed.wait(0.25)
                self._waiting.append(sample)
                self._changed.notify_all()
            if self._closing.is_set():
                return

    def _reopen(self, backoff: Backoff) -> bool:
        """Open the source again, however long that takes; False: it must end."""
        while not self._closing.wait(backoff.pause()):
            try:
                self._source = open_source(self._spec, self._context)
            except SourceError as problem:
                self.trouble = str(problem)
            else:
                self._samples = self._read()
                return True
        return False

    def _read(self) -> Iterator[Sample]:
        windower: Windower | None = None
        skipped = 0

        def skip(problem: SampleError) -> None:
            # No window may span it.
            nonlocal skipped
            said = problem.quiet_at is None
            skipped += said
            if said and skipped <= MOST_SKIPPED:
                self._tell(printable(f"skipped  {problem}"))
            if windower is not None:
                windower.skip()

        for reading in readings(self._source):
            if isinstance(reading, SampleError):
                skip(reading)
                continue
            if self._spec.kind == "picture":
                yield Sample(
                    reading.data, self._next_seq(), reading.time_ns, reading.since, reading.file
                )
                continue
            windower = windower or Windower(self._shape, reading.columns)
            self.columns = reading.columns
            if reading.gap:
                windower.reset()
            try:
                for part in windower.usable(reading):
                    if isinstance(part, SampleError):
                        skip(part)
                        continue
                    for window in windower.push(part):
                        yield replace(window, seq=self._next_seq())
            except ModelError as problem:
                if not self._spec.live:
                    raise
                # Other samples may fit.
                self._tell(printable(f"skipped  {problem}"))
                windower.skip()
        ended = windower.finish() if windower else []
        yield from (replace(window, seq=self._next_seq()) for window in ended)
        if skipped > MOST_SKIPPED:
            self._tell(f"skipped  {skipped - MOST_SKIPPED} more")
        if self._seq == 0 and self._spec.kind == "signal" and not self._closing.is_set():
            self._tell(printable(f"skipped  {self._spec.redacted} holds less than one window"))

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq - 1
