"""The service for tracks, zones, lines, rules, and events, whose code is imported when needed.

Until a pipeline needs a rule engine, only this module is imported.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..config.schedule import holds
from ..config.settings import Pipeline as PipelineSettings
from ..runtime.pipelines.runner import Runner
from ..runtime.pipelines.sinks import ResultStage
from ..sources.spec import SourceSpec

if TYPE_CHECKING:
    from ..rules.asking import AskLocal
    from ..rules.dispatcher import EventDispatcher

JOURNAL_ENDS = (".json", ".log", ".beside.json", ".beside.log")


class EventService:
    """Makes the rule engines of pipelines, and runs the dispatcher of events."""

    name = "events"

    def __init__(self) -> None:
        self.dispatcher: EventDispatcher | None = None
        """None: nothing has needed it yet."""
        self._local: AskLocal | None = None
        """Asks language models of this device; see `Asking`."""
        self._made = threading.Condition()
        self._closing = False

    def stage(
        self, runner: Runner, settings: PipelineSettings, spec: SourceSpec, *, running: bool
    ) -> ResultStage | None:
        """Make a pipeline's rule engine, replacing the one it has; None: it needs none.

        *running*: its source goes on, so the engine that it has goes on with the new rules.
        """
        if running and settings.needs_rule_engine and self.dispatcher is not None:
            engine = self.dispatcher.engines.apply(settings)
            if engine is not None:
                return engine
        self.forget(settings.name)
        if not (settings.needs_rule_engine or self._left(runner)):
            return None
        engines = self.open(runner).engines
        return engines.open(settings, apart=spec.apart) if settings.needs_rule_engine else None

    def forget(self, name: str) -> None:
        """End the events of a pipeline that was removed, or has other settings now."""
        if self.dispatcher is not None:
            self.dispatcher.engines.close(name, "reloaded")

    def _left(self, runner: Runner) -> bool:
        """Whether an earlier run may have left events that must be ended."""
        state = runner.settings.state
        files = (state / f"events{end}" for end in JOURNAL_ENDS)
        return self.dispatcher is None and any(each.exists() for each in files)

    def open(self, runner: Runner) -> EventDispatcher:
        """Return the dispatcher of events, which the first call makes."""
        from ..rules.dispatcher import EventDispatcher

        with self._made:
            if self.dispatcher is None:
                self.dispatcher = EventDispatcher(
                    runner.sinks,
                    runner.client,
                    runner.topics,
                    runner.identity.session,
                    lambda: runner.settings,
                    runner.identity.credible,
                    lambda rule, at: holds(rule, at, runner.common.mode.current),
                    waiting=runner.board.waiting_for_disk,
                )
                self.dispatcher.engines.silent_since = runner.silent_since
                self.dispatcher.engines.is_unknown = runner.is_unknown
                self.dispatcher.asking.local = self._local
                self._made.notify_all()
            return self.dispatcher

    def ask_by(self, local: AskLocal) -> None:
        """Set the function that asks language models of this device; see `Asking.local`."""
        with self._made:
            self._local = local
            if self.dispatcher is not None:
                self.dispatcher.asking.local = local

    # The service

    def run(self) -> None:
        """Dispatch events, once the dispatcher is needed, until closed."""
        with self._made:
            self._made.wait_for(lambda: self.dispatcher is not None or self._closing)
            dispatcher = self.dispatcher
        if dispatcher is None:
            return
        threading.Thread(target=dispatcher.actions.run, name="actions", daemon=True).start()
        threading.Thread(target=dispatcher.asking.run, name="asking", daemon=True).start()
        dispatcher.run()

    def close(self) -> None:
        """End the ongoing events, then the thread."""
        with self._made:
            self._closing = True
            self._made.notify_all()
        if self.dispatcher is not None:
            self.dispatcher.close()

    def problems(self) -> list[str]:
        """Return why the device is degraded."""
        return [] if self.dispatcher is None else self.dispatcher.problems()

    def health(self) -> dict[str, Any]:
        """Return the keys of health that concern events."""
        return {} if self.dispatcher is None else self.dispatcher.health()
