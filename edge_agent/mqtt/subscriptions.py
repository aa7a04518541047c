"""The device's subscriptions, and the handlers of the messages that arrive.

Its own inbox and those of its groups are always included; other modules register a prefix.
Readings on foreign topics bypass the inbox: that handles requests one at a time, and checking a
package there must not delay a sensor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

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
MESSAGE_BYTES = 500
"""What a message takes beside its payload."""
EARLY_SECONDS = 10.0
"""How long they are not acknowledged, so that the broker sends them again if this run ends. No
longer: brokers send only so many messages, commands among them, before one is acknowledged."""
LATE_SECONDS = 5.0
"""How long after a connection was made a message may be one that the broker had held."""

Put = Callable[[bytes], None]
"""Takes a payload; called by the connection's thread, so it must not wait."""


class _Reader(NamedTuple):
    put: Put
    held: bool
    """Whether it reads what the broker has held, too."""


@dataclass
class _Early:
    """What has come of a topic that not all who will read it have opened yet."""

    messages: deque[ReceivedMessage] = field(default_factory=deque)
    size: int = 0
    given_up: int = 0
    since: float = inf
    """When the first one came, monotonic seconds."""
    acknowledged: bool = False

    def add(self, message: ReceivedMessage) -> None:
        self.since = min(self.since, time.monotonic())
        if self.acknowledged:
            message.ack()
        self.messages.append(message)
        self.size += _size(message)
        while self.size > EARLY_BYTES:
            self.given_up += 1
            self._take()

    def _take(self) -> bytes:
        message = self.messages.popleft()
        if not self.acknowledged:
            message.ack()
        self.size -= _size(message)
        return message.payload

    def acknowledge(self) -> None:
        """Have the broker forget all of it."""
        if not self.acknowledged:
            self.acknowledged = True
            for message in self.messages:
                message.ack()

    def lose(self) -> None:
        """Forget what the broker sends again over its next connection."""
        if not self.acknowledged:
            self.messages = deque(message for message in self.messages if not message.qos)
            self.size = sum(map(_size, self.messages))

    def pass_to(self, topic: str, readers: tuple[_Reader, ...]) -> None:
        if self.given_up:
            log.warning(
                "%s: %d messages came before it was read, and were given up", topic, self.given_up
            )
        while self.messages:
            payload = self._take()
            for reader in readers:
                if reader.held:
                    reader.put(payload)


