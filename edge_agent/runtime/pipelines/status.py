"""What a pipeline reports beside its results: the state of its source, and errors of its frames."""

from __future__ import annotations

import logging
import time

from ...core.frozen import record
from ...core.timeline import Timeline
from ...device.wall_clock import WallClock
from ...mqtt import payloads
from ...mqtt.client import Client
from ...mqtt.topics import Topics

log = logging.getLogger(__name__)


@record
class Identity:
    """Who publishes."""

    device: str
    session: str
    topics: Topics
    timeline: Timeline
    wall: WallClock | None = None
    """Judges the times that results bear; None: they are taken as they are."""


class SourceStatus:
    """The state of a source: logged and published, retained, when it changes."""

    def __init__(self, name: str, identity: Identity, client: Client) -> None:
        self.state: str | None = None
        """running, lost or ended; None: it has not been opened yet."""
        self.error: str | None = None
        """Why it is lost."""
        self._name = name
        self._identity = identity
        self._client = client

    def set(self, state: str, error: str | None) -> None:
        """Record a state; publish it if it is another one."""
        if (state, error) == (self.state, self.error):
            return
        self.state, self.error = state, error
        if state == "lost":
            log.warning("source of %s: %s", self._name, error)
        elif error is not None:
            log.warning("source of %s: %s: %s", self._name, state, error)
        else:
            log.info("source of %s: %s", self._name, state)
        payload = {"schema": payloads.SCHEMA, "state": state, "time": payloads.iso(time.time_ns())}
        if error is not None:
            payload["error"] = error
        topic = self._identity.topics.source(self._name)
        self._client.retained.publish(topic, payload)

    def first_frame(self, seconds: float) -> None:
        """Record how long the start took up to the first frame."""
        self._identity.timeline.record("first_frame", seconds)


class FrameErrors:
    """Errors that drop frames or results; how often that happens is in health."""

    def __init__(self, name: str) -> None:
        self.latest: tuple[float, str] | None = None
        """When and why a frame or result was last dropped by an error."""
        self.sinks = 0
        """Results that a sink has not taken, as it raised."""
        self._name = name

    def record(self, problem: Exception) -> None:
        """Log why a frame is dropped."""
        log.warning("%s: a frame is dropped: %s", self._name, problem)
        self.latest = (time.monotonic(), str(problem))

    def record_sink(self, sink: str, why: str) -> None:
        """Log and count that a sink has raised."""
        self.sinks += 1
        words = f"{sink} has not taken a result: {why}"
        log.error("%s: %s", self._name, words)
        self.latest = (time.monotonic(), words)
