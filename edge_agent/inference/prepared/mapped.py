"""The weights of an artifact, mapped: prefetched and checked range by range, and dropped again.

Reading a range to check it is what brings it into memory: the engine then computes on the very
bytes that were checked.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from weakref import finalize

from xxhash import xxh3_64_hexdigest

from .artifact import ArtifactError

_POPULATE_READ = 22
"""madvise since Linux 5.14, not yet among mmap's constants: maps pages before they are touched."""
_AHEAD = 16 * 1024 * 1024
_PAGE = 4096


class MappedWeights:
    """A file of weights. The buffer must live as long as any session that computes on it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Once it is not referred to any more: a thread may still read for an engine that is closed.
        finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        self._map = mmap.mmap(self._file, size, mmap.MAP_SHARED, mmap.PROT_READ) if size else None
        self.buffer: mmap.mmap | bytes = self._map or b""

    def fetch(self, start: int, end: int) -> None:
        """Let the kernel read a range ahead, without waiting where the kernel does not make us."""
        os.posix_fadvise(self._file, start, end - start, os.POSIX_FADV_WILLNEED)

    def check(self, start: int, end: int, expected: str) -> None:
        """Read a range and compare its checksum.

        Raises:
            ArtifactError: it is another.
        """
        if self._map is None or end == start:
            return
        with suppress(OSError):  # an older kernel: pages are mapped as they are touched
            self._map.madvise(_POPULATE_READ, start, end - start)
        with memoryview(self._map)[start:end] as content:
            found = xxh3_64_hexdigest(content)
        if found != expected:
            raise ArtifactError(f"{self.path}: bytes {start} to {end} are damaged")

    def drop(self, start: int, end: int) -> None:
        """Return the memory of a range; it is read again when it is needed."""
        end -= end % _PAGE
        if self._map is not None and end > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
            os.posix_fadvise(self._file, start, end - start, os.POSIX_FADV_DONTNEED)


class WeightCheck:
    """Checks ranges of the weights in order, in a thread of its own."""

    def __init__(self, weights: MappedWeights, ranges: Sequence[tuple[int, int, str]]) -> None:
        """Start the thread.

        Args:
            weights: what to check.
            ranges: first byte, the one after the last, and the checksum of each.
        """
        self._weights = weights
        self._ranges = ranges
        self._passed = [threading.Event() for _ in ranges]
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="check of weights", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for index, (start, end, expected) in enumerate(self._ranges):
                # The disk is kept busy while this range is being hashed.
                self._weights.fetch(start, min(end + _AHEAD, self._ranges[-1][1]))
                self._weights.check(start, end, expected)
                self._passed[index].set()
        except BaseException as problem:  # noqa: BLE001 - raised in `wait`
            self._problem = problem
        finally:
            for event in self._passed:
                event.set()

    def wait(self, index: int = -1) -> None:
        """Wait until the ranges up to this one have been checked.

        Raises:
            ArtifactError: one is not.
        """
        if not self._passed:
            return
        self._passed[index].wait()
        if self._problem is not None:
            if isinstance(self._problem, ArtifactError):
                raise self._problem
            raise ArtifactError(f"{self._weights.path}: cannot be read: {self._problem}")
