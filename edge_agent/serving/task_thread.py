"""Upkeep of the serving models: one thread that calls tasks in a fixed order.

A task does one thing to a model, or to all serving models, and returns when to call it again. It is
independent of other tasks: only the order determines what runs before it. A new task is a separate
file and one line in that order.
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
    """A task for each serving model."""

    def run(self, serving: Serving, model: Model) -> float | None:
        """Do the work that is due on a model.

        Returns:
            Seconds until the next call; None: done with this model.
        """


class Task(Protocol):
    """A task that runs from time to time, whichever models serve."""

    def step(self) -> float:
        """Do the work that is due; return the maximum seconds until the next call.

        It is also called when another model serves.
        """


class ClosedTask(Task, Protocol):
    """A task that must finish something at the end."""

    def close(self) -> None:
        """Finish the task."""


class TaskThread:
    """Calls tasks in order until closed.

    Long work delays the later tasks of this thread only: urgent tasks have their own thread.
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
        """Set up without calling any task.

        Args:
            name: the name of the thread.
            active: the models that serve.
            models: sequences of tasks for each model; a task is called when the previous one in
                its sequence is done with the model. A new model starts every sequence again.
            tasks: tasks called after these in every round.
            problems: functions that return the tasks' problems, for health.
            at_end: functions called in the thread after it was closed.
            closing: event set by `close`, for tasks that check it during long work.
            clock: returns monotonic seconds.
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
        """When to call each task again for a model; infinity: it is done with it."""
        self._left: WeakKeyDictionary[Model, str] = WeakKeyDictionary()
        """Models on which a task has failed, and why."""

    def wake(self) -> None:
        """Start a round at once because something has changed."""
        self._woken.set()

    def close(self) -> None:
        """End as soon as the running task returns."""
        self._closing.set()
        self._woken.set()

    def problems(self) -> list[str]:
        """Return the problems of the serving models, as texts for health."""
        serving = {id(each.model) for each in self._active.all()}
        left = [why for model, why in list(self._left.items()) if id(model) in serving]
        return left + [problem for each in self._problems for problem in each()]

    def run(self) -> None:
        """Call the tasks when they are due, until closed."""
        try:
            while not self._closing.is_set():
                pause = self.round()
                self._woken.wait(None if math.isinf(pause) else pause)
                self._woken.clear()
        finally:
            for each in self._at_end:
                each()

    def round(self) -> float:
        """Call each due task once; return the seconds until the next one is due."""
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
                # It serves as it is; the other models get their turn.
                log.error("%s", problem)  # noqa: TRY400 - one line, no traceback
                self._left[model] = str(problem)
                pause = None
            self._due[task][model] = math.inf if pause is None else self._clock() + pause
            if serving.model is not model:
                return 0.0  # its replacement goes through all of them
            if pause is not None:
                return pause
        return math.inf
