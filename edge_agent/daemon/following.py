"""The service for tracks, zones, lines, rules and their events; imported code where they are used.

Until a pipeline follows anything, this is all there is of it: the rest is not even imported.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..config.settings import Pipeline as PipelineSettings
from ..runtime.pipelines.runner import Runner
from ..runtime.pipelines.sinks import ResultStage
from ..sources.spec import SourceSpec

if TYPE_CHECKING:
    from ..rules.desk import Desk


class Following:
    """Makes what follows the results of a pipeline, and runs what takes its events."""

    name = "events"

    def __init__(self) -> None:
        self._desk: Desk | None = None
        self._made = threading.Condition()
        self._closing = False
        self._actions: threading.Thread | None = None

    @property
    def desk(self) -> Desk | None:
        """Where events go; None: nothing was ever followed."""
        return self._desk

    def stage(
        self, runner: Runner, settings: PipelineSettings, spec: SourceSpec
    ) -> ResultStage | None:
        """Make what follows a pipeline's results, instead of what did before; None: nothing."""
        if self._desk is not None:
            self._desk.close_scene(settings.name, "reloaded")
        if not (settings.follows or self._left(runner)):
            return None
        desk = self._open(runner)
        return desk.open(settings, lossless=spec.lossless) if settings.follows else None

    def forget(self, name: str) -> None:
        """End what lasts in a pipeline that is gone."""
        if self._desk is not None:
            self._desk.close_scene(name, "reloaded")

    def _left(self, runner: Runner) -> bool:
        """Whether an earlier run may have left events that are to be ended."""
        return self._desk is None and (runner.settings.state / "events.json").exists()

    def _open(self, runner: Runner) -> Desk:
        from ..rules.desk import Desk

        with self._made:
            if self._desk is None:
                self._desk = Desk(
                    runner.sinks,
                    runner.client,
                    runner.topics,
                    runner.identity.session,
                    lambda: runner.settings,
                    runner.identity.credible,
                )
                self._made.notify_all()
            return self._desk

    # The service

    def run(self) -> None:
        """Publish events from the first pipeline that follows anything on, until closed."""
        with self._made:
            self._made.wait_for(lambda: self._desk is not None or self._closing)
            desk = self._desk
        if desk is None:
            return
        acting = threading.Thread(target=desk.actions.run, name="actions", daemon=True)
        acting.start()
        desk.run()

    def close(self) -> None:
        """End what lasts, then the thread."""
        with self._made:
            self._closing = True
            self._made.notify_all()
        if self._desk is not None:
            self._desk.close()

    def problems(self) -> list[str]:
        """Return why the device is degraded."""
        return [] if self._desk is None else self._desk.problems()

    def health(self) -> dict[str, Any] | None:
        """Return what health publishes of actions; None: there are none."""
        return None if self._desk is None else self._desk.health()
