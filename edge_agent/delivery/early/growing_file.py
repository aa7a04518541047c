"""A file that another process fills from its front: a read waits until its bytes are there.

Only what the writer has authenticated counts as there; it says how much that is in `PROGRESS`.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct

from ...core.errors import AgentError

PROGRESS = struct.Struct("<Q?")
"""Bytes from the beginning that are there, and whether those are there that were wished for."""


class UnfitError(AgentError):
    """A model that cannot be run while it arrives; nothing is wrong with it."""


class GrowingFile:
    """The members of a package, in the file of its transfer. Used by one thread."""

    def __init__(self, progress: socket.socket) -> None:
        """Map the file, which may have lost its name.

        *progress* brings its descriptor, then how far it is, in records of `PROGRESS`. It has its
        full length from the beginning.
        """
        _, (descriptor,), _, _ = socket.recv_fds(progress, PROGRESS.size, 1)
        try:
            self.length = os.fstat(descriptor).st_size
            self.buffer = mmap.mmap(descriptor, self.length, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._progress = progress
        self._have = 0
        self._wish = (0, 0)
        self._granted = False

    def wish(self, start: int, stop: int) -> None:
        """Record which bytes are to come before their turn; once."""
        self._wish = (start, stop)

    def wait(self, start: int, stop: int) -> None:
        """Wait until some bytes are there.

        Raises:
            UnfitError: they lie outside the file, or will not come.
        """
        if not 0 <= start <= stop <= self.length:
            raise UnfitError(f"bytes {start} to {stop} of {self.length}")
        wished = self._wish[0] <= start and stop <= self._wish[1]
        while not (stop <= self._have or (wished and self._granted)):
            record = self._progress.recv(PROGRESS.size)
            if not record:
                raise UnfitError("the rest of it did not come")
            have, granted = PROGRESS.unpack(record)
            self._have = max(self._have, have)
            self._granted |= granted

    def read(self, start: int, stop: int) -> bytes:
        """Return some bytes, as soon as they are there."""
        self.wait(start, stop)
        return self.buffer[start:stop]

    def __getitem__(self, place: slice, /) -> bytes:
        return self.read(place.start, place.stop)
