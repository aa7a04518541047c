"""The device's subscriptions, and the handlers of the messages that arrive.

Its own inbox and those of its groups are always included; other modules register a prefix.
Readings on foreign topics bypass the inbox: that handles requests one at a time, and checking a
package there must not delay a sensor.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..core.errors import MalformedError
from .connection import ReceivedMessage
from .topics import Topics

log = logging.getLogger(__name__)

Handler = Callable[[tuple[str, ...], ReceivedMessage], bool]
"""Takes a message and the levels of its topic below the prefix; returns whether it will acknowledge
the message itself later. Raises MalformedError for an unexpected topic or message."""


class Subscriptions:
    """The prefixes of subscribed topics."""

    def __init__(self, topics: Topics, groups: Callable[[], Iterable[str]]) -> None:
        """Start with the inboxes of the device and its *groups* in the current settings."""
        self._topics = topics
        self._groups = groups
        self._others: dict[str, tuple[Handler, Callable[[], Iterable[str]] | None]] = {}

    def register(
        self, prefix: str, handler: Handler, topics: Callable[[], Iterable[str]] | None = None
    ) -> None:
        """Subscribe to a topic and all below it; `Client.subscribe` applies it while connected.

        *topics* returns the topics below it that are currently wanted; None: all are.
        """
        self._others[prefix] = handler, topics

    def filters(self) -> list[str]:
        """Return the topic filters to subscribe to."""
        filters = [f"{inbox}/#" for inbox in self._inboxes()]
        for prefix, (_, topics) in self._others.items():
            filters += [f"{prefix}/#"] if topics is None else topics()
        return filters

    def find(self, topic: str) -> tuple[Handler | None, tuple[str, ...]]:
        """Return the handler of a topic (None: an inbox) and the levels below the prefix.

        Raises:
            MalformedError: it is under no prefix, such as of a group that this device has left.
        """
        for inbox in self._inboxes():
            if topic.startswith(f"{inbox}/"):
                return None, _levels(topic, inbox)
        for prefix, (handler, _) in self._others.items():
            if topic == prefix or topic.startswith(f"{prefix}/"):
                return handler, _levels(topic, prefix)
        raise MalformedError("not for us: of a group or source that this device has left")

    def _inboxes(self) -> list[str]:
        return [self._topics.inbox, *(self._topics.group_inbox(group) for group in self._groups())]


def _levels(topic: str, prefix: str) -> tuple[str, ...]:
    below = topic.removeprefix(prefix).removeprefix("/")
    return tuple(below.split("/")) if topic != prefix else ()


EARLY_BYTES = 16 * 2**20
"""Payloads of a topic that are kept until it is read; beyond that the oldest are given up."""

Put = Callable[[bytes], None]
"""Takes a payload; called by the connection's thread, so it must not wait."""


@dataclass
class _Early:
    """What has come of a topic that not all who will read it have opened yet."""

    payloads: deque[bytes] = field(default_factory=deque)
    size: int = 0
    given_up: int = 0
    due: bool = False

    def add(self, payload: bytes) -> None:
        self.payloads.append(payload)
        self.size += len(payload)
        while self.size > EARLY_BYTES:
            self.size -= len(self.payloads.popleft())
            self.given_up += 1

    def pass_to(self, topic: str, readers: tuple[Put, ...]) -> None:
        if self.given_up:
            log.warning(
                "%s: %d messages came before it was read, and were given up", topic, self.given_up
            )
        for payload in self.payloads:
            for put in readers:
                put(payload)


