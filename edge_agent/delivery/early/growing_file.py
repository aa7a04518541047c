"""A file that another process fills from its front: a read waits until its bytes are there.

Only what the writer has authenticated counts as there; it says how much that is in `PROGRESS`.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading

from ...core.errors import AgentError

PROGRESS = struct.Struct("<Q?")
"""Bytes from the beginning that are there, and whether those are there that were wished for."""


class UnfitError(AgentError):
    """A model that cannot be run while it arrives; nothing is wrong with it."""


class GrowingFile:
    """The members of a package, in the file of its transfer."""

    def __init__(self, descriptor: int) -> None:
        """Map the file, which has its full length from the beginning; it may lose its name."""
        self.length = os.fstat(descriptor).st_size
        self.buffer = mmap.mmap(descriptor, self.length, mmap.MAP_SHARED, mmap.PROT_READ)
        self._have = 0
        self._wish: tuple[int, int] | None = None
        self._granted = False
        self._changed = threading.Condition()

    def grow(self, have: int, *, granted: bool) -> None:
        """Record how much is there.

        Args:
            have: bytes from the beginning.
            granted: the bytes of `wish` are there, too.
        """
        with self._changed:
            self._have = max(self._have, have)
            self._granted |= granted
            self._changed.notify_all()

    def wish(self, start: int, stop: int) -> None:
        """Record which bytes are to come before their turn; once."""
        self._wish = (start, stop)

    def wait(self, start: int, stop: int) -> None:
        """Wait until some bytes are there.

        Raises:
            UnfitError: they lie outside the file.
        """
        if not 0 <= start <= stop <= self.length:
            raise UnfitError(f"bytes {start} to {stop} of {self.length}")
        if stop <= self._have:
            return
        wished = self._wish is not None and self._wish[0] <= start and stop <= self._wish[1]
        with self._changed:
            self._changed.wait_for(lambda: stop <= self._have or (wished and self._granted))

    def read(self, start: int, stop: int) -> bytes:
        """Return some bytes, as soon as they are there."""
        self.wait(start, stop)
        return self.buffer[start:stop]

    def __getitem__(self, place: slice, /) -> bytes:
        return self.read(place.start, place.stop)
