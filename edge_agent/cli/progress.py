"""What long work says on stderr while it goes on."""

from __future__ import annotations

import sys

from ..core.text import printable


class Progress:
    """Shows on stderr what is being done: a line that changes, or one a step where none can."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._what = ""
        self._open = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say what is being done, how much of it is done, and of how much; 0: not known."""
        if self._live:
            count = f" {done}" + (f" of {total}" if total else "")
            print(f"\r\x1b[K{printable(what)}{count}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif what != self._what:
            print(printable(what), file=sys.stderr, flush=True)
        self._what = what

    def close(self) -> None:
        """Take the line away."""
        if self._open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._open = False


def say(text: str) -> None:
    """Print one line."""
    print(printable(text), file=sys.stderr, flush=True)
