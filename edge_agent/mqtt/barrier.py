"""How it is learned that results at QoS 0 have reached the broker, which never says so.

A broker answers in order: an UNSUBSCRIBE of something never subscribed changes nothing and is
always answered (MQTT 5, 3.10.4), after it has dealt with all that was sent before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from .connection import Connection
from .message import CREDIT, Channel, Message

FENCE_SECONDS = 0.25
"""Between two of them, at most, while results go out."""
MOST = 4
"""That may be unanswered."""


class Barrier:
    """Behind the lossless results of all channels. Whoever calls holds the link's lock."""

    def __init__(self, topic: str) -> None:
        """Prepare.

        Args:
            topic: that nobody subscribes to.

        """
        self._topic = topic
        self._marks: dict[int, list[tuple[Channel, Message]]] = {}
        """By message id of what is unanswered: the last result of each channel before it."""
        self._unfenced = 0
        self._put_at = 0.0

    def passed(self) -> bool:
        """Count a result that has gone out; whether it is time for a fence."""
        self._unfenced += 1
        return self._unfenced >= CREDIT // 4 or time.monotonic() - self._put_at > FENCE_SECONDS

    def put(self, connection: Connection, channels: Iterable[Channel]) -> None:
        """Ask behind all results so far, where there are any."""
        marks = [(c, c.unconfirmed[-1]) for c in channels if c.unconfirmed]
        if not marks or len(self._marks) >= MOST:
            return
        mid = connection.unsubscribe(self._topic)
        if mid is not None:
            self._marks[mid] = marks
        self._unfenced = 0
        self._put_at = time.monotonic()

    def answered(self, mid: int) -> None:
        """Let go of the results that have arrived."""
        for channel, mark in self._marks.pop(mid, []):
            # A later fence may have been answered first.
            if any(parcel is mark for parcel in channel.unconfirmed):
                while channel.unconfirmed.popleft() is not mark:
                    pass

    def forget(self) -> None:
        """Expect no answers: the connection is gone."""
        self._marks.clear()