class Feeds:
    """The foreign topics that are read, and their readers. Any thread may call it."""

    def __init__(self) -> None:
        self.on_open: Callable[[str], None] = _nothing
        self.on_close: Callable[[str], None] = _nothing
        """Called when a topic gets its first reader, and when it loses its last."""
        self._readers: dict[str, tuple[Put, ...]] = {}
        self._held: set[str] = set()
        self._expected: dict[str, int] = {}
        """How many readers those topics have, or will have, that brokers hold for us."""
        self._early: dict[str, _Early] = {}
        """Those of them that are not read by all yet."""
        self._halted = False
        self._lock = threading.Lock()

    def expect(self, topic: str, more: int = 1) -> None:
        """Note that *more* readers will open a topic that brokers hold for us; -1: one fewer.

        A broker sends what it has held once there is a connection, before anything is read: that is
        kept here until the reader has opened the topic, or of several until `release`.
        """
        with self._lock:
            before = self._expected.get(topic, 0)
            if before + more > 0:
                if not before and topic not in self._readers:
                    self._early[topic] = _Early()
                self._expected[topic] = before + more
            else:
                self._expected.pop(topic, None)
                self._early.pop(topic, None)

    @property
    def unreleased(self) -> list[str]:
        """The topics with readers of which something may be kept here."""
        return [topic for topic in list(self._early) if topic in self._readers]

    def release(self, topic: str) -> None:
        """Pass on what has come of a topic, at the second call: who will read it run by then.

        Pipelines that share a source open it once, and are said to run just before they do.
        """
        with self._lock:
            early = self._early.get(topic)
            if early is not None and early.due:
                self._pass_early(topic)
            elif early is not None:
                early.due = True

    def _pass_early(self, topic: str) -> None:
        """Pass it on; the caller has the lock, for which what comes meanwhile waits in `take`."""
        early = self._early.get(topic)
        if early is not None:
            early.pass_to(topic, self._readers.get(topic, ()))
            del self._early[topic]

    def wants(self, topic: str) -> bool:
        """Whether a topic is read, or will be."""
        return topic in self._readers or topic in self._expected

    def halt(self) -> None:
        """Leave what comes from now on to the next run: the broker holds it again until then."""
        self._halted = True

    def open(self, topic: str, put: Put, *, held: bool) -> None:
        """Pass the messages of a topic to *put* from now on.

        *held*: also those that the broker has held while it could not be reached. Without a time of
        their own they would pass for readings of now.
        """
        with self._lock:
            before = self._readers.get(topic, ())
            self._readers[topic] = (*before, put)
            if len(self._readers[topic]) >= self._expected.get(topic, 0):
                self._pass_early(topic)
            more = held and topic not in self._held
            if more:
                self._held.add(topic)
        if more or not before:
            self.on_open(topic)

    def close(self, topic: str, put: Put) -> None:
        """Stop passing messages to *put*."""
        gone = False
        with self._lock:
            left = tuple(one for one in self._readers.get(topic, ()) if one != put)
            if left:
                self._readers[topic] = left
            else:
                gone = self._readers.pop(topic, None) is not None
                self._held.discard(topic)
                if topic in self._expected:
                    self._early.setdefault(topic, _Early())  # until it is opened again
        if not left and gone and not (self._halted and topic in self._expected):
            self.on_close(topic)

    def topics(self) -> list[str]:
        """List the topics that are read."""
        with self._lock:
            return sorted(self._readers)

    def qos(self, topic: str) -> int:
        """Return the QoS of a subscription: of QoS 0 brokers hold nothing."""
        return int(topic in self._held)

    def take(self, message: ReceivedMessage) -> bool:
        """Pass a message to the readers of its topic; False: there are none."""
        early, expected = message.topic in self._early, message.topic in self._expected
        readers = self._readers.get(message.topic)
        if readers is None and not expected:
            return False
        if expected and self._halted:
            return True  # not acknowledged
        message.ack()
        # A retained message is not a current reading.
        if not message.retained:
            if early or readers is None:
                readers = self._keep(message)
            for put in readers:
                put(message.payload)
        return True

    def _keep(self, message: ReceivedMessage) -> tuple[Put, ...]:
        """Keep a message of a topic that is not read by all yet; or return who reads it now."""
        with self._lock:
            early = self._early.get(message.topic)
            if early is None:
                return self._readers.get(message.topic, ())
            early.add(message.payload)
            return ()


def _nothing(topic: str) -> None:
    del topic
