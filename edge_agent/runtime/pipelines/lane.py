"""An inference lane: one thread that takes frames off the board and runs them through models."""

from __future__ import annotations

import time

from ...inference.model import Model
from ..scheduler.board import Board, Job


def run(board: Board[Model]) -> None:
    """Infer frames in turn until the board is closed: the work of one lane."""
    while (job := board.take()) is not None:
        begun = time.monotonic()
        infer(board, job)
        if not board.settled.is_set():
            # Models are still being loaded at the start: they get half of the time.
            board.settled.wait(time.monotonic() - begun)


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
