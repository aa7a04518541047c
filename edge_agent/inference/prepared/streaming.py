"""Runs a network with only some stages in memory at a time.

One thread reads ahead, in order, and checks the bytes; the caller computes, and the weights of
stages that have run are dropped. As many of the first stages as fit stay in memory: for a sequence
that is read repeatedly, keeping a fixed part is the best use of memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from ...core.errors import EngineError
from ...core.types import Array, Tensors
from ...device.allocator import return_freed_memory
from ..engines.ort_session import Stage, release_early, run_stages
from .artifact import ArtifactError

if TYPE_CHECKING:
    from .load import Load

READER = "reader of weights"
"""Prefix of the name of the thread that reads ahead."""


class StreamingRunner:
    """Runs the stages of an artifact, one call at a time."""

    def __init__(self, load: Load) -> None:
        """Start reading the first stage."""
        # Streaming means that memory is scarce.
        return_freed_memory()
        table = load.artifact.table
        self._stages = load.stages
        self._weights = load.weights
        self._outputs = [name for name, _, _ in table["outputs"]]
        release_early(self._stages, self._outputs)
        self._ranges: list[tuple[int, int, str]] = [
            tuple(stage["range"]) for stage in table["stages"]
        ]
        self._kept: int = table["kept"]
        """How many of the first stages stay in memory."""
        self._running = threading.Lock()
        self._reader = ThreadPoolExecutor(1, READER)
        self._reads: dict[int, Future[None]] = {}
        """By stage: the read of its weights, finished or in progress."""
        self._read(0)

    def run(self, tensors: Tensors) -> list[Array]:
        """Run the network once; return its outputs in order.

        Raises:
            ArtifactError: a stage is damaged.
            EngineError: closed.
        """
        with self._running:
            try:
                return run_stages(self._in_memory(), tensors, self._outputs)
            except BaseException:
                self._start_over()
                raise

    def _in_memory(self) -> Iterator[Stage]:
        """Yield each stage once its weights have been read; drop them after it has run."""
        for index, stage in enumerate(self._stages):
            reading = self._read(index)
            # One stage runs while the next is read; otherwise only kept stages are in memory.
            self._read(self._after(index))
            try:
                reading.result()
            except CancelledError:
                raise EngineError("the network has been closed") from None
            yield stage
            if index >= self._kept:
                self._drop(index)

    def _after(self, index: int) -> int:
        """Return the index of the next stage to read: kept stages are not read again."""
        after = (index + 1) % len(self._stages)
        return self._kept if after < self._kept and after in self._reads else after

    def _read(self, index: int) -> Future[None]:
        """Return the read of a stage's weights, starting it if necessary."""
        if index not in self._reads:
            try:
                self._reads[index] = self._reader.submit(self._fetch, *self._ranges[index])
            except RuntimeError:  # the reader is closed
                raise EngineError("the network has been closed") from None
        return self._reads[index]

    def _fetch(self, start: int, end: int, expected: str) -> None:
        try:
            self._weights.fetch(start, end)
            self._weights.check(start, end, expected)
        except OSError as problem:
            raise ArtifactError(
                f"{self._weights.path}: cannot be read: {problem.strerror}"
            ) from problem

    def _drop(self, index: int) -> None:
        del self._reads[index]
        self._weights.drop(*self._ranges[index][:2])

    def _start_over(self) -> None:
        """Reset after a failed run, so that the next one begins with the first stage."""
        for index, reading in list(self._reads.items()):
            # Waits, because a stage must not be dropped while it is being read.
            if reading.cancelled() or reading.exception() is not None or index >= self._kept:
                self._drop(index)

    def close(self) -> None:
        """Stop the reader."""
        self._reader.shutdown(wait=False, cancel_futures=True)
