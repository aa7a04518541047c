"""State files that are valid JSON and not what they should be cost what they hold, no more.

Found by an attack from outside: each of these ended the agent, at every start or at its end.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.overrides import Overrides
from edge_agent.config.rules import Line
from edge_agent.config.settings import Pipeline
from edge_agent.core.errors import RequestError
from edge_agent.core.files import FAULT_VARIABLE
from edge_agent.core.state_file import StateFile
from edge_agent.delivery.rollout.ledger import _parse as parse_outcomes
from edge_agent.models.store import pointers
from edge_agent.mqtt.command_memory import CommandMemory, Repeatable
from edge_agent.mqtt.retained import _parse as parse_topics
from edge_agent.rules.event import Event
from edge_agent.rules.journal import MOST_BYTES, Journal
from edge_agent.rules.totals import TotalsFile
from edge_agent.runtime.pipelines.device_mode import DeviceMode
from tests.helpers.rule_engines import dispatcher_without_broker

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


JOURNAL = ("events.json", "events.log")
OFF = {"publish": "siren/off", "on": "end"}
START = """
import sys
from pathlib import Path
from edge_agent.rules.journal import Journal
journal = Journal(Path(sys.argv[1]), "box")
"""


def journaled(folder: Path) -> Path:
    """Make the journal of a killed agent; one event that goes on is in each of its files."""
    path = folder / "events.json"
    killed = Journal(path, "box")
    killed.add([({**EVENT, "event": "a-1"}, 1)], due={"a-1": [OFF]})
    killed.close(0.0)
    killed.add([({**EVENT, "event": "a-2"}, 0)])
    return path


def left(path: Path) -> dict[str, list[str]]:
    """Return what a start publishes, as states by event, as all of it is delivered then."""
    journal, said = Journal(path, "box"), dict[str, list[str]]()
    for each in itertools.chain(*journal.left(lambda _: True)):
        said.setdefault(each["event"], []).append(each["state"])
    journal.close(math.inf)
    return said


@pytest.mark.parametrize("victim", JOURNAL)
def test_what_was_over_while_the_journal_could_not_be_read_is_not_published_again(
    victim: str, tmp_path: Path
) -> None:
    """Each restart had published every event since, and switched sirens off; the log only grew."""
    path = journaled(tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in JOURNAL}
    kept = hidden(tmp_path / victim)
    late = Journal(path, "box")
    assert late.left(lambda _: True) == ([], [])
    late.add([({**EVENT, "event": "b-1"}, 1)], due={"b-1": [OFF]})
    late.add([({**EVENT, "event": "b-1", "state": "end"}, 1)])
    for state in ("begin", "end"):
        [entry] = late.add([({**EVENT, "event": "c", "state": state, "x": "x" * MOST_BYTES}, 1)])
        assert entry is not None
        entry.published_at = 0.0
        late.settle(math.inf)
    late.add([({**EVENT, "event": "b-2"}, 0)])
    sizes = [each.lstat().st_size for each in tmp_path.iterdir() if each not in {kept, path}]
    assert sum(sizes) < MOST_BYTES
    assert left(path) == {"b-1": ["begin", "end"], "b-2": ["end"]}
    assert left(path) == {}
    kept.replace(tmp_path / victim)
    assert {name: (tmp_path / name).read_bytes() for name in JOURNAL} == whole
    assert left(path) == {"a-1": ["begin", "end"], "a-2": ["end"]}
    assert left(path) == {}
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(JOURNAL)


@pytest.mark.parametrize("victim", JOURNAL)
@pytest.mark.parametrize(
    "point",
    ["pointers.written:1", "pointers.renamed:1", "pointers.written:2", "pointers.renamed:2"],
)
def test_a_kill_while_journals_are_joined_neither_loses_nor_repeats(
    point: str, victim: str, tmp_path: Path
) -> None:
    """Each event of both has one end, and its actions."""
    path = journaled(tmp_path)
    kept = hidden(tmp_path / victim)
    late = Journal(path, "box")
    late.add([({**EVENT, "event": "b-1"}, 1)], due={"b-1": [OFF]})
    late.add([({**EVENT, "event": "b-2"}, 0)])
    late.close(0.0)
    late.add([({**EVENT, "event": "b-1", "state": "end"}, 1)])
    kept.replace(tmp_path / victim)
    environ = {**os.environ, FAULT_VARIABLE: point}
    done = subprocess.run([sys.executable, "-c", START, path], env=environ, check=False)
    assert done.returncode == -signal.SIGKILL
    again = Journal(path, "box")
    fresh, ends = again.left(lambda _: True)
    assert [(each["event"], each["state"]) for each in fresh] == [
        *(("a-1", "begin"), ("b-1", "begin"), ("b-1", "end"))
    ]
    assert sorted(each["event"] for each in ends) == ["a-1", "a-2", "b-2"]
    assert [again.due(name) for name in ("a-1", "b-1", "b-2")] == [[OFF], [OFF], []]
    again.close(math.inf)
    assert left(path) == {}


def test_journals_that_the_disk_has_no_room_to_join_wait_for_a_later_start(tmp_path: Path) -> None:
    """Neither is half read; health says what to do."""
    path = journaled(tmp_path)
    kept = hidden(path)
    Journal(path, "box").add([({**EVENT, "event": "b-1"}, 0)])
    kept.replace(path)
    size = sum(each.stat().st_size for each in tmp_path.iterdir())
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        f"{START}"
        "print([each['event'] for kind in journal.left(lambda _: True) for each in kind])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['b-1']\n"
    assert f"{path}: cannot be written: File too large" in done.stderr
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) == size
    assert left(path) == {"a-1": ["begin", "end"], "a-2": ["end"], "b-1": ["end"]}


def test_where_no_journal_can_be_read_nothing_is_repeated(tmp_path: Path) -> None:
    """What is not kept, as health says, does not grow either."""
    path = journaled(tmp_path)
    kept = {name: hidden(tmp_path / name) for name in JOURNAL}
    Journal(path, "box").close(0.0)
    kept["events.beside.json"] = hidden(tmp_path / "events.beside.json")
    late = Journal(path, "box")
    late.add([(EVENT, 1)])
    late.close(0.0)
    for name, file in kept.items():
        file.replace(tmp_path / name)
    assert left(path) == {"a-1": ["begin", "end"], "a-2": ["end"]}


def test_totals_counted_while_they_could_not_be_read_do_not_take_their_place(
    tmp_path: Path,
) -> None:
    """The journal had the few since then, which began later: those of years were dropped."""
    gate = Line(name="gate", points=((0.2, 0.5), (0.8, 0.5)))
    settings = Pipeline(name="p", source="dir:.", model="m", lines=(gate,))
    made = functools.partial(dispatcher_without_broker, tmp_path, pipelines=(settings,))
    first = made()
    first.engines.totals.of("p").add("gate", "in", "a")
    first.engines.totals.save()
    totals = first.engines.totals.of("p").content()
    kept = hidden(tmp_path / "counts.json")
    late = made()
    late.engines.open(settings, apart=None)
    late.engines.totals.of("p").add("gate", "out", "a")
    late.submit(Event("b-1", "r", "cross", "p", "once", 1, 0, 0, {}, 1))
    with pytest.raises(RequestError, match=r"counts\.json: cannot be read"):
        late.reset("p")
    late.close()
    late.run()
    kept.replace(tmp_path / "counts.json")
    assert made().engines.totals.of("p").content() == totals


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
    damaged = DeviceMode(tmp_path)
    assert (damaged.lost, damaged.current) == (None, None)
    assert "rules with `modes` wait for one to be set" in str(damaged.lost)
    assert damaged.set_bare("mode", b"null")
    assert damaged.lost is None
    mode = DeviceMode(tmp_path / "gone")
    assert not mode.set_bare("mode", b"night")
    assert mode.current == "night"
    said = [each.getMessage() for each in caplog.records]
    assert "damaged; modes of this device are forgotten; it is kept as" in said[0]
    assert "modes of this device will be forgotten at the next start" in said[1]
