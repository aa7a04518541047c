"""Readings that others publish on the agent's own broker.

Knows nothing of MQTT: `SourceContext.topics` gives it the messages of a topic.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from ..core.errors import SampleError, SourceError
from .continuity import Rows
from .json_rows import Payload
from .live_signal import LiveSignal, share
from .source import SourceContext, Topics
from .spec import SourceSpec

MAX_WAITING = 16 * 2**20
"""Bytes of messages that wait to be read; beyond that the oldest are given up."""


class TopicMessages:
    """The messages of one topic, as they come."""

    def __init__(self, topics: Topics, topic: str, payload: Payload) -> None:
        """Subscribe."""
        self._topics = topics
        self._topic = topic
        self._payload = payload
        self._messages: deque[tuple[bytes, int, float]] = deque()
        self._size = 0
        self._given_up = 0
        self._came = threading.Condition()
        topics.open(topic, self._put)

    def _put(self, payload: bytes) -> None:
        """Take a message; called by the connection's own thread, which must not wait."""
        now = (payload, time.time_ns(), time.monotonic())
        with self._came:
            self._messages.append(now)
            self._size += len(payload)
            while self._size > MAX_WAITING and len(self._messages) > 1:
                self._size -= len(self._messages.popleft()[0])
                self._given_up += 1
            self._came.notify()

    def read(self, timeout: float) -> list[Rows | SampleError]:
        """Return what has come."""
        with self._came:
            if not self._messages:
                self._came.wait(timeout)
            messages, self._messages, self._size = list(self._messages), deque(), 0
            given_up, self._given_up = self._given_up, 0
        found: list[Rows | SampleError] = []
        if given_up:
            found.append(SampleError(f"{given_up} messages waited too long and were given up"))
        for payload, time_ns, since in messages:
            try:
                data, columns, times = self._payload.read(payload)
            except SampleError as problem:
                found.append(problem)
            else:
                found.append(Rows(data, time_ns, since, columns, times))
        return found

    def close(self) -> None:
        """Unsubscribe."""
        self._topics.close(self._topic, self._put)


def open_source(spec: SourceSpec, context: SourceContext) -> LiveSignal:
    """Subscribe to a topic.

    Raises:
        SourceError: there is no connection of an agent to read it from.
    """
    topics, options = context.topics, spec.options
    if topics is None:
        raise SourceError(f"{spec.redacted}: there is no broker to read it from")
    payload = Payload(options["field"], options["time"], options["format"], options["channels"])
    return share(spec, context, lambda: TopicMessages(topics, spec.name, payload))
