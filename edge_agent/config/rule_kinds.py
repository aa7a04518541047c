"""The kinds of rules, `when` in the settings: one record each, with all their properties.

Checks of settings, the rule engine, Home Assistant discovery and the terminal read this table and
refer to no kind by its name: a new kind needs only a new record here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from typing import Any, Literal

from ..core.frozen import record
from ..core.types import Anomaly, Classes, Outcome, Values, significant
from ..models.decoders import BOXED, LABELED
from ..models.drift import MOST_INDEX
from .rules import Rule

MUCH_DRIFT = 0.25
"""Population stability index above which a rule without bounds is true: the common threshold."""

Trigger = Literal["arrives", "departs", "crosses", "stays", "count", "result"]
"""The trigger of a rule: an object that arrives in the zone, departs from it, crosses the line or
stays in the zone for `for_s`; or a value measured from the number of objects in the zone or from a
whole result."""
MOMENTS = frozenset({"arrives", "departs", "crosses"})
Measured = tuple[float | None, bool, dict[str, Any]]
"""The value to compare with `above` and `below`, or None if the result has none; whether the rule
is true without bounds; and the keys for an event."""


@record(kw_only=True)
class RuleKind:
    """The properties of a kind of rule."""

    trigger: Trigger
    sentence: str
    """The sentence for an event in a terminal, as a format of `cli.terminal`."""
    measure: Callable[[Rule, Outcome, int], Measured] | None = None
    """Measures a result, given the number of objects in the zone; for "count" and "result"."""
    tasks: Collection[str] = BOXED
    """Tasks of the models whose results it uses; empty: all."""
    needs: tuple[str, ...] = ()
    """Keys that a rule must have; "above" stands for either bound."""
    bounded: bool = False
    """Whether `above` and `below` have an effect."""
    range: tuple[float, float] = (-inf, inf)
    """Least and greatest value that can be measured."""
    unit: str = "value"
    """The name of the measured quantity."""
    labels: tuple[str, ...] = ()
    """The choices for its `labels`; empty: the labels of the models."""
    smoothed: bool = False
    """Whether `frames` has no effect on it because its value is already smoothed."""
    by_channel: bool = False
    """Whether `value` names a channel of the model's input."""

    @property
    def lasts(self) -> bool:
        """Whether its events have a duration; others are momentary."""
        return self.trigger not in MOMENTS

    @property
    def in_zone(self) -> bool:
        """Whether it uses objects within a zone."""
        return self.trigger not in {"crosses", "result"}


def _count(rule: Rule, outcome: Outcome, count: int) -> Measured:
    del outcome
    return count, count > 0, {"count": count, **_label(rule)}


def _absent(rule: Rule, outcome: Outcome, count: int) -> Measured:
    del outcome
    return count, count == 0, _label(rule)


def _label(rule: Rule) -> dict[str, Any]:
    return {"label": rule.labels[0]} if len(rule.labels) == 1 else {}


_ROUNDING = 1e-6
"""By how much a score may differ from the same one in another precision."""


def _class(rule: Rule, outcome: Outcome, count: int) -> Measured:
    del count
    found = outcome.findings
    if not isinstance(found, Classes):
        return None, False, {}
    wanted = (i for i, label in enumerate(found.labels) if not rule.labels or label in rule.labels)
    best = next(wanted, None)
    if best is None:
        # Not among the decoder's findings: its score is below the threshold, or nobody is known.
        return 0.0, False, {}
    score = float(found.scores[best])
    # The best of all that the network knows: a filter may have left only what it hardly believes.
    most = score if found.every is None else float(found.every.max())
    first = best == 0 and score >= most - _ROUNDING
    return score, first, {"label": found.labels[best], "score": round(score, 4)}


def _anomaly(rule: Rule, outcome: Outcome, count: int) -> Measured:
    del rule, count
    found = outcome.findings
    if not isinstance(found, Anomaly):
        return None, False, {}
    facts = {
        "score": float(f"{found.score:.6g}"),
        "threshold": None if found.threshold is None else float(f"{found.threshold:.6g}"),
        "anomalous": found.anomalous,
    }
    label = {"label": found.label} if found.label else {}
    return found.score, found.anomalous, {**label, "anomaly": facts}


def _value(rule: Rule, outcome: Outcome, count: int) -> Measured:
    del count
    found = outcome.findings
    if not isinstance(found, Values) or rule.value is None or rule.value not in found.values:
        return None, False, {}
    value = float(found.values[rule.value])
    return value, False, {"value": significant(value, found.digits), "name": rule.value}


def _drift(rule: Rule, outcome: Outcome, count: int) -> Measured:
    del count
    drift = outcome.drift
    if rule.value is not None:
        drift = {name: index for name, index in drift.items() if name == rule.value}
    if not drift:
        return None, False, {}
    channel = max(drift, key=drift.__getitem__)
    index = drift[channel]
    return index, index > MUCH_DRIFT, {"value": float(f"{index:.6g}"), "channel": channel}


def _camera(rule: Rule, outcome: Outcome, count: int) -> Measured:
    del count
    wrong = outcome.camera
    facts = {"label": wrong} if wrong else {}
    return 0.0, bool(wrong) and wrong in (rule.labels or (wrong,)), facts


RULE_KINDS: dict[str, RuleKind] = {
    "enter": RuleKind(trigger="arrives", sentence="{who} {entered}"),
    "leave": RuleKind(trigger="departs", sentence="{who} {left}"),
    "cross": RuleKind(
        trigger="crosses", sentence="{who} crossed {line} {direction}", needs=("line",)
    ),
    "dwell": RuleKind(trigger="stays", sentence="{who} stays {there}"),
    "count": RuleKind(
        trigger="count",
        sentence="{counted} {there}",
        measure=_count,
        bounded=True,
        range=(0, inf),
        unit="count",
    ),
    "absent": RuleKind(trigger="count", sentence="{nobody} {there}", measure=_absent),
    "class": RuleKind(
        trigger="result",
        sentence="it is {who}",
        measure=_class,
        tasks=LABELED,
        bounded=True,
        range=(0, 1),
        unit="score",
    ),
    "anomaly": RuleKind(
        trigger="result",
        sentence="{anomalous}{anomaly_score}",
        measure=_anomaly,
        tasks=("anomaly",),
        bounded=True,
    ),
    "value": RuleKind(
        trigger="result",
        sentence="{named}{value:.6g}{with_unit}",
        measure=_value,
        tasks=("regression",),
        needs=("value", "above"),
        bounded=True,
    ),
    "drift": RuleKind(
        trigger="result",
        sentence="drift of {channel}, {value:.3g}",
        measure=_drift,
        tasks=(),
        bounded=True,
        range=(0, MOST_INDEX),
        unit="index of drift",
        by_channel=True,
    ),
    "camera": RuleKind(
        trigger="result",
        sentence="the camera is {who}",
        measure=_camera,
        tasks=(),
        labels=("dark", "blurred", "frozen", "turned"),
        smoothed=True,
    ),
}
"""By name."""


def kind_of(rule: Rule) -> RuleKind:
    """Return the kind of a rule whose settings have been checked."""
    return RULE_KINDS[rule.when]


def rules_by_trigger(rules: tuple[Rule, ...], *triggers: Trigger) -> list[Rule]:
    """Return the rules that have one of these triggers."""
    return [rule for rule in rules if kind_of(rule).trigger in triggers]
