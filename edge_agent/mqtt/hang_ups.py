"""Finds the message over which a broker ends the connection.

MQTT 3.1.1 has no words to refuse a message: brokers close the connection over one that is too large
or forbidden, and so do some of MQTT 5. Published again over each next connection, it would keep
everything else from arriving. After some short-lived connections the next one is *careful*: idle
at first, then all is published at QoS 1, one message at a time, the first one being the status. If
it ends right after others were acknowledged, it has ended over the one message in flight.

A network whose connections do not last is like that, too: what takes longest is in flight whenever
one ends. So a topic is only suspected at first, and the next connection begins with it, after
another pause. If connections end over it again and again, it is held back: nothing is lost yet. If
a connection has lasted without it, it is tried once more: only if that ends it, the broker does not
take the message.

Whatever contradicts this, such as an end over nothing or a suspect that the broker takes, forgives
all suspects and makes connections normal again. Where it proves the network at fault, they stay so
for longer each time: on a bad network careful ones, which bring less over, are rare.

Callers hold the client's lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from math import inf

from .connection import UNSPECIFIED, Connection, Refusal
from .message import Answered
from .paho_client import TOO_LARGE

log = logging.getLogger(__name__)

SETTLE = 2.0
"""Seconds that a careful connection is idle first: one that a bad network breaks ends then, too.
More for each end over a message, so that the same one is not in flight after the same time."""
SHORTLY = 5.0
"""Longest time between a message and the end of the connection over it, seconds."""
CAREFUL_SECONDS = 10.0
"""How long a connection is careful, seconds."""
CONTROL_SECONDS = 30.0
"""How long a connection must last without what is held back, seconds."""
SHORT_LIVED = 30.0
CAREFUL_AFTER = 2
"""Short-lived connections in a row after which the next ones are careful, at first."""
MOST_PATIENCE = 16
"""The same after careful ones have shown, again and again, that the network is at fault."""
PROOF = 4
"""Careful connections in a row that end over a message until its topic is held back; one more that
has lasted without it, and it is shut out."""
DIFFERENT = 3
"""Topics over which one connection each has ended, and none again: the network is at fault."""
SHUT_OUT_SECONDS = 3600.0
MARGIN = 64
"""Bytes by which copies of a message may differ, such as by its age."""
LIKE = 0.75
"""Part of the size that ends connections from which on live messages are not worth trying: the next
snapshot is a bit smaller, and ends the connection as well."""
MOST_TOPICS = 100
MOST_HELD, MOST_HELD_BYTES = 100, 4 * 2**20
"""Limits of what is held back and kept nowhere else, without retained messages."""

SEE = "see its access list and its limit of size"
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
        self._patience = CAREFUL_AFTER
        """How many make the next one careful."""
        self._suspects: dict[str, tuple[int, int]] = {}
        """By topic: the smallest size of a message over which careful connections have ended, and
        how many have."""
        self.held: set[str] = set()
        """Topics that are held back until a connection has lasted without them."""
        self._shut_out: dict[str, tuple[int, float]] = {}
        """By topic: the size from which on messages are not published, and until when."""
        self._too_large: dict[str, tuple[int, float]] = {}
        """The same of those that the broker has refused by their size."""

    @property
    def careful(self) -> bool:
        """Whether the next connection must be careful."""
        return self._short_lived >= self._patience

    def suspects(self, topic: str) -> bool:
        """Whether a careful connection has ended over a topic."""
        return topic in self._suspects

    def why_not(self, topic: str, size: int, *, live: bool) -> str | None:
        """Return why a message must not be published; None: it may. *live*: it may be lost."""
        refused, least = _least(self._too_large, topic), _least(self._shut_out, topic)
        if size >= refused:
            return explain(refused)
        most = min(least - MARGIN, LIKE * least if live else least)
        return None if size < most else explain(least)

    def answered(self, topic: str, size: int, refusal: Refusal | None) -> bool:
        """Record that the broker has answered a message; return whether that forgives all.

        What it refuses as too large is not published again on a connection, nor on the next ones
        if that was short-lived: mosquitto may close it, too.
        """
        if refusal is not None and refusal.code == TOO_LARGE:
            _shut(self._too_large, topic, int(min(size, _least(self._too_large, topic))))
        suspect, _ = self._suspects.get(topic, (0, 0))
        if topic not in self._suspects or size < suspect - MARGIN:
            return False
        self.forgive(proven=True)
        return True

    def ended_careful(
        self, connection: Connection, alone: tuple[float, str, int] | None, taken_at: float
    ) -> str | None:
        """Record that a careful connection ended; return why its message is shut out, if it is.

        *alone*: when the one in flight was published, its topic and size; *taken_at*: when the one
        before was acknowledged, monotonic seconds, 0 if there was none.
        """
        now = time.monotonic()
        over = taken_at and connection.code in _HANG_UPS
        if alone is None or not over or now - max(alone[0], taken_at) > SHORTLY:
            self.forgive()
            return None
        _, topic, size = alone
        connection.code = OVER_MESSAGE
        connection.reason = f"closed right after a message on {topic} ({size} bytes)"
        least = self._proven(topic, size)
        self.held.update(each for each, (_, times) in self._suspects.items() if times >= PROOF)
        ends = self._ends()
        if len(ends) >= DIFFERENT and max(ends) == 1:
            self.forgive(proven=True)
        if least is None:
            return None
        why = explain(least)
        log.warning("%s: not published for an hour: %s", topic, why)
        return why

    def _proven(self, topic: str, size: int) -> int | None:
        """Count that a careful connection ended over a message; return the least size, if proven.

        That is the smallest one over which these connections have ended.
        """
        suspect, times = self._suspects.get(topic, (size, 0))
        suspect, times = min(suspect, size), times + 1
        self._suspects[topic] = suspect, times
        _bound(self._suspects)
        if times == PROOF:
            held = (
                "%s: held back until a connection has lasted %.0f s without it: %d in a row ended"
            )
            log.info(held, topic, CONTROL_SECONDS, PROOF)
        if times <= PROOF:
            return None
        del self._suspects[topic]
        self._patience = CAREFUL_AFTER
        _shut(self._shut_out, topic, suspect)
        return suspect

    def _ends(self) -> list[int]:
        """Return how many careful connections have ended over each suspect that is not held."""
        return [times for topic, (_, times) in self._suspects.items() if topic not in self.held]

    def ended(self, code: int, lasted: float) -> None:
        """Record that a connection ended, but over no message that is known."""
        if lasted >= SHORT_LIVED:
            # Its limit may be another one now; but what was refused just now may have ended it.
            since = time.monotonic() - SHORTLY + SHUT_OUT_SECONDS
            kept = {topic: shut for topic, shut in self._too_large.items() if shut[1] >= since}
            self._too_large = kept
        if self._suspects:
            self.forgive()
        elif lasted >= SHORT_LIVED:
            self._short_lived, self._patience = 0, CAREFUL_AFTER
        else:
            self._short_lived = self._short_lived + 1 if code in _HANG_UPS else 0

    def forgive(self, *, proven: bool = False) -> None:
        """Record that nothing is to be found out: connections are normal again.

        *proven*: the network is at fault, so for longer than the last time.
        """
        self.absolve()
        self._short_lived = 0
        if proven:
            self._patience = min(2 * self._patience, MOST_PATIENCE)

    def absolve(self) -> None:
        """Suspect no message any more: something else is at fault, too."""
        self._suspects.clear()
        self.held.clear()

    def forget(self) -> None:
        """Try everything again: the settings have changed."""
        self.absolve()
        self._short_lived, self._patience = 0, CAREFUL_AFTER
        self._shut_out.clear()
        self._too_large.clear()

    def settle(self, connection: Connection, interrupted: Callable[[], bool]) -> bool:
        """Leave a careful connection idle for a while; return whether it is there afterwards."""
        ends = max(self._ends(), default=0)
        until = time.monotonic() + SETTLE * (1 + ends / 2)
        while time.monotonic() < until:
            if connection.gone.wait(SETTLE / 10) or interrupted():
                return False
        return True


class HeldBack:
    """Messages that are held back: how to publish each, and its answer."""

    def __init__(self) -> None:
        self._kept: dict[object, tuple[Callable[[], object], Answered | None]] = {}
        self._sizes: list[int] = []
        """Those of messages that are kept nowhere else, bytes."""

    def keep(
        self, key: object, size: int, again: Callable[[], object], answered: Answered | None = None
    ) -> bool:
        """Keep a message that *again* publishes; return whether there was room.

        *key*: only the latest with it is kept, without a limit; None: it is kept nowhere else.
        """
        if key is None:
            if len(self._sizes) >= MOST_HELD or sum(self._sizes) + size > MOST_HELD_BYTES:
                return False
            self._sizes.append(size)
        self._kept.pop(key, None)  # it goes behind what is older
        self._kept[key or object()] = again, answered
        return True

    def publish(self) -> None:
        """Publish all, and keep none."""
        kept, self._kept, self._sizes = self._kept, {}, []
        for again, _ in kept.values():
            again()

    def drop(self, why: str) -> None:
        """Keep none, because of *why*."""
        kept, self._kept, self._sizes = self._kept, {}, []
        for _, answered in reversed(kept.values()):  # each may be put back before the others
            if answered is not None:
                answered(why)


def explain(size: float) -> str:
    """Return the reason for not publishing a message of this size."""
    what = f"such a message, or refuses it ({size:.0f} bytes)"
    return f"the broker closes the connection over {what}; {SEE}"


def _least(topics: Mapping[str, tuple[int, float]], topic: str) -> float:
    """Return the size from which on messages are not published; infinite: there is none now."""
    size, until = topics.get(topic, (0, 0.0))
    return size if time.monotonic() < until else inf


def _shut(topics: dict[str, tuple[int, float]], topic: str, size: int) -> None:
    topics.pop(topic, None)  # the latest last
    topics[topic] = size, time.monotonic() + SHUT_OUT_SECONDS
    _bound(topics)


def _bound(topics: dict[str, tuple[int, int]] | dict[str, tuple[int, float]]) -> None:
    while len(topics) > MOST_TOPICS:
        del topics[next(iter(topics))]
