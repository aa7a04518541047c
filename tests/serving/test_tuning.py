"""A tune of the device decides which engine and threads serve a model, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.cli.commands.profile import tuned
from edge_agent.config.device_profile import DeviceProfile, EngineLine, default_dirs, load_profiles
from edge_agent.core.child import ChildStoppedError
from edge_agent.core.errors import EngineError
from edge_agent.device.hardware import Facts, read_facts
from edge_agent.device.resources import usable_cpus
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.models.manifest import load
from edge_agent.models.store.store import Store
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.loader import ModelLoader
from edge_agent.serving.tuner import grid, tune_model
from edge_agent.serving.tuning_results import FILE, MARGIN, TuningResults, Way
from tests.helpers.model_folders import make_model
from tests.helpers.small_models import brightness, heavy, plain, write_manifest, write_pictures
from tests.helpers.start_box import Box
from tests.helpers.support import (
    CHECKOUT,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    run_cli,
    wait_until,
)
from tests.helpers.tiny_networks import node, save_onnx

PROFILE = DeviceProfile(
    description="a test's",
    engines=(EngineLine(engine="openvino"), EngineLine(engine="onnxruntime")),
)
CHOICES = (
    EngineChoice("openvino", threads=1, lanes=2),
    EngineChoice("onnxruntime", threads=1, lanes=2),
)
LANES = min(2, usable_cpus())
"""What the agent uses where nothing else is known."""
FACTS = replace(read_facts(), cpus=4)


def way(engine: str, fps: float, threads: int = 1, lanes: int = 2, batch: int = 1) -> Way:
    """Make a way on the processor."""
    return Way(engine, "CPU", threads, lanes, batch, fps)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Make a model's folder; what is in it does not matter here."""
    return make_model(tmp_path / "model")


def tuning(tmp_path: Path, profile: DeviceProfile = PROFILE, facts: Facts = FACTS) -> TuningResults:
    """Look at the tunes of a folder, as a device of a test's own."""
    return TuningResults(tmp_path, profile, facts)


def test_what_is_quickest_comes_first_with_its_threads(tmp_path: Path, model: Path) -> None:
    """The tuned engine is tried first and with the threads that suit it; the others follow."""
    ways = [way("openvino", 100, 2), way("onnxruntime", 150, 1), way("onnxruntime", 300, 2)]
    tuning(tmp_path).write(model, "face@1", ways)
    first, second = tuning(tmp_path).order(model, 2, CHOICES)
    assert first == EngineChoice("onnxruntime", threads=2, lanes=2)
    assert second == EngineChoice("openvino", threads=2, lanes=2)


def test_a_little_quicker_is_not_enough(tmp_path: Path, model: Path) -> None:
    """The profile's own order stands unless another engine is clearly quicker."""
    slightly = 100 * (1 + 0.8 * MARGIN)
    tuning(tmp_path).write(model, "face@1", [way("openvino", 100), way("onnxruntime", slightly)])
    assert tuning(tmp_path).order(model, 2, CHOICES)[0].engine == "openvino"


def test_what_the_profile_sets_stays(tmp_path: Path, model: Path) -> None:
    """Threads and lanes that a profile names are not touched."""
    fixed = replace(PROFILE, threads=3, lanes=1)
    ways = [way("openvino", 10, 1, 1), way("onnxruntime", 500, 4, 1), way("onnxruntime", 900, 1, 4)]
    tuning(tmp_path, fixed).write(model, "face@1", ways)
    found = tuning(tmp_path, fixed)
    choices = [replace(choice, threads=3, lanes=1) for choice in CHOICES]
    assert found.lanes(1) == 1
    assert found.order(model, 1, choices) == choices[::-1]
    tried = grid(choices, fixed, 1)
    assert {(choice.lanes, choice.threads) for choice in tried} == {(1, 3)}


