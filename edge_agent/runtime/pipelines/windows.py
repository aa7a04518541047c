"""Cuts a pipeline's signal into windows and puts them on the board."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from ...core.errors import ModelError, SampleError, SourceError
from ...core.types import Reading, Sample
from ...inference.model import Model
from ...serving.active import Serving
from ...sources.spec import SourceSpec
from ..scheduler.board import Board, FrameQueue
from .attempt import Attempt
from .rate import Rate

if TYPE_CHECKING:
    from ...inference.preprocess.windowing import Windower


class _Capture(Protocol):
    """What reads the signal."""

    spec: SourceSpec
    queue: FrameQueue[Model]
    board: Board[Model]
    servings: Sequence[Serving]
    rate: Rate
    wait_credit: Callable[[threading.Event], bool]

    def pace(self, attempt: Attempt) -> bool:
        """Pace a lossless source; False when it must stop."""

    def refuse(self, problem: SampleError, attempt: Attempt, windows: Windows | None) -> None:
        """Count a reading that cannot be used."""


class MisfitError(SourceError):
    """The source's data does not fit the model: opening it again would not help."""


class Windows:
    """Cuts a signal into windows for the pipeline's model; a new model may need other windows."""

    def __init__(self, capture: _Capture) -> None:
        self._capture = capture
        self._spec: object = None
        self._windower: Windower | None = None
        self._fits = False
        """Whether it has taken a reading."""

    def put(self, reading: Reading, attempt: Attempt) -> bool:
        """Put every window that *reading* completes on the board; False when it must stop.

        A reading of a live source that does not fit is refused; others may fit.

        Raises:
            MisfitError: a recording does not fit.
        """
        model = self._model(attempt)
        if model is None:
            return False
        spec = model.manifest.input
        # It is nearly always the same object, and comparing two takes as long as a reading.
        if self._windower is None or (spec is not self._spec and spec != self._spec):
            self.end()
            self._fits = False
            try:
                self._windower = model.windower(reading.columns)
            except ModelError as problem:
                return self._misfit(model, problem, attempt)
            self._spec = spec
        if reading.gap:
            self.end("gap")
        try:
            for part in self._windower.usable(reading):
                if isinstance(part, SampleError):
                    self._refuse(part, attempt)
                elif not all(self._put(w, part, attempt) for w in self._windower.push(part)):
                    return False
        except ModelError as problem:
            return self._misfit(model, problem, attempt)
        model.stats.misfit = None
        self._fits = True
        return True

    def finish(self, attempt: Attempt) -> bool:
        """Put the windows that the end of the signal completes; False when it must stop."""
        ended = () if self._windower is None else self._windower.finish()
        return all(self._put(window, None, attempt) for window in ended)

    def _put(self, window: Sample, last: Reading | None, attempt: Attempt) -> bool:
        """Put a window that ends in the reading *last* on the board; False when it must stop."""
        capture = self._capture
        if not capture.spec.lossless:
            if capture.rate.due(time.monotonic()):
                taken = None if last is None else last.capture
                return capture.board.put(
                    capture.queue, lambda seq: replace(window, seq=seq, capture=taken)
                )
            capture.board.drop(capture.queue, "rate", follows=window.follows)
            return True
        if not (capture.wait_credit(attempt.closing) and capture.pace(attempt)):
            return False
        return capture.board.put(capture.queue, lambda seq: replace(window, seq=seq))

    def _misfit(self, model: Model, problem: ModelError, attempt: Attempt) -> bool:
        """Refuse a reading that does not fit; a live source may still recover.

        Raises:
            MisfitError: a recording cannot.
        """
        text = f"{model.id} does not fit this source: {problem}"
        model.stats.errors += not self._fits  # else it is the source that has changed
        model.stats.misfit = text
        if not self._capture.spec.live:
            raise MisfitError(text) from None
        self._refuse(SampleError(text), attempt)
        return True

    def _refuse(self, problem: SampleError, attempt: Attempt) -> None:
        """Refuse a row or a message that the model cannot take; no window may span it."""
        self._capture.refuse(problem, attempt, None)
        self.end("gap" if self._capture.spec.live else "partial", skipped=True)

    def _model(self, attempt: Attempt) -> Model | None:
        """Wait for a model, which determines the windows."""
        while not attempt.closing.is_set():
            for serving in self._capture.servings:
                if serving.model is not None:
                    return serving.model
            attempt.closing.wait(0.02)
        return None

    def end(self, why: Literal["partial", "gap"] = "partial", *, skipped: bool = False) -> None:
        """Count rows that are in no window; the next rows do not continue them.

        *skipped*: only a row between them cannot be used, see `Windower.skip`.
        """
        if self._windower is not None:
            if self._windower.rest:
                self._capture.board.drop(self._capture.queue, why)
            if skipped:
                self._windower.skip()
            else:
                self._windower.reset()
