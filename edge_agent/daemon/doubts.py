"""Pipelines' settings without effect: logged once each, and in health if they are grave."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ..config.rule_checks import is_grave
from ..config.surroundings import Surroundings

if TYPE_CHECKING:
    from ..runtime.pipelines.runner import Runner

log = logging.getLogger(__name__)


class Doubts:
    """Logs which settings of pipelines have no effect. Any thread may call it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._logged: set[tuple[str, str]] = set()
        """Pipeline and line of those that have been logged."""
        self._sizes: dict[str, tuple[int, int] | None] | None = None
        """The sizes of pictures, by pipeline, with which they were looked for; None: not yet."""
        self._lock = threading.Lock()

    def log(self) -> None:
        """Log those that are new."""
        runner = self._runner
        with self._lock:
            pipelines = list(runner.pipelines.values())
            self._sizes = {each.name: each.source.size for each in pipelines}
            now = {(each.name, line) for each in pipelines for line in each.doubts()}
            if runner.settings.rules:
                from ..config.reach_checks import lint_combined

                device = runner.settings.device_id
                around = Surroundings(reads=runner.client.feeds.wants, device=device)
                now |= {*lint_combined(runner.settings, around)}
            for name, line in sorted(now - self._logged):
                log.warning("pipeline %s: %s", name, line)
            self._logged = now

    def tick(self) -> None:
        """Log those that show once pictures come or change their size; called about every second.

        Not before the models are loaded.
        """
        sizes = {each.name: each.source.size for each in list(self._runner.pipelines.values())}
        if self._sizes is not None and sizes != self._sizes:
            self.log()

    def problems(self) -> list[str]:
        """Return a line for each filter, rule or second stage that its models cannot serve."""
        on = {each.name for each in self._runner.pipelines.values() if each.settings.enabled}
        logged = sorted(self._logged)
        return [
            f"pipeline {name}: {line}" for name, line in logged if name in on and is_grave(line)
        ]
