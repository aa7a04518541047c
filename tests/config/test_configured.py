"""What a patch of `configure` may be, what it changes, and what it leaves on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.config.configured import (
    KEYS,
    Patch,
    described,
    patched,
    plain,
    read_patch,
    table,
)
from edge_agent.config.overrides import Overrides
from edge_agent.config.rules import Action, Rule, Zone
from edge_agent.config.settings import Pipeline, Remote, Settings
from edge_agent.core.errors import AgentError, RequestError

YARD = ((0.1, 0.4), (0.9, 0.4), (0.9, 1.0))
HOOK = Action(http="http://me:secret@hooks.lan/door")
DOOR = Pipeline(
    name="door",
    source="rtsp://me:secret@cam-1/stream",
    model="m",
    rate=5.0,
    thresholds={"car": 0.7, "dog": 0.5},
    zones=(Zone(name="yard", polygon=YARD),),
    rules=(Rule(name="seen", when="enter", zone="yard", do=(HOOK,)),),
)
GATE = Pipeline(name="gate", source="dir:.", model="n", labels=("a",))
BOTH = Settings(device_id="box", state_dir="/nowhere", pipelines=(DOOR, GATE))
HELD = {each.name: each for each in BOTH.pipelines}
ALL = (*KEYS, "pipelines")


def changed(patch: Mapping[str, Any], may: tuple[str, ...] = ALL) -> dict[str, Pipeline]:
    """Return the pipelines that a patch makes."""
    after = patched(BOTH, read_patch(patch, HELD, may).changes)
    return {each.name: each for each in after.pipelines}


def test_a_patch_merges_objects_replaces_lists_and_removes_by_null() -> None:
    """As RFC 7396 has it; what is not named stays as it was."""
    made = changed({"door": {"thresholds": {"car": None, "cat": 0.2}, "rate": None, "rules": []}})
    assert made["door"].thresholds == {"dog": 0.5, "cat": 0.2}
    assert (made["door"].rate, made["door"].rules) == (None, ())
    assert made["door"].zones == DOOR.zones
    assert made["gate"] is GATE


def test_pipelines_come_and_go_where_that_is_allowed() -> None:
    """A new one has the default of whatever is not given; null removes one."""
    new = {"source": "dir:.", "model": "n"}
    made = changed({"gate": None, "yard": new})
    assert list(made) == ["door", "yard"]
    assert made["yard"] == Pipeline(name="yard", source="dir:.", model="n")
    for patch in ({"gate": None}, {"yard": new}):
        with pytest.raises(RequestError, match="does not name 'pipelines'"):
            changed(patch, Remote().may)


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"door": {"source": "dir:."}}, "[remote] may does not name 'source'"),
        ({"door": {"name": "other"}}, "pipelines[door].name: a pipeline keeps its name; remove"),
        ({"door": {"treshold": 1}}, "unknown key; did you mean 'threshold'?"),
        ({"door": {"rate": "fast"}}, "pipelines[door]: rate: expected a number, found 'fast'"),
        ({"door": {"rate": float("nan")}}, "rate: expected a number"),
        ({"door": {"zones": None}}, "rules[seen].zone"),
        ({"door": {"zones": [{"name": "yard", "polygon": [[0, 0]]}]}}, "polygon"),
        ({"door": 3}, "pipelines[door]: expected an object, found 3"),
        ({"dor": {"rate": 1}}, "there is none; did you mean 'door'?; a new one needs `source`"),
        ({"do/or": {}}, "'do/or' is not a name"),
    ],
)
def test_what_cannot_be_is_refused_as_in_the_file(patch: Mapping[str, Any], words: str) -> None:
    """One line says what, where, and how to mend it."""
    with pytest.raises(AgentError) as problem:
        changed(patch, (*Remote().may, "pipelines"))
    assert words in str(problem.value)


def test_secrets_are_not_published_and_survive_a_patch_of_what_is() -> None:
    """What hides one stands for it; where it would stand for nothing, the patch is refused."""
    told = described(BOTH.pipelines)
    assert "secret" not in json.dumps(told)
    rules = told["door"]["rules"]
    rules[0]["cooldown_s"] = 9
    made = changed({"door": {"rules": rules, "source": told["door"]["source"]}})["door"]
    assert made == replace(DOOR, rules=(replace(DOOR.rules[0], cooldown_s=9.0),))
    with pytest.raises(RequestError, match="write the whole text"):
        changed({"gate": {"source": told["door"]["source"]}})
    twice = replace(
        DOOR,
        rules=(replace(DOOR.rules[0], do=(HOOK, replace(HOOK, http="http://x:y@hooks.lan/door"))),),
    )
    with pytest.raises(RequestError, match="write the whole text"):
        read_patch({"door": {"rules": described([twice])["door"]["rules"]}}, {"door": twice}, ALL)


@pytest.mark.parametrize("hidden", ["source", "hook"])
def test_a_hidden_secret_comes_back_only_where_it_was(hidden: str) -> None:
    """Given back in another text it was published: who may `configure` learned the password."""
    told = described(BOTH.pipelines)["door"]
    text = told["source"] if hidden == "source" else told["rules"][0]["do"][0]["http"]
    say = {"name": "x", "when": "enter", "zone": "yard", "do": [{"publish": "a", "payload": text}]}
    made = changed({"door": {"labels": [text], "rules": [say]}})["door"]
    assert made.labels == (text,)
    assert made.rules[0].do[0].payload == text
    other = "hook" if hidden == "source" else "source"
    patch = {"source": text} if other == "source" else {"rules": [{**say, "do": [{"http": text}]}]}
    with pytest.raises(RequestError, match="write the whole text"):
        changed({"door": patch})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
VALUES = JSON | st.sampled_from([value for value in table(DOOR).values() if value])
PATCHES = st.dictionaries(
    st.sampled_from(["door", "yard"]) | st.text(max_size=3),
    JSON | st.dictionaries(st.sampled_from(ALL) | st.text(max_size=3), VALUES, max_size=4),
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(PATCHES, st.sampled_from([ALL, Remote().may]))
def test_no_patch_fails_otherwise_than_in_words_or_touches_what_it_does_not_name(
    patch: dict[str, Any], may: tuple[str, ...]
) -> None:
    """Whatever is sent: refused in one line, or valid settings of the pipelines that it names."""
    try:
        made = changed(patch, may)
    except AgentError:
        return
    if "gate" not in patch:
        assert made["gate"] is GATE
    for name, pipeline in made.items():
        again = read_patch({name: plain(table(pipeline))}, {}, ALL).changes
        after = patched(replace(BOTH, pipelines=()), again)
        assert after.pipelines == (pipeline,)


# What is kept


def read(path: Path, given: Settings = BOTH) -> tuple[Settings, Pipeline]:
    """Return the settings and the door of an agent that starts with this file."""
    overrides = Overrides(path)
    laid = overrides.lay_over(given)
    door = next(each for each in laid.pipelines if each.name == "door")
    return laid, overrides.applied(door)


def patch_of(**keys: Any) -> Patch:
    """Return a patch of the door, as it holds."""
    return read_patch({"door": keys}, HELD, ALL)


def test_of_set_and_configure_the_later_one_holds(tmp_path: Path) -> None:
    """Over restarts where it was kept, else until one; taken back, the one before holds."""
    path = tmp_path / "overrides.json"
    overrides = Overrides(path)
    overrides.lay_over(BOTH)
    overrides.persist("door", {"threshold": 0.8, "rate": 2.0})
    patch = patch_of(threshold=0.5)
    laid, before = overrides.configure(patch)
    assert overrides.applied(laid.pipelines[0]).threshold == 0.5
    assert overrides.applied(overrides.restore(before).pipelines[0]).threshold == 0.8
    laid, _ = overrides.configure(patch)
    overrides.applied(laid.pipelines[0])
    assert read(path)[1].threshold == 0.8, "until a restart only"
    overrides.keep(patch)
    assert not overrides.unsaved
    assert (read(path)[1].threshold, read(path)[1].rate) == (0.5, 2.0)
    overrides.persist("door", {"threshold": 0.9})
    assert read(path)[1].threshold == 0.9
    assert path.stat().st_mode & 0o077 == 0, "it may hold what the settings hold"


def test_what_set_keeps_amid_the_probation_of_a_patch_holds_after_it(tmp_path: Path) -> None:
    """It held until the restart alone, and nothing said so: a privacy mask was gone."""
    path = tmp_path / "overrides.json"
    mask = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))
    overrides = Overrides(path)
    overrides.lay_over(BOTH)
    overrides.persist("door", {"threshold": 0.8, "rate": 7.0})
    patch = patch_of(threshold=0.5, rate=2, masks=[])
    laid, _ = overrides.configure(patch)
    for name in ("set_until_restart", "persist"):
        getattr(overrides, name)("door", {"rate": 9.0, "masks": (mask,)})
    assert overrides.applied(laid.pipelines[0]).rate == 9.0
    overrides.keep(patch)
    for door in (overrides.applied(overrides.lay_over(BOTH).pipelines[0]), read(path)[1]):
        assert (door.rate, door.masks, door.threshold) == (9.0, (mask,), 0.5)


def test_an_edited_file_wins_over_what_was_not_kept(tmp_path: Path) -> None:
    """Key by key; what was kept stays, until it is what the file has anyway."""
    overrides = Overrides(tmp_path / "overrides.json")
    overrides.lay_over(BOTH)
    overrides.configure(kept := patch_of(motion=True))
    overrides.keep(kept)
    overrides.configure(patch_of(rate=1, qos=1))
    edited = replace(BOTH, pipelines=(replace(DOOR, rate=7.0), GATE))
    door = overrides.lay_over(edited).pipelines[0]
    assert (door.rate, door.qos, door.motion) == (7.0, 1, True)
    assert [line for line in overrides.shadows(door) if line.startswith("motion as kept")]
    overrides.configure(back := patch_of(motion=False))
    overrides.keep(back)
    assert json.loads((tmp_path / "overrides.json").read_text()) == {}


def test_an_edited_file_brings_back_what_was_kept_last(tmp_path: Path) -> None:
    """Not what `configure` had kept before `set` kept another value."""
    overrides = Overrides(path := tmp_path / "overrides.json")
    overrides.lay_over(BOTH)
    overrides.configure(kept := patch_of(rate=1))
    overrides.keep(kept)
    overrides.persist("door", {"rate": 2.0})
    laid, _ = overrides.configure(patch_of(rate=3))
    assert overrides.applied(laid.pipelines[0]).rate == 3
    edited = replace(BOTH, pipelines=(replace(DOOR, rate=7.0), GATE))
    for door in (overrides.applied(overrides.lay_over(edited).pipelines[0]), read(path, edited)[1]):
        assert door.rate == 2, "as after a restart"


def test_a_key_that_was_kept_twice_is_told_once(tmp_path: Path) -> None:
    """By `configure`, then by `set`: what holds is told."""
    overrides = Overrides(tmp_path / "overrides.json")
    overrides.lay_over(BOTH)
    overrides.configure(kept := patch_of(rate=1, motion=True))
    overrides.keep(kept)
    overrides.persist("door", {"rate": 2.0})
    door = overrides.lay_over(BOTH).pipelines[0]
    by_set, by_configure = overrides.shadows(door)
    assert by_set.startswith("rate is 2.0, as it was set with persist")
    assert by_configure.startswith("motion as kept by `configure")


def test_a_pipeline_that_was_added_is_told_as_one(tmp_path: Path) -> None:
    """All of its keys were, "to undo that, configure the value of the file", which has none."""
    overrides = Overrides(tmp_path / "overrides.json")
    overrides.lay_over(BOTH)
    new = {"source": "dir:y", "model": "m", "rate": 2}
    overrides.configure(kept := read_patch({"tank": new}, HELD, ALL))
    overrides.keep(kept)
    tank = overrides.lay_over(BOTH).pipelines[-1]
    (line,) = overrides.shadows(tank)
    assert (tank.name, line.startswith("added by `configure … persist`")) == ("tank", True)


def test_what_does_not_fit_the_file_any_more_is_ignored_and_said(tmp_path: Path) -> None:
    """The other pipelines have their changes all the same; nothing stops a start."""
    path = tmp_path / "overrides.json"
    overrides = Overrides(path)
    overrides.lay_over(BOTH)
    patch = read_patch({"door": {"rate": 1}, "gate": {"rate": 2}}, HELD, ALL)
    overrides.configure(patch)
    overrides.keep(patch)
    again = Overrides(path)
    laid = again.lay_over(replace(BOTH, pipelines=(GATE,)))
    assert [(each.name, each.rate) for each in laid.pipelines] == [("gate", 2.0)]
    (line,) = again.ignored
    assert line.startswith("pipeline door: what `configure` has changed is not in effect: ")
    assert line.endswith("there is no such pipeline any more, only changes of it")
    for damaged in ('{"@configure": 3}', '{"@configure": {"door": {"rate": "x"}}}'):
        path.write_text(damaged)
        assert Overrides(path).lay_over(BOTH) == BOTH


@pytest.mark.parametrize("point", ["pointers.written", "pointers.renamed"])
def test_a_kill_while_it_is_kept_leaves_the_old_or_the_new(tmp_path: Path, point: str) -> None:
    """What `set` had kept of the same keys goes in the same write: there is no third state."""
    path = tmp_path / "overrides.json"
    overrides = Overrides(path)
    overrides.lay_over(BOTH)
    overrides.persist("door", {"threshold": 0.8})
    old = read(path)
    script = (
        "import sys; from pathlib import Path; from tests.config.test_configured import *\n"
        "overrides = Overrides(Path(sys.argv[1])); overrides.lay_over(BOTH)\n"
        "overrides.configure(patch := patch_of(threshold=0.5, motion=True))\n"
        "overrides.keep(patch)"
    )
    environ = {**os.environ, "EDGE_AGENT_FAULT": point}
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=environ, check=False)
    assert done.returncode == -9
    found = read(path)[1]
    new = replace(DOOR, threshold=0.5, motion=True)
    assert found == (old[1] if point == "pointers.written" else new)
