"""Running a network of which only some stages are in memory at a time.

One thread reads ahead, in order, and checks what it reads; the caller computes, and what has been
computed on is dropped. As many of the first stages as fit stay where they are: of a sequence that
is read over and over, keeping a part is the most that memory is good for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ...core.errors import EngineError
from ...core.types import Array, Tensors
from ...device.resources import return_freed_memory
from .artifact import ArtifactError

if TYPE_CHECKING:
    from .load import Load


class StreamingRunner:
    """Runs the stages of a form; calls take turns."""

    def __init__(self, begun: Load) -> None:
        """Begin to read the first stages."""
        # Who has to run a network in parts has no memory to keep.
        return_freed_memory()
        table = begun.artifact.table
        self._begun = begun
        self._ranges: list[tuple[int, int, str]] = [
            tuple(stage["range"]) for stage in table["stages"]
        ]
        self._kept: int = table["kept"]
        """How many of the first stages stay in memory."""
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._read = 0
        """Stages that have been read and checked, counted over all runs."""
        self._done = 0
        """Stages that have been computed, likewise."""
        self._seen: set[int] = set()
        """Those to be kept that have been read: they are never read again."""
        self._held = 0
        """Other stages that are in memory."""
        self._problem: BaseException | None = None
        self._closed = False
        self._reader = threading.Thread(target=self._read_on, name="reader of weights", daemon=True)
        self._reader.start()

    def run(self, tensors: Tensors) -> list[Array]:
        """Run the network once; gives its outputs in order.

        Raises:
            ArtifactError: a stage is damaged.
            EngineError: closed.

        """
        import onnxruntime as ort

        table = self._begun.artifact.table
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in tensors.items()}
        wanted = [name for name, _, _ in table["outputs"]]
        with self._turn:
            try:
                for index, part in enumerate(self._begun.parts):
                    session = part.ready()
                    self._wait()
                    values.update(part.run(session, values))
                    self._finished(index)
                    later = {n for other in self._begun.parts[index + 1 :] for n in other.takes}
                    values = {n: v for n, v in values.items() if n in later or n in wanted}
            except BaseException:
                self._start_over()
                raise
        return [values[name].numpy() for name in wanted]

    def _wait(self) -> None:
        """Wait until the next stage to compute has been read."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._read > self._done or self._problem is not None or self._closed
            )
            if self._closed:
                raise EngineError("the network has been closed")
            if self._read <= self._done and self._problem is not None:
                if isinstance(self._problem, ArtifactError):
                    raise self._problem
                raise ArtifactError(f"{self._begun.weights.path}: {self._problem}")

    def _finished(self, index: int) -> None:
        """Drop a stage's weights and let the reader go on."""
        with self._changed:
            self._done += 1
            self._drop(index)
            self._changed.notify_all()

    def _drop(self, index: int) -> None:
        if index >= self._kept:
            self._begun.weights.drop(*self._ranges[index][:2])
            self._held -= 1

    def _start_over(self) -> None:
        """After a run that broke off: the next one begins with the first stage again."""
        stages = len(self._ranges)
        with self._changed:
            begin = self._done + -self._done % stages
            for number in range(self._done, min(self._read, begin)):
                self._drop(number % stages)
            self._done, self._read = begin, max(self._read, begin)
            self._changed.notify_all()

    def _read_on(self) -> None:
        weights, stages = self._begun.weights, len(self._ranges)
        try:
            while True:
                with self._changed:
                    # One stage is computed on while the next is read; no more are here.
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
                    here = index in self._seen
                    self._held += index >= self._kept
                if not here:
                    start, end, expected = self._ranges[index]
                    weights.fetch(start, end)
                    weights.check(start, end, expected)
                with self._changed:
                    if index < self._kept:
                        self._seen.add(index)
                    if self._read == number:
                        self._read += 1
                    else:
                        self._drop(index)  # the run has broken off meanwhile
                    self._changed.notify_all()
        except BaseException as problem:  # noqa: BLE001 - raised in `run`
            with self._changed:
                self._problem = problem
                self._changed.notify_all()

    def close(self) -> None:
        """End the reader."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
