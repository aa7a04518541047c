"""Finds the message over which a broker ends the connection.

MQTT 3.1.1 has no words to refuse a message: brokers close the connection over one that is too large
or forbidden, and so do some of MQTT 5. Published again over each next connection, it would keep
everything else from arriving. After some short-lived connections the next one is *careful*: idle
at first, then all is published at QoS 1, one message at a time, the first one being the status. If
it ends right after others were acknowledged, it has ended over the one message in flight.

A network whose connections do not last is like that, too: what takes longest is in flight whenever
one ends. So a topic over which connections end again and again, with no other loss in between, is
held back: nothing is lost yet. If the connection without it ends as well, the network is at fault,
and the topic is published again. If it lasts, the topic is tried once more: only if that ends it,
the broker does not take the message.

Callers hold the client's lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .connection import UNSPECIFIED, Connection

log = logging.getLogger(__name__)

SETTLE = 2.0
"""Seconds that a careful connection is idle first: one that a bad network breaks ends then, too."""
SHORTLY = 5.0
"""Longest time between a message and the end of the connection over it, seconds."""
CAREFUL_SECONDS = 10.0
"""How long a connection is careful, seconds."""
CONTROL_SECONDS = 30.0
"""How long a connection must last without what is held back, seconds."""
SHORT_LIVED = 30.0
CAREFUL_AFTER = 2
"""Short-lived connections in a row after which the next ones are careful."""
PROOF = 4
"""Careful connections in a row that end over a message until its topic is held back; one more that
has lasted without it, and it is shut out."""
SHUT_OUT_SECONDS = 3600.0
MARGIN = 64
"""Bytes by which copies of a message may differ, such as by its age."""
MOST_TOPICS = 100

OVER_MESSAGE = -1
"""A code of our own for the end of a connection over a message."""

_HANG_UPS = frozenset({UNSPECIFIED, 0x83, 0x87, 0x90, 0x95, 0x99, 0x9A, 0x9B})
"""Reason codes of ends that a message may cause: closed without a reason, or one about a message.
Not those of a keepalive, a takeover, a broker that shuts down, or data that we cannot read."""


class HangUps:
    """How connections ended, and the messages that the broker does not take."""

    def __init__(self) -> None:
        self._short_lived = 0
        """Short-lived connections in a row."""
        self._suspects: dict[str, tuple[int, int]] = {}
        """By topic: the size of a message and how many careful connections have ended over it; from
        PROOF on, it is held back."""
        self._shut_out: dict[str, tuple[int, float]] = {}
        """By topic: the size from which on messages are not published, and until when."""

    @property
    def careful(self) -> bool:
        """Whether the next connection must be careful."""
        return self._short_lived >= CAREFUL_AFTER

    @property
    def suspends(self) -> bool:
        """Whether any topic is held back."""
        return any(times >= PROOF for _, times in self._suspects.values())

    def holds_back(self, topic: str) -> bool:
        """Whether a topic is held back until a connection has lasted without it."""
        _, times = self._suspects.get(topic, (0, 0))
        return times >= PROOF

    def why_not(self, topic: str, size: int) -> str | None:
        """Return why a message must not be published; None: it may."""
        least, until = self._shut_out.get(topic, (0, 0.0))
        if time.monotonic() >= until:
            self._shut_out.pop(topic, None)
            return None
        return None if size < least - MARGIN else explain(least)

    def acknowledged(self, topic: str, size: int) -> None:
        """Record that the broker has answered a message: it is none over which it hangs up."""
        suspect, _ = self._suspects.get(topic, (0, 0))
        if self._suspects and size >= suspect - MARGIN:
            self._suspects.pop(topic, None)

    def ended_careful(
        self, connection: Connection, alone: tuple[float, str, int] | None, taken_at: float
    ) -> str | None:
        """Record that a careful connection ended; return why its message is shut out, if it is.

        *alone*: when the one in flight was published, its topic and size; *taken_at*: when the one
        before was acknowledged, monotonic seconds, 0 if there was none.
        """
        if alone is None or not taken_at or connection.code not in _HANG_UPS:
            self.reset()
            return None
        since, topic, size = alone
        if time.monotonic() - max(since, taken_at) > SHORTLY:
            self.reset()
            return None
        connection.code = OVER_MESSAGE
        connection.reason = f"closed right after a message on {topic} ({size} bytes)"
        if not self._is_proof(topic, size):
            return None
        why = explain(size)
        log.warning("%s: not published for an hour: %s", topic, why)
        return why

    def _is_proof(self, topic: str, size: int) -> bool:
        """Count that a careful connection ended over a message; return whether that is proof."""
        suspect, times = self._suspects.get(topic, (0, 0))
        suspect, times = max(suspect, size), times + 1
        self._suspects[topic] = suspect, times
        _bound(self._suspects)
        if times == PROOF:
            held = (
                "%s: held back until a connection has lasted %.0f s without it: %d in a row ended"
            )
            log.info(held, topic, CONTROL_SECONDS, PROOF)
        if times <= PROOF:
            return False
        del self._suspects[topic]
        self._shut_out.pop(topic, None)  # the latest last
        self._shut_out[topic] = suspect, time.monotonic() + SHUT_OUT_SECONDS
        _bound(self._shut_out)
        return True

    def ended(self, code: int, lasted: float) -> None:
        """Record that a connection ended, but over no message that is known."""
        self.absolve()
        short = code in _HANG_UPS and lasted < SHORT_LIVED
        self._short_lived = self._short_lived + 1 if short else 0

    def reset(self) -> None:
        """Record that there is no reason to be careful: the network or the broker is at fault."""
        self.absolve()
        self._short_lived = 0

    def absolve(self) -> None:
        """Suspect no message any more: something else is at fault, too."""
        self._suspects.clear()

    def forget(self) -> None:
        """Try everything again: the settings have changed."""
        self.reset()
        self._shut_out.clear()


def settle(connection: Connection, interrupted: Callable[[], bool]) -> bool:
    """Leave a careful connection idle for a while; return whether it is there afterwards."""
    until = time.monotonic() + SETTLE
    while time.monotonic() < until:
        if connection.gone.wait(SETTLE / 10) or interrupted():
            return False
    return True


def explain(size: int) -> str:
    """Return the reason for not publishing a message of this size."""
    return (
        f"the broker closes the connection over such a message ({size} bytes); "
        "see its access list and its limit of size"
    )


def _bound(topics: dict[str, tuple[int, int]] | dict[str, tuple[int, float]]) -> None:
    while len(topics) > MOST_TOPICS:
        del topics[next(iter(topics))]
