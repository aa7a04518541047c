"""Read-ahead: how many captures each recording may put on the board before it must wait.

A recording at full speed can deliver at any time. If all did at once, every frame would wait long
for a lane, and the data shared by decoder, preprocessing and lane would have left the processor's
cache. So if others wait, a recording waits until none of its own captures and few of the others'
wait, and then delivers a burst. Pure: it uses no locks and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol, TypeVar

from .fair_share import Share

CROWD = 2
"""If more captures of other recordings wait, a recording's data has left the cache by its next
turn."""
BURST = 12
"""Most captures that a recording delivers in a row while others wait."""
BURST_SECONDS = 0.03
"""Most lane time of such a burst, seconds: with slow frames the cache matters little, and others
should not wait."""
AHEAD = 4
"""Most waiting captures per lane while recordings compete: while one recording decodes several,
the lanes must still have captures of another."""


class Pacing:
    """How far a recording may read ahead."""

    __slots__ = ("bursting", "granted", "may_burst", "paced", "waiting")

    def __init__(self) -> None:
        self.granted = 0
        """Captures that it may deliver before it waits again."""
        self.waiting = False
        """Whether it is waiting for a grant."""
        self.paced = False
        """Whether it ever waits for grants; if so, it has a share of the lanes from its first wait
        on, not only while it has captures queued."""
        self.may_burst = True
        """Whether it could deliver several at once."""
        self.bursting = False
        """Whether its latest grant was for several in a row."""

    def count(self) -> None:
        """Count a capture that it has delivered."""
        self.granted = max(0, self.granted - 1)


class Recording(Protocol):
    """The queue of a recording."""

    room: int
    share: Share
    pacing: Pacing

    @property
    def frames(self) -> Sized:
        """Captures waiting for a lane."""

    def usual(self) -> tuple[float, int]:
        """Return the usual lane time of a frame, seconds or 0, and the most frames per batch."""

    def servable(self) -> bool:
        """Whether a lane could take a waiting capture."""


R = TypeVar("R", bound=Recording)


def grant(queues: Iterable[R], ahead: int, *, idle: bool = False) -> list[R]:
    """Grant captures to waiting recordings, those with the least lane time first; return these.

    Recordings only affect others of the same priority: captures waiting in a lower class delay
    nobody, and must wait there to be served at all. At most *ahead* captures may wait for lanes. If
    a lane is *idle*, one more recording continues, because a slow disk or a blocked link may delay
    those with a grant.
    """
    coming: dict[int, int] = {}
    waiting = []
    for queue in queues:
        if queue.pacing.paced:
            priority = queue.share.priority
            coming[priority] = coming.get(priority, 0) + _coming(queue)
            if queue.pacing.waiting:
                waiting.append(queue)
    # Usually none may continue, which must be found out quickly.
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
    """Return how many captures a waiting recording may deliver; *coming*: those of its class."""
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
    """Count captures that wait for a lane or will soon."""
    return queue.pacing.granted + (len(queue.frames) if queue.frames and queue.servable() else 0)
