"""A start from the plan of the last good one: quick, the same, and never used when it is stale."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from edge_agent.daemon.fast_start.fingerprint import digest
from edge_agent.daemon.fast_start.plan import FILE, find, forget
from edge_agent.models.store.store import Store
from tests.helpers.prepared_models import damage
from tests.helpers.start_box import Box, expected, kept, network, numbers, own, planned, same
from tests.helpers.support import CHECKOUT, Listener, call_cli, run_cli, wait_until
from tests.mqtt.test_access import TlsBroker, tls

__all__ = ["kept", "own", "planned", "tls"]


# A start from a plan


def test_a_start_from_the_plan_is_as_every_start(own: Box) -> None:
    """Results are those of the model itself; steps, info, health, orders and pushes are there."""
    own.ready()
    with own.start() as start:
        assert start.from_plan()
        steps = start.steps()
        wanted = {"exec", "settings", "imports", "build", "first_frame", "first_inference"}
        assert steps.keys() - {"read"} == wanted | {"first_publish"}
        assert all(took >= 0 for took in steps.values())
        assert steps["first_publish"] == max(steps.values())
        assert start.all_right()
        assert start.wait("health")["pipelines"]
        assert [each["name"] for each in start.wait("info")["pipelines"]] == ["p"]
        order = json.dumps({"id": "order-1"})
        start.listener.publish(own.topic("in", "command", "ping"), order)
        assert start.wait("reply", "order-1")["ok"] is True
        wait_until(lambda: "first result" in start.words(), "a line about the first result")
        assert "model numbers is live as" not in start.words()
        folder = numbers(own.folder / "pushed", seed=2, version="1.1")
        device = ("--device", own.device, "--broker", own.broker.url)
        pushed = run_cli("push", str(folder), *device)
        assert pushed.returncode == 0, pushed.stderr
        assert start.all_right(seed=2, model="numbers@1.1")


def test_every_way_to_name_the_settings_file_finds_the_plan(own: Box) -> None:
    """A plan holds also where the file is named by a path that goes up and down again."""
    own.given = own.folder / "agent" / ".." / "agent" / "config.toml"
    own.ready()
    with own.start() as start:
        assert start.from_plan()
        start.wait("health")
        assert "restarting" not in start.words()


def test_two_agents_on_one_state_folder(planned: Box) -> None:
    """The second one ends with 2 and one line, also when it starts from the plan."""
    with planned.start() as start:
        start.found()
        for _ in range(3):
            second = run_cli("run", "--config", str(planned.config))
            assert second.returncode == 2
            line = second.stderr.splitlines()
            assert len(line) == 1, second.stderr
            assert "another agent runs on it" in line[0]
        assert start.all_right()


# What makes a plan stale: the next start makes one of its own, from all that there is now


def test_changed_settings(planned: Box) -> None:
    """A pipeline that has another name gives results by it, and the old one's topic is cleared."""
    planned.pipelines[0]["name"] = "q"
    with planned.start() as start:
        assert start.all_right(pipeline="q")
        assert start.drafted()
        assert not start.results("p")
        start.listener.wait_for(
            lambda _: any(not each.payload for each in start.heard("source", "p")),
            "the old topic to be cleared",
        )
        start.planned()
    with planned.start() as start:
        assert start.from_plan()
        assert start.all_right(pipeline="q")


@pytest.mark.parametrize("variable", ["EDGE_AGENT_GROUPS", "EDGE_AGENT_groups"])
def test_a_changed_variable(variable: str, planned: Box) -> None:
    """Settings from the environment count as those of the file do."""
    planned.environ = {variable: '["lab"]'}
    with planned.start() as start:
        assert start.drafted()
        assert start.wait("info")["groups"] == ["lab"]


def test_a_new_profile(own: Box) -> None:
    """A profile that has come, and fits better, is the one that the next start chooses."""
    own.root = own.folder / "program"
    for name in ("edge_agent", "device_profiles", "models"):
        leave = shutil.ignore_patterns(".mypy_cache", ".ruff_cache")
        shutil.copytree(CHECKOUT / name, own.root / name, ignore=leave)
    own.ready()
    profile = {
        "description": "a test's own",
        "priority": 1000,
        "lanes": 1,
        "engines": [{"engine": "onnxruntime"}],
    }
    (own.root / "device_profiles" / "mine.toml").write_text(tomli_w.dumps(profile))
    with own.start() as start:
        assert start.drafted()
        assert start.wait("info")["profile"]["name"] == "mine"


