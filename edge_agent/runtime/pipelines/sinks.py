"""Result sinks: what takes the results of a pipeline, in the order of capture.

A new one is a class with the method of `ResultSink`, and one entry in the list of `Pipeline` or of
whoever makes the `Runner`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from ...config.settings import Pipeline as PipelineSettings
from ...config.settings import Snapshots
from ...core.errors import SampleError
from ...core.types import Array, Detections, Findings, Outcome, Sample
from ...mqtt import payloads
from ...mqtt.client import Channel, Client, Message
from .overlay import Shape
from .status import FrameErrors, Identity

SNAPSHOT_SECONDS = 2.0
"""A requested snapshot waits so long for a frame that is not dropped by its deadline."""


class ResultSink(Protocol):
    """Takes results. Called by an inference lane: must not wait.

    What it raises is logged and counted, and the lane goes on.
    """

    def result(self, pipeline: str, sample: Sample, outcome: Outcome) -> None:
        """Take the result of one frame.

        Args:
            pipeline: its name.
            sample: the frame or window, to be read only.
            outcome: what was found in it, second stages included.

        """


class ResultStage(Protocol):
    """Adds to results before the sinks take them. Called as a sink is."""

    least: float | None
    """It wants detections of this score, too; None: no weaker ones than the settings."""

    def process(self, sample: Sample, outcome: Outcome, weak: Detections | None) -> Outcome:
        """Return a result with what this adds.

        Args:
            sample: the frame or window, to be read only.
            outcome: what was found in it.
            weak: what else was found, whose scores are below the threshold; None: nothing.

        """

    def result(self, pipeline: str, sample: Sample, outcome: Outcome) -> None:
        """Take that result once the sinks have it; as a sink does."""

    def still(self, sample: Sample) -> None:
        """Take a capture in which nothing has moved, so that the latest result holds in it."""

    def shapes(self) -> Sequence[Shape]:
        """Return what is drawn over pictures beside the findings."""

    def gone(self, *, switched_off: bool, at: float) -> None:
        """Forget what was: the source is lost, has ended, or was switched off.

        Args:
            switched_off: it was.
            at: monotonic seconds; lanes may yet have results of what was captured before.

        """


class MqttSink:
    """Publishes results on the pipeline's topic."""

    def __init__(
        self, settings: PipelineSettings, identity: Identity, client: Client, *, lossless: bool
    ) -> None:
        self.channel: Channel = client.open_channel(
            settings.name, qos=settings.qos, lossless=lossless
        )
        self.latency_ms: deque[float] = deque(maxlen=1000)
        """From capture to publication, of the latest results."""
        self.began: float | None = None
        """When it took its first result, monotonic seconds."""
        self._identity = identity
        self._client = client
        self._topic = identity.topics.result(settings.name)

    def result(self, pipeline: str, sample: Sample, outcome: Outcome) -> None:
        """Queue the result for the broker; it is encoded when it goes."""
        if self.began is None:
            self.began = time.monotonic()
        encode = partial(self._encode, pipeline, sample, outcome)
        sent = partial(self._sent, sample.since)
        self._client.publish_message(Message(self.channel, self._topic, encode, sent))

    def _encode(self, pipeline: str, sample: Sample, outcome: Outcome, replayed: bool) -> bytes:
        identity = self._identity
        age_ms = (time.monotonic() - sample.since) * 1e3
        payload = payloads.result(
            identity.device, identity.session, pipeline, sample, outcome, age_ms
        )
        if replayed:
            payload["replayed"] = True
        if identity.wall is not None and not identity.wall.credible(sample.time_ns):
            payload["clock"] = payloads.UNSET
        return payloads.encode(payload)

    def _sent(self, since: float, replayed: bool) -> None:
        """Measure a result that was first handed to a connection."""
        if not replayed:
            self.latency_ms.append((time.monotonic() - since) * 1e3)
        self._identity.timeline.mark_published()

    def wait_credit(self, closing: threading.Event) -> bool:
        """Wait until a lossless pipeline may give more results; False when it shall not."""
        return self._client.wait_credit(self.channel, closing)

    def close(self) -> None:
        """Close the channel."""
        self._client.close_channel(self.channel)


class SnapshotSink:
    """Publishes a frame with its findings drawn: as the settings say, or after a request."""

    def __init__(
        self, settings: PipelineSettings, identity: Identity, client: Client, errors: FrameErrors
    ) -> None:
        self.requested = False
        self.shapes: Callable[[], Sequence[Shape]] = tuple
        """Returns zones and lines, to be drawn."""
        self._wanted = _snapshots(settings)
        self._last = -math.inf
        """When the latest was published, monotonic seconds of its capture."""
        x1, y1, x2, y2 = settings.roi
        self._region = (x1, y1, x2, y2) if any(settings.roi) else None
        self._topic = identity.topics.snapshot(settings.name)
        self._client = client
        self._errors = errors
        self._candidate: tuple[float, int] | None = None
        """When the first frame after a request came, and how many had been late before."""

    def apply(self, settings: PipelineSettings) -> None:
        """Publish as other settings say."""
        self._wanted = _snapshots(settings)

    def request(self) -> None:
        """Publish the next frame."""
        self.requested = True

    def result(self, pipeline: str, sample: Sample, outcome: Outcome) -> None:
        """Publish the frame if it is wanted."""
        del pipeline
        if not sample.picture:
            return
        wanted = self._wanted
        due = wanted is not None and sample.since - self._last >= wanted.every_s
        if due or self.requested:
            self._last = sample.since
            self._publish(sample.data, outcome.findings, sample)

    def needs(self, picture: Array, late: int) -> bool:
        """Whether a frame must be inferred though nothing moves in it.

        Where every frame is too late to be inferred, it is published without findings.

        Args:
            picture: the frame, just captured.
            late: how many frames of the pipeline were dropped by its deadline.

        """
        if not self.requested:
            return False
        now = time.monotonic()
        since, before = self._candidate = self._candidate or (now, late)
        if late > before and now - since > SNAPSHOT_SECONDS:
            self._publish(picture, None, None)
        return self.requested

    def _publish(self, data: Array, found: Findings | None, sample: Sample | None) -> None:
        """Publish a picture; *sample* it is the data of, None: it has no number."""
        from .draw import annotate, jpeg, shrunk

        self.requested, self._candidate = False, None
        form = self._wanted or Snapshots()
        drawn = annotate(data, found, self._region, self.shapes())
        try:
            picture = jpeg(shrunk(drawn, form.width), form.quality)
        except SampleError as problem:
            self._errors.record(problem)
            return
        time_ns = time.time_ns() if sample is None else sample.time_ns
        about = {} if sample is None else {"seq": str(sample.seq)}
        self._client.publish(self._topic, picture, about={**about, "time": payloads.iso(time_ns)})


def _snapshots(settings: PipelineSettings) -> Snapshots | None:
    """Return how snapshots are published without being requested; None: they are not."""
    if isinstance(settings.snapshot, Snapshots):
        return settings.snapshot
    return Snapshots() if settings.snapshot else None
