"""The parts that pipelines share, and each one's reports in addition to its results.

These are the state of its source and the errors of its frames.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ...config.settings import Pipeline as PipelineSettings
from ...core.callbacks import Callbacks
from ...core.frozen import record
from ...core.timeline import Timeline
from ...device.wall_clock import WallClock
from ...inference.model import Model
from ...mqtt import payloads
from ...mqtt.client import Client
from ...mqtt.topics import Topics
from ...serving.active import Serving
from ...sources.source import SourceContext
from ..scheduler.board import Board
from .device_mode import DeviceMode
from .learned import LearnedValues
from .sinks import ResultStage, Sinks

log = logging.getLogger(__name__)


@record
class Identity:
    """The publisher of the messages."""

    device: str
    session: str
    topics: Topics
    timeline: Timeline
    wall: WallClock | None = None
    """Checks the timestamps of results; None: they are trusted."""

    def credible(self, time_ns: int | None = None) -> bool:
        """Whether a time, nanoseconds since 1970, or the machine's clock may be right."""
        return self.wall is None or self.wall.credible(time_ns)

    def may_be_behind(self) -> bool:
        """Whether the machine's clock may be behind; see `WallClock.may_be_behind`."""
        return self.wall is not None and self.wall.may_be_behind()


@record(eq=False)
class Common:
    """The parts shared by all pipelines of an agent."""

    identity: Identity
    """The publisher of the messages."""
    board: Board[Model]
    """The board where captures wait for a lane."""
    client: Client
    """Publishes the states of sources."""
    sinks: Sinks
    """The sinks of the results."""
    context: SourceContext = field(default_factory=SourceContext)
    """The context for opening sources."""
    load: Callable[[Serving], object] = lambda _serving: None
    """Loads the model of a second stage when needed."""
    stages: Callable[..., ResultStage | None] = lambda *_, **__: None
    """Makes the stage that adds to a pipeline's results before the sinks get them, replacing the
    earlier one, from its settings, its `SourceSpec`, and whether it is *running* and goes on. None:
    nothing is added."""
    learned: LearnedValues | None = None
    """Stores learned values."""
    mode: DeviceMode = field(default_factory=lambda: DeviceMode(None))
    """The device's mode."""
    on_values: Callbacks = field(default_factory=Callbacks)
    """Called by a lane when the value names of a pipeline without a model change."""
    losses: dict[str, str] = field(default_factory=dict)
    """Why each source is lost, as logged."""


class SourceStatus:
    """The state of a source, logged and published (retained) when it changes."""

    def __init__(self, settings: PipelineSettings, common: Common) -> None:
        """Begin with a source that has not been opened."""
        self.state: str | None = None
        """running, lost, ended or off; None: it has not been opened yet."""
        self.error: str | None = None
        """Why it is lost."""
        self.on_gone: Callable[[bool], object] = lambda _switched_off: None
        """Called when the source is lost, has ended or is switched off; True: switched off."""
        self.is_open = False
        """Whether its thread reads it, or waits for another that shares it to open it."""
        self.size: tuple[int, int] | None = None
        """Width and height of the latest picture from a camera or clip; None: none has come."""
        self.enabled = True
        """False: it was switched off; later reports of its thread are ignored."""
        self._name = settings.name
        self._common = common
        self._source = settings.source if settings.share else settings.name

    def switch(self, *, enabled: bool) -> None:
        """Record that the source is switched off, or will be opened."""
        if not enabled:
            self.enabled, self.state, self.error = False, "off", None
            log.info("source of %s: switched off", self._name)
            self._publish({"state": "off", "enabled": False})
            self.on_gone(True)
        elif not self.enabled:
            self.enabled, self.state, self.error = True, None, None
            log.info("source of %s: switched on", self._name)

    def set(self, state: str, error: str | None) -> None:
        """Record a state; publish it if it has changed."""
        if not self.enabled or (state, error) == (self.state, self.error):
            return
        self.state, self.error = state, error
        if state != "lost":
            self._common.losses.pop(self._source, None)
        if state == "lost" and error is not None:
            if self._common.losses.get(self._source) != error:
                self._common.losses[self._source] = error
                log.warning("source of %s: %s", self._name, error)
        elif error is not None:
            log.warning("source of %s: %s: %s", self._name, state, error)
        else:
            log.info("source of %s: %s", self._name, state)
        self._publish({"state": state} if error is None else {"state": state, "error": error})
        if state != "running":
            self.on_gone(False)

    def _publish(self, state: Mapping[str, Any]) -> None:
        now = payloads.iso(time.time_ns())
        topic = self._common.identity.topics.source(self._name)
        self._common.client.retained.publish(
            topic, {"schema": payloads.SCHEMA, **state, "time": now}
        )

    def first_frame(self, seconds: float) -> None:
        """Record the time from the start to the first frame, seconds."""
        self._common.identity.timeline.record("first_frame", seconds)


class FrameErrors:
    """Errors that drop frames or results; their numbers are in health."""

    def __init__(self, name: str) -> None:
        self.latest: tuple[float, str] | None = None
        """When and why a frame or result was last dropped by an error."""
        self.quiet_at = -math.inf
        """The latest `SampleError.quiet_at`."""
        self.unread: Mapping[str, str] = {}
        """Of a live signal: values that the latest messages say are not known, in words."""
        self.sinks = 0
        """Results not accepted by a sink because it raised."""
        self._name = name

    def record(self, problem: object, what: str = "a frame is dropped") -> None:
        """Log *what* an error has caused."""
        log.warning("%s: %s: %s", self._name, what, problem)
        self.latest = (time.monotonic(), str(problem))

    def record_sink(self, sink: str, why: str) -> None:
        """Log and count that a sink has raised."""
        self.sinks += 1
        words = f"{sink} has not taken a result: {why}"
        log.error("%s: %s", self._name, words)
        self.latest = (time.monotonic(), words)
