"""All upkeep of the models that serve, in its order: two threads.

"upkeep" does what may take long: it builds engines and makes prepared forms, one after another.
"failover" does what must not wait for that. Within a sequence a task waits until the one before it
is done with the model; a new task is one line here.
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
    """All tasks, and their order."""

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
            active: the models that serve.
            loader: how models are loaded here.
            lanes: whose frames go through them.
            store: in whose folder the prepared forms lie.
            quota: returns the size limit of the store, bytes.
            watched: whether a model of that name is on trial or on probation.
            present: returns keys of everything that takes memory, as long as it exists.
            forget: releases memory kept only for reuse.
            prepared: called before a prepared form is made, when it is ready or cannot be, and when
                an engine that serves has been found sound.
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
                # Whether it is right.
                (engine_check,),
                # How the next start loads it, which takes seconds, then how it serves: compiling it
                # for another engine may take a minute.
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
        """The slow and the prompt task thread; each runs until it is closed."""
        return self._prompt, self._slow

    def wake(self) -> None:
        """Start over with another model that serves."""
        self._slow.wake()

    def prepared(self, name: str) -> str | None:
        """Return the state of the serving model's form under a name, or None if nothing serves."""
        return self._prepare.state(name)

    def planned(self) -> list[PlannedModel]:
        """List the serving models in the way that the next start can load them at once."""
        return self._prepare.planned()