def test_a_higher_version_in_a_library(planned: Box) -> None:
    """A version that was put into `models_dirs` while the agent was away is the one that runs."""
    folder = numbers(planned.models / "numbers-2", seed=2, version="2")
    try:
        with planned.start() as start:
            assert start.all_right(seed=2, model="numbers@2")
            assert start.drafted()
            assert not start.results(model="numbers@1")
    finally:
        shutil.rmtree(folder)
    with planned.start() as start:
        assert start.all_right()
        assert start.drafted()


def test_a_version_that_was_added_and_a_rollback(own: Box) -> None:
    """What `add` or a change of pointers has done while the agent was away, it starts with."""
    own.ready()
    folder = numbers(own.folder / "new", seed=3, version="3")
    added = run_cli("add", str(folder), "--config", str(own.config))
    assert added.returncode == 0, added.stderr
    with own.start() as start:
        assert start.drafted()
        assert start.all_right(seed=3, model="numbers@3")
        start.wait("model", "numbers", live="3", candidate=None, prepared="ready")
        start.planned()
    Store(own.state).activate("numbers", "1")
    with own.start() as start:
        assert start.all_right()
        assert start.drafted()
        assert not start.results(model="numbers@3")
        start.planned()
    with own.start() as start:
        assert start.from_plan()
        assert start.all_right()


def test_a_network_that_was_replaced(planned: Box) -> None:
    """Another network in the old one's place is what runs, though name and version are the same."""
    path = planned.models / "numbers" / "model.onnx"
    before = path.read_bytes()
    network(path, seed=4)
    assert path.stat().st_size == len(before)
    try:
        with planned.start() as start:
            assert start.all_right(seed=4)
            assert start.drafted()
            start.planned()
        with planned.start() as start:
            assert start.from_plan()
            assert start.all_right(seed=4)
    finally:
        path.write_bytes(before)
    with planned.start() as start:
        assert start.all_right()


def test_weights_beside_the_network_that_were_replaced(own: Box) -> None:
    """External weights that have changed are noticed, though the network's own file has not."""
    numbers(own.models / "numbers", external="weights.data")
    own.ready()
    network(own.models / "numbers" / "model.onnx", seed=5, external="weights.data")
    with own.start() as start:
        assert start.all_right(seed=5)
        assert start.drafted()


def test_a_network_that_is_replaced_under_a_running_agent(planned: Box) -> None:
    """What was replaced after it was loaded runs at the next start, whatever happens between."""
    path = planned.models / "numbers" / "model.onnx"
    before = path.read_bytes()
    try:
        with planned.start() as start:
            start.wait("model", "numbers", prepared="ready")
            network(path, seed=4)
            # Something that has the plan written anew.
            planned.config.write_text(planned.settings().replace('"p"', '"q"'))
            start.agent.signal(signal.SIGHUP)
            start.found("q")
            wait_until(lambda: not planned.plan.exists(), "the plan to be given up")
            assert start.all_right(pipeline="q")
        planned.pipelines[0]["name"] = "q"
        with planned.start() as start:
            assert start.all_right(seed=4, pipeline="q")
            assert start.drafted()
    finally:
        path.write_bytes(before)


