"""Notices a pipeline that infers next to nothing of its source, and says by what that comes.

What was too old when its turn came is a matter of `deadline_ms`, what failed has a reason of its
own in health; only what gave way to newer frames is a matter of how much the device can do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ..runtime.scheduler.board import Account
from .throughput import Collapses, Throughput


class Lateness:
    """Compares what pipelines infer with what came too late, and with what gave way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._throughput = Throughput(clock)
        self._collapses = Collapses(clock)

    def why(self, accounts: Mapping[str, Account], deadlines_ms: Mapping[str, float]) -> list[str]:
        """Say in words which pipelines have collapsed.

        Args:
            accounts: by name, of the pipelines that ought to keep up: live, and with a model.
            deadlines_ms: of each of them, from its settings.

        """
        reasons = self._throughput.why({name: _timely(each) for name, each in accounts.items()})
        counts = {
            name: (each.dropped["deadline"] + each.inferred, each.inferred)
            for name, each in accounts.items()
        }
        for one in self._collapses.seen(counts):
            share = f"{one.offered - one.inferred:.1f} of {one.offered:.1f} frames a second"
            reasons.append(
                f"pipeline {one.name}: {share} are older than deadline_ms = "
                f"{deadlines_ms[one.name]:g} when their turn comes, and dropped; raise it, set a "
                "rate, or use a quicker model"
            )
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
