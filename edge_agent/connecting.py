"""One connection to the broker after the other, and the pauses between them.

Knows when to try again, and what to say of a connection that was lost; nothing of what is sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from .errors import LinkError
from .mqtt import TAKEN_OVER, Connection, Hooks, Will, connect, tls_context
from .settings import Broker

STABLE = 30.0
"""Seconds that a connection must last before the pauses start from the shortest again."""
TAKEN_OVER_PAUSE = 60.0
FIGHT = 3
"""Connections in a row that the broker takes and that do not last: somebody else gets them."""


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


class Connecting:
    """Makes connections, as long as they are wanted. Used by one thread."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        *,
        hooks: Hooks,
        will: Callable[[], Will],
        backoff: Backoff,
        closing: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            broker: where to.
            client_id: this device's.
            hooks: of every connection.
            will: makes the last will, at each connection.
            backoff: pauses between tries.
            closing: set when no more are wanted.
            say: told what is wrong, whenever there is no connection.

        Raises:
            UsageError: certificates that cannot be used.

        """
        self._broker = broker
        self._client_id = client_id
        self._hooks = hooks
        self._will = will
        self._backoff = backoff
        self._closing = closing
        self._say = say
        self._tls = tls_context(broker)
        self._protocol = broker.protocol
        self._short = 0
        """Connections in a row that did not last."""

    def __iter__(self) -> Iterator[Connection]:
        """Give a connection; the next one when that is gone and closed, after a pause."""
        while not self._closing.is_set():
            try:
                connection = self._connect()
            except LinkError as problem:
                pause = self._backoff.pause()
                self._say(str(problem))
            else:
                since = time.monotonic()
                yield connection
                if self._closing.is_set():
                    return
                pause = self._lost(connection, time.monotonic() - since)
            self._closing.wait(pause)

    def _connect(self) -> Connection:
        """Connect once.

        Raises:
            LinkError: it cannot be reached or refuses us.

        """
        connection = connect(
            self._broker,
            self._client_id,
            hooks=self._hooks,
            protocol=self._protocol,
            will=self._will(),
            tls=self._tls,
            session=True,
            stopping=self._closing,
        )
        if connection.settled:
            self._protocol = connection.protocol
        return connection

    def _lost(self, connection: Connection, lasted: float) -> float:
        """Say why a connection is gone; gives the seconds to wait for the next."""
        self._short += 1
        if lasted >= STABLE:
            self._short = 0
            self._backoff.reset()
        pause = self._backoff.pause()
        if connection.code == TAKEN_OVER:
            self._say("another box uses this device_id: the broker gave our connection to it")
            return max(pause, TAKEN_OVER_PAUSE)
        if self._short >= FIGHT:
            # Older brokers (mosquitto 2.0.11, say) hang up on who is taken over, wordlessly.
            self._say(
                f"connection to {self._broker.address} lost again and again: "
                f"{connection.reason}; does another box use this device_id?"
            )
        else:
            self._say(f"connection to {self._broker.address} lost: {connection.reason}")
        return pause