class Feeds:
    """The foreign topics that are read, and their readers. Any thread may call it."""

    def __init__(self) -> None:
        self.on_open: Callable[[str], object] = _nothing
        self.on_close: Callable[[str], object] = _nothing
        """Called when a topic gets its first reader, and when it loses its last."""
        self._readers: dict[str, tuple[_Reader, ...]] = {}
        self._expected: dict[str, int] = {}
        """How many readers those topics have, or will have, that brokers hold for us."""
        self._others: dict[str, int] = {}
        """The same of topics that brokers do not hold for us."""
        self._early: dict[str, _Early] = {}
        """Those of them that are not read by all yet."""
        self._halted = False
        self._late_until = inf
        """Until when a message may be one that the broker had held, monotonic seconds; infinite:
        there is no connection."""
        self._lock = threading.Lock()

    def expect(self, topic: str, more: int = 1, *, held: bool = True) -> None:
        """Note that *more* readers will open a topic; -1: one fewer.

        A broker sends what it has *held* for it once it accepts a connection, before anything is
        read or could be published: that is kept here until there is a connection and the reader has
        opened the topic, or of several until `release`. What comes of others until then is dropped.
        """
        counts = self._expected if held else self._others
        with self._lock:
            before = counts.get(topic, 0)
            if before + more > 0:
                if held and not before and not self._holding(topic):
                    self._early[topic] = _Early()
                counts[topic] = before + more
                return
            counts.pop(topic, None)
            if held and (early := self._early.pop(topic, None)) is not None:
                early.acknowledge()
        self._left(topic, held=held)

    def release(self, is_read: Callable[[str], bool]) -> None:
        """Pass on what has come of topics that are read by all; called about every second.

        *is_read*: whether all pipelines that read what is held of a topic have their source, which
        they may share, so that one reader is that of all.
        """
        for topic in list(self._early):
            ready = self._holding(topic) > 0 and is_read(topic)
            with self._lock:
                early = self._early.get(topic)
                self._pass_early(topic, is_read=ready)
                if early is not None and time.monotonic() - early.since > EARLY_SECONDS:
                    early.acknowledge()

    def _pass_early(self, topic: str, *, is_read: bool = False) -> None:
        """Pass it on if there is a connection and all read it; *is_read*: one is the reader of all.

        The caller has the lock, for which what comes meanwhile waits in `take`.
        """
        is_read = is_read or self._holding(topic) >= self._expected.get(topic, 0)
        if topic in self._early and is_read and self._late_until < inf:
            self._early[topic].pass_to(topic, self._readers.get(topic, ()))
            del self._early[topic]

    def _holding(self, topic: str) -> int:
        return sum(reader.held for reader in self._readers.get(topic, ()))

    def wants(self, topic: str) -> bool:
        """Whether a topic is read, or will be."""
        opened = topic in self._others and not self._halted
        return topic in self._readers or topic in self._expected or opened

    def halt(self) -> None:
        """Leave what comes from now on to the next run: the broker holds it again until then."""
        self._halted = True

    def connected(self) -> None:
        """Note that there is a connection, over which the broker sends first what it has held.

        What is published from now on waits for it.
        """
        with self._lock:
            self._late_until = time.monotonic() + LATE_SECONDS
            for topic in list(self._early):
                self._pass_early(topic)

    def disconnected(self) -> None:
        """Forget what the broker sends again over its next connection, and keep that then."""
        with self._lock:
            self._late_until = inf
            for topic in self._expected:
                self._early.setdefault(topic, _Early())
            for early in self._early.values():
                early.lose()

    def open(self, topic: str, put: Put, *, held: bool) -> None:
        """Pass the messages of a topic to *put* from now on.

        *held*: also those that the broker has held while it could not be reached. Without a time of
        their own they would pass for readings of now.
        """
        with self._lock:
            before = self._readers.get(topic, ())
            more = not before or (held and not self._holding(topic))
            self._readers[topic] = (*before, _Reader(put, held))
            self._pass_early(topic)
        if more:
            self.on_open(topic)

    def close(self, topic: str, put: Put) -> None:
        """Stop passing messages to *put*."""
        with self._lock:
            before = self._readers.pop(topic, ())
            left = tuple(one for one in before if one.put != put)
            if left:
                self._readers[topic] = left
            if topic in self._expected and not self._holding(topic):
                self._early.setdefault(topic, _Early())  # until it is opened again
        if gone := set(before).difference(left):
            self._left(topic, held=any(one.held for one in gone))

    def _left(self, topic: str, *, held: bool) -> None:
        """Have the broker send no more of a topic than is wanted; *held*: it has held it so far."""
        if not self.wants(topic):
            self.on_close(topic)
        elif held and not self.qos(topic):
            self.on_open(topic)  # at QoS 0 from now on

    def topics(self) -> list[str]:
        """List the topics that are read."""
        with self._lock:
            return sorted(self._readers)

    def qos(self, topic: str) -> int:
        """Return the QoS of a subscription: of QoS 0 brokers hold nothing."""
        return int(topic in self._expected or self._holding(topic) > 0)

    def take(self, message: ReceivedMessage) -> bool:
        """Pass a message to the readers of its topic; False: there are none, nor will be."""
        topic = message.topic
        early, expected = topic in self._early, topic in self._expected
        readers = self._readers.get(topic)
        if readers is None and not expected and topic not in self._others:
            return False
        if expected and self._halted:
            return True  # not acknowledged
        # A retained message is not a current reading.
        if not message.retained and (early or readers is None):
            if self._keep(message):
                return True
            readers = self._readers.get(topic, ())
        message.ack()
        if not message.retained:
            late = time.monotonic() < self._late_until and self.qos(topic)
            for reader in readers or ():
                if reader.held or not late:
                    reader.put(message.payload)
        return True

    def _keep(self, message: ReceivedMessage) -> bool:
        """Keep a message of a topic that is not read by all yet; False: now it is."""
        with self._lock:
            early = self._early.get(message.topic)
            if early is not None:
                early.add(message)
            return early is not None


def _size(message: ReceivedMessage) -> int:
    return len(message.payload) + MESSAGE_BYTES


def _nothing(topic: str) -> None:
    del topic
