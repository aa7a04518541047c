"""Rules over pipelines: what they know of events while the settings change."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from edge_agent.config.rules import CombinedRule, Rule
from edge_agent.config.settings import Pipeline, Settings
from edge_agent.rules.engines import CombinedRules
from edge_agent.rules.event import Event, State, always

PIPELINES = tuple(
    Pipeline(name=name, source="dir:.", model="m", rules=(Rule(name="x", when="anomaly"),))
    for name in ("a", "b")
)
BOTH = CombinedRule(name="both", all=("a/x", "b/x"), within_s=600)


class Combined:
    """Rules over pipelines whose settings may be changed, and the events that they make."""

    def __init__(self, *rules: CombinedRule) -> None:
        names = count(1)
        self.settings = Settings(device_id="box", pipelines=PIPELINES, rules=rules)
        self._rules = CombinedRules(lambda: self.settings, lambda: f"c{next(names)}", always)

    def set(self, *rules: CombinedRule) -> None:
        """Reload with these rules."""
        self.settings = replace(self.settings, rules=rules)

    def tell(self, pipeline: str, name: str, state: State) -> list[dict[str, Any]]:
        """Tell an event; give what the events of the rules are made of."""
        event = Event(name, "x", "anomaly", pipeline, state, 1, 1, 1, {})
        return [made.facts["events"] for made in self._rules.step([event])]


def test_what_ends_while_a_rule_is_out_of_the_settings_is_over() -> None:
    """Put back, it fired with each event of the other pipeline alone."""
    combined = Combined(BOTH)
    assert combined.tell("a", "a1", "begin") == []
    combined.set()
    assert combined.tell("a", "a1", "end") == []
    combined.set(BOTH)
    assert combined.tell("b", "b1", "begin") == []
    assert combined.tell("b", "b1", "end") == []
    assert combined.tell("a", "a2", "begin") == [{"a/x": "a2", "b/x": "b1"}]


def test_what_goes_on_is_known_to_a_rule_that_is_new_or_changed() -> None:
    """It waited for the event to end and to begin once more."""
    combined = Combined(BOTH)
    assert combined.tell("a", "a1", "begin") == []
    combined.set(replace(BOTH, cooldown_s=0.1))
    assert combined.tell("b", "b1", "begin") == [{"a/x": "a1", "b/x": "b1"}]
    combined.set(replace(BOTH, name="new"))
    assert combined.tell("b", "b2", "begin") == [{"a/x": "a1", "b/x": "b2"}]
    combined.set()
    assert combined.tell("a", "a3", "begin") == []
    combined.set(BOTH)
    assert combined.tell("b", "b3", "begin") == [{"a/x": "a3", "b/x": "b3"}]


def test_an_event_that_began_under_another_name_of_rules_ends_all_the_same() -> None:
    """Once a rule is called as the kind was meant, the end of the event no longer fits."""
    combined = Combined(replace(BOTH, all=("a/anomaly", "b/x")))
    assert combined.tell("a", "a1", "begin") == []
    named = replace(PIPELINES[0], rules=(Rule(name="anomaly", when="anomaly"),))
    combined.settings = replace(combined.settings, pipelines=(named, PIPELINES[1]))
    assert combined.tell("a", "a1", "end") == []
    assert combined.tell("b", "b1", "once") == [{"a/anomaly": "a1", "b/x": "b1"}], "600 s ago"
    assert combined.tell("b", "b2", "once") == []
