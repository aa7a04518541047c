"""Conditions of a whole result: true in k of n, for so long, with hysteresis."""

from __future__ import annotations

from typing import Literal

from ..config.rule_kinds import kind_of
from ..config.settings import Rule

Change = Literal["begin", "end"]


class Condition:
    """Whether a rule that lasts is true, from result to result. Used by one thread at a time."""

    def __init__(self, rule: Rule) -> None:
        self.active = False
        """Between its begin and its end."""
        kind = kind_of(rule)
        assert kind.measure is not None  # noqa: S101 - it has one if it is a condition
        self.measure = kind.measure
        self._rule = rule
        self._bounded = kind.bounded
        # What is counted was true in k of n by itself, object by object.
        self._least, self._of = (1, 1) if kind.trigger == "count" else rule.needed
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
        if not self._bounded:
            return plain
        above, below = self._rule.above, self._rule.below
        if above is not None and below is not None and self._true:
            return value >= below
        if above is not None:
            return value > above
        if below is not None:
            return value < below
        return plain
