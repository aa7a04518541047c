"""The device's MQTT client: publishes, subscribes, reconnects.

Owns the lock and the thread. Connections come from `connecting`; the outbox holds the messages in
flight or waiting for a connection. Messages that a broken connection leaves unconfirmed are
published again over the next one, marked as replayed; QoS 1 messages outlive the process on disk
(`inflight`, `spool_writer`). Independent of payloads and of paho.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from ..config.settings import Broker
from ..core.backoff import Backoff
from ..core.frozen import record
from ..core.logs import ANSWER, Latch
from .barrier import BARRIER_SECONDS
from .connecting import Reconnect
from .connection import ALL, Connection, Hooks, ReceivedMessage, Refusal, Will, is_acknowledged
from .message import Answered, Channel, Message
from .outbox import Outbox
from .retained import Retained
from .subscribing import Subscribing
from .subscriptions import Feeds
from .tls import Certificates
from .topics import Topics

if TYPE_CHECKING:
    from .spool_writer import SpoolWriter

__all__ = ["Channel", "Client", "Counters", "Message"]

log = logging.getLogger(__name__)

REPLAY_SECONDS = 0.05
"""Interval between batches of copies while any wait: at most 200 copies per second."""
SILENT_SECONDS = 10.0
"""Time after which a missing acknowledgment is a problem."""
GIVE_UP_SECONDS = 60.0
"""Time after which a missing acknowledgment is a reason to connect again."""
UNACKNOWLEDGED = (
    f"has not acknowledged a message for {SILENT_SECONDS:.0f} s; messages may be lost; "
    "see the broker's log"
)
SYNC_SECONDS = 3.0
"""Time after which writes to the spool also survive a power cut."""
STATUS_SECONDS = 60.0
"""Interval at which the status is said again: a node that had hung may publish the will of an
earlier connection, and its bridges carry that on."""
OFFLINE_SECONDS = 2.0
UNTOLD = f"has not acknowledged 'offline' within {OFFLINE_SECONDS:.0f} s; it will report a loss"
"""Time to wait for the acknowledgment of the last status when a connection ends."""


_Event = tuple[
    Connection, Literal["published", "unsubscribed", "subscribed"], int, tuple[Refusal | None, ...]
]
"""Connection, what happened, message id, refusals."""


@record
class Counters:
    """The client's counters that health publishes."""

    connected: bool
    reconnects: int
    refused: int
    lost: int
    forbidden: str
    """See `Outbox.forbidden`."""
    waiting: int
    problem: str | None
    dropped: int
    """QoS 1 messages that were dropped; part of `lost`."""
    replayed: int
    """Messages published with the mark that they may be copies."""
    on_disk: int
    """QoS 1 messages waiting on disk."""
    disk_bytes: int
    """Their size."""
    disk_problem: str | None
    """Why messages wait only in memory."""


