"""Takes over changed settings while the agent runs; what has not changed is not touched.

What cannot be taken over waits for the next start, and that is said.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..config.settings import Settings
from ..core import systemd
from ..core.errors import UsageError
from ..core.logs import ANSWER
from ..mqtt.connection import tls_context
from ..runtime.pipelines.runner import Frames
from ..sources.spec import parse_source
from .announcements import Says
from .fast_start.plan_writer import Planner

if TYPE_CHECKING:
    import ssl

    from ..health.prometheus import Exposed

log = logging.getLogger(__name__)

_FIXED = ("device_id", "state_dir", "profile", "engine", "models_dirs", "batching", "decode")
"""Settings that take effect at the next start only; so does `broker.topic_root`."""


class Reloading:
    """Reads the settings again, whenever that is asked for."""

    def __init__(
        self,
        frames: Frames,
        planner: Planner,
        says: Says,
        reread: Callable[[], Settings],
        *,
        file: str | None,
        lazy: bool,
        exposed: Callable[[], Exposed],
        changed: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            frames: what the settings have a say over.
            planner: is told what the settings are made from.
            says: what the device says of itself.
            reread: reads the settings from where they came from.
            file: where that is, beside the environment.
            lazy: whether models of second stages are loaded when they are needed.
            exposed: gives the port for metrics; asked when first needed.
            changed: called when other models serve.

        """
        self._frames = frames
        self._planner = planner
        self._says = says
        self._reread = reread
        self._file = file
        self._lazy = lazy
        self._exposed = exposed
        self._changed = changed
        self._arranging = threading.Lock()
        """Held while pipelines come and go, so that no model is let go that one begins to need."""

    def run(self) -> None:
        """Take over what has changed; wrong settings change nothing."""
        systemd.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        frames = self._frames
        before = frames.settings
        try:
            self._planner.reread()
            settings, tls = self._read()
        except UsageError as problem:
            log.error("the settings stay as they were: %s", problem, extra=ANSWER)  # noqa: TRY400 - one line, no traceback
            systemd.notify("READY=1")
            return
        frames.settings = settings
        if settings.groups != before.groups:
            # First of all: what loads has `info` said, by which others know that we listen.
            frames.client.listen()
        if settings.broker != before.broker:
            log.info("broker: changed, connecting to %s", settings.broker.address, extra=ANSWER)
            frames.client.move(settings.broker, tls)
        if before.health.metrics_port or settings.health.metrics_port:
            self._exposed().answer_on(settings.health.metrics_port)
        self._arrange(before)
        frames.crew.spawn("loader", self._load)
        log.info("settings read again: %d pipelines", len(frames.pipelines), extra=ANSWER)
        systemd.notify("READY=1", f"STATUS={len(frames.pipelines)} pipelines")

    def _read(self) -> tuple[Settings, ssl.SSLContext | None]:
        """Read the settings, and what they name of TLS; what waits for a start is as it was.

        Raises:
            UsageError: something is wrong.

        """
        settings = self._reread()
        for pipeline in settings.pipelines:
            parse_source(pipeline.source, settings.base)
        tls = tls_context(settings.broker)
        present = self._frames.settings
        kept = {key: getattr(present, key) for key in _FIXED}
        waiting = [key for key, value in kept.items() if getattr(settings, key) != value]
        broker = settings.broker
        if broker.topic_root != present.broker.topic_root:
            waiting.append("broker.topic_root")
            broker = replace(broker, topic_root=present.broker.topic_root)
        for key in waiting:
            log.warning("%s: changed, takes effect at the next start", key, extra=ANSWER)
            self._planner.waits_for_restart = True
        return replace(settings, broker=broker, **kept), tls

    def _arrange(self, settings: Settings) -> None:
        """Have pipelines come and go.

        Args:
            settings: those of before.

        """
        frames = self._frames
        before = {pipeline.name: pipeline for pipeline in settings.pipelines}
        after = {pipeline.name: pipeline for pipeline in frames.settings.pipelines}
        if before and not after:
            words = "%s: names no pipeline any more, so all %d are gone; is it whole?"
            log.warning(words, self._file or "the settings", len(before), extra=ANSWER)
        with self._arranging:
            for name in [name for name in before if after.get(name) != before[name]]:
                frames.remove(name)
                if name not in after:
                    log.info("pipeline %s is gone", name, extra=ANSWER)
            for name in [name for name in after if after[name] != before.get(name)]:
                frames.add(after[name]).start(frames.crew)
                log.info("pipeline %s is new or changed", name, extra=ANSWER)
            frames.lazy(wanted=self._lazy)

    def _load(self) -> None:
        """Say what there is now, load what is needed, and let go of what is not."""
        # Not in the main thread: somebody else may be at saying what models there are, which takes
        # a while where they are many.
        self._says.clear_gone()
        self._says.info()
        active = self._frames.active
        active.load_all()
        with self._arranging:
            gone = active.forget({(s.reference, s.kind) for s in self._frames.used()})
        # Not while that is held: frames on their way through them may take long, and the next
        # reading would wait, with all else that the main thread does.
        for model in gone:
            active.retire(model)
        self._changed()
