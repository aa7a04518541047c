"""An inference lane: one thread that takes frames off the board and runs them through models."""

from __future__ import annotations

import time

from ...inference.model import Model
from ..scheduler.board import Board, Job


class Lane:
    """The work of one lane until the board is closed."""

    def __init__(self, board: Board[Model]) -> None:
        self._board = board
        self.busy_since: float | None = None
        """When the present frames began, monotonic seconds; None: idle. For the watchdog."""

    def run(self) -> None:
        """Infer frames in turn until closed."""
        while (job := self._board.take()) is not None:
            self.busy_since = time.monotonic()
            infer(self._board, job)
            took = time.monotonic() - self.busy_since
            self.busy_since = None
            if not self._board.settled.is_set():
                # Models are still being loaded at the start: they get half of the time.
                self._board.settled.wait(took)


def infer(board: Board[Model], job: Job[Model]) -> None:
    """Run a frame through its model, in a batch with others if possible, and complete each."""
    model = job.model
    if model.together == 1:
        route = job.queue.route
        route.complete(job, model.answer(route.request(job.sample)))
        return
    jobs = board.gather(job)
    answers = model.infer_all([one.queue.route.request(one.sample) for one in jobs])
    for one, answer in zip(jobs, answers, strict=True):
        one.queue.route.complete(one, answer)
