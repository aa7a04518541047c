"""One package on its way: what has come of it, and what is asked for next.

The device asks, a window at a time; the sender never runs ahead, because a broker silently drops
what piles up behind a slow receiver (mosquitto's queue holds 1,000).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from ...core.errors import MalformedError
from ...models.packages.blocks import ranges
from ...models.packages.package import PackageHeader
from ...models.store.incoming import Incoming
from ..trial.early_trial import Ahead
from .progress import Replies

WINDOW = 32
"""Blocks that are asked for at a time."""
LIST_PART = 64 * 1024
SILENCE_SECONDS = 2.0
"""Without a block, after which those that were asked for are asked for again; on a slow link so
much longer as four blocks take. What is on its way there must not be sent twice."""
FIRST_SECONDS = 10.0
"""The same while nobody knows how slow the link is."""
LONGEST_SECONDS = 30.0
TELL_SECONDS = 2.0
"""At most between two words to the sender, who else offers again."""


@dataclass(slots=True, eq=False)
class Transfer:
    """First the parts of its list come, then its blocks."""

    id: str
    header_bytes: bytes
    signature: bytes | None
    header: PackageHeader
    began: float
    heard_at: float
    """When its sender was last heard of; like all times here by the monotonic clock."""
    parts: dict[int, bytes] = field(default_factory=dict)
    """Of the list, until that is whole."""
    incoming: Incoming | None = None
    """Its blocks, since the list is whole."""
    ahead: Ahead | None = None
    """Its trial, if that has begun."""
    asked: set[int] = field(default_factory=set)
    """Parts or blocks that have been asked for and have not come."""
    asked_at: float = 0.0
    came_at: float = 0.0
    """When a part or a block came last."""
    pace: float = 0.0
    """Seconds from one to the next, of late; 0: not known yet."""
    told_at: float = 0.0
    hurried: bool = False
    """What the trial wished for is being asked for."""
    unsaid: bool = False
    """There was no connection to ask over."""

    @property
    def list_parts(self) -> int:
        return max(1, math.ceil(self.header.list_bytes / LIST_PART))

    @property
    def percent(self) -> float:
        incoming = self.incoming
        return 100.0 * incoming.have / max(incoming.total, 1) if incoming is not None else 0.0

    def take_part(self, number: int, payload: bytes) -> bytes | None:
        """Take a part of the list; gives the list once it is whole.

        Raises:
            MalformedError: that is no part.

        """
        if len(payload) > LIST_PART:
            raise MalformedError(f"larger than the {LIST_PART} bytes of a part")
        self.came()
        self.parts[number] = payload
        self.asked.discard(number)
        if len(self.parts) < self.list_parts:
            return None
        return b"".join(self.parts[n] for n in range(self.list_parts))

    def came(self) -> None:
        """Note that a part or a block has come."""
        now = time.monotonic()
        if self.came_at:
            # A break of the connection says nothing about its speed.
            gap = min(now - self.came_at, FIRST_SECONDS)
            self.pace = gap if not self.pace else 0.8 * self.pace + 0.2 * gap
        self.came_at = self.heard_at = now

    def begin(self, incoming: Incoming) -> None:
        """Have blocks come from now on."""
        self.incoming = incoming
        self.parts.clear()
        self.asked.clear()

    # Asking

    def ask(self, replies: Replies) -> None:
        """Ask for what is missing and not asked for yet, up to a window."""
        self.asked_at = time.monotonic()
        if self.incoming is None:
            missing = [n for n in range(self.list_parts) if n not in self.parts][:WINDOW]
            self.asked = set(missing)
            self.told_at = self.asked_at
            self.unsaid = not replies.say(
                self.id, "need", have=0, total=self.header.blocks, list=_pairs(missing)
            )
            return
        incoming = self.incoming
        self.tell_trial()  # what it wishes for is asked for now
        missing = incoming.missing(WINDOW + len(self.asked))
        wanted = [n for n in missing if n not in self.asked][: WINDOW - len(self.asked)]
        if not wanted:
            return
        self.asked.update(wanted)
        self.told_at = self.asked_at
        self.unsaid = not replies.say(
            self.id, "need", have=incoming.have, total=incoming.total, need=_pairs(wanted)
        )

    def ask_again(self, replies: Replies) -> None:
        """Ask as if nothing had been asked for."""
        self.asked.clear()
        self.ask(replies)

    def answer(self, replies: Replies) -> None:
        """Answer an offer of what is under way: what is on its way already is not asked for."""
        if self.asked and not self.waits_in_vain(time.monotonic()):
            self.tell(replies)
        else:
            self.ask_again(replies)

    def tell(self, replies: Replies) -> None:
        """Say how far it is, and ask for nothing."""
        self.told_at = time.monotonic()
        incoming = self.incoming
        have, total = (incoming.have, incoming.total) if incoming else (0, self.header.blocks)
        replies.say(self.id, "need", have=have, total=total)

    def waits_in_vain(self, now: float) -> bool:
        """Whether it is time to ask again."""
        patience = FIRST_SECONDS
        if self.pace:
            patience = min(SILENCE_SECONDS + 4 * self.pace, LONGEST_SECONDS)
        return self.unsaid or now - max(self.asked_at, self.came_at) >= patience

    # Its trial

    def tell_trial(self) -> None:
        """Tell the trial what is there."""
        incoming, ahead = self.incoming, self.ahead
        if ahead is None or incoming is None:
            return
        if ahead.wish is not None and not self.hurried:
            self.hurried = True
            incoming.request_first(*ahead.wish)
        granted = self.hurried and incoming.has_requested
        ahead.arrived(incoming.reach, granted=granted, whole=incoming.complete)

    def end_trial(self) -> None:
        """Let the trial go; it has been for nothing."""
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None


def _pairs(numbers: list[int]) -> list[list[int]]:
    return [[first, last] for first, last in ranges(numbers)]
