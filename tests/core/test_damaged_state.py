"""State files that are valid JSON and not what they should be cost what they hold, no more.

Found by an attack from outside: each of these ended the agent, at every start or at its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.overrides import Overrides
from edge_agent.core.state_file import StateFile
from edge_agent.delivery.rollout.ledger import _parse as parse_outcomes
from edge_agent.models.store import pointers
from edge_agent.mqtt.command_memory import CommandMemory, Repeatable
from edge_agent.mqtt.retained import _parse as parse_topics
from edge_agent.rules.journal import Journal
from edge_agent.rules.totals import TotalsFile
from edge_agent.runtime.pipelines.device_mode import DeviceMode

EVENT = {
    "device": "box",
    "event": "a-1",
    "rule": "r",
    "pipeline": "p",
    "state": "begin",
    "seconds": 1.5,
}
CONTENTS: dict[str, tuple[Any, Callable[[Path], object]]] = {
    "counts.json": (
        {
            "p": {
                "since": "2026",
                "lines": {"gate": {"in": {"person": 3}, "out": {"person": 1}}},
                "resets": 2,
            }
        },
        lambda path: TotalsFile(path).of("p").of(["gate"])["lines"]["gate"]["in"].get("person", 0),
    ),
    "events.json": (
        {"fresh": [{**EVENT, "state": "end"}], "open": [EVENT]},
        lambda path: Journal(path, "box").left(lambda _: True),
    ),
    "deployments.json": (
        {"m": {"version": "3", "outcome": "live", "why": None}},
        lambda path: StateFile(path, "outcomes").read(parse_outcomes),
    ),
    "retained.json": (
        ["edge/d/source/p", "edge/d/count/p"],
        lambda path: StateFile(path, "topics").read(parse_topics),
    ),
    "overrides.json": (
        {
            "p": {"threshold": 0.5, "rate": 5},
            "@probation": {
                "pipelines": ["p"],
                "reply_to": {
                    "id": "c1",
                    "topic": None,
                    "correlation": "00ff",
                    "sent": 1700000000.5,
                    "digest": "00ff",
                },
                "kept": True,
            },
        },
        Overrides,
    ),
    "pointers.json": (
        {"schema": 1, "history": ["3", "2"], "highest": "3", "trial": None, "used": {"3": 1.0}},
        lambda path: pointers.read(path.parent),
    ),
    "commands.jsonl": (
        ["id", 1700000000.5, "digest", {"ok": True}],
        CommandMemory,
    ),
}
WRONG = {
    "beyond every float": "1e999",
    "400 digits": "1" * 400,
    "NaN": "NaN",
    "a wildcard": '"edge/+/#"',
    "nothing": "null",
    "a list": "[[]]",
    "below zero": "-5",
    "half a letter": '"\\ud800"',
}


def places(content: Any) -> list[tuple[Any, ...]]:
    """List the ways to every value within a content, the whole first."""
    found: list[tuple[Any, ...]] = [()]
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        deeper = places(value) if isinstance(value, dict | list) else [()]
        found += [(key, *rest) for rest in deeper]
    return found


def replaced(content: Any, place: tuple[Any, ...], text: str) -> str:
    """Return a content as JSON with another value in one place."""
    if not place:
        return text
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    parts = []
    for key, value in pairs:
        made = replaced(value, place[1:], text) if key == place[0] else json.dumps(value)
        parts.append(f"{json.dumps(key)}: {made}" if isinstance(content, dict) else made)
    joined = ", ".join(parts)
    return f"{{{joined}}}" if isinstance(content, dict) else f"[{joined}]"


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_anywhere_in_a_state_file_ends_nothing(
    name: str, wrong: str, tmp_path: Path
) -> None:
    """Every value of every file may be wrong; what is read can be written again."""
    content, read = CONTENTS[name]
    path = tmp_path / name
    path.write_text(json.dumps(content))
    whole = read(path)
    for place in places(content):
        path.write_text(replaced(content, place, WRONG[wrong]))
        said = read(path)
        if wrong in {"beyond every float", "400 digits", "NaN"} and not isinstance(
            said, Overrides | CommandMemory | pointers.Pointers
        ):
            assert said != whole
            json.dumps(said, allow_nan=False)
            assert path.with_name(f"{name}.damaged").exists()


def hidden(path: Path) -> Path:
    """Put a link to itself in the place of a file, which no read gets past; gives the file."""
    kept = path.rename(path.with_name(f"{path.name}.kept"))
    path.symlink_to(path)
    return kept


@pytest.mark.parametrize("victim", ["events.json", "events.log"])
def test_events_of_a_run_that_could_not_read_the_journal_join_it(
    victim: str, tmp_path: Path
) -> None:
    """An event that had begun had no end at the next start: the journal was put aside."""
    path = tmp_path / "events.json"
    journal = Journal(path, "box")
    journal.add([({**EVENT, "event": "a-1"}, 1)])
    if victim == "events.json":
        journal.close(0.0)
    kept = hidden(tmp_path / victim)
    late = Journal(path, "box")
    assert late.left(lambda _: True)[1] == []
    if victim == "events.json":
        late.add([({**EVENT, "event": "a-2"}, 1)])
    late.close(0.0)
    kept.replace(tmp_path / victim)
    _, ends = Journal(path, "box").left(lambda _: True)
    begun = ["a-1", "a-2"] if victim == "events.json" else ["a-1"]
    assert sorted(each["event"] for each in ends) == begun


def test_commands_that_could_not_be_read_are_not_replaced(tmp_path: Path) -> None:
    """The first command after that start wrote over those that were remembered."""
    path = tmp_path / "commands.jsonl"
    path.write_text(json.dumps(CONTENTS["commands.jsonl"][0]))
    hidden(path)
    CommandMemory(path).add(Repeatable("late", 1700000000.5, "digest"), {"ok": True}, durable=True)
    assert path.is_symlink()


def test_a_mode_that_cannot_be_kept_holds_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a sentence: the mode are forgotten, it had said."""
    (tmp_path / "mode.json").write_text("{}")
    assert DeviceMode(tmp_path).current is None
    mode = DeviceMode(tmp_path / "gone")
    assert not mode.set_bare("mode", b"night")
    assert mode.current == "night"
    said = [each.getMessage() for each in caplog.records]
    assert "damaged; modes of this device are forgotten; it is kept as" in said[0]
    assert "modes of this device will be forgotten at the next start" in said[1]
