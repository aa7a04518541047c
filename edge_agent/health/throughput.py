"""Detects starved pipelines and explains the cause.

That a slow processor takes every third frame of a camera is how live sources work, and nothing to
report; that it takes one of twenty is. What the settings ask to leave out does not count. Frames
that were too old when their turn came are a matter of `deadline_ms`, and frames that failed have a
reason of their own in health; only frames superseded by newer ones show what the device can do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..runtime.scheduler.board import Account

WINDOW_SECONDS = 5.0
"""What is compared; longer where health is published less often."""
FEWEST = 20
"""Frames on offer within the window; below, a pause of one frame would look like starvation."""
SHARE = 0.2
"""Of what is on offer; a pipeline that infers less is starved."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A pipeline's counts at one moment."""

    at: float
    offered: int
    inferred: int


@dataclass(frozen=True, slots=True)
class _Starved:
    """A pipeline that infers next to nothing of what it is offered. Frames a second."""

    name: str
    offered: float
    inferred: float


class _Window:
    """Compares over a window, pipeline by pipeline, what is inferred with what is on offer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks: dict[str, deque[_Mark]] = {}

    def starved(self, counts: Mapping[str, tuple[int, int]]) -> list[_Starved]:
        """Return the pipelines that infer less than SHARE.

        Args:
            counts: by name, how many frames were on offer and how many inferred, since it began.
        """
        now = self._clock()
        for gone in self._marks.keys() - counts.keys():
            del self._marks[gone]
        found = []
        for name, (offered, inferred) in counts.items():
            mark = _Mark(now, offered, inferred)
            marks = self._marks.setdefault(name, deque())
            if marks and (mark.offered < marks[-1].offered or mark.inferred < marks[-1].inferred):
                marks.clear()  # another pipeline of the same name counts from 0 again
            marks.append(mark)
            while len(marks) > 2 and now - marks[1].at >= WINDOW_SECONDS:
                marks.popleft()
            found += _compare(name, marks[0], mark)
        return found


def _compare(name: str, before: _Mark, now: _Mark) -> list[_Starved]:
    seconds = now.at - before.at
    offered, inferred = now.offered - before.offered, now.inferred - before.inferred
    if seconds < WINDOW_SECONDS or offered < FEWEST or inferred >= SHARE * offered:
        return []
    return [_Starved(name, offered / seconds, inferred / seconds)]


class Throughput:
    """Compares what pipelines infer with what their sources give, and with what came too late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._superseded = _Window(clock)
        self._late = _Window(clock)

    def problems(
        self, accounts: Mapping[str, Account], deadlines_ms: Mapping[str, float]
    ) -> list[str]:
        """Return in words which pipelines are starved, and why."""
        offered = {name: (_in_time(each), each.inferred) for name, each in accounts.items()}
        problems = [
            f"pipeline {one.name}: infers {one.inferred:.1f} of {one.offered:.1f} frames a second "
            "of its source; if that is meant, set its rate"
            for one in self._superseded.starved(offered)
        ]
        late = {
            name: (each.dropped["deadline"] + each.inferred, each.inferred)
            for name, each in accounts.items()
        }
        for one in self._late.starved(late):
            share = f"{one.offered - one.inferred:.1f} of {one.offered:.1f} frames a second"
            problems.append(
                f"pipeline {one.name}: {share} are older than deadline_ms = "
                f"{deadlines_ms[one.name]:g} when their turn comes, and dropped; raise it, set a "
                "rate, or use a quicker model"
            )
        return problems


def _in_time(account: Account) -> int:
    """Return the captures that could only be dropped for a newer one."""
    # What waits may yet be dropped for its age: it counts once that is known.
    other = account.waiting + sum(
        account.dropped[reason] for reason in ("deadline", "error", "rate", "still")
    )
    return account.captured - other
