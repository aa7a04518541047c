"""Messages to publish over the present connection, or to keep for the next one.

Retained state is published again over every new connection; results wait or are lost, according to
their channel's delivery (`message.Delivery`). Nothing here waits or locks: callers hold the
client's lock.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any

from .barrier import Barrier
from .connection import Connection, Refusal
from .flight import REPLIES, Flight, Reply
from .hang_ups import CAREFUL_SECONDS, CONTROL_SECONDS, SEE, HangUps, explain
from .inflight import Inflight, InflightMessage
from .message import Answered, Channel, Message

log = logging.getLogger(__name__)

HELD = 100
"""Most results of live sources kept before the first connection."""
OUTSTANDING = 1000
"""Most messages in flight; further ones are refused and counted: paho would queue them without
limit when its socket is blocked."""
QUEUED, QUEUED_BYTES = 100, 4 * 2**20
"""The same for a careful connection, which takes one after another."""
AT_ONCE = 2
"""The same for results: their age is told as they are published, so they must not wait there."""
MOST_CARE = 6
"""How many times as long a connection may be careful, until what it has queued is acknowledged."""
REPLAY = 10
"""Most copies in flight, and most copies published by one `publish_waiting`.
paho sends 20 messages at a time and queues the rest, so live ones are sent at once."""
REPEAT_SECONDS = 600.0
QUOTA_EXCEEDED = 0x97
BROKEN = "the connection broke before the broker acknowledged it"
CROWDED = "too many messages are in flight to the broker"


class Outbox:
    """All messages in flight to the broker, and those waiting for a connection."""

    def __init__(self, barrier_topic: str) -> None:
        """Start without a connection; nobody publishes on *barrier_topic*, see `Barrier`."""
        self.connection: Connection | None = None
        self.channels: list[Channel] = []
        self.inflight = Inflight()
        self.hang_ups = HangUps()
        self.inflight.series.held = self.hang_ups.held
        self.refused = 0
        """Messages not published: more than the broker takes, or too many in flight."""
        self.forbidden = ""
        """The topic of the first message that the broker has refused, and why."""
        self.replayed = 0
        """Messages published as possible copies."""
        self._lost = 0
        self._was_connected = False
        self._flight = Flight()
        self._barrier = Barrier(barrier_topic)
        self._retained: dict[str, bytes] = {}
        self._held: deque[Message] = deque()
        self._replies: deque[Reply] = deque(maxlen=REPLIES)

    @property
    def lost(self) -> int:
        """Number of results that will never be published."""
        return self._lost + self.inflight.dropped

    @property
    def waiting(self) -> int:
        """Number of results not known to have reached the broker."""
        unconfirmed = sum(len(channel.unconfirmed) for channel in self.channels)
        return len(self._held) + self.inflight.waiting + unconfirmed

    @property
    def uncleared(self) -> set[str]:
        """The retained topics that the broker is not known to have cleared yet."""
        return {topic for topic, payload in self._retained.items() if not payload}

    @property
    def problem(self) -> str | None:
        """Why messages are dropped over the present connection, or None."""
        if held := self.hang_ups.held:
            return f"{', '.join(sorted(held))}: held back, as connections end over it: {SEE}"
        return self._flight.problem

    def silent_seconds(self) -> float:
        """Return how long the broker has owed an acknowledgment, seconds.

        A slow broker that acknowledges one message after another owes none. As it does so in order
        (MQTT 5, 4.6), one whose successor is acknowledged is lost.
        """
        flight, now = self._flight, time.monotonic()
        since = min(now, self._barrier.open_since)
        if (first := next(iter(flight.awaited.values()), None)) is not None:
            oldest = first[0]
            lost = oldest < flight.acknowledged
            since = min(since, oldest if lost else max(oldest, flight.heard_at))
        return now - since

    # Publishing

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool = False,
        about: Mapping[str, str] | None = None,
        answered: Answered | None = None,
        was_held: bool = False,
    ) -> None:
        """Publish now or never.

        *about* are user properties; *answered* is called if there is a connection, of QoS 0 only
        where it is not passed on. What *was_held* back finds room, and keeps its order so.
        """
        connection = self.connection
        # Retained QoS 1 state is small, rare, and must not be missing: it has no limit.
        bounded = not (was_held or (retain and qos))
        if connection is None:
            return
        why = self._why_not(topic, len(payload), live=not qos)
        if why is not None:
            pass
        elif topic in self.hang_ups.held:
            again = partial(self.publish, topic, payload, qos, retain=retain, about=about)
            again = partial(again, answered=answered, was_held=True)
            key = topic if retain and answered is None else None
            if (retain or qos) and self._flight.held.keep(key, len(payload), again, answered):
                return
            self.refused += 1
            # Of QoS 0 it is not worth waiting for.
            why = CROWDED if retain or qos else explain(len(payload))
        elif bounded and self._too_many(qos, len(payload)):
            why = CROWDED
        elif retain and not payload and not connection.abilities.retain:
            why = "the broker keeps no retained messages, so there is none to clear"
        else:
            receipt = self._pass(connection, topic, payload, qos, retain=retain, about=about)
            if qos and answered is not None:
                self._flight.answered[receipt.mid] = answered
            return
        if answered is not None:
            answered(why)

    def publish_retained(self, topic: str, payload: bytes) -> None:
        """Publish retained, again over every new connection; an empty payload clears the topic."""
        self._retained[topic] = payload
        flight = self._flight
        if len(flight.awaited) >= QUEUED and flight.awaits(topic):
            flight.newer.add(topic)  # the latest goes once those before are answered
        else:
            self.publish(topic, payload, 1, retain=True)

    def repeat(self, status_topic: str, status: bytes) -> None:
        """Publish the status again, and where there are several nodes at times all retained state.

        Bridged nodes send each other what they keep when one comes back, also what is old.
        """
        self.publish(status_topic, status, 1, retain=True)
        connection, flight, now = self.connection, self._flight, time.monotonic()
        others = connection is not None and connection.node.has_others
        if others and now - flight.repeated > REPEAT_SECONDS:
            flight.repeated = now
            for topic, payload in self._retained.items():
                self.publish_retained(topic, payload)

    def publish_reply(
        self, topic: str, payload: bytes, correlation: bytes | None, *, foreign: bool = False
    ) -> None:
        """Publish the answer to a request, or keep it for the next connection.

        On a *foreign* topic, which the requester has chosen, a refusal by the broker is the
        requester's mistake and not a problem of this device.
        """
        self._publish_reply(Reply(topic, payload, correlation, foreign))

    def _publish_reply(self, reply: Reply) -> None:
        topic, connection = reply.topic, self.connection
        if connection is None or topic in self.hang_ups.held:
            self._replies.append(reply)
        elif not self._flight.has_room(reply):
            self.refused += 1
        elif not self._why_not(topic, reply.size):
            given = reply.correlation
            receipt = self._pass(connection, topic, reply.payload, 1, correlation=given)
            self._flight.replies[receipt.mid] = reply
            if reply.foreign:
                self._flight.answered[receipt.mid] = lambda _why: None

    def publish_message(self, message: Message) -> None:
        """Publish a result or event with its channel's delivery."""
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
            # Kept for the first connection; if full, the oldest is dropped.
            if len(self._held) >= HELD:
                self._lost += 1
                self._held.popleft().channel.lost += 1
            message.encode_to_wait()
            self._held.append(message)

    def _publish_spooled(self, message: Message) -> None:
        entry = self.inflight.add(message)
        if self.connection is not None:
            # Messages that only waited for space go first; copies of an earlier connection wait.
            while self._has_room() and (older := self.inflight.take_unsent()) is not None:
                self._publish_message(self.connection, older.message, older)
        must_wait = self.inflight.must_wait(message) or not self._has_room()
        if self.connection is not None and not must_wait:
            self.inflight.mark_overtaken()
            self._publish_message(self.connection, message, entry)
        else:
            self.inflight.enqueue(entry)

    def publish_waiting(self, most: int = REPLAY) -> None:
        """Publish waiting spooled messages, oldest first."""
        for _ in range(most):
            if self.connection is None or not self._has_room() or self.inflight.copies >= REPLAY:
                return
            entry = self.inflight.take()
            if entry is None:
                return
            self._publish_message(self.connection, entry.message, entry)

    def request_barrier(self) -> None:
        """Find out whether the unconfirmed results so far have reached the broker."""
        # It would overtake what paho queues.
        flight = self._flight
        careful = flight.window is not None and flight.awaited
        if self.connection is not None and not careful and flight.queued not in flight.awaited:
            # It would say that what is held back has arrived.
            complete, held = self.channels, self.hang_ups.held
            if held:
                complete = [c for c in complete if all(m.topic not in held for m in c.unconfirmed)]
            self._barrier.request(self.connection, complete)

    # Events of the connection

    def connected(self, connection: Connection, status: tuple[str, bytes]) -> None:
        """Use a connection that has subscribed: publish *status*, then all waiting messages."""
        first = not self._was_connected
        self._was_connected = True
        self._flight = Flight()
        self.connection = connection
        if self.hang_ups.careful and connection.abilities.qos:
            self._flight.window = connection.exchange_window(1)
        self.publish(*status, 1, retain=True)
        # With a suspect first, a connection that the network breaks soon acquits it.
        for topic in sorted(self._retained, key=self.hang_ups.suspects, reverse=True):
            self.publish(topic, self._retained[topic], 1, retain=True)
        self._publish_replies()
        while self._held:
            self._publish_message(connection, self._held.popleft())
        self.inflight.connected()
        if first:
            # Before anything newer can overtake it.
            self.publish_waiting(OUTSTANDING)
        for channel in self.channels:
            for message in channel.unconfirmed:
                # It waited during a break, or may have arrived before it: a copy either way.
                message.replayed = not first
                self._publish_message(connection, message)
        self.request_barrier()

    def disconnected(self) -> None:
        """Keep messages in flight for the next connection."""
        if self.connection is None:  # it was to be careful, but did not last until then
            self.hang_ups.forgive()
        elif self.connection.gone.is_set():
            self._find_culprit(self.connection)
        self.connection = None
        self._flight.held.drop(BROKEN)
        for each in self._flight.replies.values():
            if each.may_be_again:
                self._replies.append(each._replace(broken=each.broken + 1))
        unanswered, self._flight.answered = self._flight.answered, {}
        for answered in reversed(unanswered.values()):  # each may be put back before the others
            answered(BROKEN)
        self._barrier.reset()
        self.inflight.disconnected()

    def published(self, mid: int, refusal: Refusal | None) -> None:
        """Record that a QoS 1 message was acknowledged, or refused."""
        if refusal is not None and refusal.code == QUOTA_EXCEEDED and self.connection is not None:
            # For the moment: with the connection given up, all that is in flight waits.
            self.connection.give_up(f"it refuses messages for the moment: {refusal.reason}")
            return
        published = self._flight.awaited.pop(mid, None)
        self._flight.replies.pop(mid, None)
        topic, forgiven = "an unknown topic", False
        if published is not None:
            since, topic, size = published
            forgiven = self.hang_ups.answered(topic, size, refusal)
            self._flight.acknowledged = max(self._flight.acknowledged, since)
            self._flight.heard_at = time.monotonic()
            self._settle_retained(topic)
        if not self._flight.awaited and self.connection is not None:
            self.connection.hear_published(wanted=False)
        self.inflight.acknowledged(mid, refused=refusal is not None)
        answered = self._flight.answered.pop(mid, None)
        if answered is not None:
            answered(None if refusal is None else f"the broker refuses it: {refusal.words}")
        elif refusal is not None and not self.forbidden:
            self.forbidden = f"{topic}: {refusal.words}"
            log.warning("broker: refused a message of this device on %s", self.forbidden)
        if forgiven:
            self.hurry()
            self._publish_held()

    def _settle_retained(self, topic: str) -> None:
        """Publish a newer state, or forget a cleared one, once all before it is answered."""
        newer, cleared = topic in self._flight.newer, self._retained.get(topic) == b""
        if (newer or cleared) and not self._flight.awaits(topic):
            if newer:
                self._flight.newer.discard(topic)
                self.publish(topic, self._retained[topic], 1, retain=True)
            else:
                del self._retained[topic]

    def hurry(self) -> None:
        """Publish as usual from now on, also in a careful connection."""
        if (window := self._flight.window) is not None and self.connection is not None:
            self.connection.exchange_window(window)
            self._flight.window = None

    def relax(self) -> None:
        """Publish as usual if a careful connection has lasted, and later also what is held back."""
        flight, connection, held = self._flight, self.connection, self.hang_ups.held
        if connection is None:
            return
        lasted = time.monotonic() - flight.since
        # What is queued has its turn: else nothing would be known of it.
        first = next((at for at, _, _ in flight.awaited.values()), inf)
        tried = first - flight.since > CAREFUL_SECONDS or lasted > MOST_CARE * CAREFUL_SECONDS
        if flight.window is not None and lasted > CAREFUL_SECONDS and tried and not held:
            self.hurry()
            self.hang_ups.forgive()
        others_arrive = flight.heard_at > flight.since
        if held and lasted > CONTROL_SECONDS and others_arrive:
            # Still one message at a time: the connection has lasted without.
            flight.since = time.monotonic()
            held.clear()
            self._publish_held()

    def _publish_held(self) -> None:
        """Publish what was held back; the spooled messages among it follow in their turn."""
        self._flight.held.publish()
        self._publish_replies()

    def _publish_replies(self) -> None:
        for _ in range(len(self._replies)):
            self._publish_reply(self._replies.popleft())

    def _find_culprit(self, connection: Connection) -> None:
        """Find out whether the broker has ended the connection over a message."""
        flight = self._flight
        if flight.window is None:
            self.hang_ups.ended(connection.code, time.monotonic() - flight.since)
            return
        # The others wait within paho until this one is acknowledged.
        mid, alone = next(iter(flight.awaited.items()), (0, None))
        why = self.hang_ups.ended_careful(connection, alone, flight.heard_at)
        if why is not None and alone is not None and mid not in flight.answered:
            about = f"{alone[1]}: "
            if not self.forbidden or self.forbidden.startswith(about):  # of the latest size
                self.forbidden = about + why

    def passed(self, mid: int) -> None:
        """Record an answer that may be the one to a barrier."""
        self._barrier.answered(mid)

    # Passing to the connection

    def _pass(
        self, connection: Connection, topic: str, payload: bytes, qos: int, **options: Any
    ) -> Any:
        """Pass a message to the connection; return its receipt."""
        flight = self._flight
        if qos == 0 and flight.window is None and flight.queued not in flight.awaited:
            receipt = connection.publish(topic, payload, qos, **options)
            flight.unwritten.append((time.monotonic(), receipt))
            flight.forget_written()
            return receipt
        if not self._flight.awaited:
            connection.hear_published(wanted=True)
        receipt = connection.publish(topic, payload, 1, **options)
        if qos == 0:
            self._flight.queued = receipt.mid
        size = len(payload) + len(options.get("correlation") or b"")
        self._flight.awaited[receipt.mid] = time.monotonic(), topic, size
        return receipt

    def _publish_message(
        self, connection: Connection, message: Message, entry: InflightMessage | None = None
    ) -> None:
        """Publish a result or event; *entry* belongs to spooled delivery."""
        channel = message.channel
        payload = message.payload()
        live, held = channel.delivery == "live", message.topic in self.hang_ups.held
        why = self._why_not(message.topic, len(payload), live=live)
        if why or (live and (held or self._too_many(0, len(payload), AT_ONCE))):
            if entry is not None:
                self.inflight.drop(entry)
            else:
                channel.lost += 1
            return
        if held:  # of a lossless source: spooled ones are not taken
            message.replayed = True  # newer ones go first
            message.encode_to_wait()
            self._flight.held.keep(message, 0, partial(self._publish_message, connection, message))
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
        return self.inflight.has_room and not self._is_full(AT_ONCE)

    def _is_full(self, most: int = QUEUED) -> bool:
        """Whether too many messages are neither acknowledged nor, at QoS 0, written.

        *most* may wait in a careful connection.
        """
        flight, awaited = self._flight, self._flight.awaited
        flight.forget_written()
        if flight.window is None:
            return len(awaited) + len(flight.unwritten) >= OUTSTANDING
        waiting = sum(each for _, _, each in awaited.values())
        return len(awaited) >= most or waiting >= QUEUED_BYTES

    def _why_not(self, topic: str, size: int, *, live: bool = False) -> str | None:
        """Return why the broker would not take a message, and count it; None: it may."""
        why = self.hang_ups.why_not(topic, size, live=live)
        if why is not None:
            self.refused += 1
            return why
        limit = None if self.connection is None else self.connection.max_packet
        if limit is None or size + len(topic.encode()) + 64 <= limit:
            return None
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
        return f"{size} bytes are more than the broker accepts"

    def _too_many(self, qos: int, size: int, most: int = QUEUED) -> bool:
        """Whether a message finds no room, which is counted; *most* as for `_is_full`.

        One of QoS 0 finds none where the network is behind, nor as long as it would overtake those
        that a careful connection has left behind.
        """
        flight, full = self._flight, self._is_full(most)
        if not qos and flight.window is None:
            full = full or flight.queued in flight.awaited or flight.is_behind(size)
        self.refused += full
        return full
