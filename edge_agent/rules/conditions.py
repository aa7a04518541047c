"""Conditions of a whole result: true in k of n, for so long, with hysteresis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..config.settings import Rule
from ..core.types import Anomaly, Classes, Outcome, Values

Change = Literal["begin", "end"]
MUCH_DRIFT = 0.25
"""Population stability index above which a rule without bounds is true: the usual rule of thumb."""


class Condition:
    """Whether a rule that lasts is true, from result to result. Used by one thread at a time."""

    def __init__(self, rule: Rule) -> None:
        self.active = False
        """Between its begin and its end."""
        self._rule = rule
        counted = rule.when in {"count", "absent"}
        # What is counted was true in k of n by itself, object by object.
        self._least, self._of = (1, 1) if counted else rule.needed
        self._bits = 0
        self._true = False
        self._since = 0.0

    def step(self, value: float | None, now: float, *, plain: bool = True) -> Change | None:
        """Take a result; return what changes with it.

        Args:
            value: what is compared with `above` and `below`; None: it is not there.
            now: monotonic seconds of the result.
            plain: whether it is true where there are no bounds.

        """
        wanted = value is not None and self._holds(value, plain=plain)
        # A bit for each result in which it was not as it is held to be.
        self._bits = (self._bits << 1 | (wanted != self._true)) & ((1 << self._of) - 1)
        if self._bits.bit_count() >= self._least:
            self._true, self._since, self._bits = wanted, now, 0
        if not self._true and self.active:
            self.active = False
            return "end"
        return self.last(now)

    def last(self, now: float) -> Change | None:
        """Go on in time without another result; return what changes with that."""
        if self._true and not self.active and now - self._since >= self._rule.for_s:
            self.active = True
            return "begin"
        return None

    def reset(self) -> None:
        """Forget what was: nothing is known of the time between."""
        self.active = self._true = False
        self._bits = 0

    def _holds(self, value: float, *, plain: bool) -> bool:
        above, below = self._rule.above, self._rule.below
        if above is not None and below is not None and self._true:
            return value >= below
        if above is not None:
            return value > above
        if below is not None:
            return value < below
        return plain


def measured(rule: Rule, outcome: Outcome) -> tuple[float | None, bool, dict[str, object]]:
    """Return what a result says of a rule on classes, anomaly, values or drift.

    Returns:
        The value to compare, None where there is none; whether the rule is true where it has no
        bounds; and what an event about it tells.

    """
    if rule.when == "drift":
        return _drifted(rule, outcome.drift)
    match outcome.findings:
        case Classes() as found if rule.when == "class" and found.labels:
            best = next(
                (i for i, label in enumerate(found.labels) if label in rule.labels),
                0 if not rule.labels else None,
            )
            if best is None:
                # Not among those that leave the decoder: its score is lower than theirs.
                return 0.0, False, {}
            score = float(found.scores[best])
            return score, best == 0, {"label": found.labels[best], "score": round(score, 4)}
        case Anomaly() as found if rule.when == "anomaly":
            facts = {
                "score": float(f"{found.score:.6g}"),
                "threshold": None if found.threshold is None else float(f"{found.threshold:.6g}"),
                "anomalous": found.anomalous,
            }
            return found.score, found.anomalous, {"anomaly": facts}
        case Values() as found if (
            rule.when == "value" and rule.value is not None and rule.value in found.values
        ):
            value = float(found.values[rule.value])
            return value, False, {"value": float(f"{value:.6g}")}
        case _:
            return None, False, {}


def _drifted(
    rule: Rule, drift: Mapping[str, float]
) -> tuple[float | None, bool, dict[str, object]]:
    if rule.value is not None:
        drift = {name: index for name, index in drift.items() if name == rule.value}
    if not drift:
        return None, False, {}
    channel = max(drift, key=lambda name: drift[name])
    index = drift[channel]
    facts: dict[str, object] = {"value": float(f"{index:.6g}"), "channel": channel}
    return index, index > MUCH_DRIFT, facts