def test_lanes_are_those_that_suit_all_models(tmp_path: Path) -> None:
    """One number of lanes serves all models: the one that loses least of each one's best."""
    usual = tuning(tmp_path)
    one, other = make_model(tmp_path / "one"), make_model(tmp_path / "other", network=b"2")
    assert usual.lanes(2) == 2
    usual.write(one, "one@1", [way("openvino", 100, lanes=2), way("openvino", 170, lanes=4)])
    assert usual.lanes(2) == 4
    usual.write(other, "other@1", [way("openvino", 100, lanes=2), way("openvino", 20, lanes=4)])
    assert usual.lanes(2) == 2


@pytest.mark.parametrize(
    ("profile", "facts", "word"),
    [
        (replace(PROFILE, memory_budget_mb=9), FACTS, "profile"),
        (PROFILE, replace(FACTS, cpus=2), "cores"),
        (PROFILE, replace(FACTS, cpu="another"), "processor"),
        (PROFILE, replace(FACTS, flags=frozenset({"mmx"})), "instructions"),
    ],
)
def test_a_tune_of_another_device_is_not_used(
    tmp_path: Path, model: Path, profile: DeviceProfile, facts: Facts, word: str
) -> None:
    """What was measured elsewhere, or before a change, counts for nothing, and that is said."""
    tuning(tmp_path).write(model, "face@1", [way("openvino", 1), way("onnxruntime", 900, 2, 4)])
    stale = tuning(tmp_path, profile, facts)
    assert stale.all() == []
    assert stale.best(model, 2, CHOICES) is None
    assert stale.lanes(2) == 2
    assert word in str(stale.problem)


def test_engines_of_another_version_make_it_stale(tmp_path: Path, model: Path) -> None:
    """After an engine was updated the device is to be tuned anew."""
    tuning(tmp_path).write(model, "face@1", [way("onnxruntime", 900)])
    content = json.loads((tmp_path / FILE).read_text())
    content["here"]["engines"]["onnxruntime"] = "0.1"
    (tmp_path / FILE).write_text(json.dumps(content))
    assert "engines" in str(tuning(tmp_path).problem)
    assert tuning(tmp_path).best(model, 2, CHOICES) is None


def test_another_model_is_not_tuned(tmp_path: Path, model: Path) -> None:
    """A tune holds for the files that were measured, not for a name."""
    tuning(tmp_path).write(model, "face@1", [way("onnxruntime", 900)])
    assert tuning(tmp_path).best(model, 2, CHOICES) is not None
    (model / "model.onnx").write_bytes(b"another network")
    assert tuning(tmp_path).best(model, 2, CHOICES) is None


