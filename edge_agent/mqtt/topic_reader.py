"""Topics of others for a command that reads sensors: connects at the first, and again when lost.

The agent itself reads them over its own connection (`client`).
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Self

from ..config.settings import Broker
from ..core.backoff import Backoff
from ..core.errors import BrokerError
from .connection import Connection, Hooks, ReceivedMessage, connect
from .feeds import Feeds, Put

log = logging.getLogger(__name__)


class TopicReader:
    """Hands over the messages of topics; a context. Any thread may open a topic."""

    def __init__(self, broker: Broker) -> None:
        """Do not connect yet."""
        self._broker = broker
        self._feeds = Feeds()
        self._feeds.on_open = self._subscribe
        self._connection: Connection | None = None
        self._changing = threading.Lock()
        self._closing = threading.Event()

    def open(self, topic: str, put: Put) -> None:
        """Hand the payloads of a topic to *put*, which must not wait.

        Raises:
            BrokerError: the broker cannot be reached or refuses the connection.

        """
        self._feeds.open(topic, put)

    def close(self, topic: str, put: Put) -> None:
        """Hand it no more."""
        self._feeds.close(topic, put)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with self._changing:
            if self._connection is not None:
                self._connection.close()

    def _subscribe(self, topic: str) -> None:
        with self._changing:
            if self._connection is None:
                self._connection = self._connect()
                threading.Thread(target=self._keep, name="link", daemon=True).start()
            self._connection.subscribe([topic])

    def _connect(self) -> Connection:
        return connect(
            self._broker,
            f"edge-agent-cli-{uuid.uuid4().hex[:12]}",
            hooks=Hooks(
                message=self._take,
                published=lambda _connection, _mid, _refusal: None,
                refused=lambda _connection, refusal: log.warning(
                    "broker: refused a subscription: %s (see its access list)", refusal.reason
                ),
            ),
        )

    def _take(self, message: ReceivedMessage) -> None:
        self._feeds.take(message)

    def _keep(self) -> None:
        """Connect again whenever the connection is lost, until closed."""
        backoff = Backoff(first=0.5, most=30.0)
        while not self._closing.is_set():
            connection = self._connection
            lost = connection is not None and connection.gone.wait(0.5)
            if not lost or self._closing.is_set():
                continue
            if self._closing.is_set():
                return  # it was closed, not lost
            log.warning("broker: the connection is lost, trying again")
            while not self._closing.wait(backoff.pause()):
                try:
                    again = self._connect()
                except BrokerError as problem:
                    log.warning("broker: %s", problem)
                    continue
                with self._changing:
                    self._connection = again
                    again.subscribe(self._feeds.topics())
                backoff.reset()
                break
