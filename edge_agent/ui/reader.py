"""Reads topics in its own thread, reconnecting whenever the broker is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..config.settings import Broker
from ..core.backoff import Backoff
from ..core.errors import AgentError, BrokerError
from ..mqtt.connection import ReceivedMessage
from ..mqtt.one_shot import OneShotClient
from ..mqtt.probe import blindness

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5
MOST_ODD = 100
"""Most topics whose messages are logged as left out."""
ASK_SECONDS = 1.0
"""Interval between requests for retained messages that a broker may have left out."""
SHOWN = "only what is published while this page's server runs is shown"
"""What a page is good for on a broker that withholds what is retained."""
MOST_PAUSE_SECONDS = 0.5
"""Longest pause between two attempts to reach the broker: a page that is back before the devices
misses no event that they have kept."""


class Reader:
    """One connection to the broker at a time, from construction until `close`."""

    def __init__(
        self,
        broker: Broker,
        filters: list[str],
        take: Callable[[ReceivedMessage], None],
        told: Callable[[str, bool], None] | None = None,
        missing: Callable[[bool], list[str]] = lambda _whole: [],
    ) -> None:
        """Start connecting.

        Args:
            broker: the broker to connect to.
            filters: the topics to subscribe to.
            take: receives every message.
            told: receives a problem, "" for none, and whether the broker is away; None: these
                topics are not those of all devices, so that nothing may be retained there.
            missing: returns the retained topics that should have come by now, each only once; it
                receives whether all that was requested and is retained has come.
        """
        self._broker = broker
        self._filters = filters
        self._take = take
        self._told = told or (lambda _problem, _away: None)
        self._is_whole = told is not None
        self._missing = missing
        self._shows = False
        """Whether the broker is known to send what is retained."""
        self._odd: set[str] = set()
        """Topics of messages that were left out, each logged once."""
        self._closing = threading.Event()
        self._client: OneShotClient | None = None
        threading.Thread(target=self._run, name="reader", daemon=True).start()

    def close(self) -> None:
        """Ask the thread to end."""
        self._closing.set()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish without retaining.

        Raises:
            BrokerError: there is no connection.
        """
        client = self._client
        if client is None or client.gone:
            raise BrokerError("there is no connection to the broker; nothing was sent")
        client.publish(topic, payload, expires_s=60)

    def _run(self) -> None:
        backoff = Backoff(first=0.2, most=MOST_PAUSE_SECONDS)
        while not self._closing.is_set():
            try:
                with OneShotClient(self._broker, self._filters) as client:
                    self._client = client
                    self._told("", False)
                    backoff.reset()
                    self._read(client)
            except AgentError as problem:  # or a certificate that is just being replaced
                self._told(str(problem), True)
                self._closing.wait(backoff.pause())

    def _take_whole(self, message: ReceivedMessage) -> None:
        """Hand over a message; one that nobody has foreseen ends no thread."""
        try:
            self._take(message)
        except Exception:  # noqa: BLE001 - anybody may have published it
            if message.topic not in self._odd and len(self._odd) < MOST_ODD:
                self._odd.add(message.topic)
                log.warning("%s: left out, as no agent publishes such a message", message.topic)

    def _probe(self, client: OneShotClient) -> None:
        """Tell what a broker withholds that has sent nothing retained, as `edge-agent status`."""
        why = blindness(client, self._broker.topic_root)
        if client is self._client and not client.gone:
            self._shows = not why
            if why:
                self._told(f"{why}; {SHOWN}", False)

    def _read(self, client: OneShotClient) -> None:
        refused, due = "", time.monotonic() + ASK_SECONDS
        is_proven, self._shows = not self._is_whole, False
        while not self._closing.is_set():
            # A node of a cluster may lack for a while what the others keep.
            whole = not (client.unanswered or client.refused or client.has_nodes)
            message = client.next(0.0)
            if message is None:
                message = client.next(IDLE_SECONDS)
            else:
                whole = False  # more may wait behind it
            if message is not None:
                self._shows = self._shows or message.retained
                is_proven = is_proven or message.retained
                self._take_whole(message)
            if time.monotonic() > due:
                if not is_proven and not client.refused:
                    is_proven = True
                    threading.Thread(target=self._probe, args=(client,), daemon=True).start()
                # A broker may leave out retained messages if there are many at once.
                if missing := self._missing(whole and self._shows):
                    client.ask(missing)
                due = time.monotonic() + ASK_SECONDS
            if client.refused != refused:
                refused = client.refused
                words = f"the broker has refused a subscription: {refused}; see its access list"
                self._told(words, False)
