"""Whose turn it is: the oldest capture goes first, as long as nobody gets more than its share.

Start-time fair queueing (Goyal, Vin and Cheng, 1996), in lane time: each pipeline has spent so much
of it, and of those that have something waiting only those go that are not ahead of the one that
has spent least. Among them the oldest goes. So cameras that the device can carry are served in the
order of capture, and where there is more to do than it can carry each gets the same lane time,
whatever its rate and however slow its model; what one does not need is shared by the others.

What a frame takes is learned of all frames of its model, so that pipelines of one model get the
same number of frames, whoever was held up by other programs. Only where second stages make frames
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
    """What a pipeline has had of the lanes."""

    __slots__ = ("priority", "spent")

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        """Those of the highest go first."""
        self.spent = 0.0
        """Lane time in seconds, from where the others were when it came."""


class Queued(Protocol):
    """Something that waits."""

    share: Share

    @property
    def head(self) -> float:
        """When the first of it was captured."""


Q = TypeVar("Q", bound=Queued)


class Shares:
    """Decides between pipelines."""

    def __init__(self) -> None:
        self._floor: dict[int, float] = {}
        """By priority: how much the one served least had spent when one of them went last."""
        self._passed_over: dict[int, float] = {}
        """By priority: since when something waits of which nothing goes."""

    def arrive(self, share: Share) -> None:
        """Have one take part that had nothing waiting: what it left unused is gone."""
        share.spent = max(share.spent, self._floor.get(share.priority, 0.0) - LEAD)

    def choose(self, waiting: Iterable[Q], now: float) -> Q:
        """Choose one of those that wait; there must be one."""
        classes: dict[int, list[Q]] = {}
        for one in waiting:
            classes.setdefault(one.share.priority, []).append(one)
        if len(classes) == 1:
            (fellows,) = classes.values()
        else:
            fellows = classes[self._class(classes, now)]
        most = min(one.share.spent for one in fellows) + LEAD
        return min((one for one in fellows if one.share.spent <= most), key=lambda one: one.head)

    def _class(self, priorities: Iterable[int], now: float) -> int:
        """Choose the priority that goes: the highest, unless a lower one was left out too long."""
        since = self._passed_over
        longest = min(priorities, key=lambda priority: since.get(priority, now))
        if now - since.get(longest, now) > LONGEST_WAIT:
            return longest
        return max(priorities)

    def went(self, share: Share, waiting: Iterable[Q], now: float, seconds: float) -> None:
        """Note that one is served.

        Args:
            share: whose.
            waiting: all that had something waiting, itself included.
            now: monotonic seconds.
            seconds: of lane time that it is charged.

        """
        least = share.spent
        others = set()
        for one in waiting:
            if one.share.priority == share.priority:
                least = min(least, one.share.spent)
            else:
                others.add(one.share.priority)
        self._floor[share.priority] = max(self._floor.get(share.priority, 0.0), least)
        self._passed_over = {other: self._passed_over.get(other, now) for other in others}
        share.spent += seconds