def test_nothing_is_used_that_the_profile_does_not_list(tmp_path: Path, model: Path) -> None:
    """An engine, device or number of lanes from the file alone is never taken."""
    ways = [
        Way("onnxruntime", "CUDA", 1, 2, 1, 9999.0),
        way("onnxruntime", 9999, lanes=3),
        way("openvino", 10),
    ]
    tuning(tmp_path).write(model, "face@1", ways)
    only = [choice for choice in CHOICES if choice.engine == "openvino"]
    found = tuning(tmp_path).order(model, 2, only)
    assert [(choice.engine, choice.device, choice.lanes) for choice in found] == [
        ("openvino", "CPU", 2)
    ]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the ways to everything in a JSON value."""
    found = [path]
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, inner in pairs:
        found += leaves(inner, (*path, key))
    return found


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.just(10**400), st.floats(),
    st.text(max_size=4), st.just([]), st.just({}), st.just([[[]]]),
)  # fmt: skip


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_disturbs(tmp_path: Path, model: Path, data: st.DataObject) -> None:
    """Whatever is put anywhere in the file: engines stay the profile's, within the profile's."""
    (tmp_path / FILE).unlink(missing_ok=True)
    tuning(tmp_path).write(model, "face@1", [way("openvino", 10), way("onnxruntime", 20, 2)])
    content = json.loads((tmp_path / FILE).read_text())
    spot = data.draw(st.sampled_from(leaves(content)))
    junk = data.draw(JUNK)
    if spot:
        inner = content
        for key in spot[:-1]:
            inner = inner[key]
        inner[spot[-1]] = junk
    else:
        content = junk
    (tmp_path / FILE).write_text(json.dumps(content))
    found = tuning(tmp_path)
    ordered = found.order(model, 2, CHOICES)
    assert sorted(choice.engine for choice in ordered) == ["onnxruntime", "openvino"]
    assert all(1 <= choice.threads <= 1024 and choice.lanes == 2 for choice in ordered)
    assert 1 <= found.lanes(2) <= 64
    assert len(list(tuned(found, CHOICES))) <= 3


def test_a_file_that_is_cut_short_is_as_good_as_none(tmp_path: Path, model: Path) -> None:
    """At whatever byte it ends, it is passed over with a word, and can be written anew."""
    tuning(tmp_path).write(model, "face@1", [way("onnxruntime", 20)])
    whole = (tmp_path / FILE).read_bytes()
    for length in range(0, len(whole) - 1, 7):
        (tmp_path / FILE).write_bytes(whole[:length])
        assert tuning(tmp_path).all() == []
        assert "damaged" in str(tuning(tmp_path).problem)
    tuning(tmp_path).write(model, "face@1", [way("onnxruntime", 20)])
    assert tuning(tmp_path).problem is None
    assert len(tuning(tmp_path).all()) == 1


# --- measured


def loader_in(state: Path, profile: DeviceProfile = PROFILE) -> ModelLoader:
    """Give the engines of this machine, with a place for tunes."""
    return ModelLoader(DeviceEngines(profile, read_facts(), "auto", state=state), Store(state))


def test_a_tune_measures_every_way_and_is_used(tmp_path: Path) -> None:
    """Each engine is measured with each number of lanes; the best of them opens the model."""
    folder = load(heavy(tmp_path / "heavy", 2))
    loader = loader_in(tmp_path)
    ways = tune_model(loader, folder, "picture", live=True)
    assert {each.engine for each in ways} == {"openvino", "onnxruntime"}
    assert {each.lanes for each in ways} == {loader.engines.lanes}
    assert all(each.fps > 0 for each in ways)
    best = loader.engines.best_way(folder)
    assert best is not None
    assert best.fps * (1 + MARGIN) >= max(each.fps for each in ways)
    model, _ = loader.load(folder, "picture")
    model.close()
    assert model.choice.engine == best.engine
    assert model.choice.threads == best.threads


def test_batches_are_tried_where_the_network_leaves_them_open(tmp_path: Path) -> None:
    """A network of a free first axis is measured with several frames at a time, others are not."""
    free = tmp_path / "free"
    free.mkdir()
    save_onnx(
        free / "model.onnx",
        [node("ReduceMean", ["picture"], ["light"], axes=[1, 2, 3], keepdims=0)],
        [("picture", "float32", ("n", 3, 16, 16))],
        [("light", "float32", ("n",))],
    )
    write_manifest(free, "1", "regression", output={"decoder": "raw"})
    only = replace(PROFILE, engines=(EngineLine(engine="onnxruntime"),), lanes=1, threads=1)
    found = {}
    for folder in (free, brightness(tmp_path / "fixed")):
        state = tmp_path / f"state-{folder.name}"
        state.mkdir()
        ways = tune_model(loader_in(state, only), load(folder), "picture", live=True)
        found[folder.name] = {each.batch for each in ways}
    assert found == {"free": {1, 4, 8}, "fixed": {1}}


def test_a_model_that_cannot_run_is_told_in_a_line(tmp_path: Path) -> None:
    """A tune of a damaged network ends with why, and keeps nothing."""
    folder = make_model(tmp_path / "broken")
    with pytest.raises(EngineError, match="no engine can run it") as raised:
        tune_model(loader_in(tmp_path), load(folder), "picture", live=True)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / FILE).exists()


def test_a_tune_can_be_stopped(tmp_path: Path) -> None:
    """An agent that ends does not wait for a tune."""
    folder = load(heavy(tmp_path / "heavy", 2))
    with pytest.raises(ChildStoppedError, match="stopped"):
        tune_model(loader_in(tmp_path), folder, "picture", live=True, stopped=lambda: True)
    assert not (tmp_path / FILE).exists()


# --- as users meet it


def test_the_agent_serves_as_tuned_and_says_so(
    tmp_path: Path, shared_broker: Mosquitto, agent: Any, listen: Any
) -> None:
    """`bench pipeline --tune` writes it, `profile` and `check` tell it, `run` does it."""
    models = tmp_path / "models"
    heavy(models / "heavy", 2)
    source = write_pictures(tmp_path / "pictures", [plain(60)]) + "?loop=1&rate=20"
    text = agent_settings(
        "tuned",
        shared_broker.url,
        [{"name": "p", "source": source, "model": "heavy"}],
        models_dirs=[str(models)],
        state_dir=str(tmp_path / "state"),
        profile="intel-cpu",
        engine="auto",
    )
    config = tmp_path / "config.toml"
    config.write_text(text)
    tuned = run_cli(
        "bench", "pipeline", str(models / "heavy"), "--tune", "--json", "--config", str(config)
    )
    assert tuned.returncode == 0, tuned.stderr
    (said,) = (json.loads(line) for line in tuned.stdout.splitlines())
    assert said["best"] in said["ways"]
    # Whatever this machine has found: the test wants the engine that the profile puts last.
    content = json.loads((tmp_path / "state" / FILE).read_text())
    (entry,) = content["models"].values()
    for each in entry["ways"]:
        each["fps"] = 999.0 if each["engine"] == "onnxruntime" and each["lanes"] == LANES else 1.0
    (tmp_path / "state" / FILE).write_text(json.dumps(content))
    profile = run_cli("profile", "--config", str(config))
    assert f"heavy@1: onnxruntime:CPU, {LANES} lane(s)" in profile.stdout
    check = run_cli("check", "--config", str(config))
    assert "tune: heavy@1: onnxruntime:CPU" in check.stdout
    assert "heavy@1 runs on onnxruntime:CPU" in check.stdout
    listener: Listener = listen(shared_broker.port, "edge/tuned/#")
    agent(text)
    result = listener.wait_for(
        lambda heard: [h for h in heard if h.topic.endswith("/result/p")], "a result"
    )
    assert result[0].json["engine"] == "onnxruntime:CPUExecutionProvider"


def test_a_tune_settles_a_quick_start(tmp_path: Path, shared_broker: Mosquitto) -> None:
    """What a tune has found best takes over behind a quick start without a race of its own."""
    box = Box(tmp_path, shared_broker)
    box.more |= {"engine": "auto", "profile": "intel-cpu"}
    box.ready()
    profile = load_profiles(default_dirs())["intel-cpu"]
    ways = [way("openvino", 999, lanes=LANES), way("onnxruntime", 1, lanes=LANES)]
    TuningResults(box.state, profile, read_facts()).write(box.models / "numbers", "numbers@1", ways)
    with box.start() as start:
        assert start.from_plan()
        start.wait("result", "p", engine="openvino:CPU")
        # Said when the exchange is done, which the first result of it may come before.
        wait_until(lambda: "openvino:CPU takes over: tuned:" in start.words(), "the word of it")
        assert start.all_right()


def test_a_profile_may_have_the_agent_tune_by_itself(
    tmp_path: Path, shared_broker: Mosquitto
) -> None:
    """With `tune = true` the first start is tuned behind, once, and no frame goes uncounted."""
    box = Box(tmp_path, shared_broker)
    box.root = tmp_path / "program"
    for name in ("edge_agent", "device_profiles", "models"):
        copytree(CHECKOUT / name, box.root / name, ignore=ignore_patterns("__pycache__"))
    profile = box.root / "device_profiles" / "intel-cpu.toml"
    profile.write_text("tune = true\n" + profile.read_text())
    box.more |= {"engine": "auto", "profile": "intel-cpu"}
    with box.start() as start:
        wait_until(lambda: "numbers@1: tuned:" in start.words(), "the tune")
        assert start.all_right()
        said = start.wait("health")["pipelines"]
        check_account(said["p"] if isinstance(said, dict) else said[0])
    content = (box.state / FILE).read_text()
    (entry,) = json.loads(content)["models"].values()
    assert {each["lanes"] for each in entry["ways"]} == {LANES}
    with box.start() as start:
        assert start.all_right()
    assert (box.state / FILE).read_text() == content
