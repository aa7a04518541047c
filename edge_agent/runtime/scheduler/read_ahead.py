"""Which recordings are read: as they are needed, and in a crowd a few at a time.

A recording at full pace gives as soon as it is asked. Were all asked at once, so much would wait
that every frame were old before a lane took it, and all that a decoder, a preparation and a lane
touch had left the processor's cache before it was touched again. So where others wait, a recording
rests until nothing of its own waits and little of the others', and then gives several in a row.
Pure: it knows no locks and no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol, TypeVar

from .fair_share import Share

CROWD = 2
"""Where more captures of other recordings wait, what a recording works with has left the cache
when it has its turn again."""
ROW = 12
"""Captures that a recording gives in a row, in a crowd, at most …"""
ROW_SECONDS = 0.03
"""… and so much work for a lane: where frames take long, the cache is the least of it, and others
shall not wait."""
AHEAD = 4
"""Captures of recordings that may wait for each lane, in a crowd: while one recording decodes
several, the lanes must not run out of those of another."""


class Turn:
    """How far a recording may go on."""

    __slots__ = ("asks", "left", "rests", "row", "several")

    def __init__(self) -> None:
        self.left = 0
        """Captures that it may give before it asks again."""
        self.rests = False
        """It has asked, and waits."""
        self.asks = False
        """Whether it asks at all: it wants its share from then on, not only when it gives."""
        self.several = True
        """Whether it could give several at once."""
        self.row = False
        """Whether it gives several in a row."""

    def gave(self) -> None:
        """Note that it has given one."""
        self.left = max(0, self.left - 1)


class Recording(Protocol):
    """A place on the board that a recording fills."""

    room: int
    share: Share
    turn: Turn

    @property
    def queue(self) -> Sized:
        """Captures that wait for a lane."""

    def needs(self) -> tuple[float, int]:
        """Say what a frame usually takes of a lane, seconds or 0, and how many go together."""

    def wanted(self) -> bool:
        """Whether a lane could take what waits."""


R = TypeVar("R", bound=Recording)


def call(slots: Iterable[R], ahead: int, *, idle: bool = False) -> list[R]:
    """Let recordings go on that rest, whoever has had least of the lanes first.

    Those of one priority only look at each other: what waits in a lower class is in nobody's way,
    and it must wait there to be served at all.

    Args:
        slots: all that there are.
        ahead: captures that may wait for lanes.
        idle: a lane has nothing to do. One more goes on then, as those that should give may be
            held up: by a slow disk, or by a link over which nothing goes.

    Returns:
        Those that go on.

    """
    coming: dict[int, int] = {}
    resting = []
    for slot in slots:
        if slot.turn.asks:
            priority = slot.share.priority
            coming[priority] = coming.get(priority, 0) + _coming(slot)
            if slot.turn.rests:
                resting.append(slot)
    # Nearly always nobody is to go on, which is to be found out quickly.
    likely = [s for s in resting if idle or _may_give(s, coming[s.share.priority], ahead)]
    called = []
    for slot in sorted(likely, key=lambda slot: slot.share.spent):
        turn, priority = slot.turn, slot.share.priority
        turn.left = _may_give(slot, coming[priority], ahead)
        if idle and not slot.queue:
            turn.left, idle = turn.left or 1, False
        if turn.left:
            turn.rests, turn.row = False, turn.left > 1
            coming[priority] += turn.left
            called.append(slot)
    return called


def _may_give(slot: Recording, coming: int, ahead: int) -> int:
    """Say how many a recording that rests may give, where so many of its class are to come."""
    others = coming - _coming(slot)
    if others <= CROWD:
        return 1 if len(slot.queue) < slot.room else 0
    usual, together = slot.needs()
    if slot.queue or others >= ahead * together:
        return 0
    if not usual or not slot.turn.several:
        return 1
    return max(1, min(ROW, int(ROW_SECONDS / usual)))


def _coming(slot: Recording) -> int:
    """Count what waits for a lane, and what will soon."""
    return slot.turn.left + (len(slot.queue) if slot.queue and slot.wanted() else 0)
