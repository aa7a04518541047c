"""One connection to the broker after the other, and the pauses between them.

Knows when to try again and why a connection was lost; nothing of what is published.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..config.settings import Broker
from ..core.backoff import Backoff
from ..core.errors import BrokerError
from .connecting import connect
from .connection import ALL, TAKEN_OVER, Connection, Hooks, Will
from .paho_client import Where, tls_context

if TYPE_CHECKING:
    import ssl

STABLE = 30.0
"""Seconds that a connection must last before the pauses start from the shortest again."""
TAKEN_OVER_PAUSE = 60.0
SHORT_LIVED = 3
"""Connections in a row that the broker accepts and that do not last: another client takes them."""


class Reconnect:
    """Iterates over connections, as long as they are wanted. Iterated by one thread."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        *,
        hooks: Hooks,
        will: Callable[[], Will],
        backoff: Backoff,
        closing: threading.Event,
        on_problem: Callable[[str], None],
    ) -> None:
        """Read the certificates; do not connect yet.

        *closing* is set when no more connections are wanted, then `interrupt` is called;
        *on_problem* is told the reason whenever there is no connection.

        Raises:
            UsageError: certificates that cannot be used.
        """
        self._broker = broker
        self._client_id = client_id
        self._hooks = hooks
        self._will = will
        self._backoff = backoff
        self._closing = closing
        self._on_problem = on_problem
        self._tls = tls_context(broker)
        self._protocol = broker.protocol
        self._abilities = ALL
        """Of the broker, as the last connection has shown them."""
        self._short_lived = 0
        """Connections in a row that did not last."""
        self._avoid: Where | None = None
        """The node that was lost last."""
        self._next: deque[tuple[Broker, ssl.SSLContext | None]] = deque(maxlen=1)
        """Settings that apply from the next connection on; the latest."""
        self._interrupted = threading.Event()
        """The present attempt, connection or pause is to end."""

    # For other threads

    def change(self, broker: Broker, tls: ssl.SSLContext | None) -> None:
        """Use other settings, for a connection that is to be made at once.

        The user of the present connection sees `changed`, and has to close it.
        """
        self._next.append((broker, tls))
        self._interrupted.set()

    def interrupt(self) -> None:
        """End the present attempt or pause."""
        self._interrupted.set()

    @property
    def changed(self) -> bool:
        """Whether the present connection is to be replaced by one with other settings."""
        return bool(self._next)

    # For the one thread

    def __iter__(self) -> Iterator[Connection]:
        """Yield a connection; the next one when that is lost and closed, after a pause."""
        while True:
            # First, so that a request from here on is seen.
            self._interrupted.clear()
            if self._closing.is_set():
                return
            self._apply_change()
            try:
                connection = self._connect()
            except BrokerError as problem:
                if self._interrupted.is_set():
                    continue
                pause = self._backoff.pause()
                self._on_problem(str(problem))
            else:
                since = time.monotonic()
                yield connection
                if self._interrupted.is_set():
                    continue
                pause = self._report_lost(connection, time.monotonic() - since)
            self._interrupted.wait(pause)

    def _apply_change(self) -> None:
        """Switch to changed settings, as if they had been there from the start."""
        if self._next:
            self._broker, self._tls = self._next.pop()
            self._protocol = self._broker.protocol
            self._abilities = ALL
            self._short_lived = 0
            self._backoff.reset()

    def _connect(self) -> Connection:
        """Connect once.

        Raises:
            BrokerError: the broker cannot be reached or refuses the connection.
        """
        connection = connect(
            self._broker,
            self._client_id,
            hooks=self._hooks,
            protocol=self._protocol,
            will=self._will(),
            tls=self._tls,
            session=True,
            stopping=self._interrupted,
            abilities=self._abilities,
            avoid=self._avoid,
        )
        self._avoid = connection.where
        if connection.protocol == 5:
            # With 3.1.1 they were guessed: the next connection begins with all again.
            self._abilities = connection.abilities
        if connection.protocol_confirmed:
            self._protocol = connection.protocol
        return connection

    def _report_lost(self, connection: Connection, lasted: float) -> float:
        """Report why a connection was lost; return the seconds to wait for the next."""
        self._short_lived += 1
        if lasted >= STABLE:
            self._short_lived = 0
            self._backoff.reset()
        pause = self._backoff.pause()
        if connection.code == TAKEN_OVER:
            self._on_problem(
                "another box uses this device_id: the broker gave our connection to it"
            )
            return max(pause, TAKEN_OVER_PAUSE)
        if self._short_lived >= SHORT_LIVED:
            # Older brokers (mosquitto 2.0.11, say) disconnect the older client without a reason.
            self._on_problem(
                f"connection to {connection.address} lost again and again: "
                f"{connection.reason}; does another box use this device_id?"
            )
        else:
            self._on_problem(f"connection to {connection.address} lost: {connection.reason}")
        return pause
