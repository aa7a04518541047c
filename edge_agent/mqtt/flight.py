"""What is in flight over one connection."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..core.logs import Latch
from .hang_ups import HeldBack
from .message import Answered


@dataclass(slots=True)
class Flight:
    """State of the present connection, which ends with it."""

    since: float = field(default_factory=time.monotonic)
    """When it began, or its trial of what is held back; monotonic seconds."""
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
    replies: dict[int, int] = field(default_factory=dict)
    """The size of each reply without an acknowledgment, by id."""
    unanswered: Latch = field(default_factory=Latch)
    """Whether requests get no answer for want of room."""
    unwritten: deque[Any] = field(default_factory=deque)
    """Receipts of QoS 0, starting with the first not known to be written to the socket."""
    answered: dict[int, Answered] = field(default_factory=dict)
    """What to call with the answer to a QoS 1 message, by id; a refusal of others is a problem of
    this device."""
    too_large: set[str] = field(default_factory=set)
    """Topics of messages that were too large for the connection, logged once each."""

    def awaits(self, topic: str) -> bool:
        """Whether a message on a topic has no acknowledgment yet."""
        return any(each == topic for _, each, _ in self.awaited.values())
