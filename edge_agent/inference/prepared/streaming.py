"""Runs a network of which only some stages are in memory at a time.

One thread reads ahead, in order, and checks what it reads; the caller computes, and the weights of
stages that have run are dropped. As many of the first stages as fit stay in memory: of a sequence
that is read over and over, keeping a part is the most that memory is good for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...core.errors import EngineError
from ...core.types import Array, Tensors
from ...device.allocator import return_freed_memory
from ..engines.ort_session import Stage, release_early, run_stages
from .artifact import ArtifactError

if TYPE_CHECKING:
    from .load import Load


class StreamingRunner:
    """Runs the stages of an artifact, one call at a time."""

    def __init__(self, load: Load) -> None:
        """Start to read the first stages."""
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
        self._changed = threading.Condition()
        self._read = 0
        """Stages that have been read and checked, counted over all runs."""
        self._done = 0
        """Stages that have been run, likewise."""
        self._seen: set[int] = set()
        """Those to be kept that have been read: they are never read again."""
        self._held = 0
        """Other stages that are in memory."""
        self._problem: BaseException | None = None
        self._closed = False
        self._reader = threading.Thread(target=self._read_on, name="reader of weights", daemon=True)
        self._reader.start()

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

    def _in_memory(self) -> Iterator[tuple[Stage, Any]]:
        """Yield each stage when its weights have been read; drop them when it has run."""
        for index, stage in enumerate(self._stages):
            session = stage.ready()
            self._wait()
            yield stage, session
            self._finished(index)

    def _wait(self) -> None:
        """Wait until the next stage to run has been read."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._read > self._done or self._problem is not None or self._closed
            )
            if self._closed:
                raise EngineError("the network has been closed")
            if self._read <= self._done and self._problem is not None:
                if isinstance(self._problem, ArtifactError):
                    raise self._problem
                raise ArtifactError(f"{self._weights.path}: {self._problem}")

    def _finished(self, index: int) -> None:
        """Drop a stage's weights and let the reader go on."""
        with self._changed:
            self._done += 1
            self._drop(index)
            self._changed.notify_all()

    def _drop(self, index: int) -> None:
        if index >= self._kept:
            self._weights.drop(*self._ranges[index][:2])
            self._held -= 1

    def _start_over(self) -> None:
        """After a run that failed: the next one begins with the first stage again."""
        stages = len(self._ranges)
        with self._changed:
            begin = self._done + -self._done % stages
            for number in range(self._done, min(self._read, begin)):
                self._drop(number % stages)
            self._done, self._read = begin, max(self._read, begin)
            self._changed.notify_all()

    def _read_on(self) -> None:
        weights, stages = self._weights, len(self._ranges)
        try:
            while True:
                with self._changed:
                    # One stage runs while the next is read; no more are in memory.
                    self._changed.wait_for(
                        lambda: (
                            self._closed
                            or (
                                (self._held < 2 or self._read % stages in self._seen)
                                and self._read - self._done < stages
                            )
                        )
                    )
                    if self._closed:
                        return
                    number = self._read
                    index = number % stages
                    in_memory = index in self._seen
                    self._held += index >= self._kept
                if not in_memory:
                    start, end, expected = self._ranges[index]
                    weights.fetch(start, end)
                    weights.check(start, end, expected)
                with self._changed:
                    if index < self._kept:
                        self._seen.add(index)
                    if self._read == number:
                        self._read += 1
                    else:
                        self._drop(index)  # the run has failed meanwhile
                    self._changed.notify_all()
        except BaseException as problem:  # noqa: BLE001 - raised in `run`
            with self._changed:
                self._problem = problem
                self._changed.notify_all()

    def close(self) -> None:
        """Stop the reader."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
