"""What is to be said: over the connection that there is, or kept for the next.

State is said again at every connection; results wait or are lost as their channel wants it.
Bookkeeping and handing on only: whoever calls holds the link's lock, and nothing here waits.
"""

from __future__ import annotations

import logging
from collections import deque

from .barrier import Barrier
from .connection import Connection, Refusal
from .inflight import Inflight, InflightMessage
from .message import Channel, Message

log = logging.getLogger(__name__)

HELD = 100
"""Results of live sources kept before the first connection."""
OUTSTANDING = 1000
"""Messages on their way to the broker; beyond, new ones are refused and counted: paho would pile
them up without bound behind a socket that does not move."""
REPLAY = 10
"""Copies that may be on their way, and that are sent with every `catch_up`.
Paho has 20 messages under way and queues those beyond, so that live ones find room at once."""


class Outbox:
    """Everything on its way to the broker, and what waits for one."""

    def __init__(self, fence_topic: str) -> None:
        """Begin without a connection.

        Args:
            fence_topic: one that nobody subscribes to; see `fences`.

        """
        self.connection: Connection | None = None
        self.channels: list[Channel] = []
        self.backlog = Inflight()
        self.refused = 0
        self.unauthorized = 0
        self.replayed = 0
        """Sent with the word that they may be copies."""
        self._lost = 0
        self._ever = False
        """Whether there has been a connection."""
        self._under_way = 0
        self._fences = Barrier(fence_topic)
        self._retained: dict[str, bytes] = {}
        self._held: deque[Message] = deque()
        self._replies: deque[tuple[str, bytes, bytes | None]] = deque(maxlen=HELD)

    @property
    def lost(self) -> int:
        """Results that nobody will ever see."""
        return self._lost + self.backlog.dropped

    @property
    def waiting(self) -> int:
        """Results that have not arrived, or are not known to have."""
        unconfirmed = sum(len(channel.unconfirmed) for channel in self.channels)
        return len(self._held) + self.backlog.waiting + unconfirmed

    # What is said

    def say(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        """Say something that is no result, now or never; retained, at each new connection too."""
        if retain:
            self._retained[topic] = payload
        if self.connection is not None:
            self._give(self.connection, topic, payload, qos, retain=retain)

    def reply(self, topic: str, payload: bytes, correlation: bytes | None) -> None:
        """Answer a request; without a connection, over the next one."""
        if self.connection is None:
            self._replies.append((topic, payload, correlation))
        else:
            self.connection.publish(topic, payload, 1, correlation=correlation)

    def result(self, parcel: Message) -> None:
        """Send a result; what becomes of it without a connection is up to its channel."""
        channel, connection = parcel.channel, self.connection
        if channel.qos == 0 and channel.lossless:
            channel.unconfirmed.append(parcel)
            if connection is not None:
                self._post(connection, parcel)
                if self._fences.passed():
                    self.fence()
        elif channel.qos == 1:
            promise = self.backlog.promise(parcel)
            if connection is not None and self._has_room():
                self.backlog.overtaken()
                self._post(connection, parcel, promise)
            else:
                self.backlog.keep(promise)
        elif connection is not None:
            self._post(connection, parcel)
        elif self._ever:
            self._lost += 1
            channel.lost += 1
        else:
            self._hold(parcel)

    def _hold(self, parcel: Message) -> None:
        """Keep a live result for the first connection, if need be in the oldest one's place."""
        if len(self._held) >= HELD:
            self._lost += 1
            self._held.popleft().channel.lost += 1
        parcel.seal()
        self._held.append(parcel)

    # A connection comes and goes

    def begin(self, connection: Connection, hello: tuple[str, bytes]) -> None:
        """Say over a new connection who we are, then all that waited.

        Args:
            connection: subscribed already.
            hello: topic and payload of the word that we are there.

        """
        first = not self._ever
        self._ever, self._under_way = True, 0
        self.connection = connection
        self._give(connection, *hello, 1, retain=True)
        for topic, payload in self._retained.items():
            self._give(connection, topic, payload, 1, retain=True)
        for topic in [topic for topic, payload in self._retained.items() if not payload]:
            del self._retained[topic]
        while self._replies:
            topic, payload, correlation = self._replies.popleft()
            connection.publish(topic, payload, 1, correlation=correlation)
        while self._held:
            self._post(connection, self._held.popleft())
        self.backlog.connected()
        if first:
            # Before anything newer can overtake it.
            self.catch_up(OUTSTANDING)
        for channel in self.channels:
            for parcel in channel.unconfirmed:
                # It waited out a break, or may have arrived before it: a copy either way.
                parcel.replayed = not first
                self._post(connection, parcel)
        self.fence()

    def end(self) -> None:
        """Have what was under way wait for the next connection."""
        self.connection = None
        self._fences.forget()
        self.backlog.broke()

    def catch_up(self, most: int = REPLAY) -> None:
        """Send what waits, the longest first."""
        for _ in range(most):
            if self.connection is None or not self._has_room() or self.backlog.copies >= REPLAY:
                return
            promise = self.backlog.next()
            if promise is None:
                return
            self._post(self.connection, promise.parcel, promise)

    def fence(self) -> None:
        """Ask the broker to let us know that all results at QoS 0 so far have reached it."""
        if self.connection is not None:
            self._fences.put(self.connection, self.channels)

    # What the broker answers

    def landed(self, mid: int, refusal: Refusal | None) -> None:
        """Note that a message is acknowledged, or written where nobody acknowledges it."""
        self._under_way = max(0, self._under_way - 1)
        self.backlog.landed(mid)
        if refusal is not None:
            self.unauthorized += 1
            if self.unauthorized == 1:
                words = "broker: refuses what we publish: %s (see its access list)"
                log.warning(words, refusal.reason)

    def fence_answered(self, mid: int) -> None:
        self._fences.answered(mid)

    # Handing on

    def _give(
        self, connection: Connection, topic: str, payload: bytes, qos: int, *, retain: bool
    ) -> None:
        """Hand on something that is not a result."""
        # State is small, rare, and must not be missing: no bound for it.
        if self._too_large(connection, topic, payload) or (not retain and self._too_many()):
            return
        self._under_way += 1
        connection.publish(topic, payload, qos, retain=retain)

    def _post(
        self, connection: Connection, parcel: Message, promise: InflightMessage | None = None
    ) -> None:
        """Hand on a result; at QoS 1 one that was promised."""
        channel = parcel.channel
        payload = parcel.render()
        refusable = channel.qos == 0 and not channel.lossless
        if self._too_large(connection, parcel.topic, payload) or (refusable and self._too_many()):
            if promise is not None:
                self.backlog.give_up(promise)
            else:
                channel.lost += 1
            return
        self._under_way += 1
        receipt = connection.publish(parcel.topic, payload, channel.qos)
        self.replayed += parcel.replayed
        if not parcel.counted:
            parcel.counted = True
            channel.published += not parcel.event
            if parcel.sent is not None:
                parcel.sent(parcel.replayed)
        if promise is not None:
            self.backlog.fly(receipt.mid, promise)

    def _has_room(self) -> bool:
        """Whether a result at QoS 1 may go now rather than wait."""
        return self.backlog.room and self._under_way < OUTSTANDING

    def _too_large(self, connection: Connection, topic: str, payload: bytes) -> bool:
        limit = connection.max_packet
        if limit is None or len(payload) + len(topic) + 64 <= limit:
            return False
        self.refused += 1
        log.warning("%s: %d bytes are more than the broker takes (%d)", topic, len(payload), limit)
        return True

    def _too_many(self) -> bool:
        if self._under_way < OUTSTANDING:
            return False
        self.refused += 1
        return True
