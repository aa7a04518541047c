"""Topics of others whose messages are readings: handed over as they come, past the inbox.

The inbox is for requests, one after the other; a package that is checked there must not hold a
sensor up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .connection import ReceivedMessage

Put = Callable[[bytes], None]
"""Takes a payload; called by the connection's own thread, must not wait."""


class Feeds:
    """Which topics are read, and by whom. Any thread may call it."""

    def __init__(self) -> None:
        self.on_open: Callable[[str], None] = _nothing
        self.on_close: Callable[[str], None] = _nothing
        """Called when a topic gets its first reader, and when it has lost its last."""
        self._readers: dict[str, tuple[Put, ...]] = {}
        self._lock = threading.Lock()

    def open(self, topic: str, put: Put) -> None:
        """Hand the messages of a topic to *put* from now on."""
        with self._lock:
            before = self._readers.get(topic, ())
            self._readers[topic] = (*before, put)
        if not before:
            self.on_open(topic)

    def close(self, topic: str, put: Put) -> None:
        """Hand it no more messages."""
        gone = False
        with self._lock:
            left = tuple(one for one in self._readers.get(topic, ()) if one != put)
            if left:
                self._readers[topic] = left
            else:
                gone = self._readers.pop(topic, None) is not None
        if not left and gone:
            self.on_close(topic)

    def topics(self) -> list[str]:
        """List the topics that are read."""
        with self._lock:
            return sorted(self._readers)

    def take(self, message: ReceivedMessage) -> bool:
        """Hand a message to those who read its topic; False: nobody does."""
        readers = self._readers.get(message.topic)
        if readers is None:
            return False
        message.ack()
        # What the broker has kept is no reading of now.
        if not message.retained:
            for put in readers:
                put(message.payload)
        return True


def _nothing(topic: str) -> None:
    del topic
