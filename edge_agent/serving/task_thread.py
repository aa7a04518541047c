"""Upkeep of the models that serve: one thread, and one order that stands where it is made.

A task does one thing to a model, or to all that serves, and returns when it wants to be called
again. It knows no other task: what has to come before it stands before it. A new task is a file of
its own and one line in that order.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from ..core.containment import contained
from ..core.errors import AgentError
from ..inference.model import Model
from .active import ActiveModels, Serving

log = logging.getLogger(__name__)


class ModelTask(Protocol):
    """One thing that is done to each model that serves."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Do the work that is due on a model.

        Returns:
            Seconds until the next call; None: done with this model.
        """


class Task(Protocol):
    """One thing that is done now and then, whatever serves."""

    def step(self) -> float:
        """Do the work that is due; return the seconds until the next call, at most.

        It is also called when another model serves.
        """


class ClosedTask(Task, Protocol):
    """One that has something to finish at the end."""

    def close(self) -> None:
        """Finish it."""


class TaskThread:
    """Calls tasks in their order, until closed.

    Long work holds up what stands after it, in this thread and nowhere else: what must be prompt
    has a thread of its own.
    """

    def __init__(
        self,
        name: str,
        active: ActiveModels,
        *,
        models: Sequence[Sequence[ModelTask]] = (),
        tasks: Sequence[Task] = (),
        problems: Sequence[Callable[[], list[str]]] = (),
        at_end: Sequence[Callable[[], None]] = (),
        closing: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up; no task is called yet.

        Args:
            name: of its thread.
            active: the models that serve.
            models: sequences of tasks for each of them; a task is called when the one before
                it in its sequence is done with the model. Another model begins each of them again.
            tasks: called after them, in every round.
            problems: of the tasks, for health.
            at_end: called in the thread when it has been closed.
            closing: set by `close`, for tasks that check it in the middle of long work.
            clock: monotonic seconds.
        """
        self.name = name
        self._active = active
        self._sequences = models
        self._tasks = tasks
        self._problems = problems
        self._at_end = at_end
        self._closing = threading.Event() if closing is None else closing
        self._clock = clock
        self._woken = threading.Event()
        self._due: dict[ModelTask, WeakKeyDictionary[Model, float]] = {
            task: WeakKeyDictionary() for sequence in models for task in sequence
        }
        """When each task is to be called again for a model; infinity: it is done with it."""
        self._left: WeakKeyDictionary[Model, str] = WeakKeyDictionary()
        """Models that a task has failed on, and why."""

    def wake(self) -> None:
        """Start a round at once: something has changed."""
        self._woken.set()

    def close(self) -> None:
        """End, as soon as the task that runs returns."""
        self._closing.set()
        self._woken.set()

    def problems(self) -> list[str]:
        """Return the problems of the serving models, as texts for health."""
        serving = {id(each.model) for each in self._active.all()}
        left = [why for model, why in list(self._left.items()) if id(model) in serving]
        return left + [problem for each in self._problems for problem in each()]

    def run(self) -> None:
        """Call the tasks whenever they are due, until closed."""
        try:
            while not self._closing.is_set():
                pause = self.round()
                self._woken.wait(None if math.isinf(pause) else pause)
                self._woken.clear()
        finally:
            for each in self._at_end:
                each()

    def round(self) -> float:
        """Call each task that is due, once; return the seconds until the next one is."""
        pause = math.inf
        for sequence in self._sequences:
            for serving in self._active.all():
                pause = min(pause, self._see_to(serving, sequence))
        for task in self._tasks:
            if self._closing.is_set():
                break
            pause = min(pause, task.step())
        return pause

    def _see_to(self, serving: Serving, sequence: Sequence[ModelTask]) -> float:
        """Call a sequence's tasks for one model; return the seconds until the next one is due."""
        model = serving.model
        if model is None:
            return math.inf
        for task in sequence:
            if self._closing.is_set():
                break
            due = self._due[task].get(model, 0.0)
            if math.isinf(due):
                continue
            wait = due - self._clock()
            if wait > 0:
                return wait
            try:
                with contained(f"model {model.id}: upkeep"):
                    pause = task.run(serving, model)
            except AgentError as problem:
                # It serves as it is: the other models get their turn.
                log.error("%s", problem)  # noqa: TRY400 - one line, no traceback
                self._left[model] = str(problem)
                pause = None
            self._due[task][model] = math.inf if pause is None else self._clock() + pause
            if serving.model is not model:
                return 0.0  # the one in its place goes through all of them
            if pause is not None:
                return pause
        return math.inf
