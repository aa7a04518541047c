"""Notices a pipeline that infers next to nothing of its source, and says by what that comes.

What was too old when its turn came is a matter of `deadline_ms`, what failed has a reason of its
own in health; only what gave way to newer frames is a matter of how much the device can do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .board import Account
from .throughput import FEWEST, SHARE, WINDOW_SECONDS, Throughput


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far a pipeline had counted at one moment."""

    at: float
    late: int
    inferred: int


class Lateness:
    """Compares what pipelines infer with what came too late, and with what gave way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._throughput = Throughput(clock)
        self._marks: dict[str, deque[_Mark]] = {}

    def why(self, accounts: Mapping[str, Account], deadlines_ms: Mapping[str, float]) -> list[str]:
        """Say in words which pipelines have collapsed.

        Args:
            accounts: by name, of the pipelines that ought to keep up: live, and with a model.
            deadlines_ms: of each of them, from its settings.

        """
        reasons = self._throughput.why({name: _timely(each) for name, each in accounts.items()})
        now = self._clock()
        for gone in self._marks.keys() - accounts.keys():
            del self._marks[gone]
        for name, account in accounts.items():
            mark = _Mark(now, account.dropped["deadline"], account.inferred)
            marks = self._marks.setdefault(name, deque())
            if marks and (mark.late < marks[-1].late or mark.inferred < marks[-1].inferred):
                marks.clear()  # another pipeline of the same name counts anew
            marks.append(mark)
            while len(marks) > 2 and now - marks[1].at >= WINDOW_SECONDS:
                marks.popleft()
            reasons += _late(name, marks[0], mark, deadlines_ms[name])
        return reasons


def _timely(account: Account) -> Account:
    """Give an account without what was dropped for another reason than too little time."""
    # What waits may yet be dropped so: it counts once that is known.
    other = account.waiting + account.dropped["deadline"] + account.dropped["error"]
    return Account(
        captured=account.captured - other,
        inferred=account.inferred,
        dropped={**account.dropped, "deadline": 0, "error": 0},
    )


def _late(name: str, before: _Mark, now: _Mark, deadline_ms: float) -> list[str]:
    seconds = now.at - before.at
    late, inferred = now.late - before.late, now.inferred - before.inferred
    if (
        seconds < WINDOW_SECONDS
        or late + inferred < FEWEST
        or inferred >= SHARE * (late + inferred)
    ):
        return []
    share = f"{late / seconds:.1f} of {(late + inferred) / seconds:.1f} frames a second"
    why = f"{share} are older than deadline_ms = {deadline_ms:g} when their turn comes, and dropped"
    return [f"pipeline {name}: {why}; raise it, set a rate, or use a quicker model"]
