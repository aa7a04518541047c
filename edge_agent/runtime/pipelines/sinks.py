"""Sinks: receivers of results, pictures, events, counts and health, to publish them in any way.

A new sink is a class that overrides some methods of `Sink`, and one entry of `sinks` where
`daemon.agent` creates the `Runner`; or a call of `runner.sinks.add` at any time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...core.containment import reason
from ...core.frozen import record
from ...core.types import Detections, Outcome, Sample
from ...mqtt.message import Channel

log = logging.getLogger(__name__)

RECENT_SECONDS = 60.0
"""Seconds for which an error keeps the device degraded."""


@record
class Shape:
    """A zone or a line with its counts, drawn on a picture along with its findings."""

    points: Sequence[Sequence[float]]
    """x, y in 0 to 1 of the frame."""
    closed: bool
    """True: a zone; False: a line with its direction `in`."""
    text: str


@dataclass(slots=True, eq=False)
class Stream:
    """The results of one pipeline, from its creation to its removal."""

    name: str
    """The pipeline's."""
    qos: int
    lossless: bool
    """Whether the source waits until its results are accepted."""
    channel: Channel = field(init=False)
    """The channel to the broker with its counts; set by `MqttSink`."""
    latency_ms: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    """Times from capture to publication of the latest results."""
    began: float | None = None
    """When its first result was ready, monotonic seconds."""
    latest: float = -math.inf
    """When the frame of its latest result was captured, monotonic seconds."""
    together: bool = False
    """Whether the one before came with it, as another row of the same message."""


class Sink:
    """Receives the device's output; each method does nothing unless overridden.

    Results and pictures come from an inference lane, the rest from other busy threads: only
    `wait_credit` may wait. An exception is logged and reported in health; the other sinks still
    get the output. A removed sink may still get messages that were in progress.
    """

    def open(self, stream: Stream) -> None:
        """Expect the results of a pipeline that exists when this sink is added, or a later one."""

    def close(self, stream: Stream) -> None:
        """Expect no more results, except those still in a lane."""

    def result(self, stream: Stream, sample: Sample, outcome: Outcome) -> None:
        """Handle the result of one frame, in the order of capture; *sample* is read-only."""

    def wait_credit(self, stream: Stream, closing: threading.Event) -> bool:
        """Wait until a lossless pipeline may give more results; False when it shall not."""
        del stream, closing
        return True

    def wants_picture(self, stream: Stream) -> bool:
        """Whether to pass the next frame to `picture`; called for each frame."""
        del stream
        return False

    def picture(self, stream: Stream, jpeg: bytes, about: Mapping[str, str]) -> None:
        """Handle a frame with its findings drawn: one that this sink wanted, or a snapshot.

        *about* has its `time` and, if it was inferred, its `seq`.
        """

    def event(self, event: Mapping[str, Any], qos: int, *, replayed: bool) -> None:
        """Handle the payload of an event; *replayed*: it may be a copy."""

    def event_picture(self, pipeline: str, event: str, jpeg: bytes) -> None:
        """Handle the picture of an event, given the event's id."""

    def answer(self, pipeline: str, answer: Mapping[str, Any]) -> None:
        """Handle a model's answer about an event."""

    def counts(self, pipeline: str, counts: Mapping[str, Any]) -> None:
        """Handle the counts of a pipeline's zones and lines."""

    def health(self, health: Mapping[str, Any]) -> None:
        """Handle the health of the device."""

    def settle(self, seconds: float) -> float:
        """Return the time before which all its events survive a kill, monotonic seconds.

        Infinite: all do. It may wait *seconds* for that.
        """
        del seconds
        return math.inf


class Sinks:
    """All sinks and the pipelines whose results they get. Any thread may call it."""

    def __init__(self, *sinks: Sink) -> None:
        self.all: tuple[Sink, ...] = sinks
        """Replaced as a whole."""
        self._streams: list[Stream] = []
        self._latest: tuple[float, str] | None = None
        """When and how a sink has raised, except for results."""
        self._changing = threading.Lock()

    def add(self, sink: Sink) -> None:
        """Add a sink, which gets everything from now on."""
        with self._changing:
            for stream in self._streams:
                sink.open(stream)
            self.all = (*self.all, sink)

    def remove(self, sink: Sink) -> None:
        """Remove a sink, which gets nothing more."""
        with self._changing:
            self.all = tuple(each for each in self.all if each is not sink)
            for stream in self._streams:
                sink.close(stream)

    def open(self, stream: Stream) -> None:
        """Announce a pipeline."""
        with self._changing:
            self._streams.append(stream)
            self.give(lambda sink: sink.open(stream))

    def close(self, stream: Stream) -> None:
        """Announce that a pipeline was removed."""
        with self._changing:
            self._streams.remove(stream)
            self.give(lambda sink: sink.close(stream))

    def give(self, take: Callable[[Sink], object], to: Sequence[Sink] | None = None) -> None:
        """Call *take* with all sinks, or with *to*; log one that raises, and go on."""
        for sink in self.all if to is None else to:
            try:
                take(sink)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is the sink's
                self._record(sink, problem)

    def _record(self, sink: Sink, problem: Exception) -> None:
        words = f"{type(sink).__name__} has failed to handle its input: {reason(problem)}"
        log.error("%s", words)
        self._latest = (time.monotonic(), words)

    def wait_credit(self, stream: Stream, closing: threading.Event) -> bool:
        """Wait until a lossless pipeline may give more results; False when it shall not."""
        for sink in self.all:
            try:
                if not sink.wait_credit(stream, closing):
                    return False
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is the sink's
                self._record(sink, problem)
        return True

    def settle(self, seconds: float = 0.0) -> float:
        """Return the time before which no sink loses events; each may wait *seconds*."""
        return min((sink.settle(seconds) for sink in self.all), default=math.inf)

    def problems(self) -> list[str]:
        """Return why the device is degraded."""
        latest = self._latest
        recent = latest is not None and time.monotonic() - latest[0] < RECENT_SECONDS
        return [f"sink: {latest[1]}"] if latest is not None and recent else []


class ResultStage(Protocol):
    """Adds to results before the sinks get them; events of a result are stored by then."""

    tracking_score: float | None
    """It also needs detections with this score; None: none below the settings' threshold."""

    @property
    def unsettled(self) -> bool:
        """Whether further results will tell, though nothing moves, if what it tracks is there."""

    def process(self, sample: Sample, outcome: Outcome, weak: Detections | None) -> Outcome:
        """Return a result with this stage's additions; *sample* is read-only.

        *weak*: detections with scores below the threshold; None if there are none.
        """

    def advance_time(self, sample: Sample) -> None:
        """Process a capture without motion, for which the latest result is still valid.

        All earlier captures have been processed; this one is not counted as a result.
        """

    def shapes(self) -> Sequence[Shape]:
        """Return the shapes to draw on pictures along with the findings."""

    def source_lost(self, *, switched_off: bool, at: float) -> None:
        """Forget everything tracked: the source is lost, has ended, or was switched off.

        Lanes may still deliver results of frames captured before *at*, monotonic seconds.
        """
