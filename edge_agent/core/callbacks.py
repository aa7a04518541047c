"""A list of functions to call when something has changed."""

from __future__ import annotations

from collections.abc import Callable


class Callbacks:
    """Calls functions in the order in which they were added, in the caller's thread."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], object]] = []

    def add(self, *callbacks: Callable[[], object]) -> None:
        """Add callbacks to the end of the list."""
        self._callbacks += callbacks

    def __call__(self) -> None:
        for callback in self._callbacks:
            callback()
