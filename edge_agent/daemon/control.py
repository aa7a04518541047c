"""The life cycle of everything apart from the frames: deployments, requests, upkeep, health.

It starts after the first result, and only affects the frames at frame boundaries.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..answers.answers import Answers
from ..core.flight_recorder import PreviousCrash
from ..core.threads import ThreadGroup
from ..delivery.receive.router import Router
from ..delivery.rollout.deployer import Deployer
from ..device.allocator import return_large_blocks
from ..health.report import Health
from ..runtime.pipelines.runner import Runner
from ..serving.verdicts import GOOD_SECONDS
from .announcements import Announcements
from .configure import Configuration
from .inventory import Inventory
from .reload import SettingsReload

log = logging.getLogger(__name__)


class Service(Protocol):
    """Something that runs from the start of the agent to its end.

    `run` may return early; if it raises, the agent ends.
    """

    @property
    def name(self) -> str:
        """The thread's name."""

    def run(self) -> object:
        """Work until closed."""

    def close(self) -> object:
        """Ask `run` to return; must not wait, and may come before `run`."""

    def problems(self) -> list[str]:
        """Return why the device is degraded, as texts for health; empty: nothing is wrong."""


class Services:
    """All services: started in their order, closed in reverse."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services

    def start(self, threads: ThreadGroup) -> None:
        """Start a thread for each."""
        for service in self._services:
            threads.spawn(service.name, service.run)

    def close(self) -> None:
        """Ask all to end, without waiting for their threads."""
        for service in reversed(self._services):
            service.close()

    def problems(self) -> list[str]:
        """Return the problems of all services, in their order."""
        return [problem for service in self._services for problem in service.problems()]


@dataclass(eq=False)
class Control:
    """Recovers, starts, ticks and closes the services that `compose` has built."""

    runner: Runner
    inventory: Inventory
    deployer: Deployer
    transfers: Router
    services: Services
    announcements: Announcements
    health: Health
    settings_reload: SettingsReload
    configuration: Configuration
    answers: Answers
    _first_result_logged: bool = field(default=False, init=False)

    def recover(self, last: PreviousCrash | None) -> None:
        """Resume or undo the last run's deployments; call it before any model is loaded."""
        return_large_blocks()
        self.deployer.recover(last)

    def start(self) -> None:
        """Publish the description of this device, then start the services."""
        self.announcements.info()
        self.announcements.pipelines()
        self.services.start(self.runner.threads)

    def reload(self) -> None:
        """Apply changed settings without touching pipelines that have not changed."""
        self.settings_reload.run()

    def tick(self) -> None:
        """Do the work that is due; called every second or so by the main thread."""
        if self.runner.identity.timeline.age > GOOD_SECONDS:
            self.inventory.verdicts.forgive()
        self._log_first_result()
        self.announcements.doubts.tick()
        self.configuration.tick()
        self.answers.tick()
        if self.runner.is_blocked():
            # Without a pipeline, a running camera, or a model: a later result is not the start's.
            self.runner.identity.timeline.give_up()

    def _log_first_result(self) -> None:
        """Log the steps of the start and publish them with the models, once."""
        steps = self.runner.identity.timeline.steps
        if self._first_result_logged or steps is None:
            return
        self._first_result_logged = True
        words = ", ".join(f"{step} {took:.0f}" for step, took in steps.items())
        log.info("first result %.0f ms after exec (%s)", steps["first_publish"], words)
        self.announcements.models()

    def publish_health(self, watchdog: dict[str, Any]) -> None:
        """Publish the health payload."""
        payload = self.health.payload(watchdog)
        # Lets a reader distinguish current health from that left by a device that hangs.
        payload["interval_s"] = self.runner.settings.health.interval_s
        self.runner.sinks.give(lambda sink: sink.health(payload))

    def drain(self) -> None:
        """Stop taking questions, and answer those in progress."""
        self.answers.drain()

    def suspend(self) -> None:
        """Suspend probations, so that none fails because the agent ends."""
        self.deployer.suspend()

    def close(self) -> None:
        """Ask all services to end."""
        self.services.close()
        self.answers.close()

    def close_transfers(self) -> None:
        """Save the progress of transfers; call it after the threads have ended."""
        self.transfers.close()
