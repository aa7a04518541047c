"""Work for servers: of each one after the other, of different ones side by side.

A server that hangs keeps no other waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SideBySide(Generic[T]):
    """Items that wait, and the threads that do them. `run` by one thread; others call the rest."""

    def __init__(self, do: Callable[[T], None], server: Callable[[T], str], most: int) -> None:
        """Begin with none; *most* may wait, *server* returns whom one is for."""
        self.closing = threading.Event()
        self._do = do
        self._server = server
        self._most = most
        self._waiting: deque[T] = deque()
        self._busy: dict[str, T] = {}
        """By server: what is being done."""
        self._changed = threading.Condition()

    def put(self, item: T) -> T | None:
        """Append an item; return the oldest where it has to give way."""
        with self._changed:
            oldest = self._waiting.popleft() if len(self._waiting) >= self._most else None
            self._waiting.append(item)
            self._changed.notify()
        return oldest

    def run(self) -> None:
        """Do what waits, until closed and nothing waits."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None or self._is_over)
                item = self._next()
                if item is None:
                    return
                self._waiting.remove(item)
                self._busy[self._server(item)] = item
            doing = threading.Thread(target=self._carry_out, args=(item,), daemon=True)
            try:
                doing.start()
            except RuntimeError:  # there is no room for another thread
                self._carry_out(item)

    def _next(self) -> T | None:
        """Return the oldest item for a server that has time for it."""
        return next((each for each in self._waiting if self._server(each) not in self._busy), None)

    @property
    def _is_over(self) -> bool:
        return self.closing.is_set() and not self._waiting

    def _carry_out(self, item: T) -> None:
        try:
            self._do(item)
        finally:
            with self._changed:
                del self._busy[self._server(item)]
                self._changed.notify()

    def close(self, seconds: float) -> list[T]:
        """End, once all is done, after so long at the latest; return what is not."""
        self.closing.set()
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over and not self._busy, seconds)
            left, self._waiting = [*self._busy.values(), *self._waiting], deque()
            self._changed.notify_all()
        return left
