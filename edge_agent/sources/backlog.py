"""How far the reading of a live stream is behind what the camera sends.

If a stream is decoded more slowly than it comes, the rest waits in the network's buffers, seconds
of it, and each picture is older than its time of arrival says.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

MOST_SECONDS = 2.0
"""How far behind, before pictures are left out."""
LEAST_SECONDS = 0.5
"""How far behind is near enough to go on."""
WINDOW_SECONDS = 1.0
WAITING = 0.1
"""Share of the time that a reader waits if it has read all that came. Times of streams are not
enough: many cameras have clocks that run fast or slow, or state another rate than they send."""
IDLE = 0.8
"""The same while it only reads and decodes nothing."""
LONGEST_STEP = 10.0
"""Seconds between two pictures; a greater difference of their times, or a step back, is a clock
that was set."""


class Backlog:
    """The backlog of one stream."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How much of the stream waits to be read."""
        self.leaving_out = False
        """Whether pictures are left out to catch up."""
        self._stamp = 0.0
        self._usual: float | None = None
        """Least time by which packets have come later than stamped; None: none has come."""
        self._waited = 0.0
        self._began = time.monotonic()

    def watch(self, packets: Iterator[Any], stream: Any) -> Generator[Any]:
        """Yield the packets of a stream and others, noting how late they are read."""
        while True:
            asked, used = time.monotonic(), time.thread_time()
            packet = next(packets, None)
            if packet is None:
                return
            now = time.monotonic()
            waited = now - asked - (time.thread_time() - used)
            if packet.stream is stream and packet.dts is not None:
                self.note(float(packet.dts * packet.time_base), now, waited)
            yield packet

    def note(self, stamp: float, now: float, waited: float) -> None:
        """Note that a packet stamped with a time, seconds, was read *now*, monotonic seconds.

        *waited*: seconds for which the reader had nothing to do before.
        """
        late, step = now - stamp, stamp - self._stamp
        self._stamp = stamp
        if self._usual is None:
            self._usual = late
        elif not 0 <= step < LONGEST_STEP:
            self._usual = late - self.seconds
        self._usual = min(self._usual, late)
        self._waited += waited
        if now - self._began >= WINDOW_SECONDS:
            # While pictures are left out, waiting for a processor looks much the same.
            share = IDLE if self.leaving_out else WAITING
            if self._waited > share * (now - self._began):
                self._usual = late
            self._waited, self._began = 0.0, now
        self.seconds = late - self._usual

    def due(self, *, key: bool) -> bool:
        """Whether to decode the packet noted last; *key*: whether decoding can start with it."""
        if self.leaving_out:
            self.leaving_out = self.seconds > LEAST_SECONDS or not key
        else:
            self.leaving_out = self.seconds > MOST_SECONDS
        return not self.leaving_out
