"""What is in flight over one connection."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from ..core.logs import Latch
from .connection import is_acknowledged
from .hang_ups import HeldBack
from .message import Answered

log = logging.getLogger(__name__)

REPLIES, REPLIES_BYTES = 250, 4 * 2**20
"""Most answers to requests in flight: who asks faster than the network carries gets none."""
SMALL = 4096
"""Bytes of a message that no limit of a broker is about."""
MOST_BROKEN = 8
"""Most connections that may break before a reply is acknowledged; then it is given up."""
BEHIND, BEHIND_LARGE = 10.0, 0.5
"""Seconds after which a message of QoS 0 should have been written to the socket, however it is held
up. Further ones are refused until it is, those larger than LARGE earlier: they would come ever
later, and so would the answer to a ping."""
LARGE = 32_000
LASTING = 10.0
"""How long that must happen, at times, until it is a problem, seconds; a moment is none."""
BEHIND_FOR = 60.0
"""How long it stays one after the last time, seconds."""
TOO_SLOW = (
    "the network carries less than is published; snapshots and then results are dropped: publish "
    "fewer or smaller ones"
)


class Reply(NamedTuple):
    """The answer to a request."""

    topic: str
    payload: bytes
    correlation: bytes | None
    foreign: bool
    """Whether the requester has chosen the topic."""
    broken: int = 0
    """How many connections have broken before the broker acknowledged it."""

    @property
    def may_be_again(self) -> bool:
        """Whether it is sent again over the next connection: those that broke may have over it."""
        return not self.foreign and self.broken < MOST_BROKEN and self.size <= SMALL

    @property
    def size(self) -> int:
        return len(self.payload) + len(self.correlation or b"")


@dataclass(slots=True)
class Flight:
    """State of the present connection, which ends with it."""

    since: float = field(default_factory=time.monotonic)
    """When it began, or its trial of what is held back; monotonic seconds."""
    repeated: float = field(default_factory=time.monotonic)
    """When all retained state was last published, monotonic seconds."""
    held: HeldBack = field(default_factory=HeldBack)
    window: int | None = None
    """How many messages may be unacknowledged once it is no longer careful (`hang_ups`); None: it
    is not."""
    queued: int = 0
    """Id of the last message of QoS 0 that was published at QoS 1, and so waits its turn."""
    awaited: dict[int, tuple[float, str, int]] = field(default_factory=dict)
    """When each QoS 1 message without an acknowledgment was published, monotonic seconds, its
    topic, and its size, by id."""
    acknowledged: float = 0.0
    """When the latest message with an acknowledgment was published."""
    heard_at: float = 0.0
    """When the last acknowledgment came."""
    newer: set[str] = field(default_factory=set)
    """Retained topics of which there is a newer state than those without an acknowledgment."""
    replies: dict[int, Reply] = field(default_factory=dict)
    """Those without an acknowledgment, by id."""
    unanswered: Latch = field(default_factory=Latch)
    """Whether requests get no answer for want of room."""
    unwritten: deque[tuple[float, Any]] = field(default_factory=deque)
    """When messages of QoS 0 were published, monotonic seconds, and their receipts, starting with
    the first not known to be written to the socket."""
    behind: tuple[float, float] = (-inf, -inf)
    """Since when messages are refused at times because the network carries less than is published,
    and when the last one was; monotonic seconds."""
    answered: dict[int, Answered] = field(default_factory=dict)
    """What to call with the answer to a QoS 1 message, by id; a refusal of others is a problem of
    this device."""
    too_large: set[str] = field(default_factory=set)
    """Topics of messages that were too large for the connection, logged once each."""

    def awaits(self, topic: str) -> bool:
        """Whether a message on a topic has no acknowledgment yet."""
        return any(each == topic for _, each, _ in self.awaited.values())

    def has_room(self, reply: Reply) -> bool:
        """Whether a reply finds room among those in flight; that it does not is logged once."""
        size = reply.size + sum(each.size for each in self.replies.values())
        full = len(self.replies) >= REPLIES or size > REPLIES_BYTES
        if self.unanswered.begins(full and bool(self.replies)):
            log.warning("requests come faster than the network carries answers; some get none")
        return not (full and self.replies)

    def forget_written(self) -> None:
        """Forget the messages of QoS 0 that are written to the socket."""
        while self.unwritten and is_acknowledged(self.unwritten[0][1]):
            self.unwritten.popleft()

    def is_behind(self, size: int) -> bool:
        """Whether the network carries less than is published, which is logged once.

        *size*: of the message to publish next; a large one must leave room for results.
        """
        now, most = time.monotonic(), BEHIND_LARGE if size > LARGE else BEHIND
        if not self.unwritten or now - self.unwritten[0][0] < most:
            return False
        since, last = self.behind
        said = self.problem
        self.behind = since if now - last < BEHIND_FOR else now, now
        if said is None and self.problem is not None:
            log.warning("broker: %s", TOO_SLOW)
        return True

    @property
    def problem(self) -> str | None:
        """Why messages are dropped, or were a moment ago; None: they are not."""
        since, last = self.behind
        lasts = last - since > LASTING and time.monotonic() - last < BEHIND_FOR
        return TOO_SLOW if lasts else None
