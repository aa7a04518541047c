"""Notices a pipeline whose results have collapsed against what its source gives.

That a slow processor takes every third frame of a camera is how live sources work, and nothing to
report; that it takes one of twenty is. What the settings ask to leave out does not count.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..runtime.scheduler.board import Account

WINDOW_SECONDS = 5.0
"""What is compared; longer where health is said less often."""
FEWEST = 20
"""Frames on offer within the window; below, a pause of one frame would look like a collapse."""
SHARE = 0.2
"""Of what is on offer; a pipeline that infers less has collapsed."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far a pipeline had counted at one moment."""

    at: float
    offered: int
    inferred: int


@dataclass(frozen=True, slots=True)
class Collapse:
    """What a pipeline infers of what it is offered: next to nothing. Frames a second."""

    name: str
    offered: float
    inferred: float


class Collapses:
    """Compares over a window, pipeline by pipeline, what is inferred with what is on offer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks: dict[str, deque[_Mark]] = {}

    def seen(self, counts: Mapping[str, tuple[int, int]]) -> list[Collapse]:
        """Give the pipelines that have collapsed.

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
                marks.clear()  # another pipeline of the same name counts anew
            marks.append(mark)
            while len(marks) > 2 and now - marks[1].at >= WINDOW_SECONDS:
                marks.popleft()
            found += _collapse(name, marks[0], mark)
        return found


def _collapse(name: str, before: _Mark, now: _Mark) -> list[Collapse]:
    seconds = now.at - before.at
    offered, inferred = now.offered - before.offered, now.inferred - before.inferred
    if seconds < WINDOW_SECONDS or offered < FEWEST or inferred >= SHARE * offered:
        return []
    return [Collapse(name, offered / seconds, inferred / seconds)]


class Throughput:
    """Compares what pipelines infer with what their sources give."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._collapses = Collapses(clock)

    def why(self, accounts: Mapping[str, Account]) -> list[str]:
        """Say in words which pipelines have collapsed.

        Args:
            accounts: by name, of the pipelines that ought to keep up: live, and with a model.

        """
        counts = {
            name: (each.captured - each.dropped["rate"] - each.dropped["still"], each.inferred)
            for name, each in accounts.items()
        }
        return [
            f"pipeline {one.name}: infers {one.inferred:.1f} of {one.offered:.1f} frames a second "
            "of its source; if that is meant, set its rate"
            for one in self._collapses.seen(counts)
        ]
