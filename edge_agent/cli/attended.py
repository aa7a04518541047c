"""Work that may never return, done in a separate thread, so that Ctrl-C always works.

A network may contain an infinite loop, a driver may hang; a thread in such native code cannot be
interrupted. The command waits for it in the main thread, says what it waits for, and can end.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..core.errors import AgentError
from ..core.text import one_line

T = TypeVar("T")

FIRST_WORD = 5.0
"""Seconds until a message says what is waited for; then again after twice as long, and so on."""
LEAVE_SECONDS = 1.0
"""Time for the work to return once it must end."""
AHEAD = 4
"""Most items waiting for the main thread."""
_NAME = "attended"


class OverdueError(AgentError):
    """The work did not return in time; its thread is left behind."""


class Attendant:
    """Waits for work that is done in a thread, one piece after another."""

    def __init__(self, patience_s: float | None = None) -> None:
        """Start without work; a call may take *patience_s* seconds, None: until Ctrl-C."""
        self.closing = threading.Event()
        """Set when the work must end."""
        self.left_behind: str | None = None
        """Work that did not return in time, whose resources must stay open; None: all did."""
        self.patience_s = patience_s
        self._left = ""
        """The call it was in."""
        self._doing: tuple[str, float] | None = None
        """The call that the thread is in, and the monotonic time when it began."""

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """In the thread, note a call that may not return: *what* "has not come back"."""
        self._doing = what, time.monotonic()
        try:
            yield
        finally:
            self._doing = None

    def check_open(self) -> None:
        """In the thread, raise if the work must end."""
        if self.closing.is_set():
            raise KeyboardInterrupt

    def call(self, work: Callable[[], T], what: str, until: float = math.inf) -> T:
        """Do *work* in a thread and wait, at most until the monotonic time *until*.

        *what* describes the work, as for `doing`.
        """
        try:
            results = list(self.each(self._once(work, what), lambda: time.monotonic() < until))
        except KeyboardInterrupt:
            if self.left_behind is None:
                raise
            raise AgentError(f"interrupted; {self._left} was not waited for") from None
        if not results:
            raise AgentError(self.left_behind or "the time is over")
        return results[0]

    def _once(self, work: Callable[[], T], what: str) -> Iterator[T]:
        with self.doing(what):
            yield work()

    def each(
        self, items: Iterator[T], tick: Callable[[], bool] = lambda: True
    ) -> Generator[T, None, None]:
        """Yield the items of an iterator that runs in a thread; close this to leave early.

        Args:
            items: never closed; `closing` tells it to end.
            tick: called about four times a second while there are no items; False ends the work.

        Raises:
            OverdueError: it took too long.
            BaseException: anything raised in the thread.
        """
        waiting: deque[T] = deque()
        changed = threading.Condition()
        ended: list[BaseException | None] = []

        def work() -> None:
            problem: BaseException | None = None
            try:
                for item in items:
                    with changed:
                        waiting.append(item)
                        changed.notify_all()
                        while len(waiting) >= AHEAD and not self.closing.is_set():
                            changed.wait(0.25)
                    if self.closing.is_set():
                        break
            except BaseException as raised:  # noqa: BLE001 - raised again in the main thread
                problem = raised
            with changed:
                ended.append(problem)
                changed.notify_all()

        thread = threading.Thread(target=work, name=_NAME, daemon=True)
        thread.start()
        said = FIRST_WORD
        try:
            while True:
                with changed:
                    # With a timeout, so that Ctrl-C works.
                    if not waiting and not ended:
                        changed.wait(0.25)
                    item = waiting.popleft() if waiting else None
                    done = not waiting and bool(ended)
                    changed.notify_all()
                if item is not None:
                    yield item
                    said = FIRST_WORD
                elif done or not tick():
                    break
                else:
                    said = self._mention(said)
        finally:
            if not ended:
                self._leave(thread)
        if ended and ended[0] is not None:
            raise ended[0]

    def _mention(self, said: float) -> float:
        """Say what is waited for, if it is time; return the seconds until the next time."""
        doing = self._doing
        if doing is None:
            return said
        what, since = doing
        took = time.monotonic() - since
        words = _late(what, since)
        if self.patience_s is not None and took > self.patience_s:
            raise OverdueError(words)
        if took < said:
            return said
        print(one_line(f"waiting  {words}; Ctrl-C ends it"), file=sys.stderr, flush=True)
        return said * 2

    def _leave(self, thread: threading.Thread) -> None:
        """Have the thread end, and wait for it; abandon it if it does not."""
        self.closing.set()
        self._left, since = self._doing or ("its work", time.monotonic())
        # Set before the wait, too, because a second Ctrl-C may end that.
        self.left_behind = _late(self._left, since)
        thread.join(LEAVE_SECONDS)
        self.left_behind = _late(self._left, since) if thread.is_alive() else None


def _late(what: str, since: float) -> str:
    return f"{what} has not come back for {time.monotonic() - since:.0f} s"


def leave_behind(status: int) -> None:
    """End the process here if a thread was left in native code, without waiting for it."""
    if not any(thread.name == _NAME for thread in threading.enumerate()):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
