"""Fair sharing of lane time: the oldest capture goes first, as long as nobody exceeds its share.

Start-time fair queueing (Goyal, Vin and Cheng, 1996), in lane time: only pipelines within LEAD of
the least-served one are eligible, and among them the oldest capture goes. So cameras that the
device can carry are served in the order of capture, and where there is more to do than it can carry
each gets the same lane time, whatever its rate and however slow its model; what one does not need
is shared by the others.

What a frame takes is learned of all frames of its model, so that pipelines of one model get the
same number of frames, whichever was held up by other programs. Only where second stages make frames
of one pipeline differ does each count for what it took. Pure: it is told the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

LEAD = 0.02
"""Seconds of lane time that one may be ahead of another, for the sake of the oldest."""
LONGEST_WAIT = 1.0
"""Seconds after which those of a lower priority get one frame in, whatever waits above them."""


class Share:
    """The lane time of one pipeline."""

    __slots__ = ("priority", "spent")

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        """Those of the highest go first."""
        self.spent = 0.0
        """Lane time in seconds, from where the others were when it came."""


class Queued(Protocol):
    """A queue with something in it."""

    share: Share

    @property
    def head(self) -> float:
        """When the first of it was captured."""


Q = TypeVar("Q", bound=Queued)


class FairShare:
    """Decides between pipelines."""

    def __init__(self) -> None:
        self._floor: dict[int, float] = {}
        """By priority: how much the one served least had spent when one of them went last."""
        self._passed_over: dict[int, float] = {}
        """By priority: since when captures wait of which none goes."""

    def join(self, share: Share) -> None:
        """Admit one that had nothing queued: the lane time that it left unused is forfeited."""
        share.spent = max(share.spent, self._floor.get(share.priority, 0.0) - LEAD)

    def choose(self, queues: Iterable[Q], now: float) -> Q:
        """Return the queue to serve; there must be one."""
        classes: dict[int, list[Q]] = {}
        for queue in queues:
            classes.setdefault(queue.share.priority, []).append(queue)
        if len(classes) == 1:
            (peers,) = classes.values()
        else:
            peers = classes[self._class(classes, now)]
        most = min(queue.share.spent for queue in peers) + LEAD
        eligible = (queue for queue in peers if queue.share.spent <= most)
        return min(eligible, key=lambda queue: queue.head)

    def _class(self, priorities: Iterable[int], now: float) -> int:
        """Return the priority to serve: the highest, unless a lower one was left out too long."""
        since = self._passed_over
        longest = min(priorities, key=lambda priority: since.get(priority, now))
        if now - since.get(longest, now) > LONGEST_WAIT:
            return longest
        return max(priorities)

    def charge(self, share: Share, queues: Iterable[Q], now: float, seconds: float) -> None:
        """Charge *seconds* to the one that is served; *queues*: all that had something queued."""
        least = share.spent
        others = set()
        for queue in queues:
            if queue.share.priority == share.priority:
                least = min(least, queue.share.spent)
            else:
                others.add(queue.share.priority)
        self._floor[share.priority] = max(self._floor.get(share.priority, 0.0), least)
        self._passed_over = {other: self._passed_over.get(other, now) for other in others}
        share.spent += seconds
