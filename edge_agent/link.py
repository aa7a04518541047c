"""The way to the broker: what is to be said goes out, whatever becomes of the connection.

What has not been confirmed when a connection breaks is sent again over the next one, marked as
replayed. What is promised (QoS 1) is the backlog's to remember and the keeper's to put on disk.
Knows no payloads and nothing of paho.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from .backlog import Backlog, Promise
from .errors import LinkError
from .mqtt import TAKEN_OVER, Connection, Hooks, Message, Will, connect, tls_context
from .parcel import CREDIT, Channel, Parcel
from .record import record
from .settings import Broker

if TYPE_CHECKING:
    from .standby import Standby

__all__ = ["Backoff", "Channel", "Counters", "Link", "Parcel"]

log = logging.getLogger(__name__)

HELD = 100
"""Results of live sources kept before the first connection."""
OUTSTANDING = 1000
"""Messages on their way to the broker; beyond, new ones are refused and counted: paho would pile
them up without bound behind a socket that does not move."""
REPLAY = 10
"""Copies that may be on their way, and that are sent every REPLAY_SECONDS: 200 a second at most.
Paho has 20 messages under way and queues those beyond, so that live ones find room at once."""
REPLAY_SECONDS = 0.05
FENCE_SECONDS = 0.25
STABLE = 30.0
"""Seconds that a connection must last before the pauses start from the shortest again."""
TAKEN_OVER_PAUSE = 60.0
FIGHT = 3
"""Connections in a row that the broker takes and that do not last: somebody else gets them."""


@record
class Counters:
    """What the link has to say for health."""

    connected: bool
    reconnects: int
    refused: int
    lost: int
    unauthorized: int
    waiting: int
    problem: str | None
    dropped: int
    """Promised messages that were given up; of those lost."""
    replayed: int
    """Sent with the word that they may be copies."""
    on_disk: int
    """Promised messages that wait there."""
    disk_bytes: int
    """That they take."""
    disk_problem: str | None
    """Why they wait in memory only."""


class Backoff:
    """Growing, jittered pauses, so that a broker that comes back is not met by a herd."""

    def __init__(self, first: float = 0.5, most: float = 60.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def pause(self) -> float:
        """Give the seconds to wait before the next try."""
        import random

        pause = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._next = min(self._next * 2, self._most)
        return pause

    def reset(self) -> None:
        self._next = self._first


class Link:
    """Publishes, listens, reconnects. `publish` and `send` may be called from any thread."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        *,
        status_topic: str,
        status: Callable[[str, str], bytes],
        inboxes: Callable[[], Iterable[str]],
        inbox: SimpleQueue[Message | None],
        backoff: Backoff | None = None,
        spool: Path | None = None,
    ) -> None:
        """Prepare; nothing is connected before `run`.

        Args:
            broker: where to.
            client_id: this device's.
            status_topic: carries `status(state, reason)`, also as the last will.
            status: makes the status payload.
            inboxes: topic filters to listen to, asked at each connection.
            inbox: where what arrives is left.
            backoff: pauses between tries.
            spool: the file where results at QoS 1 wait, once some do; without it in memory only.

        Raises:
            UsageError: certificates that cannot be used.

        """
        self._broker = broker
        self._client_id = client_id
        self._status_topic = status_topic
        self._status = status
        self._inboxes = inboxes
        self._inbox = inbox
        self._backoff = backoff or Backoff()
        self._tls = tls_context(broker)
        self._protocol = broker.protocol

        self._lock = threading.Condition()
        self._connection: Connection | None = None
        self._closing = threading.Event()
        self._ended = threading.Event()
        """The thread that connects has let go of the connection."""
        self._ever = False
        self._connects = 0
        self._retained: dict[str, bytes] = {}
        self._held: deque[Parcel] = deque()
        self._replies: deque[tuple[str, bytes, bytes | None]] = deque(maxlen=HELD)
        self._backlog = Backlog()
        self._spool = spool
        self._standby: Standby | None = None
        self._outgoing = 0
        self._channels: list[Channel] = []
        self._fences: dict[int, list[tuple[Channel, Parcel]]] = {}
        self._unfenced = 0
        self._fenced_at = 0.0
        self._heard: deque[
            tuple[Connection, Literal["published", "unsubscribed", "refused"], int, str | None]
        ] = deque()
        """What paho's thread has to say: about which connection, what, message id, refusal."""
        self._refused = 0
        self._lost = 0
        self._replayed = 0
        self._unauthorized = 0
        self._problem: str | None = None

    # What others call

    def channel(self, name: str, *, qos: int, lossless: bool) -> Channel:
        """Open the way for a pipeline's results."""
        channel = Channel(name, qos, lossless)
        with self._lock:
            self._channels.append(channel)
            if qos == 1 and self._spool is not None and self._standby is None:
                from .standby import Standby

                self._standby = Standby(self._spool, self._backlog, self._lock)
                self._backlog.rouse = self._standby.rouse
        return channel

    def drop_channel(self, channel: Channel) -> None:
        with self._lock:
            self._channels.remove(channel)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def ready(self, channel: Channel, closing: threading.Event) -> bool:
        """Wait until a lossless pipeline may go on; False when it shall not."""
        with self._lock:
            while not (self._closing.is_set() or closing.is_set()):
                self._absorb()
                if self._connection is not None and channel.open:
                    return True
                if self._connection is not None:
                    self._fence()
                # Paho's thread must not take our lock to wake us; see `_absorb`.
                self._lock.wait(0.005 if self._connection is not None else 0.1)
        return False

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Send now or never; retained state is also said again at every new connection.

        An empty retained payload clears the topic.

        Returns:
            Whether there is a connection that it could be sent over.

        """
        with self._lock:
            self._absorb()
            if retain:
                self._retained[topic] = payload
            if self._connection is not None:
                self._give(topic, payload, qos, retain)
            return self._connection is not None

    def reply(self, topic: str, payload: bytes, correlation: bytes | None = None) -> None:
        """Answer a request, on the topic and with the correlation data that it brought.

        A request may come before the connection is ours to use, or just before it breaks: its
        answer waits for the next one.
        """
        with self._lock:
            if self._connection is None:
                self._replies.append((topic, payload, correlation))
            else:
                self._connection.publish(topic, payload, 1, correlation=correlation)

    def send(self, parcel: Parcel) -> None:
        """Send a result; what becomes of it without a connection is up to its channel."""
        with self._lock:
            self._absorb()
            channel = parcel.channel
            if channel.qos == 0 and channel.lossless:
                channel.unconfirmed.append(parcel)
                if self._connection is not None:
                    self._post(parcel)
                    self._unfenced += 1
                    if (
                        self._unfenced >= CREDIT // 4
                        or time.monotonic() - self._fenced_at > FENCE_SECONDS
                    ):
                        self._fence()
            elif channel.qos == 1:
                promise = self._backlog.promise(parcel)
                if self._connection is not None and self._has_room():
                    self._backlog.overtaken()
                    self._post(parcel, promise)
                else:
                    self._backlog.keep(promise)
            elif self._connection is not None:
                self._post(parcel)
            elif self._ever:
                self._lost += 1
                channel.lost += 1
            else:
                if len(self._held) >= HELD:
                    self._lost += 1
                    self._held.popleft().channel.lost += 1
                parcel.seal()
                self._held.append(parcel)

    def listen(self) -> None:
        """Subscribe again: the groups have changed."""
        with self._lock:
            filters = list(self._inboxes())
            if self._connection is not None and filters:
                self._connection.subscribe(filters)

    def counters(self) -> Counters:
        with self._lock:
            self._absorb()
            backlog, standby = self._backlog, self._standby
            unconfirmed = sum(len(channel.unconfirmed) for channel in self._channels)
            return Counters(
                self._connection is not None,
                max(0, self._connects - 1),
                self._refused,
                self._lost + backlog.dropped,
                self._unauthorized,
                len(self._held) + backlog.waiting + unconfirmed,
                self._problem,
                backlog.dropped,
                self._replayed,
                sum(batch.left for batch in backlog.batches.values()),
                standby.bytes if standby is not None else 0,
                standby.problem if standby is not None else None,
            )

    def close(self) -> None:
        """Say goodbye, let go, and write down what could not be delivered.

        Waits at most three seconds, and two more for a disk that hangs.
        """
        with self._lock:
            connection = self._connection
        if connection is not None:
            farewell = connection.publish(
                self._status_topic, self._status("offline", "stopped"), 1, retain=True
            )
            deadline = time.monotonic() + 2.0
            while not (farewell.is_published() or connection.gone.wait(0.005)):
                if time.monotonic() > deadline:
                    log.warning("broker: does not take our goodbye; it will say that we are lost")
                    break
        self._closing.set()
        with self._lock:
            self._lock.notify_all()
        if connection is not None:
            # A process that ends before its DISCONNECT is sent is one that the broker calls lost.
            self._ended.wait(1.0)
        if self._standby is not None:
            self._standby.close()
        with self._lock:
            left = len(self._backlog.unsaved())
        if left:
            log.warning("broker: %d promised results could be neither delivered nor kept", left)

    # The thread that connects, and connects again

    def run(self) -> None:
        """Keep a connection until closed."""
        try:
            self._keep_connected()
        finally:
            self._ended.set()

    def _keep_connected(self) -> None:
        short = 0
        while not self._closing.is_set():
            pause = self._backoff.pause()
            try:
                connection = self._connect()
            except LinkError as problem:
                self._say(str(problem))
                self._closing.wait(pause)
                continue
            since = time.monotonic()
            self._serve(connection)
            self._let_go(connection)
            if self._closing.is_set():
                return
            short += 1
            if time.monotonic() - since >= STABLE:
                short = 0
                self._backoff.reset()
                pause = self._backoff.pause()
            if connection.code == TAKEN_OVER:
                self._say("another box uses this device_id: the broker gave our connection to it")
                pause = max(pause, TAKEN_OVER_PAUSE)
            elif short >= FIGHT:
                # Older brokers (mosquitto 2.0.11, say) hang up on who is taken over, wordlessly.
                self._say(
                    f"connection to {self._broker.address} lost again and again: "
                    f"{connection.reason}; does another box use this device_id?"
                )
            else:
                self._say(f"connection to {self._broker.address} lost: {connection.reason}")
            self._closing.wait(pause)

    def _say(self, problem: str) -> None:
        """Report a change of what is wrong, once."""
        with self._lock:
            if problem == self._problem:
                return
            self._problem = problem
        log.warning("broker: %s", problem)

    def _connect(self) -> Connection:
        connection = connect(
            self._broker,
            self._client_id,
            hooks=Hooks(
                message=self._inbox.put,
                published=lambda c, mid, refusal: self._heard.append(
                    (c, "published", mid, refusal)
                ),
                unsubscribed=lambda c, mid: self._heard.append((c, "unsubscribed", mid, None)),
                refused=lambda c, refusal: self._heard.append((c, "refused", 0, refusal)),
            ),
            protocol=self._protocol,
            will=Will(self._status_topic, self._status("offline", "lost")),
            tls=self._tls,
            session=True,
            stopping=self._closing,
        )
        if connection.settled:
            self._protocol = connection.protocol
        return connection

    def _serve(self, connection: Connection) -> None:
        """Say who we are and what waited, then stay until the connection is gone."""
        with self._lock:
            first = not self._ever
            self._connects += 1
            self._ever, self._problem, self._outgoing = True, None, 0
            self._connection = connection
            # Subscribed before "online" is said: who waits for it may speak to us at once.
            connection.subscribe(list(self._inboxes()))
            self._give(
                self._status_topic,
                self._status("online", "started" if first else "reconnected"),
                1,
                True,
            )
            for topic, payload in self._retained.items():
                self._give(topic, payload, 1, True)
            for topic in [topic for topic, payload in self._retained.items() if not payload]:
                del self._retained[topic]
            while self._replies:
                topic, payload, correlation = self._replies.popleft()
                connection.publish(topic, payload, 1, correlation=correlation)
            while self._held:
                self._post(self._held.popleft())
            self._backlog.connected()
            if first:
                # Before anything newer can overtake it.
                self._catch_up(OUTSTANDING)
            for channel in self._channels:
                for parcel in channel.unconfirmed:
                    # It waited out a break, or may have arrived before it: a copy either way.
                    parcel.replayed = not first
                    self._post(parcel)
            self._fence()
            self._lock.notify_all()
        version = "5" if connection.protocol == 5 else "3.1.1"
        log.info("connected to %s, MQTT %s", self._broker.address, version)
        while not connection.gone.wait(REPLAY_SECONDS if self._backlog.waits else FENCE_SECONDS):
            if self._closing.is_set():
                return
            with self._lock:
                self._absorb()
                # What waited follows slowly, so that live results go ahead.
                self._catch_up(REPLAY)
                if self._standby is not None:
                    self._standby.tick(wanted=any(channel.qos == 1 for channel in self._channels))
                self._fence()

    def _let_go(self, connection: Connection) -> None:
        with self._lock:
            self._absorb()
            self._connection = None
            self._fences.clear()
            self._backlog.broke()
        connection.close()

    # With the lock held

    def _give(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """Hand on something that is not a result."""
        assert self._connection is not None  # noqa: S101
        # State is small, rare, and must not be missing: no bound for it.
        if self._too_large(topic, payload) or (not retain and self._too_many()):
            return
        self._outgoing += 1
        self._connection.publish(topic, payload, qos, retain=retain)

    def _too_large(self, topic: str, payload: bytes) -> bool:
        limit = self._connection.max_packet if self._connection is not None else None
        if limit is None or len(payload) + len(topic) + 64 <= limit:
            return False
        self._refused += 1
        log.warning("%s: %d bytes are more than the broker takes (%d)", topic, len(payload), limit)
        return True

    def _too_many(self) -> bool:
        if self._outgoing < OUTSTANDING:
            return False
        self._refused += 1
        return True

    def _catch_up(self, most: int) -> None:
        """Send what waits, the longest first."""
        for _ in range(most):
            if not self._has_room() or self._backlog.copies >= REPLAY:
                return
            promise = self._backlog.next()
            if promise is None:
                return
            self._post(promise.parcel, promise)

    def _post(self, parcel: Parcel, promise: Promise | None = None) -> None:
        """Hand on a result; at QoS 1 one that was promised."""
        assert self._connection is not None  # noqa: S101
        channel = parcel.channel
        payload = parcel.render()
        refusable = channel.qos == 0 and not channel.lossless
        if self._too_large(parcel.topic, payload) or (refusable and self._too_many()):
            if promise is not None:
                self._backlog.give_up(promise)
            else:
                channel.lost += 1
            return
        self._outgoing += 1
        receipt = self._connection.publish(parcel.topic, payload, channel.qos)
        self._replayed += parcel.replayed
        if not parcel.counted:
            parcel.counted = True
            channel.published += not parcel.event
            if parcel.sent is not None:
                parcel.sent(parcel.replayed)
        if promise is not None:
            self._backlog.fly(receipt.mid, promise)

    def _has_room(self) -> bool:
        """Whether a result at QoS 1 may go now rather than wait."""
        return self._backlog.room and self._outgoing < OUTSTANDING

    def _fence(self) -> None:
        """Learn that all QoS 0 results so far have reached the broker.

        QoS 0 has no acknowledgement, but a broker answers in order: an UNSUBSCRIBE of something
        never subscribed changes nothing and is always answered (MQTT 5, 3.10.4), after it has
        dealt with all that was sent before.
        """
        marks = [(c, c.unconfirmed[-1]) for c in self._channels if c.unconfirmed]
        if not marks or self._connection is None or len(self._fences) >= 4:
            return
        mid = self._connection.unsubscribe(f"{self._status_topic}/fence")
        if mid is not None:
            self._fences[mid] = marks
        self._unfenced = 0
        self._fenced_at = time.monotonic()

    def _absorb(self) -> None:
        """Deal with what paho's thread has left."""
        while self._heard:
            connection, what, mid, refusal = self._heard.popleft()
            if connection is not self._connection:
                continue
            match what:
                case "published":
                    self._outgoing = max(0, self._outgoing - 1)
                    self._backlog.landed(mid)
                    if refusal is not None:
                        self._unauthorized += 1
                        if self._unauthorized == 1:
                            log.warning(
                                "broker: refuses what we publish: %s (see its access list)", refusal
                            )
                case "unsubscribed":
                    for channel, mark in self._fences.pop(mid, []):
                        # A later fence may have been answered first.
                        if any(parcel is mark for parcel in channel.unconfirmed):
                            while channel.unconfirmed.popleft() is not mark:
                                pass
                case "refused":
                    self._problem = (
                        f"the broker does not let us listen: {refusal} (see its access list)"
                    )
                    log.warning("%s", self._problem)
