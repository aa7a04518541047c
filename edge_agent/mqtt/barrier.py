"""A delivery barrier: what of QoS 0 has reached the broker."""

from __future__ import annotations

import time
from collections.abc import Iterable
from math import inf

from .connection import Connection
from .message import CREDIT, Channel, Message

BARRIER_SECONDS = 0.25
"""Longest time between barriers while results are published."""
OPEN_BARRIERS = 4
"""Most unanswered barriers."""
ANSWER_SECONDS = 2.0
"""Time without an answer to UNSUBSCRIBE after which SUBSCRIBE is tried."""


class Barrier:
    """A delivery barrier for QoS 0, sent after the unconfirmed results of all channels.

    A broker never acknowledges QoS 0, but it answers in order: an UNSUBSCRIBE of a topic that was
    never subscribed to changes nothing and must be answered (MQTT 5, 3.10.4), after the broker has
    processed everything sent before. Some answer only a SUBSCRIBE (rumqttd 0.19).
    """

    def __init__(self, topic: str) -> None:
        """Start without barriers; nobody publishes on *topic*."""
        self._topic = topic
        self._subscribes = False
        """Whether the barriers of this connection are SUBSCRIBE, to be granted or refused."""
        self._marks: dict[int, list[tuple[Channel, Message]]] = {}
        """The last result of each channel before an unanswered barrier, by its message id."""
        self.open_since = inf
        """When the oldest unanswered barrier was sent, or the last answer came if later."""
        self._since = 0
        """Number of results published since the last barrier."""
        self._requested_at = 0.0

    def is_due(self) -> bool:
        """Count a result that was published; return whether it is time for a barrier."""
        self._since += 1
        waited = time.monotonic() - self._requested_at
        return self._since >= CREDIT // 4 or waited > BARRIER_SECONDS

    def request(self, connection: Connection, channels: Iterable[Channel]) -> None:
        """Send a barrier after all unconfirmed results, if there are any."""
        marks = [(c, c.unconfirmed[-1]) for c in channels if c.unconfirmed]
        late = not self._subscribes and time.monotonic() - self.open_since > ANSWER_SECONDS
        if not marks or len(self._marks) >= OPEN_BARRIERS + late:
            return
        self._subscribes |= late
        if self._subscribes:
            mid = connection.subscribe([(self._topic, 0)])
        else:
            mid = connection.unsubscribe(self._topic)
        self._since = 0
        self._requested_at = time.monotonic()
        if mid is not None:
            self._marks[mid] = marks
            self.open_since = min(self.open_since, self._requested_at)

    def answered(self, mid: int) -> None:
        """Release the results that have reached the broker."""
        if mid not in self._marks:
            return
        marks = self._marks[mid]
        for each in list(self._marks):  # also those before it, whose answers are late or lost
            del self._marks[each]
            if each == mid:
                break
        self.open_since = time.monotonic() if self._marks else inf
        for channel, mark in marks:
            if any(message is mark for message in channel.unconfirmed):
                while channel.unconfirmed.popleft() is not mark:
                    pass

    def reset(self) -> None:
        """Expect no more answers because the connection is lost."""
        self._marks.clear()
        self.open_since, self._subscribes = inf, False
