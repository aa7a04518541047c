"""A command's way to the broker: connects once, subscribes, and gives messages as they come.

What the broker refuses ends the command: with MQTT 5, which alone says so.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

from ..config.settings import Broker
from ..core.errors import BrokerError
from .connection import Connection, Hooks, Refusal, connect

log = logging.getLogger(__name__)


class Heard(NamedTuple):
    """A message."""

    topic: str
    payload: bytes
    retained: bool

    @property
    def body(self) -> dict[str, Any] | None:
        """The JSON object that it holds; None: it holds none. Anybody may have sent it."""
        return body_of(self.payload)


def body_of(payload: bytes) -> dict[str, Any] | None:
    """Read a JSON object that a stranger may have written; None where it is none."""
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


class _Unpublished(NamedTuple):
    """Word of a message that the broker has refused."""

    mid: int
    refusal: Refusal


class OneShotClient:
    """One connection for the life of a command."""

    def __init__(self, broker: Broker, filters: list[str]) -> None:
        """Connect and listen.

        Raises:
            BrokerError: the broker cannot be reached or refuses us.

        """
        self._heard: SimpleQueue[Heard | _Unpublished] = SimpleQueue()
        self._topics: dict[int, str] = {}
        """By message id of what is under way. An id is given again after 65535 others."""
        self._broker = broker
        self._filters = list(filters)
        self._connection = self._connect()

    def _connect(self) -> Connection:
        connection = connect(
            self._broker,
            f"edge-agent-cli-{uuid.uuid4().hex[:12]}",
            hooks=Hooks(
                message=lambda m: self._heard.put(Heard(m.topic, m.payload, m.retained)),
                published=self._published,
                refused=lambda _connection, refusal: log.warning(
                    "the broker does not let us listen: %s (see its access list)", refusal.reason
                ),
            ),
        )
        connection.subscribe(self._filters)
        return connection

    def _published(self, _connection: Connection, mid: int, refusal: Refusal | None) -> None:
        """Leave word of a refusal; in paho's thread."""
        if refusal is None:
            self._topics.pop(mid, None)
        else:
            self._heard.put(_Unpublished(mid, refusal))

    def reconnect(self) -> None:
        """Connect again, and listen to the same.

        Raises:
            BrokerError: the broker is still away.

        """
        self._connection.close()
        self._connection = self._connect()

    @property
    def gone(self) -> bool:
        """Whether the connection is lost."""
        return self._connection.gone.is_set()

    @property
    def max_packet(self) -> int | None:
        return self._connection.max_packet

    def subscribe(self, filters: list[str]) -> None:
        """Listen to more."""
        self._filters.extend(filters)
        self._connection.subscribe(filters)

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> Any:
        """Send; gives paho's receipt. If it is refused, `next` or `settle` say so."""
        receipt = self._connection.publish(topic, payload, qos, retain=retain)
        self._topics[receipt.mid] = topic
        return receipt

    def settle(self, receipts: Iterable[Any], seconds: float = 10.0) -> None:
        """Wait until the broker has acknowledged; what is heard meanwhile is passed over.

        Raises:
            BrokerError: it refuses one of them, has not answered, or is gone.

        """
        waiting = list(receipts)
        deadline = time.monotonic() + seconds
        while waiting := [receipt for receipt in waiting if not receipt.is_published()]:
            if time.monotonic() > deadline:
                raise BrokerError(f"the broker has not acknowledged within {seconds:.0f} s")
            self.next(0.02)
        # A refusal is left before its receipt is settled.
        while not self._heard.empty():
            self.next(0.0)

    def next(self, timeout: float | None = None) -> Heard | None:
        """Wait for a message; None when the time is over.

        Raises:
            BrokerError: the connection is gone, or the broker has refused what was published.

        """
        waited = 0.0
        while True:
            step = 0.25 if timeout is None else max(0.0, min(0.25, timeout - waited))
            try:
                heard = self._heard.get(timeout=step)
            except Empty:
                if self._connection.gone.is_set():
                    raise BrokerError("the connection to the broker is lost") from None
                waited += step
                if timeout is not None and waited >= timeout:
                    return None
            else:
                if isinstance(heard, _Unpublished):
                    raise BrokerError(self._words(heard))
                return heard

    def _words(self, unpublished: _Unpublished) -> str:
        from .diagnose import words_of

        topic = self._topics.get(unpublished.mid, "one of its topics")
        refusal = unpublished.refusal
        return words_of(self._broker, topic, refusal.code, refusal.reason)

    def __iter__(self) -> Iterator[Heard]:
        while True:
            heard = self.next()
            if heard is not None:
                yield heard

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
