"""Requests outside pipelines: they use the same lanes and models, but have separate accounts."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic

from ...core.errors import AgentError, RequestError
from ...core.types import Array, Outcome, Request, Sample, State, Tensors
from .board import Board
from .queue import FrameQueue, Job, M

Region = tuple[int, int, int, int]
_Waiting = tuple[Request, Future[Outcome], Callable[[M], AgentError | None] | None]


class RequestQueue(Generic[M]):
    """A bounded queue of requests for a model. Any thread may call `submit`.

    Its account is on the board under its name. Requests wait while there is no model; an exchange
    of the model loses none.
    """

    def __init__(
        self,
        board: Board[M],
        name: str,
        choose: Callable[[], M | None],
        advance: Callable[[], None],
        *,
        room: int,
        priority: int = 0,
    ) -> None:
        """Start accepting requests; at most *room* of them may wait for a lane."""
        self.name = name
        self.priority = priority
        self.choose = choose
        self.advance = advance
        self.refused = 0
        """Requests refused because the queue was full; they are in no account."""
        self._board = board
        self._waiting: dict[int, _Waiting[M]] = {}
        """Requests waiting for a lane or in one, by number."""
        self._queue: FrameQueue[M] = FrameQueue(
            name, self, room=room, lossless=True, priority=priority
        )
        board.add(self._queue)

    def beside(self) -> tuple[()]:
        return ()

    def suits(self, model: M, sample: Sample) -> bool:
        del model, sample
        return True

    def submit(
        self,
        data: Array,
        *,
        threshold: float | None = None,
        region: Region | None = None,
        tensors: Tensors | None = None,
        raw: bool = False,
        early: object | None = None,
        refuse: Callable[[M], AgentError | None] | None = None,
    ) -> Future[Outcome]:
        """Request the model's findings without waiting.

        The future is canceled when the queue is closed. *data* is a picture, (height, width, 3)
        uint8 BGR, or a signal, (window, channels) float32; with *tensors*, network inputs by name,
        it is any of these. *region* of a picture: x1, y1, x2, y2 in its pixels. *early*: see
        `Sample`. *refuse* returns why the model that has computed it must not answer.

        Raises:
            RequestError: too many requests wait, or the queue is closed.
        """
        future: Future[Outcome] = Future()

        def make(seq: int) -> Sample:
            now, picture = time.monotonic(), tensors is None and data.ndim == 3
            sample = Sample(
                *(data, seq, time.time_ns(), now), picture=picture, early=early, follows=False
            )
            request = Request(sample, threshold, region, State(), None, tensors, raw, foreign=True)
            self._waiting[seq] = request, future, refuse
            return sample

        if not self._board.offer(self._queue, make):
            if self._queue.removed:
                raise RequestError(f"{self.name}: takes no more requests")
            self.refused += 1
            raise RequestError(f"{self.name}: {self._queue.room} requests wait; ask again later")
        return future

    def close(self) -> None:
        """Cancel waiting requests, and let those in a lane finish. May be called twice."""
        if not self._queue.removed:
            self._board.remove(self._queue)
        for _, future, _ in list(self._waiting.values()):
            future.cancel()

    # The route; see `queue.Route`

    def request(self, sample: Sample) -> Request:
        request, future, _ = self._waiting[sample.seq]
        future.set_running_or_notify_cancel()
        return request

    def complete(self, job: Job[M], answer: Outcome | AgentError) -> None:
        _, future, refuse = self._waiting.pop(job.sample.seq)
        failed = isinstance(answer, AgentError)
        self._board.finish(job, None if failed else lambda: None)
        if future.cancelled():
            return
        problem = None if refuse is None else refuse(job.model)
        if problem is not None:
            future.set_exception(problem)
        elif isinstance(answer, AgentError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
