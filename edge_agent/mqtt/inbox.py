"""What has arrived and waits to be looked at, within bounds.

The broker sends as fast as the network goes; what arrives is looked at one after the other, and a
package takes a while. What would pile up without bound gives way, and is counted.
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
"""QoS 0 messages that wait; of those at QoS 1 the broker has only so many under way at a time."""
MAX_BYTES = 320 * 2**20
"""Of all payloads that wait: one of the largest that MQTT can carry, and a window of blocks."""


class Inbox(SimpleQueue["ReceivedMessage | None"]):
    """A queue of messages; None tells the one who takes them that there will be no more."""

    def __init__(self, *, messages: int = MAX_MESSAGES, size: int = MAX_BYTES) -> None:
        """Prepare.

        Args:
            messages: how many may wait, of QoS 0.
            size: how many bytes may.

        """
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
        """Leave a message; never waits."""
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
            log.warning("messages come faster than they can be looked at; some are dropped")
        self.dropped += 1
        # Else the broker would keep one of its few places for it until the next connection.
        item.ack()

    def get(self, block: bool = True, timeout: float | None = None) -> ReceivedMessage | None:
        """Take a message.

        Raises:
            queue.Empty: there is none within *timeout*.

        """
        item = super().get(block, timeout)
        if item is not None:
            with self._counting:
                self._room += len(item.payload)
            if self.empty():
                self._full.begins(False)
        return item
