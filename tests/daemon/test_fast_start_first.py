"""A start without any state: quick to its first result, right from there on, and never in doubt."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from tests.helpers.small_models import brightness, write_clip
from tests.helpers.start_box import (
    GRAYS,
    Box,
    Start,
    expected,
    network,
    numbers,
    own,
    weights,
)
from tests.helpers.support import (
    PATIENCE,
    AgentProcess,
    Listener,
    Mosquitto,
    agent_settings,
    wait_until,
)

__all__ = ["own"]

QUICK = "onnxruntime:CPUExecutionProvider"


def engines(results: list[dict[str, object]]) -> set[object]:
    return {says["engine"] for says in results}


def test_the_first_start_ever(own: Box) -> None:
    """The first result is of the quick engine, says so, and all of them are right."""
    own.more |= {"engine": "auto", "profile": "intel-cpu"}
    own.verbose = True
    with own.start() as start:
        assert start.drafted()
        assert start.all_right()
        assert start.results()[0]["engine"] == QUICK
        wait_until(
            lambda: "takes over:" in start.words() or "was tried:" in start.words(),
            "the profile's engine to be compared",
        )
        start.planned()
        assert start.all_right()
        counted = [says["seq"] for says in start.results()]
        assert counted == list(range(len(counted)))
    with own.start() as start:
        assert start.from_plan()
        assert start.all_right()


def test_killed_before_anything_is_prepared(own: Box) -> None:
    """The next start is as quick, and whatever was begun leaves nothing behind that is wrong."""
    for _ in range(2):
        start_once_and_kill(own)
    with own.start() as start:
        assert "build" in start.steps()
        assert start.all_right()
        start.planned()


def test_a_plan_without_a_form(own: Box) -> None:
    """Until a model has a form, here for want of room, its starts are of the quick engine."""
    own.more |= {"engine": "auto", "profile": "intel-cpu", "quota_mb": 1}
    own.verbose = True
    ballast = own.state / "prepared" / "ballast"
    ballast.parent.mkdir(parents=True)
    ballast.write_bytes(bytes(2_000_000))
    with own.start() as start:
        assert start.all_right()
        wait_until(lambda: own.planned_forms() == [""], "a plan without a form")
    with own.start() as start:
        assert start.all_right()
        assert "build" in start.steps()
        assert "not loaded the quick way" not in start.words()
        assert start.results()[0]["engine"] == QUICK


def start_once_and_kill(box: Box) -> None:
    """Start the agent, and kill it as soon as it has a result."""
    agent = box.launch()
    said = len(box.words())
    wait_until(lambda: "first result" in box.words()[said:], "a first result")
    agent.process.kill()
    agent.process.wait()


def test_an_engine_that_the_settings_insist_on(own: Box) -> None:
    """No result comes from another one, however quick that would be."""
    own.more["engine"] = "openvino"
    with own.start() as start:
        assert start.all_right()
        assert "build" not in start.steps()
        assert engines(start.results()) == {"openvino:CPU"}


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 4, len(data) // 2, 400):
        data[at] ^= 0x40
    path.write_bytes(data)


def swap(path: Path) -> None:
    network(path, seed=7)


@pytest.mark.parametrize("harm", [cut, flip, swap], ids=lambda harm: harm.__name__)
def test_a_file_that_changes_before_the_exchange(harm: Callable[[Path], None], own: Box) -> None:
    """What was read goes on serving: nothing else takes its place that does not agree with it."""
    own.more |= {"engine": "auto", "profile": "intel-cpu"}
    own.verbose = True
    agent = own.models / "numbers" / "model.onnx"
    with own.start() as start:
        start.listener.wait_for(lambda _: start.results(), "a first result")
        harm(agent)
        wait_until(lambda: "was tried:" in start.words() or "takes over:" in start.words(), "it")
        start.listener.wait_for(lambda _: len(start.results()) > 3 * len(GRAYS), "more results")
        assert start.all_right()


def test_a_model_that_is_wrong_is_told_of(own: Box) -> None:
    """A first start says what a normal one says: nothing is loaded that the checks refuse."""
    first, _ = weights(1)
    path = own.models / "numbers" / "model.onnx"
    data = path.read_bytes()
    at = data.index(first.tobytes()[:64])
    path.write_bytes(data[:at] + b"\xff" * 64 + data[at + 64 :])
    agent = own.launch()
    try:
        wait_until(lambda: "holds NaN" in own.words(), "the check's words")
    finally:
        agent.process.kill()
        agent.process.wait()
    assert expected()


def uses(start: Start, form: Path) -> bool:
    """Whether the weights of a prepared form are in the agent's memory."""
    maps = Path(f"/proc/{start.agent.process.pid}/maps").read_text()
    return f"{form}/" in maps


