"""The bounded queue of received messages.

The broker sends as fast as the network allows; messages are handled one at a time, and a package
takes a while. Messages beyond the bounds are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ..core.logs import Latch

if TYPE_CHECKING:
    from .connection import ReceivedMessage

log = logging.getLogger(__name__)

MAX_MESSAGES = 4096
"""Most waiting QoS 0 messages; of QoS 1 the broker sends only RECEIVE_MAXIMUM at a time."""
MAX_BYTES = 320 * 2**20
"""Most bytes of all waiting payloads: the largest that MQTT can carry, and a window of blocks."""


class Inbox(SimpleQueue["ReceivedMessage | None"]):
    """A queue of messages; None ends it."""

    def __init__(self, *, messages: int = MAX_MESSAGES, size: int = MAX_BYTES) -> None:
        """Start empty; at most *messages* of QoS 0 and *size* bytes may wait."""
        super().__init__()
        self.dropped = 0
        """Messages that did not fit."""
        self._most = messages
        self._room = size
        self._counting = threading.Lock()
        self._full = Latch()

    def put(
        self, item: ReceivedMessage | None, block: bool = True, timeout: float | None = None
    ) -> None:
        """Put a message without waiting. One that does not fit is dropped and acknowledged."""
        if item is None:
            super().put(None)
            return
        size = len(item.payload)
        with self._counting:
            fits = size <= self._room and (item.qos > 0 or self.qsize() < self._most)
            if fits:
                self._room -= size
        if fits:
            super().put(item, block, timeout)
            return
        if self._full.begins(True):
            log.warning("inbox: messages arrive faster than they are handled; some are dropped")
        self.dropped += 1
        # Otherwise the broker would count it as unacknowledged until the next connection.
        item.ack()

    def get(self, block: bool = True, timeout: float | None = None) -> ReceivedMessage | None:
        """Return the next message.

        Raises:
            queue.Empty: none arrived within *timeout* seconds.
        """
        item = super().get(block, timeout)
        if item is not None:
            with self._counting:
                self._room += len(item.payload)
            if self.empty():
                self._full.begins(False)
        return item
