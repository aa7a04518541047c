"""The progress of long work, on stderr."""

from __future__ import annotations

import sys
import threading
import time

from ..core.text import printable

_LIVE_SECONDS = 1.0
_SECONDS = 10.0
"""Seconds of silence after which a step is shown as ongoing: on a terminal, and elsewhere."""


class Progress:
    """Shows the current step on stderr: a line that changes, or without a terminal one per step.

    For a step that does not report progress, such as a library's, a thread shows that it goes on.
    """

    def __init__(self, every: float | None = None) -> None:
        """Start without output; a step is shown as ongoing every *every* seconds."""
        self._live = sys.stderr.isatty()
        self._every = every or (_LIVE_SECONDS if self._live else _SECONDS)
        self._what = ""
        self._count = ""
        self._since = self._told = 0.0
        """Monotonic time of the step's start, and of the last line."""
        self._open = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the current step, how much of it is done, and the total; 0: unknown."""
        count = f" {done}" if done or total else ""
        with self._lock:
            new = what != self._what
            if new:
                self._what = what
                self._since = self._told = time.monotonic()
            self._count = count + (f" of {total}" if total else "")
            if self._live:
                self._redraw(self._count)
            elif new:
                say(what)
        if self._thread is None:
            self._closed.clear()
            thread = threading.Thread(target=self._go_on, name="progress", daemon=True)
            thread.start()  # first: after an interrupt `close` joins only what was started
            self._thread = thread

    def _go_on(self) -> None:
        rest = self._every
        while not self._closed.wait(rest):
            with self._lock:
                now = time.monotonic()
                rest = self._told + self._every - now
                if rest > 0:
                    continue
                text = f"{self._count}, {now - self._since:.0f} s"
                if self._live:
                    self._redraw(text)
                else:
                    say(f"{self._what}{text}")
                self._told, rest = now, self._every

    def _redraw(self, text: str) -> None:
        print(f"\r\x1b[K{printable(self._what)}{text}", end="", file=sys.stderr, flush=True)
        self._open = True

    def close(self) -> None:
        """Erase the line."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._open = False


def say(text: str) -> None:
    """Print one line."""
    print(printable(text), file=sys.stderr, flush=True)