class Client:
    """Publishes, subscribes, reconnects. The methods for publishing may be called by any thread."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        *,
        status_topic: str,
        status: Callable[[str, str], bytes],
        filters: Callable[[], Iterable[str]],
        inbox: SimpleQueue[ReceivedMessage | None],
        backoff: Backoff | None = None,
        spool: Path | None = None,
        ledger: Path | None = None,
    ) -> None:
        """Read the certificates without connecting; `run` connects.

        *status* returns the payload for *status_topic* and the last will, given state and reason;
        *filters* is called for each connection. Without *spool* results wait only in memory;
        without *ledger* retained topics are forgotten when the client closes.

        Raises:
            UsageError: a certificate cannot be used.
        """
        self._status_topic = status_topic
        self._status = status
        self._filters = filters
        self._inbox = inbox
        self._spool, self._spool_s = spool, broker.spool_s
        self._lock = threading.Condition()
        """Guards the outbox and everything in it, including the connection."""
        topics = Topics(*status_topic.rsplit("/", 2)[:2])
        self.retained = Retained(self.publish_retained, ledger, topics, self._list_uncleared)
        self.feeds = Feeds()
        """Foreign topics that are read as sensors."""
        self.feeds.on_open = lambda topic: self.ask([topic], own=False)
        self.feeds.on_close = lambda topic: self.leave([topic])
        self._outbox = Outbox(f"{topics.inbox}/barrier")  # which an access list lets us read
        self.subscribing = Subscribing(self.feeds.qos)
        self._spool_writer: SpoolWriter | None = None
        self._connects = 0
        self._problem: str | None = None
        self._abilities = ALL
        """The broker's abilities, as last logged."""
        self._silence = Latch()
        self._unacknowledged = False
        """Whether the broker has acknowledged no messages for SILENT_SECONDS."""
        self._silent = 0.0
        """Running time since then, seconds."""
        self._settings_changed = False
        """Whether the next log line answers a change of settings."""
        self._events: deque[_Event] = deque()
        """Appended by paho's thread."""
        self._closing = threading.Event()
        self._disconnected = threading.Event()
        """Set when the thread has closed its last connection."""
        put = self._events.append
        self._reconnect = Reconnect(
            broker,
            client_id,
            hooks=Hooks(
                message=self._receive,
                published=lambda c, mid, refusal: put((c, "published", mid, (refusal,))),
                unsubscribed=lambda c, mid: put((c, "unsubscribed", mid, ())),
                subscribed=lambda c, mid, refusals: put((c, "subscribed", mid, refusals)),
            ),
            will=lambda: Will(status_topic, status("offline", "lost")),
            backoff=backoff or Backoff(),
            closing=self._closing,
            on_problem=self._report,
        )

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        about: Mapping[str, str] | None = None,
        answered: Answered | None = None,
    ) -> bool:
        """Publish now or never; return whether there is a connection.

        *about* are user properties, which need MQTT 5. *answered* is called once if there is a
        connection, for QoS 0 only where it is not passed on.
        """
        with self._lock:
            self._process_events()
            self._outbox.publish(topic, payload, qos, retain=retain, about=about, answered=answered)
            return self.connected

    def publish_retained(self, topic: str, payload: bytes) -> None:
        """Publish retained at QoS 1, again over every new connection; only called by `retained`.

        An empty payload clears the topic.
        """
        with self._lock:
            self._process_events()
            self._outbox.publish_retained(topic, payload)

    def _list_uncleared(self) -> set[str]:
        with self._lock:
            return self._outbox.uncleared

    def publish_reply(
        self, topic: str, payload: bytes, correlation: bytes | None = None, *, foreign: bool = False
    ) -> None:
        """Publish the answer to a request, with the request's correlation data.

        A request may arrive before the connection is ready for use, or just before it breaks: then
        its answer waits for the next connection. *foreign*: the requester has chosen the topic.
        """
        with self._lock:
            self._process_events()
            self._outbox.publish_reply(topic, payload, correlation, foreign=foreign)

    def publish_message(self, message: Message) -> None:
        """Publish a result or event with its channel's delivery."""
        with self._lock:
            self._process_events()
            self._outbox.publish_message(message)

    def open_channel(self, name: str, *, qos: int, lossless: bool) -> Channel:
        """Open a channel for the results of a pipeline."""
        channel = Channel(name, qos, lossless)
        with self._lock:
            self._outbox.channels.append(channel)
            if channel.delivery == "spooled" and self._spool and self._spool_writer is None:
                from .spool_writer import SpoolWriter

                inflight = self._outbox.inflight
                self._spool_writer = SpoolWriter(
                    self._spool, inflight, self._lock, period_s=self._spool_s
                )
                inflight.on_work = self._spool_writer.wake
        return channel

    def close_channel(self, channel: Channel) -> None:
        """Close a channel; QoS 1 messages waiting on it are still delivered."""
        with self._lock:
            self._outbox.channels.remove(channel)

    def wait_credit(self, channel: Channel, closing: threading.Event) -> bool:
        """Wait until a lossless pipeline may publish more; False once it or the client closes."""
        with self._lock:
            while not (self._closing.is_set() or closing.is_set()):
                self._process_events()
                if self.connected and channel.has_credit:
                    return True
                self._outbox.request_barrier()
                # Polled: paho's thread must not acquire our lock to wake us; see `Hooks`.
                self._lock.wait(0.005 if self.connected else 0.1)
        return False

    def wait_safe(self, channel: Channel, seconds: float) -> float:
        """Return when the oldest message neither acknowledged nor on disk was published.

        Only messages of *channel*; monotonic seconds, infinite if there are none. Waits up to
        *seconds* for that while connected.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            while channel.pending and self.connected and time.monotonic() < deadline:
                self._process_events()
                self._lock.wait(0.005)  # polled, as in `wait_credit`
            if not channel.pending:
                return inf
            return min(
                self._outbox.inflight.unsaved_since(channel), time.monotonic() - SYNC_SECONDS
            )

    # Connection

    @property
    def connected(self) -> bool:
        return self._outbox.connection is not None

    def subscribe(self) -> None:
        """Subscribe again because `filters` returns other topics than before."""
        with self._lock:
            if self._outbox.connection is not None:
                self._subscribe(self._outbox.connection)

    def ask(self, topics: list[str], *, own: bool = True) -> bool:
        """Subscribe to topics, again for what is retained; False: no connection.

        *own*: they are of `filters`, not foreign ones.
        """
        with self._lock:
            if self._outbox.connection is not None:
                self.subscribing.ask(self._outbox.connection, topics, own=own)
            return self._outbox.connection is not None

    def leave(self, topics: list[str]) -> None:
        """Unsubscribe from topics that `filters` no longer returns, and nobody reads."""
        with self._lock:
            gone = [topic for topic in topics if not self.feeds.wants(topic)]
            self.subscribing.leave(gone)
            if gone and self._outbox.connection is not None:
                self._outbox.connection.unsubscribe(gone)

    def leave_node(self, why: str) -> bool:
        """Connect to another node; return whether there is one to be left, and another."""
        with self._lock:
            connection = self._outbox.connection
        if connection is None or not connection.node.has_others:
            return False
        connection.give_up(why)
        return True

    def _subscribe(self, connection: Connection) -> None:
        """Subscribe to all topics; the caller holds the lock."""
        self.subscribing.begin()
        self.subscribing.ask(connection, self.feeds.topics(), own=False)
        self.subscribing.ask(connection, list(self._filters()), own=True)

    def _receive(self, message: ReceivedMessage) -> None:
        """Pass on a message; called by paho's thread, which must not wait."""
        if not self.feeds.take(message):
            self._inbox.put(message)

    def change_broker(self, broker: Broker, certificates: Certificates) -> None:
        """Replace the connection by one with other settings, keeping unconfirmed messages."""
        with self._lock:
            self._problem, self._settings_changed = None, True
            self._outbox.hang_ups.forget()
            self._outbox.forbidden = ""
        self._reconnect.change(broker, certificates)

    def counters(self) -> Counters:
        with self._lock:
            self._process_events()
            outbox, writer = self._outbox, self._spool_writer
            return Counters(
                self.connected,
                max(0, self._connects - 1),
                outbox.refused,
                outbox.lost,
                outbox.forbidden,
                outbox.waiting,
                self._problem
                or self._reconnect.unsteady
                or self.subscribing.problem
                or (UNACKNOWLEDGED if self._unacknowledged else outbox.problem),
                outbox.inflight.dropped,
                outbox.replayed,
                sum(batch.left for batch in outbox.inflight.batches.values()),
                writer.bytes if writer is not None else 0,
                writer.problem if writer is not None else None,
            )

    def close(self, reason: Literal["stopped", "lost"] = "stopped") -> None:
        """Publish the last status, disconnect, and write undelivered messages to disk.

        Waits at most three seconds, and two more for a disk that hangs. *reason* "lost": nobody
        asked for the end, as the last will reports.
        """
        with self._lock:
            connection = self._outbox.connection
            if connection is None:  # one that is just being made is not used
                self._closing.set()
        if connection is not None:
            self._publish_offline(connection, reason)
        self._closing.set()
        self._reconnect.interrupt()
        with self._lock:
            self._lock.notify_all()
        if connection is not None:
            # If the process ends before its DISCONNECT is sent, the broker publishes the will.
            self._disconnected.wait(1.0)
        if self._spool_writer is not None:
            self._spool_writer.close()
        with self._lock:
            left = len(self._outbox.inflight.unsaved())
        if left:
            log.warning(
                "broker: %d results of qos = 1 were neither delivered nor written to disk", left
            )

    def _publish_offline(self, connection: Connection, reason: str) -> None:
        """Publish that the device is offline, and wait for the acknowledgment."""
        status = self._status("offline", reason)
        with self._lock:
            self._outbox.hurry()
            self._said = inf  # it is the last word
            receipt = connection.publish(self._status_topic, status, 1, retain=True)
        deadline = time.monotonic() + OFFLINE_SECONDS
        while not (is_acknowledged(receipt) or connection.gone.wait(0.005)):
            if time.monotonic() > deadline:
                log.warning("broker: %s", UNTOLD)
                connection.hang_up()
                return

    def run(self) -> None:
        """Keep a connection until closed."""
        try:
            for connection in self._reconnect:
                self._serve(connection)
                self._disconnect(connection)
        finally:
            self._disconnected.set()

    def _report(self, problem: str, *, away: bool = False) -> None:
        """Log a problem when it changes; *away*: the broker could not be reached."""
        with self._lock:
            if away:
                self._outbox.hang_ups.absolve()
            if problem == self._problem:
                return
            self._problem = problem
        log.warning("broker: %s", problem, extra=self._answer())

    def _answer(self) -> Mapping[str, bool] | None:
        """Return the mark for the first log line after a change of settings, even if repeated."""
        changed, self._settings_changed = self._settings_changed, False
        return ANSWER if changed else None

    def _serve(self, connection: Connection) -> None:
        """Publish status and waiting messages; serve the connection until lost or replaced."""
        careful = self._outbox.hang_ups.careful and connection.abilities.qos
        if careful and not self._outbox.hang_ups.settle(connection, self._is_interrupted):
            return
        with self._lock:
            if self._closing.is_set():
                return
            self._said = time.monotonic()
            reason = "reconnected" if self._connects else "started"
            self._connects += 1
            self._problem = None
            self.feeds.connected()
            # Subscribed before "online" is published: its readers may send requests at once.
            self._subscribe(connection)
            status = self._status("online", reason)
            self._outbox.connected(connection, (self._status_topic, status))
            self._lock.notify_all()
        version = "5" if connection.protocol == 5 else "3.1.1"
        log.info("connected to %s, MQTT %s", connection.node.address, version, extra=self._answer())
        if connection.abilities != self._abilities:
            self._abilities = connection.abilities
            for limit in self._abilities.limits():
                log.warning("broker: %s", limit)
        pause = BARRIER_SECONDS
        while not connection.gone.wait(pause):
            if self._closing.is_set():
                return
            if self._reconnect.changed:
                # The old broker would keep the status "online", which only this device can change.
                self._publish_offline(connection, "stopped")
                return
            with self._lock:
                self._process_events()
                # In small batches, so that live results go first.
                self._outbox.publish_waiting()
                if self._spool_writer is not None:
                    spooled = any(c.delivery == "spooled" for c in self._outbox.channels)
                    self._spool_writer.tick(adopt=spooled)
                self._outbox.request_barrier()
                self._outbox.relax()
                self._check_acknowledgments(connection, pause)
                if time.monotonic() - self._said > STATUS_SECONDS:
                    self._said = time.monotonic()
                    self._outbox.repeat(self._status_topic, status)
                if self.subscribing.passed(connection, pause):
                    log.warning("broker: %s", self.subscribing.problem)
            pause = REPLAY_SECONDS if self._outbox.inflight.has_waiting else BARRIER_SECONDS

    def _is_interrupted(self) -> bool:
        return self._closing.is_set() or self._reconnect.changed

    def _check_acknowledgments(self, connection: Connection, passed: float) -> None:
        """Log and report in health that the broker has stopped acknowledging; then give it up.

        Without acknowledgments, what may be in flight is used up, and nothing is sent any more.
        *passed*: running time since the last check, seconds.
        """
        self._unacknowledged = self._outbox.silent_seconds() > SILENT_SECONDS
        if self._silence.begins(self._unacknowledged):
            log.warning("broker: %s", UNACKNOWLEDGED)
        self._silent = self._silent + passed if self._unacknowledged else 0.0
        if self._silent > GIVE_UP_SECONDS - SILENT_SECONDS:
            connection.give_up(f"it has not acknowledged a message for {GIVE_UP_SECONDS:.0f} s")

    def _disconnect(self, connection: Connection) -> None:
        with self._lock:
            self._process_events()
            self._outbox.disconnected()
            self._unacknowledged, self._silent = self._silence.begins(False), 0.0
        connection.close()
        self.feeds.disconnected()

    def _process_events(self) -> None:
        """Process the events that paho's thread has queued; the caller holds the lock."""
        while self._events:
            connection, what, mid, refusals = self._events.popleft()
            if connection is not self._outbox.connection:
                continue
            match what:
                case "published":
                    self._outbox.published(mid, refusals[0])
                case "unsubscribed":
                    self._outbox.passed(mid)
                case "subscribed":
                    self._outbox.passed(mid)
                    if self.subscribing.answered(mid, refusals):
                        log.warning("broker: %s", self.subscribing.problem)
