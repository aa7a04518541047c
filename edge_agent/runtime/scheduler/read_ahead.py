"""Read-ahead: how many captures each recording may put on the board before it must wait.

A recording at full pace gives as soon as it is asked. Were all asked at once, so much would wait
that every frame were old before a lane took it, and all that a decoder, a preparation and a lane
touch had left the processor's cache before it was touched again. So where others wait, a recording
waits until nothing of its own waits and little of the others', and then gives a burst.
Pure: it knows no locks and no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol, TypeVar

from .fair_share import Share

CROWD = 2
"""Where more captures of other recordings wait, what a recording works with has left the cache
by its next turn."""
BURST = 12
"""Captures that a recording gives in a row, in a crowd, at most …"""
BURST_SECONDS = 0.03
"""… and so much work for a lane: where frames take long, the cache is the least of it, and others
shall not wait."""
AHEAD = 4
"""Captures of recordings that may wait for each lane, in a crowd: while one recording decodes
several, the lanes must not run out of those of another."""


class Pacing:
    """How far a recording may read on."""

    __slots__ = ("bursting", "granted", "may_burst", "paced", "waiting")

    def __init__(self) -> None:
        self.granted = 0
        """Captures that it may give before it waits again."""
        self.waiting = False
        """It waits for a grant."""
        self.paced = False
        """Whether it waits for grants at all; then it has a share of the lanes from its first wait
        on, not only while it has something queued."""
        self.may_burst = True
        """Whether it could give several at once."""
        self.bursting = False
        """Whether its latest grant was for several in a row."""

    def count(self) -> None:
        """Count a capture that it has given."""
        self.granted = max(0, self.granted - 1)


class Recording(Protocol):
    """A queue that a recording fills."""

    room: int
    share: Share
    pacing: Pacing

    @property
    def frames(self) -> Sized:
        """Captures that wait for a lane."""

    def usual(self) -> tuple[float, int]:
        """Return the usual lane time of a frame, seconds or 0, and how many frames go together."""

    def servable(self) -> bool:
        """Whether a lane could take a waiting capture."""


R = TypeVar("R", bound=Recording)


def grant(queues: Iterable[R], ahead: int, *, idle: bool = False) -> list[R]:
    """Grant captures to waiting recordings, those with the least lane time first; return these.

    Only recordings of one priority count for each other: what waits in a lower class is in nobody's
    way, and it must wait there to be served at all. So many as *ahead* may wait for lanes. Where a
    lane is *idle* one more goes on, as those that should give may be held up: by a slow disk, or by
    a link over which nothing goes.
    """
    coming: dict[int, int] = {}
    waiting = []
    for queue in queues:
        if queue.pacing.paced:
            priority = queue.share.priority
            coming[priority] = coming.get(priority, 0) + _coming(queue)
            if queue.pacing.waiting:
                waiting.append(queue)
    # Nearly always none is to go on, which is to be found out quickly.
    likely = [q for q in waiting if idle or _grantable(q, coming[q.share.priority], ahead)]
    granted = []
    for queue in sorted(likely, key=lambda queue: queue.share.spent):
        pacing, priority = queue.pacing, queue.share.priority
        pacing.granted = _grantable(queue, coming[priority], ahead)
        if idle and not queue.frames:
            pacing.granted, idle = pacing.granted or 1, False
        if pacing.granted:
            pacing.waiting, pacing.bursting = False, pacing.granted > 1
            coming[priority] += pacing.granted
            granted.append(queue)
    return granted


def _grantable(queue: Recording, coming: int, ahead: int) -> int:
    """Return how many captures a waiting recording may give; *coming*: those due of its class."""
    others = coming - _coming(queue)
    if others <= CROWD:
        return 1 if len(queue.frames) < queue.room else 0
    usual, together = queue.usual()
    if queue.frames or others >= ahead * together:
        return 0
    if not usual or not queue.pacing.may_burst:
        return 1
    return max(1, min(BURST, int(BURST_SECONDS / usual)))


def _coming(queue: Recording) -> int:
    """Count captures that wait for a lane, or will soon."""
    return queue.pacing.granted + (len(queue.frames) if queue.frames and queue.servable() else 0)
