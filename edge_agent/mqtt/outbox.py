"""Messages to be published: over the present connection, or kept for the next one.

Retained state is published again over every new connection; results wait or are lost, as the
delivery of their channel says (`message.Delivery`). Nothing here waits or locks: callers hold the
client's lock.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .connection import Connection, Refusal, is_acknowledged
from .inflight import Inflight, InflightMessage
from .message import CREDIT, Channel, Message

log = logging.getLogger(__name__)

HELD = 100
"""Results of live sources kept before the first connection."""
OUTSTANDING = 1000
"""Messages in flight to the broker; beyond, new ones are refused and counted: paho would queue them
without bound behind a socket that does not move."""
REPLAY = 10
"""Copies that may be in flight, and copies published by one `publish_waiting`.
paho has 20 messages in flight and queues those beyond, so that live ones find room at once."""
BARRIER_SECONDS = 0.25
"""Between two barriers, at most, while results are published."""
OPEN_BARRIERS = 4
"""Barriers that may be unanswered."""


@dataclass(slots=True)
class _Flight:
    """State of the present connection, which ends with it."""

    awaited: set[int] = field(default_factory=set)
    """Message ids of QoS 1 that are not acknowledged."""
    unwritten: deque[Any] = field(default_factory=deque)
    """Receipts of QoS 0, from the first that was not known to be written to the socket on."""
    foreign: set[int] = field(default_factory=set)
    """Message ids of replies on topics that requesters have chosen."""
    unacknowledged: dict[int, float] = field(default_factory=dict)
    """By message id of QoS 1: when it was published, by the monotonic clock."""
    too_large: set[str] = field(default_factory=set)
    """Topics of messages that were too large for it, logged once each."""


class Outbox:
    """All messages in flight to the broker, and those that wait for a connection."""

    def __init__(self, barrier_topic: str) -> None:
        """Start without a connection; *barrier_topic* is never subscribed to, see `Barrier`."""
        self.connection: Connection | None = None
        self.channels: list[Channel] = []
        self.inflight = Inflight()
        self.refused = 0
        """Not published: too large, or too many in flight."""
        self.unauthorized = 0
        """Refused by the broker."""
        self.replayed = 0
        """Published as possible copies."""
        self._lost = 0
        self._was_connected = False
        self._flight = _Flight()
        self._barrier = Barrier(barrier_topic)
        self._retained: dict[str, bytes] = {}
        self._held: deque[Message] = deque()
        self._replies: deque[tuple[str, bytes, bytes | None, bool]] = deque(maxlen=HELD)

    @property
    def lost(self) -> int:
        """Results that will never be published."""
        return self._lost + self.inflight.dropped

    @property
    def waiting(self) -> int:
        """Results that have not reached the broker, or are not known to have."""
        unconfirmed = sum(len(channel.unconfirmed) for channel in self.channels)
        return len(self._held) + self.inflight.waiting + unconfirmed

    def silent_seconds(self) -> float:
        """Return how long the oldest message of QoS 1 has waited for its acknowledgment."""
        if not self._flight.unacknowledged:
            return 0.0
        return time.monotonic() - next(iter(self._flight.unacknowledged.values()))

    # Publishing

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool = False,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Publish now or never; *about*: user properties."""
        connection = self.connection
        # Retained state of QoS 1 is small, rare, and must not be missing: no bound for it.
        bounded = not (retain and qos)
        if connection is None or self._too_large(connection, topic, len(payload)):
            return
        if bounded and self._too_many():
            return
        if retain and not payload and not connection.abilities.retain:
            return  # nothing is kept that could be cleared
        receipt = self._pass(connection, topic, payload, qos, retain=retain, about=about)
        if qos:
            self._flight.unacknowledged[receipt.mid] = time.monotonic()

    def publish_retained(self, topic: str, payload: bytes) -> None:
        """Publish retained, over every new connection again; an empty payload clears the topic."""
        self._retained[topic] = payload
        self.publish(topic, payload, 1, retain=True)

    def publish_reply(
        self, topic: str, payload: bytes, correlation: bytes | None, *, foreign: bool = False
    ) -> None:
        """Publish the answer to a request; without a connection, over the next one.

        On a *foreign* topic, one that a requester has chosen, a refusal by the broker is the
        requester's mistake and no problem of this device.
        """
        connection = self.connection
        if connection is None:
            self._replies.append((topic, payload, correlation, foreign))
        elif not self._too_large(connection, topic, len(payload) + len(correlation or b"")):
            receipt = self._pass(connection, topic, payload, 1, correlation=correlation)
            if foreign:
                self._flight.foreign.add(receipt.mid)

    def publish_message(self, message: Message) -> None:
        """Publish a result or event, with the delivery of its channel."""
        match message.channel.delivery:
            case "live":
                self._publish_live(message)
            case "confirmed":
                message.channel.unconfirmed.append(message)
                if self.connection is not None:
                    self._publish_message(self.connection, message)
                    if self._barrier.is_due():
                        self.request_barrier()
            case "spooled":
                self._publish_spooled(message)

    def _publish_live(self, message: Message) -> None:
        if self.connection is not None:
            self._publish_message(self.connection, message)
        elif self._was_connected:
            self._lost += 1
            message.channel.lost += 1
        else:
            # Kept for the first connection; the oldest gives way to it.
            if len(self._held) >= HELD:
                self._lost += 1
                self._held.popleft().channel.lost += 1
            message.encode_to_wait()
            self._held.append(message)

    def _publish_spooled(self, message: Message) -> None:
        entry = self.inflight.add(message)
        if self.connection is not None:
            # What waits for room alone goes first; copies of an earlier connection are overtaken.
            while self._has_room() and (older := self.inflight.take_unsent()) is not None:
                self._publish_message(self.connection, older.message, older)
        if self.connection is not None and self._has_room():
            self.inflight.mark_overtaken()
            self._publish_message(self.connection, message, entry)
        else:
            self.inflight.enqueue(entry)

    def publish_waiting(self, most: int = REPLAY) -> None:
        """Publish spooled messages that wait, oldest first."""
        for _ in range(most):
            if self.connection is None or not self._has_room() or self.inflight.copies >= REPLAY:
                return
            entry = self.inflight.take()
            if entry is None:
                return
            self._publish_message(self.connection, entry.message, entry)

    def request_barrier(self) -> None:
        """Find out whether the unconfirmed results so far have reached the broker."""
        if self.connection is not None:
            self._barrier.request(self.connection, self.channels)

    # What happens to the connection

    def connected(self, connection: Connection, status: tuple[str, bytes]) -> None:
        """Take over a connection, subscribed already: publish *status*, then all that waited."""
        first = not self._was_connected
        self._was_connected = True
        self._flight = _Flight()
        self.connection = connection
        self.publish(*status, 1, retain=True)
        for topic, payload in self._retained.items():
            self.publish(topic, payload, 1, retain=True)
        for topic in [topic for topic, payload in self._retained.items() if not payload]:
            del self._retained[topic]
        while self._replies:
            topic, payload, correlation, foreign = self._replies.popleft()
            self.publish_reply(topic, payload, correlation, foreign=foreign)
        while self._held:
            self._publish_message(connection, self._held.popleft())
        self.inflight.connected()
        if first:
            # Before anything newer can overtake it.
            self.publish_waiting(OUTSTANDING)
        for channel in self.channels:
            for message in channel.unconfirmed:
                # It waited out a break, or may have arrived before it: a copy either way.
                message.replayed = not first
                self._publish_message(connection, message)
        self.request_barrier()

    def disconnected(self) -> None:
        """Keep messages in flight for the next connection."""
        self.connection = None
        self._barrier.reset()
        self.inflight.disconnected()

    def published(self, mid: int, refusal: Refusal | None) -> None:
        """Record that a message of QoS 1 was acknowledged."""
        self._flight.awaited.discard(mid)
        if not self._flight.awaited and self.connection is not None:
            self.connection.hear_published(wanted=False)
        self._flight.unacknowledged.pop(mid, None)
        self.inflight.acknowledged(mid)
        foreign = mid in self._flight.foreign
        self._flight.foreign.discard(mid)
        if refusal is not None and foreign:
            log.debug("broker: refused a reply on a response topic: %s", refusal.reason)
        elif refusal is not None:
            self.unauthorized += 1
            if self.unauthorized == 1:
                log.warning(
                    "broker: refused a message of this device: %s (see its access list)",
                    refusal.reason,
                )

    def unsubscribed(self, mid: int) -> None:
        """Record the answer to a barrier."""
        self._barrier.answered(mid)

    # Passing to the connection

    def _pass(
        self, connection: Connection, topic: str, payload: bytes, qos: int, **options: Any
    ) -> Any:
        """Hand a message to the connection; return its receipt."""
        if qos == 0:
            receipt = connection.publish(topic, payload, qos, **options)
            self._flight.unwritten.append(receipt)
            self._forget_written()
            return receipt
        if not self._flight.awaited:
            connection.hear_published(wanted=True)
        receipt = connection.publish(topic, payload, qos, **options)
        self._flight.awaited.add(receipt.mid)
        return receipt

    def _publish_message(
        self, connection: Connection, message: Message, entry: InflightMessage | None = None
    ) -> None:
        """Publish a result or event; *entry*: of spooled delivery."""
        channel = message.channel
        payload = message.payload()
        bounded = channel.delivery == "live"
        if self._too_large(connection, message.topic, len(payload)) or (
            bounded and self._too_many()
        ):
            if entry is not None:
                self.inflight.drop(entry)
            else:
                channel.lost += 1
            return
        receipt = self._pass(connection, message.topic, payload, channel.qos)
        self.replayed += message.replayed
        if not message.counted:
            message.counted = True
            channel.published += not message.event
            if message.on_published is not None:
                message.on_published(message.replayed)
        if entry is not None:
            self.inflight.sent(receipt.mid, entry)

    def _has_room(self) -> bool:
        """Whether a spooled message may be published now rather than wait."""
        return self.inflight.has_room and self._outstanding < OUTSTANDING

    @property
    def _outstanding(self) -> int:
        """How many messages are neither acknowledged nor, at QoS 0, written to the socket."""
        self._forget_written()
        return len(self._flight.awaited) + len(self._flight.unwritten)

    def _forget_written(self) -> None:
        unwritten = self._flight.unwritten
        while unwritten and is_acknowledged(unwritten[0]):
            unwritten.popleft()

    def _too_large(self, connection: Connection, topic: str, size: int) -> bool:
        limit = connection.max_packet
        if limit is None or size + len(topic.encode()) + 64 <= limit:
            return False
        self.refused += 1
        if topic not in self._flight.too_large:
            self._flight.too_large.add(topic)
            log.warning(
                "%s: not published: %d bytes are more than the broker accepts (%d); "
                "raise its max_packet_size (logged once per topic and connection)",
                topic,
                size,
                limit,
            )
        return True

    def _too_many(self) -> bool:
        if self._outstanding < OUTSTANDING:
            return False
        self.refused += 1
        return True


