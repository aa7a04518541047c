"""One connection to the broker after the other, and the pauses between them.

Knows when to try again, and what to say of a connection that was lost; nothing of what is sent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..config.settings import Address, Broker
from ..core.errors import BrokerError
from .connection import TAKEN_OVER, Connection, Hooks, Will, connect, tls_context

if TYPE_CHECKING:
    import ssl

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


class Reconnect:
    """Makes connections, as long as they are wanted. One thread goes through them."""

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
            closing: set when no more are wanted; then `hurry`.
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
        self._coming: deque[tuple[Broker, ssl.SSLContext | None]] = deque(maxlen=1)
        """What was changed to and has not been taken up yet; the latest."""
        self._hurried = threading.Event()
        """Nothing that goes on here is wanted any more."""

    # What other threads call

    def change(self, broker: Broker, tls: ssl.SSLContext | None) -> None:
        """Have the next connection go by other settings, and be made at once.

        Whoever has the present one sees `changed`, and is to close it.

        Args:
            broker: where to.
            tls: of its settings, from `tls_context`.

        """
        self._coming.append((broker, tls))
        self._hurried.set()

    def hurry(self) -> None:
        """Break off whatever is being tried or waited for."""
        self._hurried.set()

    @property
    def changed(self) -> bool:
        """Whether the present connection is to give way to one by other settings."""
        return bool(self._coming)

    @property
    def address(self) -> Address:
        return self._broker.address

    # What the one thread does

    def __iter__(self) -> Iterator[Connection]:
        """Give a connection; the next one when that is gone and closed, after a pause."""
        while True:
            # First, so that whatever is asked for from here on is seen.
            self._hurried.clear()
            if self._closing.is_set():
                return
            self._take_up()
            try:
                connection = self._connect()
            except BrokerError as problem:
                if self._hurried.is_set():
                    continue
                pause = self._backoff.pause()
                self._say(str(problem))
            else:
                since = time.monotonic()
                yield connection
                if self._hurried.is_set():
                    continue
                pause = self._lost(connection, time.monotonic() - since)
            self._hurried.wait(pause)

    def _take_up(self) -> None:
        """Go by what was changed to, as if it had been so from the start."""
        if self._coming:
            self._broker, self._tls = self._coming.pop()
            self._protocol = self._broker.protocol
            self._short = 0
            self._backoff.reset()

    def _connect(self) -> Connection:
        """Connect once.

        Raises:
            BrokerError: it cannot be reached or refuses us.

        """
        connection = connect(
            self._broker,
            self._client_id,
            hooks=self._hooks,
            protocol=self._protocol,
            will=self._will(),
            tls=self._tls,
            session=True,
            stopping=self._hurried,
        )
        if connection.protocol_confirmed:
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
