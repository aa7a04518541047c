"""Fair sharing of lane time: the oldest capture goes first unless its pipeline exceeds its share.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) in lane time: only pipelines within LEAD of
the least-served one are eligible, and among these the oldest capture goes first. So if the device
can keep up, cameras are served in the order of capture; under overload each gets the same lane
time, whatever its rate and the speed of its model, and the others share what one does not need.

The cost of a frame is learned from all frames of its model, so that pipelines with the same model
get the same number of frames even if other programs delay some. Only if second stages make frames
of a pipeline differ, or one has stalled, does a frame count with its own time. Pure: the time is an
argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

LEAD = 0.02
"""Seconds of lane time that one pipeline may be ahead of another, so that the oldest goes first."""
LONGEST_WAIT = 1.0
"""Seconds after which a lower priority gets one frame served, whatever waits above it."""


class Share:
    """The lane time of one pipeline."""

    __slots__ = ("alone", "priority", "spent")

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        """The highest priority goes first."""
        self.spent = 0.0
        """Lane time in seconds, starting from the others' value when it joined."""
        self.alone = 0
        """How many of its next frames go one at a time."""


class Queued(Protocol):
    """A queue that is not empty."""

    share: Share

    @property
    def head(self) -> float:
        """When its first entry was captured."""


Q = TypeVar("Q", bound=Queued)


class FairShare:
    """Chooses between pipelines."""

    def __init__(self) -> None:
        self._floor: dict[int, float] = {}
        """Lane time of the least-served pipeline at the latest choice, by priority."""
        self._passed_over: dict[int, float] = {}
        """Since when waiting captures have not been served, by priority."""

    def join(self, share: Share) -> None:
        """Admit a pipeline that had nothing queued: its unused lane time is forfeited."""
        share.spent = max(share.spent, self._floor.get(share.priority, 0.0) - LEAD)

    def choose(self, queues: Iterable[Q], now: float) -> Q:
        """Return the queue to serve; *queues* must not be empty."""
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
        """Return the priority to serve: the highest, unless a lower one has waited too long."""
        since = self._passed_over
        longest = min(priorities, key=lambda priority: since.get(priority, now))
        if now - since.get(longest, now) > LONGEST_WAIT:
            return longest
        return max(priorities)

    def charge(self, share: Share, queues: Iterable[Q], now: float, seconds: float) -> None:
        """Charge *seconds* to the served pipeline; *queues*: all that were not empty."""
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
