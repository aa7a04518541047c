"""Waiting until a reading is due, in a way that closing the source cuts short."""

from __future__ import annotations

import threading
import time

# A source that was held up makes up for this much at once, seconds; beyond it, the beat moves.
SLACK = 1.0


def wait_until(due: float, closing: threading.Event) -> bool:
    """Wait until the monotonic clock shows *due*; False once *closing* is set."""
    delay = due - time.monotonic()
    return not (closing.wait(delay) if delay > 0 else closing.is_set())


class Metronome:
    """Gives the beat for readings at a fixed rate, the first at once."""

    def __init__(self, rate: float | None, closing: threading.Event) -> None:
        """Prepare; *rate* is in readings a second, None for no waiting at all."""
        self._period = 0.0 if rate is None else 1.0 / rate
        self._closing = closing
        self._due: float | None = None

    def wait(self, count: int = 1) -> bool:
        """Wait until *count* further readings are due; False once the source is to be closed."""
        if self._period == 0.0:
            return not self._closing.is_set()
        now = time.monotonic()
        due = now if self._due is None else self._due + count * self._period
        self._due = due if due > now - SLACK else now
        return wait_until(self._due, self._closing)
