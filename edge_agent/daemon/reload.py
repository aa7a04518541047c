"""Applies changed settings while the agent runs (SIGHUP); others are not touched.

Changes that cannot be applied take effect at the next start, and the log says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..answers.answers import Answers
from ..answers.http_listener import HttpListener
from ..config.settings import Settings, keep_until_restart
from ..core import systemd
from ..core.errors import UsageError
from ..core.logs import ANSWER
from ..core.text import counted
from ..health.prometheus import MetricsPort
from ..mqtt.tls import Certificates
from ..runtime.pipelines.runner import Runner
from ..sources.spec import parse_source
from .announcements import Announcements
from .fast_start.plan_writer import PlanWriter

log = logging.getLogger(__name__)


def _proceed() -> None:
    """Tell systemd that a reload gets on.

    Each pipeline's last events are written first: where the disk takes seconds for that, all of
    them take longer than the watchdog waits.
    """
    systemd.notify("WATCHDOG=1")


@dataclass(eq=False)
class SettingsReload:
    """Reads the settings again and applies the changes."""

    runner: Runner
    plan_writer: PlanWriter
    announcements: Announcements
    metrics: MetricsPort
    http: HttpListener
    reread: Callable[[], Settings]
    file: str | None
    lazy: bool
    gone: Callable[[str], object]
    answers: Answers
    _refused: str | None = field(default=None, init=False)
    """The error in the settings when they were last read again."""

    def problems(self) -> list[str]:
        """Return a warning, with the reason, if the settings in effect differ from the file's."""
        overrides, mode = self.runner.overrides, self.runner.common.mode
        known = [*overrides.ignored, *filter(None, (overrides.lost, mode.lost))]
        if self._refused is None or self.plan_writer.is_put_back():
            return known
        return [
            *known,
            f"settings: changed, but not taken over: {self._refused}; mend, then reload",
        ]

    def run(self) -> None:
        """Apply the changes; wrong settings change nothing."""
        systemd.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        runner = self.runner
        before = runner.settings
        try:
            self.plan_writer.reread()
            settings, certificates = self._read()
        except UsageError as problem:
            log.error("the settings stay as they were: %s", problem, extra=ANSWER)  # noqa: TRY400 - one line, no traceback
            self._refused = str(problem)
            systemd.notify("READY=1", f"STATUS=the settings stay as they were: {problem}")
            return
        self._refused = None
        settings = runner.overrides.lay_over(settings)
        runner.settings = settings
        if settings.groups != before.groups:
            # First: loading publishes `info`, which tells others that the agent listens.
            runner.client.subscribe()
        changed = settings.broker != before.broker
        if changed:
            log.info("broker: changed, connecting to %s", settings.broker.address, extra=ANSWER)
        if changed or not runner.client.connected:
            # If it is away, the mend may be in files that the settings name, or outside.
            runner.client.change_broker(settings.broker, certificates)
        self.metrics.answer_on(settings.health.metrics_port)
        self._apply(before)
        runner.log_shadows()
        pipelines = counted(len(runner.pipelines), "pipeline")
        log.info("settings read again: %s", pipelines, extra=ANSWER)
        systemd.notify("READY=1", f"STATUS={pipelines}")

    def change(self, settings: Settings, touched: Iterable[str]) -> None:
        """Apply valid settings that only differ in their pipelines."""
        runner, before = self.runner, self.runner.settings
        self.plan_writer.go_on(settings)
        self._apply(before)
        for given in settings.pipelines:
            if given.name in touched and given.name in runner.pipelines:
                pipeline, held = runner.pipelines[given.name], runner.overrides.applied(given)
                if pipeline.settings != held:
                    pipeline.apply(held)

    def _apply(self, before: Settings) -> None:
        """Apply the runner's settings."""
        self._arrange(before)
        self.runner.threads.spawn("loader", self._load, patient=True)

    def _read(self) -> tuple[Settings, Certificates]:
        """Read the settings and their TLS files; keep the values that need a restart."""
        settings = self.reread()
        for pipeline in settings.pipelines:
            parse_source(pipeline.source, settings.base)
        certificates = Certificates(settings.broker)
        settings, waiting = keep_until_restart(settings, self.runner.settings)
        for key in waiting:
            log.warning("%s: changed, takes effect at the next start", key, extra=ANSWER)
            self.plan_writer.waits_for_restart = True
        return settings, certificates

    def _arrange(self, settings: Settings) -> None:
        """Remove, add, and replace pipelines."""
        runner = self.runner
        before = {pipeline.name: pipeline for pipeline in settings.pipelines}
        after = {pipeline.name: pipeline for pipeline in runner.settings.pipelines}
        if before and not after:
            words = "%s: names no pipeline any more, so all %d are gone; is it whole?"
            log.warning(words, self.file or "the settings", len(before), extra=ANSWER)
        if before != after:
            # The first result from now on is not that of the start.
            runner.identity.timeline.give_up()
        with self.runner.arranging, self.runner.listening():
            for name in [name for name in after if name in before and after[name] != before[name]]:
                if before[name].differs_live(after[name]):
                    runner.pipelines[name].apply(runner.overrides.applied(after[name]))
                    _proceed()
                    log.info("pipeline %s goes on with changed settings", name, extra=ANSWER)
                    before[name] = after[name]
            for name in [name for name in before if after.get(name) != before[name]]:
                runner.remove(name)
                self.gone(name)
                _proceed()
                if name not in after:
                    log.info("pipeline %s is gone", name, extra=ANSWER)
            for name in [name for name in after if after[name] != before.get(name)]:
                if runner.stopping():
                    return
                runner.add(after[name]).start(runner.threads)
                log.info("pipeline %s is new or changed", name, extra=ANSWER)
            # In the order of the settings: a replaced one has come last.
            runner.pipelines = {name: runner.pipelines[name] for name in after}
            runner.lazy(wanted=self.lazy)

    def _load(self) -> None:
        """Publish the present pipelines, load the models they need, and release the others."""
        # Not in the main thread: another thread may be publishing the models, which takes a while
        # if there are many.
        self.runner.client.retained.clear_gone()
        self.announcements.info()
        self.announcements.pipelines()
        active = self.runner.active
        self.answers.models.settings_changed()
        self.http.settings_changed()
        active.load_all(more_room=True)
        if self.runner.stopping():
            return
        with self.runner.arranging:
            gone = active.forget({(s.reference, s.kind) for s in self.runner.used()})
        # Not with the lock held: frames in these models may take long, and the next reload would
        # wait, along with everything else in the main thread.
        for model in gone:
            active.retire(model)
        active.load_all()  # what the memory budget had no room for before
        self.runner.check_thresholds()
        active.on_change()
