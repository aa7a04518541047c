"""The way to the broker: what is to be said goes out, whatever becomes of the connection.

What has not been confirmed when a connection breaks is sent again over the next one, marked as
replayed. What is promised (QoS 1) is the backlog's to remember and the keeper's to put on disk.
This module has the lock and the thread; connections are made by `connecting`, what is said over
them and what waits is `outgoing`'s. Knows no payloads and nothing of paho.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from ..config.settings import Broker
from ..core.frozen import record
from ..core.logs import ANSWER
from .barrier import FENCE_SECONDS
from .connection import Connection, Hooks, ReceivedMessage, Refusal, Will
from .message import Channel, Message
from .outbox import Outbox
from .reconnect import Backoff, Reconnect

if TYPE_CHECKING:
    import ssl

    from .spool_wakeup import Standby

__all__ = ["Backoff", "Channel", "Client", "Counters", "Message"]

log = logging.getLogger(__name__)

REPLAY_SECONDS = 0.05
"""After which the next copies follow, as long as any wait: 200 a second at most."""


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


class Client:
    """Publishes, listens, reconnects. `publish` and `send` may be called from any thread."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        *,
        status_topic: str,
        status: Callable[[str, str], bytes],
        inboxes: Callable[[], Iterable[str]],
        inbox: SimpleQueue[ReceivedMessage | None],
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
        self._status_topic = status_topic
        self._status = status
        self._inboxes = inboxes
        self._spool = spool
        self._lock = threading.Condition()
        """Held by whoever touches what is said and what waits, the connection included."""
        self._out = Outbox(f"{status_topic}/fence")
        self._standby: Standby | None = None
        self._connects = 0
        self._problem: str | None = None
        self._moved = False
        """Somebody has changed the settings and waits to hear how it goes."""
        self._heard: deque[
            tuple[Connection, Literal["published", "unsubscribed", "refused"], int, Refusal | None]
        ] = deque()
        """What paho's thread has to say: about which connection, what, message id, refusal."""
        self._closing = threading.Event()
        self._ended = threading.Event()
        """The thread that connects has let go of the connection."""
        heard = self._heard.append
        self._connecting = Reconnect(
            broker,
            client_id,
            hooks=Hooks(
                message=inbox.put,
                published=lambda c, mid, refusal: heard((c, "published", mid, refusal)),
                unsubscribed=lambda c, mid: heard((c, "unsubscribed", mid, None)),
                refused=lambda c, refusal: heard((c, "refused", 0, refusal)),
            ),
            will=lambda: Will(status_topic, status("offline", "lost")),
            backoff=backoff or Backoff(),
            closing=self._closing,
            say=self._say,
        )

    # What others call

    def channel(self, name: str, *, qos: int, lossless: bool) -> Channel:
        """Open the way for a pipeline's results."""
        channel = Channel(name, qos, lossless)
        with self._lock:
            self._out.channels.append(channel)
            if qos == 1 and self._spool is not None and self._standby is None:
                from .spool_wakeup import Standby

                self._standby = Standby(self._spool, self._out.backlog, self._lock)
                self._out.backlog.rouse = self._standby.rouse
        return channel

    def drop_channel(self, channel: Channel) -> None:
        with self._lock:
            self._out.channels.remove(channel)

    @property
    def connected(self) -> bool:
        return self._out.connection is not None

    def ready(self, channel: Channel, closing: threading.Event) -> bool:
        """Wait until a lossless pipeline may go on; False when it shall not."""
        with self._lock:
            while not (self._closing.is_set() or closing.is_set()):
                self._absorb()
                if self.connected and channel.open:
                    return True
                self._out.fence()
                # Paho's thread must not take our lock to wake us; see `_absorb`.
                self._lock.wait(0.005 if self.connected else 0.1)
        return False

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Send now or never; retained state is also said again at every new connection.

        An empty retained payload clears the topic.

        Returns:
            Whether there is a connection that it could be sent over.

        """
        with self._lock:
            self._absorb()
            self._out.say(topic, payload, qos, retain=retain)
            return self.connected

    def reply(self, topic: str, payload: bytes, correlation: bytes | None = None) -> None:
        """Answer a request, on the topic and with the correlation data that it brought.

        A request may come before the connection is ours to use, or just before it breaks: its
        answer waits for the next one.
        """
        with self._lock:
            self._out.reply(topic, payload, correlation)

    def send(self, parcel: Message) -> None:
        """Send a result; what becomes of it without a connection is up to its channel."""
        with self._lock:
            self._absorb()
            self._out.result(parcel)

    def listen(self) -> None:
        """Subscribe again: the groups have changed."""
        with self._lock:
            if self._out.connection is not None:
                self._out.connection.subscribe(list(self._inboxes()), as_published=True)

    def move(self, broker: Broker, tls: ssl.SSLContext | None) -> None:
        """Leave the present connection for one by other settings; what is promised goes along.

        Args:
            broker: where to.
            tls: of its settings, from `tls_context`.

        """
        with self._lock:
            self._problem, self._moved = None, True
        self._connecting.change(broker, tls)

    def counters(self) -> Counters:
        with self._lock:
            self._absorb()
            out, standby = self._out, self._standby
            return Counters(
                self.connected,
                max(0, self._connects - 1),
                out.refused,
                out.lost,
                out.unauthorized,
                out.waiting,
                self._problem,
                out.backlog.dropped,
                out.replayed,
                sum(batch.left for batch in out.backlog.batches.values()),
                standby.bytes if standby is not None else 0,
                standby.problem if standby is not None else None,
            )

    def close(self) -> None:
        """Say goodbye, let go, and write down what could not be delivered.

        Waits at most three seconds, and two more for a disk that hangs.
        """
        with self._lock:
            connection = self._out.connection
        if connection is not None:
            self._say_goodbye(connection)
        self._closing.set()
        self._connecting.hurry()
        with self._lock:
            self._lock.notify_all()
        if connection is not None:
            # A process that ends before its DISCONNECT is sent is one that the broker calls lost.
            self._ended.wait(1.0)
        if self._standby is not None:
            self._standby.close()
        with self._lock:
            left = len(self._out.backlog.unsaved())
        if left:
            log.warning("broker: %d promised results could be neither delivered nor kept", left)

    def _say_goodbye(self, connection: Connection) -> None:
        """Say that we are gone, and see that the broker has heard it."""
        farewell = connection.publish(
            self._status_topic, self._status("offline", "stopped"), 1, retain=True
        )
        deadline = time.monotonic() + 2.0
        while not (farewell.is_published() or connection.gone.wait(0.005)):
            if time.monotonic() > deadline:
                log.warning("broker: does not take our goodbye; it will say that we are lost")
                return

    # The thread that connects, and connects again

    def run(self) -> None:
        """Keep a connection until closed."""
        try:
            for connection in self._connecting:
                self._serve(connection)
                self._let_go(connection)
        finally:
            self._ended.set()

    def _say(self, problem: str) -> None:
        """Report a change of what is wrong, once."""
        with self._lock:
            if problem == self._problem:
                return
            self._problem = problem
        log.warning("broker: %s", problem, extra=self._answer())

    def _answer(self) -> Mapping[str, bool] | None:
        """Mark the first word after a change of settings, be it the same as before."""
        moved, self._moved = self._moved, False
        return ANSWER if moved else None

    def _serve(self, connection: Connection) -> None:
        """Say who we are and what waited, then stay until the connection is gone."""
        with self._lock:
            reason = "reconnected" if self._connects else "started"
            self._connects += 1
            self._problem = None
            # Subscribed before "online" is said: who waits for it may speak to us at once.
            connection.subscribe(list(self._inboxes()), as_published=True)
            self._out.begin(connection, (self._status_topic, self._status("online", reason)))
            self._lock.notify_all()
        version = "5" if connection.protocol == 5 else "3.1.1"
        address = self._connecting.address
        log.info("connected to %s, MQTT %s", address, version, extra=self._answer())
        backlog = self._out.backlog
        while not connection.gone.wait(REPLAY_SECONDS if backlog.waits else FENCE_SECONDS):
            if self._closing.is_set():
                return
            if self._connecting.changed:
                # It would go on saying that we are there: nobody but us can take that back.
                self._say_goodbye(connection)
                return
            with self._lock:
                self._absorb()
                # What waited follows slowly, so that live results go ahead.
                self._out.catch_up()
                if self._standby is not None:
                    wanted = any(channel.qos == 1 for channel in self._out.channels)
                    self._standby.tick(wanted=wanted)
                self._out.fence()

    def _let_go(self, connection: Connection) -> None:
        with self._lock:
            self._absorb()
            self._out.end()
        connection.close()

    def _absorb(self) -> None:
        """Deal with what paho's thread has left; with the lock held."""
        while self._heard:
            connection, what, mid, refusal = self._heard.popleft()
            if connection is not self._out.connection:
                continue
            match what:
                case "published":
                    self._out.landed(mid, refusal)
                case "unsubscribed":
                    self._out.fence_answered(mid)
                case "refused" if refusal is not None:
                    self._problem = (
                        f"the broker does not let us listen: {refusal.reason} (see its access list)"
                    )
                    log.warning("%s", self._problem)
