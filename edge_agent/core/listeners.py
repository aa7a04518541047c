"""A list of functions to call when something has changed."""

from __future__ import annotations

from collections.abc import Callable


class Listeners:
    """Calls its listeners in the order in which they were added, in the caller's thread."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], object]] = []

    def add(self, *listeners: Callable[[], object]) -> None:
        """Call these too from now on."""
        self._listeners += listeners

    def __call__(self) -> None:
        for listener in self._listeners:
            listener()
