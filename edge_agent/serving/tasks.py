"""All upkeep tasks of the serving models in order, in two threads.

"upkeep" does long work: it builds engines and creates prepared forms, one at a time. "failover"
does urgent work. Within a sequence a task waits until the previous one is done with the model; a
new task is one line here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ..models.store.store import Store
from .active import ActiveModels, Lanes
from .batch_setup import BatchSetup
from .challenger import Challenger
from .engine_check import EngineCheck, FormCheck
from .engine_upgrade import EngineUpgrade, FormUpgrade
from .failover import Failover
from .integrity import IntegrityCheck
from .loader import ModelLoader
from .memory import MemoryRelease
from .planned_model import PlannedModel
from .prepare_task import PrepareTask
from .task_thread import ClosedTask, TaskThread


class Upkeep:
    """All tasks and their order."""

    def __init__(
        self,
        active: ActiveModels,
        loader: ModelLoader,
        lanes: Lanes,
        store: Store,
        *,
        quota: Callable[[], int],
        watched: Callable[[str], bool],
        present: Callable[[], AbstractSet[object]],
        forget: Callable[[], None],
        prepared: Callable[[], None],
        plan: ClosedTask,
    ) -> None:
        """Start with the models that serve now.

        Args:
            active: the serving models.
            loader: loads models on this device.
            lanes: the lanes that run the models.
            store: its folder contains the prepared forms.
            quota: returns the size limit of the store, bytes.
            watched: returns whether a model name is on trial or on probation.
            present: returns keys of everything that uses memory, as long as it exists.
            forget: releases memory kept only for reuse.
            prepared: called before a prepared form is created, when it is ready or has failed, and
                when a serving engine was found correct.
            plan: writes the plan of the next start.
        """
        closing, idle_s = threading.Event(), loader.engines.profile.unload_idle_s
        challenger = Challenger(active)
        self._prepare = PrepareTask(store, active, loader, quota, prepared, closing)
        failover, integrity = Failover(active, loader), IntegrityCheck(store.root, active)
        engine_check = EngineCheck(active, loader, prepared)
        self._slow = TaskThread(
            "upkeep",
            active,
            models=(
                # Whether it is correct.
                (engine_check,),
                # First how the next start loads it, which takes seconds, then how it serves:
                # compiling it for another engine may take a minute.
                (
                    self._prepare,
                    FormCheck(loader, prepared),
                    EngineUpgrade(active, loader, challenger, closing),
                    BatchSetup(active, loader, lanes),
                    FormUpgrade(active, loader, challenger, watched),
                ),
            ),
            tasks=(challenger, self._prepare, plan, integrity),
            problems=(integrity.problems, engine_check.problems),
            at_end=(
                self._prepare.close,
                challenger.close,
                plan.close,
            ),
            closing=closing,
        )
        self._prompt = TaskThread(
            "failover",
            active,
            tasks=(
                failover,
                MemoryRelease(active, idle_s, present=present, forget=forget),
            ),
            problems=(failover.problems,),
        )

    @property
    def threads(self) -> tuple[TaskThread, TaskThread]:
        """The slow and the urgent task thread; each runs until closed."""
        return self._prompt, self._slow

    def wake(self) -> None:
        """Start a round at once because the serving models have changed."""
        self._slow.wake()

    def prepared(self, name: str) -> str | None:
        """Return the state of the serving model's form under a name, or None if nothing serves."""
        return self._prepare.state(name)

    def planned(self) -> list[PlannedModel]:
        """List the serving models with the fastest way to load each at the next start."""
        return self._prepare.planned()