def cut(plan: Path) -> None:
    """Lose the end of it, as a broken disk does."""
    os.truncate(plan, plan.stat().st_size // 2)


def flip(plan: Path) -> None:
    """Have one bit wrong where a name is."""
    damage(plan, plan.read_bytes().index(b'"EngineChoice"') + 3)


def garble(plan: Path) -> None:
    """Have something else there altogether."""
    plan.write_bytes(bytes(range(256)) * 8)


def nest(plan: Path) -> None:
    """Have more brackets than a parser follows."""
    plan.write_bytes(b"[" * 200_000)


def empty(plan: Path) -> None:
    """Have nothing in it."""
    plan.write_bytes(b"")


def be_a_folder(plan: Path) -> None:
    """Have a folder there."""
    plan.unlink()
    plan.mkdir()


@pytest.mark.parametrize("harm", [cut, flip, garble, nest, empty], ids=lambda harm: harm.__name__)
def test_a_damaged_plan(harm: Callable[[Path], None], planned: Box) -> None:
    """Whatever the plan is full of, the agent starts as without one, and writes a new one."""
    harm(planned.plan)
    with planned.start() as start:
        assert start.all_right()
        assert start.drafted()
        start.planned()
    with planned.start() as start:
        assert start.from_plan()


def test_a_form_that_has_gone(planned: Box) -> None:
    """Without its prepared form a model is loaded itself, and prepared anew."""
    for form in planned.forms():
        shutil.rmtree(form)
    with planned.start() as start:
        assert start.all_right()
        assert "no prepared form" in start.words()
        start.planned()
    with planned.start() as start:
        assert start.from_plan()
        assert start.all_right()


def wrong(box: Box) -> str:
    """Give settings with a key that there is not."""
    return f"speed = 3\n{box.settings()}"


def test_settings_that_have_become_wrong(planned: Box) -> None:
    """A plan does not hide that the settings are wrong: status 2, one line, and no result."""
    listener = Listener(planned.broker.port, planned.topic("result", "#"))
    planned.config.write_text(wrong(planned))
    ended = run_cli("run", "--config", str(planned.config))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "speed" in ended.stderr
    assert not listener.heard
    listener.close()


def test_a_reload_of_wrong_settings_is_not_planned(own: Box) -> None:
    """Wrong settings that a running agent has refused are wrong at the next start as well."""
    own.ready()
    listener = Listener(own.broker.port, own.topic("result", "#"))
    with own.start() as start:
        start.wait("model", "numbers", prepared="ready")
        own.config.write_text(wrong(own))
        start.agent.signal(signal.SIGHUP)
        wait_until(lambda: "the settings stay as they were" in start.words(), "the refusal")
        before = own.plan_made()
        # A push has the plan written anew.
        folder = numbers(own.folder / "again", seed=2, version="1.2")
        device = ("--device", own.device, "--broker", own.broker.url)
        assert run_cli("push", str(folder), *device).returncode == 0
        wait_until(lambda: own.plan_made() not in {0, before}, "a new plan")
    del listener.heard[:]
    ended = run_cli("run", "--config", str(own.config))
    assert ended.returncode == 2
    assert "speed" in ended.stderr
    assert not listener.heard
    listener.close()


def test_a_certificate_that_has_gone(own: Box, tls: TlsBroker, tmp_path: Path) -> None:
    """Settings that are the same, and wrong by now: status 2 and one line."""
    ca_file = tmp_path / "ca.pem"
    shutil.copy(tls.authority.cert_file, ca_file)
    own.broker = tls.broker
    own.more["broker"] = {**tls.settings(tls.client), "ca_file": str(ca_file)}
    own.ready()
    ca_file.unlink()
    ended = run_cli("run", "--config", str(own.config))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert str(ca_file) in ended.stderr


def test_settings_that_cannot_be_read_are_no_plan(tmp_path: Path) -> None:
    """Looking for a plan is no reason to fail: who reads them in full says what is wrong."""
    assert find(str(tmp_path / "not-there.toml"), "0" * 32) is None
    assert find(str(tmp_path), "0" * 32) is None


def test_a_version_that_is_not_there_yet_is_waited_for(
    own: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipelines may name versions before they are pushed: the agent lives, says so, and takes them.

    Also where nothing else is left to run.
    """
    monkeypatch.setenv("EDGE_AGENT_BROKER__URL", own.broker.url)
    (first,) = own.pipelines
    own.pipelines = [{**first, "model": "numbers@2"}, {**first, "name": "q", "model": "numbers@3"}]
    with own.start() as start:
        health = start.wait("health", state="degraded")
        assert any("numbers@2: not found; there is 1" in why for why in health["why"])
        for version in ("2", "3"):
            folder = numbers(tmp_path / version, seed=int(version), version=version)
            said = call_cli("push", str(folder), "--device", own.device)
            assert said.code == 0, said.err
        assert same(start.found(model="numbers@2"), expected(2))
        assert same(start.found("q", model="numbers@3"), expected(3))


def test_a_plan_that_cannot_be_removed_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that had become read-only ended the agent at the next `configure`."""
    (tmp_path / FILE).mkdir()  # root may write whatever is not writable
    forget(tmp_path)
    assert f"{tmp_path / FILE}: cannot be removed: " in caplog.text


def test_settings_that_are_no_file_any_more_are_not_waited_for(tmp_path: Path) -> None:
    """At a SIGHUP a pipe in their place took even SIGTERM, and /dev/zero all memory."""
    path = tmp_path / "config.toml"
    missing = digest(str(path))
    os.mkfifo(path)
    assert digest(str(path)) == missing
    path.unlink()
    path.symlink_to("/dev/zero")
    assert digest(str(path)) == missing
