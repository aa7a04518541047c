"""Notices a pipeline whose results have collapsed against what its source gives.

That a slow processor takes every third frame of a camera is how live sources work, and nothing to
report; that it takes one of twenty is. What the settings ask to leave out does not count.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .board import Account

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


class Throughput:
    """Compares what pipelines infer with what their sources give."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: dict[str, deque[_Mark]] = {}

    def why(self, accounts: Mapping[str, Account]) -> list[str]:
        """Say in words which pipelines have collapsed.

        Args:
            accounts: by name, of the pipelines that ought to keep up: live, and with a model.

        """
        now = self._clock()
        for gone in [name for name in self._marks if name not in accounts]:
            del self._marks[gone]
        reasons = []
        for name, account in accounts.items():
            meant = account.dropped["rate"] + account.dropped["still"]
            mark = _Mark(now, account.captured - meant, account.inferred)
            marks = self._marks.setdefault(name, deque())
            if marks and (mark.offered < marks[-1].offered or mark.inferred < marks[-1].inferred):
                marks.clear()  # another pipeline of the same name counts anew
            marks.append(mark)
            while len(marks) > 2 and now - marks[1].at >= WINDOW_SECONDS:
                marks.popleft()
            reasons += _collapse(name, marks[0], mark)
        return reasons


def _collapse(name: str, before: _Mark, now: _Mark) -> list[str]:
    seconds = now.at - before.at
    offered, inferred = now.offered - before.offered, now.inferred - before.inferred
    if seconds < WINDOW_SECONDS or offered < FEWEST or inferred >= SHARE * offered:
        return []
    share = f"{inferred / seconds:.1f} of {offered / seconds:.1f} frames a second"
    return [f"pipeline {name}: infers {share} of its source; if that is meant, set its rate"]
