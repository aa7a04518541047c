"""Result sinks: what takes the results of a pipeline, in the order of capture.

A new one is a class with the method of `ResultSink`, and one entry in the list of `Pipeline` or of
whoever makes the `Runner`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import Protocol

from ...config.settings import Pipeline as PipelineSettings
from ...core.errors import SampleError
from ...core.types import Array, Findings, Outcome, Sample
from ...mqtt import payloads
from ...mqtt.client import Channel, Client, Message
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
        self._identity = identity
        self._client = client
        self._topic = identity.topics.result(settings.name)

    def result(self, pipeline: str, sample: Sample, outcome: Outcome) -> None:
        """Queue the result for the broker; it is encoded when it goes."""
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
    """Publishes a frame with its findings drawn: every one, or the next after a request."""

    def __init__(
        self, settings: PipelineSettings, identity: Identity, client: Client, errors: FrameErrors
    ) -> None:
        self.requested = False
        self._always = settings.snapshot
        x1, y1, x2, y2 = settings.roi
        self._region = (x1, y1, x2, y2) if any(settings.roi) else None
        self._topic = identity.topics.snapshot(settings.name)
        self._client = client
        self._errors = errors
        self._candidate: tuple[float, int] | None = None
        """When the first frame after a request came, and how many had been late before."""

    def request(self) -> None:
        """Publish the next frame."""
        self.requested = True

    def result(self, pipeline: str, sample: Sample, outcome: Outcome) -> None:
        """Publish the frame if it is wanted."""
        del pipeline
        if sample.picture and (self._always or self.requested):
            self._publish(sample.data, outcome.findings)

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
            self._publish(picture, None)
        return self.requested

    def _publish(self, data: Array, found: Findings | None) -> None:
        from .draw import annotate, jpeg

        self.requested, self._candidate = False, None
        try:
            picture = jpeg(annotate(data, found, self._region))
        except SampleError as problem:
            self._errors.record(problem)
            return
        self._client.publish(self._topic, picture)
