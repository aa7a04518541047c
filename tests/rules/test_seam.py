"""A kind of rule is one record: the smallest one works without touching another file."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.cli.terminal import event_sentence
from edge_agent.config.load import load
from edge_agent.config.rule_checks import lint_rules
from edge_agent.config.rule_kinds import RULE_KINDS, Measured, RuleKind
from edge_agent.config.rules import Rule
from edge_agent.config.settings import Pipeline
from edge_agent.core.errors import UsageError
from edge_agent.core.types import Classes, Outcome
from edge_agent.homeassistant.discovery import PipelineView
from edge_agent.homeassistant.discovery import payload as discovery
from edge_agent.models.manifest import ModelFolder
from edge_agent.models.manifest import load as load_folder
from edge_agent.mqtt.topics import Topics
from edge_agent.rules.event import payload
from tests.helpers.rule_engines import Stage
from tests.helpers.small_models import detector

SETTINGS = """
[[pipelines]]
name = "p"
source = "dir:."
model = "m"
rules = [{ name = "r", when = "torn", above = 0.3 }]
"""


def margin(rule: Rule, outcome: Outcome, count: int) -> Measured:
    """Measure how little the best class leads the second."""
    del rule, count
    assert isinstance(outcome.findings, Classes)
    first, second = outcome.findings.scores[:2]
    return 1 - (first - second), False, {"between": list(outcome.findings.labels[:2])}


TORN = RuleKind(
    trigger="result",
    sentence="torn between {between}",
    measure=margin,
    tasks=("classification",),
    bounded=True,
    range=(0, 1),
    unit="margin",
)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """Return settings with a rule of a kind that the table has not got."""
    file = tmp_path / "config.toml"
    file.write_text(SETTINGS)
    return file


@pytest.fixture
def torn(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Add the kind; return the pipeline whose settings name it."""
    monkeypatch.setitem(RULE_KINDS, "torn", TORN)
    (pipeline,) = load(settings_file).pipelines
    return pipeline


def test_settings_know_the_kinds_of_the_table(settings_file: Path) -> None:
    """Without it the line names those that there are, and the nearest."""
    with pytest.raises(UsageError, match=r"rules\[r\]\.when: expected 'enter', .* or 'camera'"):
        load(settings_file)
    settings_file.write_text(SETTINGS.replace("torn", "entre"))
    with pytest.raises(UsageError, match="found 'entre'; did you mean 'enter'"):
        load(settings_file)


def test_checks_know_it(torn: Pipeline, tmp_path: Path) -> None:
    """What it can never do is said in its own words."""
    detector(tmp_path / "finder", [(0, 0.9, 0.3, 0.3, 0.6, 0.7)], ["person"])
    folder: ModelFolder = load_folder(tmp_path / "finder")
    (line,) = lint_rules(torn, [folder])
    assert line.startswith(
        'rules[r]: never acts with finder@1: when = "torn" looks at results of task class'
    )
    (line,) = lint_rules(
        Pipeline(
            name="p", source="dir:.", model="m", rules=(Rule(name="r", when="torn", above=1.0),)
        ),
        [],
    )
    assert line == "rules[r].above: never acts: no margin is above 1"


def test_the_engine_fires_it_and_the_terminal_says_so(torn: Pipeline) -> None:
    """An event begins, and its sentence is that of the record."""
    stage = Stage(rules=[{"name": "r", "when": torn.rules[0].when, "above": torn.rules[0].above}])
    for _ in range(3):
        stage.give(Classes(("cat", "dog"), (0.5, 0.45)))
    (event,) = stage.events
    assert (event.when, event.state) == ("torn", "begin")
    said = event_sentence(payload(event, "box", "session"))
    assert said == "r: torn between ['cat', 'dog']"


def test_home_assistant_shows_it_as_long_as_it_lasts(torn: Pipeline) -> None:
    """A moment would be switched off by itself."""
    shown = PipelineView(torn, (), picture=False, scores=True)
    made = discovery(Topics("edge", "box"), "1", {}, [shown], ["m"], temperature=False)
    entity = made["components"]["p_rule_r"]
    assert "off_delay" not in entity
    assert "'OFF' if value_json.state == 'end'" in entity["value_template"]
