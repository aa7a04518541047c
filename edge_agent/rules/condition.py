"""Whether one rule is true: of k of n results, for some time, with hysteresis."""

from __future__ import annotations

from typing import Literal

from ..config.rule_kinds import kind_of
from ..config.rules import Rule

Change = Literal["begin", "end"]
ROUNDING = 1e-6
"""Seconds that may be missing from `for_s`: sums of seconds are not exact."""


class Condition:
    """Tracks over successive results whether a rule is true."""

    def __init__(self, rule: Rule) -> None:
        self.active = False
        """Whether its event has begun and not ended."""
        self._rule = rule
        kind = kind_of(rule)
        self._bounded = kind.bounded
        # Objects are counted only after k of n results each.
        held = kind.smoothed or kind.trigger == "count"
        self._least, self._of = (1, 1) if held else rule.needed
        self._bits = 0
        self._true = False
        self._since = 0.0

    def step(self, value: float | None, now: float, *, plain: bool = True) -> Change | None:
        """Add a result at *now*, monotonic seconds; return the change it causes, if any.

        *value* is compared with `above` and `below`; *plain* is used if there are no bounds. None:
        the result cannot have the value, so the rule is not true.
        """
        wanted = value is not None and self.holds(value, plain=plain)
        # One bit per result: whether it contradicts the present state.
        self._bits = (self._bits << 1 | (wanted != self._true)) & ((1 << self._of) - 1)
        if self._bits.bit_count() >= self._least:
            self._true, self._since, self._bits = wanted, now, 0
        if not self._true and self.active:
            self.active = False
            return "end"
        return self.advance(now)

    def advance(self, now: float) -> Change | None:
        """Advance the time without another result; return the change it causes, if any."""
        if self._true and not self.active and now - self._since >= self._rule.for_s - ROUNDING:
            self.active = True
            return "begin"
        return None

    def interrupt(self) -> None:
        """Forget what has not become an event, because a result is missing.

        Whether an event is over is decided by the last n results, gaps or not: where each one
        follows a gap, it would never end.
        """
        if not self.active:
            self._true, self._bits = False, 0

    def reset(self) -> None:
        """Forget the past after a gap."""
        self.active = self._true = False
        self._bits = 0

    def holds(self, value: float, *, plain: bool) -> bool:
        """Whether the rule is true of a value in its present state."""
        above, below = self._rule.above, self._rule.below
        if not self._bounded:
            return plain
        if above is not None:
            return value >= below if below is not None and self._true else value > above
        return plain if below is None else value < below
