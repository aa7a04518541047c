"""The sink that publishes over MQTT; every agent has it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property, partial
from threading import Event
from typing import Any

from ...core.types import Outcome, Sample
from ...mqtt import payloads
from ...mqtt.client import Channel, Client, Message
from ...mqtt.topics import Topics
from .sinks import Sink, Stream
from .status import Identity


class MqttSink(Sink):
    """Publishes on the topics of this device."""

    def __init__(self, client: Client, identity: Identity) -> None:
        self._client = client
        self._identity = identity
        self._topics = identity.topics

    # Results

    def open(self, stream: Stream) -> None:
        stream.channel = self._client.open_channel(
            stream.name, qos=stream.qos, lossless=stream.lossless
        )

    def close(self, stream: Stream) -> None:
        self._client.close_channel(stream.channel)

    def result(self, stream: Stream, sample: Sample, outcome: Outcome) -> None:
        encode = partial(self._encode, stream.name, sample, outcome)
        sent = partial(self._sent, stream, sample.since)
        topic = self._topics.result(stream.name)
        self._client.publish_message(Message(stream.channel, topic, encode, sent))

    def _encode(self, pipeline: str, sample: Sample, outcome: Outcome, replayed: bool) -> bytes:
        identity = self._identity
        age_ms = (time.monotonic() - sample.since) * 1e3
        payload = payloads.result(
            identity.device, identity.session, pipeline, sample, outcome, age_ms
        )
        if replayed:
            payload["replayed"] = True
        if not identity.credible(sample.time_ns):
            payload["clock"] = payloads.UNSET
        return payloads.encode(payload)

    def _sent(self, stream: Stream, since: float, replayed: bool) -> None:
        """Measure the latency of a result when it is first passed to a connection."""
        if not replayed:
            stream.latency_ms.append((time.monotonic() - since) * 1e3)
        self._identity.timeline.mark_published()

    def wait_credit(self, stream: Stream, closing: Event) -> bool:
        return self._client.wait_credit(stream.channel, closing)

    def picture(self, stream: Stream, jpeg: bytes, about: Mapping[str, str]) -> None:
        self._client.publish(self._topics.snapshot(stream.name), jpeg, about=about)

    # Events

    @cached_property
    def _events(self) -> tuple[Channel, Channel]:
        """The channels for events with QoS 0 and 1."""
        open_channel = partial(self._client.open_channel, "events", lossless=False)
        return open_channel(qos=0), open_channel(qos=1)

    def event(self, event: Mapping[str, Any], qos: int, *, replayed: bool) -> None:
        # An earlier run may have had another device_id; the spool has that topic, too.
        topics = Topics(self._topics.root, str(event["device"]))
        message = Message(
            self._events[qos],
            topics.event(event["pipeline"]),
            partial(_encode, event),
            event=True,
            series=event["event"],
            closes=event["state"] in {"once", "end"},
            replayed=replayed,
        )
        self._client.publish_message(message)

    def answer(self, pipeline: str, answer: Mapping[str, Any]) -> None:
        topic, encode = self._topics.answer(pipeline), partial(_encode, answer)
        self._client.publish_message(Message(self._events[1], topic, encode, event=True))

    def event_picture(self, pipeline: str, event: str, jpeg: bytes) -> None:
        self._client.publish(self._topics.picture(pipeline, event), jpeg)

    def settle(self, seconds: float) -> float:
        return self._client.wait_safe(self._events[1], seconds)

    # The rest

    def counts(self, pipeline: str, counts: Mapping[str, Any]) -> None:
        self._client.retained.publish(self._topics.count(pipeline), counts)

    def health(self, health: Mapping[str, Any]) -> None:
        """Publish health, retained, so that new subscribers see the device's state at once."""
        self._client.publish(self._topics.health, payloads.encode(health), retain=True)


def _encode(made: Mapping[str, Any], replayed: bool) -> bytes:
    return payloads.encode({**made, "replayed": True} if replayed else made)
