"""Detects starved pipelines and explains the cause.

If a slow processor infers every third frame of a camera, that is normal for live sources and not
reported; one in twenty is. Frames that the settings exclude do not count. Frames that were too old
when their turn came are due to `deadline_ms`, and failed frames have a separate reason in health;
only frames superseded by newer ones show what the device can handle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from ..runtime.scheduler.board import Account

WINDOW_SECONDS = 5.0
"""Seconds of the compared window; longer if health is published less often."""
FEWEST = 20
"""Least offered frames in the window: with fewer, a short pause would look like starvation."""
SHARE = 0.2
"""Least share of the offered frames; a pipeline that infers less is starved."""


class Throughput:
    """Compares pipelines' inferred frames with offered and with late ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: dict[tuple[str, str], deque[tuple[float, int, int]]] = {}
        """Time, offered frames and inferred frames, by pipeline and comparison."""

    def problems(
        self, accounts: Mapping[str, Account], deadlines_ms: Mapping[str, float]
    ) -> list[str]:
        """Return texts on which pipelines are starved, and why."""
        self._marks = {key: each for key, each in self._marks.items() if key[0] in accounts}
        problems = []
        for name, account in accounts.items():
            offered, inferred = self._starved(name, "source", _in_time(account), account.inferred)
            if offered:
                problems.append(
                    f"pipeline {name}: infers {inferred:.1f} of {offered:.1f} frames a second "
                    "of its source; if that is intended, set its rate"
                )
            late = account.dropped["deadline"] + account.inferred
            offered, inferred = self._starved(name, "deadline", late, account.inferred)
            if offered:
                problems.append(
                    f"pipeline {name}: {offered - inferred:.1f} of {offered:.1f} frames a second "
                    f"are older than deadline_ms = {deadlines_ms[name]:g} when their turn comes, "
                    "and dropped; raise it, set a rate, or use a faster model"
                )
        return problems

    def _starved(self, name: str, what: str, offered: int, inferred: int) -> tuple[float, float]:
        """Return offered and inferred frames per second if less than SHARE is; else zeros."""
        now = self._clock()
        marks = self._marks.setdefault((name, what), deque())
        if marks and (offered < marks[-1][1] or inferred < marks[-1][2]):
            marks.clear()  # another pipeline with this name counts from 0 again
        marks.append((now, offered, inferred))
        while len(marks) > 2 and now - marks[1][0] >= WINDOW_SECONDS:
            marks.popleft()
        began, offered_before, inferred_before = marks[0]
        seconds, offered, inferred = (
            now - began,
            offered - offered_before,
            inferred - inferred_before,
        )
        if seconds < WINDOW_SECONDS or offered < FEWEST or inferred >= SHARE * offered:
            return 0.0, 0.0
        return offered / seconds, inferred / seconds


def _in_time(account: Account) -> int:
    """Return the captures that could only be dropped in favor of newer ones."""
    # Waiting captures may still be dropped for their age: they count once that is known.
    other = account.waiting + sum(
        account.dropped[reason] for reason in ("deadline", "error", "rate", "still")
    )
    return account.captured - other
