"""Roll-outs on the broker, and each device's progress in them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from ..core.errors import MalformedError
from ..core.text import cut
from ..delivery.plan import Plan, read

MOST = 64
MOST_WORDS = 300


class Rollouts:
    """The plans, whoever signed them, since the page only shows them."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}
        self.revision = 0

    @property
    def names(self) -> Collection[str]:
        return self._plans.keys()

    def left_s(self, name: str) -> float | None:
        """Return the seconds until a roll-out expires; None: it is not there."""
        plan = self._plans.get(name)
        return None if plan is None else plan.expires_at - time.time()

    def take(self, name: str, payload: bytes) -> bool:
        """Handle a payload on a roll-out's topic; return whether other devices lag now."""
        before = self._plans.pop(name, None)
        with suppress(MalformedError):
            plan = read(payload, None)
            if plan.id == name and len(self._plans) < MOST:
                self._plans[name] = plan
        self.revision += 1
        after = self._plans.get(name)
        return _place(before) != _place(after)

    def told(self) -> list[dict[str, Any]]:
        """Return what a browser shows of each roll-out, except its devices."""
        return [
            {
                "id": plan.id,
                "label": plan.label[:MOST_WORDS],
                "state": plan.state,
                "wave": plan.wave,
                "waves": [str(wave)[:MOST_WORDS] for wave in plan.waves],
                "by": plan.by[:MOST_WORDS],
                "why": cut(plan.why or "", MOST_WORDS),
            }
            for plan in sorted(self._plans.values(), key=lambda plan: plan.created, reverse=True)
        ]

    def of(self, device: str, groups: Collection[str], says: Mapping[str, Any]) -> dict[str, Any]:
        """Return a device's wave, state, and reason, by roll-out that it is in."""
        found: dict[str, Any] = {}
        for name, plan in self._plans.items():
            wave = plan.wave_of(device, groups)
            if wave is not None:
                word = plan.word_in(says)
                why = cut(str(word.get("why") or ""), MOST_WORDS)
                found[name] = [wave, str(word.get("state") or "waiting")[:MOST_WORDS], why]
        return found

    def lags(self, device: str, groups: Collection[str], says: Mapping[str, Any]) -> list[str]:
        """Describe the device's state in roll-outs that it should have completed."""
        lags = (plan.lag(device, groups, says) for plan in self._plans.values())
        return [cut(lag, MOST_WORDS) for lag in lags if lag is not None]


def _place(plan: Plan | None) -> tuple[object, ...]:
    return () if plan is None else (plan.created, plan.wave, plan.state)