class Barrier:
    """QoS 0 delivery barrier, behind the unconfirmed results of all channels.

    A broker never acknowledges QoS 0, but it answers in order: an UNSUBSCRIBE of a topic that was
    never subscribed to changes nothing and is always answered (MQTT 5, 3.10.4), after the broker
    has processed all that was sent before.
    """

    def __init__(self, topic: str) -> None:
        """Start without barriers; *topic* is never subscribed to."""
        self._topic = topic
        self._marks: dict[int, list[tuple[Channel, Message]]] = {}
        """By message id of an unanswered barrier: the last result of each channel before it."""
        self._since = 0
        """Results published since the last barrier."""
        self._requested_at = 0.0

    def is_due(self) -> bool:
        """Count a result that was published; return whether it is time for a barrier."""
        self._since += 1
        waited = time.monotonic() - self._requested_at
        return self._since >= CREDIT // 4 or waited > BARRIER_SECONDS

    def request(self, connection: Connection, channels: Iterable[Channel]) -> None:
        """Send a barrier behind all unconfirmed results, if there are any."""
        marks = [(c, c.unconfirmed[-1]) for c in channels if c.unconfirmed]
        if not marks or len(self._marks) >= OPEN_BARRIERS:
            return
        mid = connection.unsubscribe(self._topic)
        if mid is not None:
            self._marks[mid] = marks
        self._since = 0
        self._requested_at = time.monotonic()

    def answered(self, mid: int) -> None:
        """Release the results that have reached the broker."""
        for channel, mark in self._marks.pop(mid, []):
            # A later barrier may have been answered first.
            if any(message is mark for message in channel.unconfirmed):
                while channel.unconfirmed.popleft() is not mark:
                    pass

    def reset(self) -> None:
        """Expect no answers: the connection is lost."""
        self._marks.clear()
