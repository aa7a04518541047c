"""MQTT clients for one command: messages as they arrive, or topics read as sensors."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self

from ..config.settings import Broker
from ..core.backoff import Backoff
from ..core.errors import AgentError, BrokerError, PublishRefusedError
from .connecting import Left, connect
from .connection import Connection, Hooks, ReceivedMessage, Refusal, is_acknowledged
from .diagnose import NOT_AUTHORIZED
from .paho_client import TOO_LARGE
from .subscriptions import Feeds, Put

log = logging.getLogger(__name__)

SETTLE_SECONDS = 5.0
"""Most time for the broker to answer what is subscribed to."""


class _RefusedPublish(NamedTuple):
    """A message that the broker did not accept."""

    mid: int
    refusal: Refusal


class OneShotClient:
    """One connection for the life of a command: returns messages as they arrive.

    BrokerError is raised if the broker cannot be reached, refuses the connection or a message, or
    does not answer in time, and if the connection is lost. Only MQTT 5 reports refused messages.
    """

    def __init__(self, broker: Broker, filters: list[str]) -> None:
        """Connect and subscribe."""
        self._received: SimpleQueue[ReceivedMessage | _RefusedPublish] = SimpleQueue()
        self._kept: deque[ReceivedMessage] = deque()
        """What has come while something else was waited for."""
        self._topics: dict[int, str] = {}
        """Topics in flight by message id. An id is reused after 65535 others."""
        self.broker = broker
        self._filters = list(filters)
        self.refused = ""
        """Why the broker refused a subscription; "": it has not."""
        self._asked = self._granted = self._passed = 0
        """Numbers of subscriptions asked for, answered, and of barriers answered."""
        self._connection = self._connect()

    def _connect(self, left: Left | None = None) -> Connection:
        connection = connect(
            self.broker,
            f"edge-agent-cli-{uuid.uuid4().hex[:12]}",
            hooks=Hooks(
                message=self._received.put,
                published=self._published,
                subscribed=self._subscribed,
                unsubscribed=self._unsubscribed,
            ),
            left=left,
        )
        self._asked = self._granted = self._passed = 0
        self.refused = ""
        self._subscribe(connection, self._filters)
        return connection

    def _subscribe(self, connection: Connection, filters: list[str]) -> None:
        if filters:
            self._asked += 1  # first, because the answer may arrive before this returns
            # Some brokers answer an UNSUBSCRIBE only of what was subscribed to (rumqttd 0.19). It
            # is below the first filter, so that an access list that lets us read that takes it.
            mark, first = f"edge-agent-cli-{uuid.uuid4().hex}", filters[0]
            barrier = re.sub("[+#]", mark, first) if set("+#") & set(first) else f"{first}/{mark}"
            connection.subscribe([(barrier, 0), *((each, 1) for each in filters)])
            # Answered after the retained messages are sent, see `barrier.Barrier`.
            connection.unsubscribe(barrier)

    def _unsubscribed(self, _connection: Connection, _mid: int) -> None:
        self._passed += 1

    def _subscribed(
        self, _connection: Connection, _mid: int, refusals: tuple[Refusal | None, ...]
    ) -> None:
        self._granted += 1
        for refusal in refusals[1:]:  # that of the barrier is an answer, too
            if refusal is not None:
                self.refused = refusal.reason
                reason = refusal.reason
                log.warning("broker: refused a subscription: %s; see its access list", reason)

    def _published(self, _connection: Connection, mid: int, refusal: Refusal | None) -> None:
        """Queue a refusal for `next`; called by paho's thread."""
        if refusal is None:
            self._topics.pop(mid, None)
        else:
            self._received.put(_RefusedPublish(mid, refusal))

    def reconnect(self) -> None:
        """Connect again with the same subscriptions, to the same node only if no other accepts."""
        self._connection.close()
        self._connection = self._connect(Left(self._connection.node.where))

    @property
    def has_nodes(self) -> bool:
        """Whether the broker is a cluster, where another node may do what one refuses."""
        return self._connection.node.has_others

    @property
    def gone(self) -> bool:
        """Whether the connection is lost."""
        return self._connection.gone.is_set()

    @property
    def protocol(self) -> int:
        """Return 5, or 4 for MQTT 3.1.1."""
        return self._connection.protocol

    @property
    def retains(self) -> bool:
        """Whether the broker supports retained messages, as far as it reports that."""
        return self._connection.abilities.retain

    @property
    def filters(self) -> Sequence[str]:
        return self._filters

    @property
    def max_packet(self) -> int | None:
        return self._connection.max_packet

    def subscribe(self, filters: list[str]) -> None:
        """Add subscriptions."""
        self._filters.extend(filters)
        self._subscribe(self._connection, filters)

    def ask(self, filters: list[str]) -> None:
        """Have retained messages sent, or sent again; `reconnect` does not repeat this."""
        self._subscribe(self._connection, filters)

    @property
    def unanswered(self) -> str:
        """What the broker has not done yet, so that retained messages may follow; "": all."""
        if self._granted < self._asked:
            return "granted a subscription"
        return "answered an UNSUBSCRIBE" if self._passed < self._asked else ""

    def settle(self) -> None:
        """Wait for what the broker retains, which `next` returns.

        If it ends the connection while that is acknowledged, what it has refused is not read.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.unanswered and time.monotonic() < deadline:
            self._keep(self._next(0.02))

    @property
    def receives(self) -> bool:
        """Whether a message has come in part: more may follow it."""
        return self._connection.receives

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        *,
        retain: bool = False,
        expires_s: int | None = None,
    ) -> Any:
        """Publish; return paho's receipt. A refusal is raised by `next` or `wait_published`."""
        receipt = self._connection.publish(topic, payload, qos, retain=retain, expires_s=expires_s)
        self._topics[receipt.mid] = topic
        return receipt

    def wait_published(self, receipts: Iterable[Any], seconds: float = 10.0) -> None:
        """Wait for the broker's acknowledgments; `next` returns messages that arrive meanwhile."""
        waiting = list(receipts)
        deadline = time.monotonic() + seconds
        while waiting := [receipt for receipt in waiting if not is_acknowledged(receipt)]:
            if time.monotonic() > deadline:
                raise BrokerError(f"the broker has not acknowledged within {seconds:.0f} s")
            self._keep(self._next(0.02))
        # A refusal is queued before its receipt is marked as published.
        while not self._received.empty():
            self._keep(self._next(0.0))

    def _keep(self, heard: ReceivedMessage | None) -> None:
        if heard is not None:
            self._kept.append(heard)

    def next(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Wait for a message; return None after *timeout* seconds."""
        return self._kept.popleft() if self._kept else self._next(timeout)

    def _next(self, timeout: float | None) -> ReceivedMessage | None:
        waited = 0.0
        while True:
            step = 0.25 if timeout is None else max(0.0, min(0.25, timeout - waited))
            try:
                received = self._received.get(timeout=step)
            except Empty:
                if self._connection.gone.is_set():
                    why = self._connection.reason
                    raise BrokerError(f"the connection to the broker is lost: {why}") from None
                waited += step
                if timeout is not None and waited >= timeout:
                    return None
            else:
                if isinstance(received, _RefusedPublish):
                    raise self._refused(received)
                return received

    def _refused(self, refused: _RefusedPublish) -> BrokerError:
        from .diagnose import explain_publish

        topic = self._topics.get(refused.mid, "one of its topics")
        code, reason = refused.refusal.code, refused.refusal.reason
        error = PublishRefusedError if code in {NOT_AUTHORIZED, TOO_LARGE} else BrokerError
        return error(explain_publish(self.broker, topic, code, reason))

    def read(self, topic: str, seconds: float, by: str | None = None) -> bytes | None:
        """Return the retained message of a topic, or None if none arrives in time.

        *by* is the filter that is subscribed to; `next` gives what else arrives meanwhile.
        """
        self.ask([by or topic])
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            heard = self._next(left)
            if heard is not None and heard.topic == topic and heard.retained:
                return heard.payload
            self._keep(heard)
        return None

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while True:
            received = self.next()
            if received is not None:
                yield received

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_loss(client: OneShotClient, problem: BrokerError) -> bool:
    """Whether *problem* is the loss of the connection, so that the next one may be better.

    mosquitto ends the connection right after it has refused a message that is too large and, from
    2.0.16 on (2.0.11 of Debian, too) with `max_queued_messages 0`, any message.
    """
    return client.gone and not isinstance(problem, PublishRefusedError)


class TopicReader:
    """Passes on messages of foreign topics; a context manager. Any thread may open a topic.

    Connects when the first topic is opened, and again when the connection is lost. The agent uses
    its own connection for this instead (`client`).
    """

    def __init__(self, broker: Broker) -> None:
        """Create a reader that is not connected yet."""
        self._broker = broker
        self._feeds = Feeds()
        self._feeds.on_open = self._subscribe
        self._client: OneShotClient | None = None
        self._changing = threading.Lock()
        self._closing = threading.Event()

    def open(self, topic: str, put: Put, *, held: bool) -> None:
        """Pass the payloads of a topic to *put*, which must not wait; brokers hold none for it."""
        self._feeds.open(topic, put, held=held)

    def close(self, topic: str, put: Put) -> None:
        """Stop passing payloads to *put*."""
        self._feeds.close(topic, put)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with self._changing:
            if self._client is not None:
                self._client.close()

    def _subscribe(self, topic: str) -> None:
        with self._changing:
            if self._client is not None:
                self._client.subscribe([topic])
                return
            self._client = OneShotClient(self._broker, [topic])
            work = partial(self._read, self._client)
            threading.Thread(target=work, name="topics", daemon=True).start()

    def _read(self, client: OneShotClient) -> None:
        """Pass on messages until closed, connecting again whenever the connection is lost."""
        backoff, lost = Backoff(first=0.5, most=30.0), False
        while not self._closing.is_set():
            try:
                if lost:
                    with self._changing:
                        client.reconnect()
                    lost = False
                    backoff.reset()
                message = client.next(0.5)
                if message is not None:
                    self._feeds.take(message)
            except AgentError as problem:  # or a certificate that is just being replaced
                if self._closing.is_set():
                    return
                log.warning("broker: %s; trying again", problem)
                lost = True
                self._closing.wait(backoff.pause())