def test_a_device_that_is_another_place(own: Box) -> None:
    """State, settings and models, copied to other paths: the form counts, by its content."""
    own.ready()
    (form,) = own.forms()
    made = (form / "form.json").stat().st_mtime_ns
    old = own.folder
    own.folder = old.parent / f"{old.name}-moved"
    shutil.copytree(old, own.folder)
    shutil.rmtree(old)
    own.models = own.folder / "models"
    own.more["models_dirs"] = [str(own.models)]
    own.pipelines[0]["source"] = f"dir:{own.folder / 'pictures'}/?loop=1&rate=60"
    with own.start() as start:
        assert start.drafted()
        (moved,) = own.forms()
        assert uses(start, moved)
        assert start.all_right()
        start.planned()
        (kept,) = own.forms()
        assert kept.name == form.name
        assert made <= (kept / "form.json").stat().st_mtime_ns
        assert not any((own.state / "staging").iterdir())


@pytest.mark.parametrize("plan", [False, True], ids=["drafted", "planned"])
def test_changes_that_are_lost_are_in_health(plan: bool, own: Box) -> None:
    """Who drafted the plan had put the damaged file aside: the agent found none, and was ok."""
    if plan:
        own.ready()
    own.state.mkdir(parents=True, exist_ok=True)
    for name in ("overrides.json", "mode.json"):
        (own.state / name).write_text("garbage")
    with own.start() as start:
        why = start.wait("health", state="degraded")["why"]
        assert start.from_plan() if plan else start.drafted()
    for what in ("changes made by `set` and `configure`", "modes of this device"):
        assert any(f"{what} are forgotten" in each for each in why)
    assert (own.state / "overrides.json.damaged").read_text() == "garbage"


def test_of_many_models_each_is_read_once(tmp_path: Path) -> None:
    """A first start with two hundred models read each manifest two hundred times: over a minute."""
    pipelines = []
    for number in range(20):
        manifest = brightness(tmp_path / "models" / f"m{number}") / "model.toml"
        pipelines.append({"name": f"p{number}", "source": "dir:x", "model": f"m{number}"})
    settings = {
        "state_dir": str(tmp_path / "state"),
        "models_dirs": [str(tmp_path / "models")],
        "pipelines": pipelines,
    }
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(settings))
    code = (
        "import collections, sys\n"
        "from edge_agent.daemon.fast_start.draft import draft\n"
        "opened = collections.Counter()\n"
        "count = lambda event, given: event == 'open' and opened.update([str(given[0])])\n"
        "sys.addaudithook(count)\n"
        f"made = draft({str(config)!r}, '')\n"
        f"print(len(made.models), opened[{str(manifest)!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.split() == ["20", "1"], done.stderr


def test_the_most_urgent_model_comes_first(own: Box) -> None:
    """Models are loaded by the priority of their pipelines, not by the order of the settings."""
    (first,) = own.pipelines
    names = ("b", "c", "d")
    for seed, name in enumerate(names, 2):
        numbers(own.models / name, seed=seed, version=str(seed))
    own.pipelines = [
        {**first, "name": name, "model": f"numbers@{seed}", "priority": seed}
        for seed, name in enumerate(names, 2)
    ]
    with own.start() as start:
        for seed, name in enumerate(names, 2):
            assert start.all_right(seed, name, f"numbers@{seed}")
        said = start.words()
        places = [said.index(f"model numbers@{seed} is live as") for seed in (4, 3, 2)]
        assert places == sorted(places)


def test_settings_that_go_wrong_right_after_they_were_read(own: Box) -> None:
    """A start without a plan reads them twice: what is wrong by then changes nothing either."""
    right = "the settings stay as they were"
    agent = own.launch()
    try:
        # Before the log's first line there is nothing to tell by when they have been read.
        wait_until(lambda: "is live as" in own.words(), "the model to be loaded")
        agent.config.write_text("pipelins = []\n")
        agent.signal(signal.SIGHUP)
        wait_until(lambda: right in own.words(), "a word about it")
        assert "did you mean 'pipelines'?" in own.words()
        assert agent.stop() == 0
    finally:
        agent.process.kill()
        agent.process.wait()


def test_sources_of_other_models_wait_for_the_most_urgent_one(
    shared_broker: Mosquitto,
    listen: Callable[..., Listener],
    agent: Callable[..., AgentProcess],
    tmp_path: Path,
) -> None:
    """Opening them takes the processor from its first result; theirs come after it."""
    models = tmp_path / "models"
    pipelines: list[dict[str, Any]] = []
    clip = write_clip(tmp_path / "gray.avi", [np.full((16, 16, 3), 90, np.uint8)] * 5)
    for number, name in enumerate(("low", "high", "middle")):
        brightness(models / name)
        source = f"file:{clip}?loop=1&pace=real"
        priority = number % 2 * 9 + number
        pipelines.append(
            {"name": f"p-{name}", "source": source, "model": name, "priority": priority}
        )
    heard = listen(shared_broker.port, "edge/many/result/#")
    running = agent(agent_settings("many", shared_broker.url, pipelines, models_dirs=[str(models)]))
    wait_until(
        lambda: all(heard.on(f"edge/many/result/p-{name}") for name in ("low", "high", "middle")),
        "a result of each",
    )
    assert heard.wait_for(lambda all_: all_[0].topic, "the first") == "edge/many/result/p-high"
    words = running.words()
    live = words.index("model high is live")
    assert words.index("source of p-high: running") < words.index("source of p-low: running")
    assert live < words.index("source of p-low: running")
    assert live < words.index("source of p-middle: running")
    assert live < words.index("model middle is live") < words.index("model low is live")
