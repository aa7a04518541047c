"""Second stages that are unloaded when idle, beside a memory budget and a probation."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from edge_agent.config.device_profile import DeviceProfile, Lineup
from edge_agent.config.settings import Arm, Trial
from edge_agent.core.errors import ModelError
from edge_agent.delivery.rollout.acceptance import MOST_ERRORS, Watch
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.pointers import Trial as Mark
from edge_agent.models.store.store import Store
from edge_agent.runtime.scheduler.board import Board
from edge_agent.serving.active import ActiveModels, Serving
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.loader import ModelLoader
from edge_agent.serving.memory import MemoryRelease
from tests.helpers.small_models import brightness

Idle = Callable[[Serving], None]


@pytest.fixture
def active(tmp_path: Path) -> ActiveModels:
    """Give two models of 60 MB where 100 are allowed; neither is loaded, and both are lazy."""
    for name in ("one", "two"):
        folder = brightness(tmp_path / "models" / name)
        with (folder / "more.bin").open("wb") as file:
            file.truncate(60 * 2**20)
    profile = DeviceProfile(description="a test's own", engines=(), memory_budget_mb=100)
    loader = ModelLoader(DeviceEngines(profile, read_facts(), "auto"))
    loader.engines.lineup = Lineup((EngineChoice("onnxruntime"),), (), ())
    catalog = Catalog(Store(tmp_path / "state"), [tmp_path / "models"], None)
    board: Board[Model] = Board()
    made = ActiveModels(board, lambda: catalog, lambda: loader)
    for name in ("one", "two"):
        made.serving_for(Arm(name, None, 1), "picture").lazy = True
    return made


@pytest.fixture
def idle(active: ActiveModels) -> Idle:
    """Give what lets a model be idle until it is unloaded."""
    memory = MemoryRelease(active, idle_s=60.0, short=list)

    def unload(serving: Serving) -> None:
        assert serving.model is not None
        serving.model.stats.used_at -= 61
        memory.step()
        assert serving.model is None

    return unload


def test_what_the_budget_had_no_room_for_is_loaded_once_there_is_room(
    active: ActiveModels, idle: Idle
) -> None:
    """It was refused for good: neither an idle model that went nor a reload helped."""
    one, two = active.all()
    active.load(one)
    active.load(two)
    assert two.model is None
    assert "two@1: its 61 MB and one@1 (61 MB) are 122 MB together" in str(two.problem)
    idle(one)
    assert two.problem is None
    active.load(two)
    assert two.model is not None
    # One that is not lazy is loaded at once.
    one.lazy = False
    active.load(one)
    assert one.problem is not None
    idle(two)
    assert (one.model is not None, one.problem) == (True, None)
    active.close()


def test_the_room_that_a_swap_makes_is_its_own(active: ActiveModels) -> None:
    """What waited for room took it: the new version was refused, and so was the old one."""
    one, two = active.all()
    one.lazy = two.lazy = False
    memory = MemoryRelease(active, idle_s=60.0, short=list)
    active.load_all()
    for model in active.unload(lambda serving, _: serving is one):
        active.retire(model)
    memory.step()
    assert two.model is None
    active.load(one)
    memory.step()
    assert (one.model is not None, two.model) == (True, None)
    # One that is lazy may be missing for long; a swap says so.
    one.lazy = True
    active.swapping.add("one")
    for model in active.unload(lambda serving, _: serving is one):
        active.retire(model)
    memory.step()
    assert two.model is None
    active.exchange({}, "one")
    memory.step()
    assert two.model is not None
    active.close()


def test_a_reload_that_exchanges_large_models_logs_no_error(
    active: ActiveModels, caplog: pytest.LogCaptureFixture
) -> None:
    """The new one is loaded once the old one has gone; one without room then is refused."""
    one, two = active.all()
    one.lazy = two.lazy = False
    active.load(one)
    active.load_all(more_room=True)
    assert (two.model, two.problem) == (None, None)
    for model in active.forget({("two", "picture")}):
        active.retire(model)
    active.load_all()
    assert two.model is not None
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    third = active.serving_for(Arm("one", None, 1), "picture")
    active.load_all(more_room=True)
    active.load_all()
    assert third.problem is not None
    active.close()


def test_a_version_on_probation_is_watched_though_it_was_unloaded_meanwhile(
    active: ActiveModels, idle: Idle
) -> None:
    """It was loaded anew, failed on every frame and passed: the one of the swap was watched."""
    one = active.all()[0]
    active.load(one)

    def serving() -> list[Model]:
        return [one.model] if one.model is not None else []

    watch = Watch(serving, time.monotonic() + 60, Trial())
    assert one.model is not None
    one.model.stats.errors += MOST_ERRORS - 1
    one.model.stats.inferred += 7
    idle(one)
    assert (watch.fault, watch.stuck) == (None, False)
    active.load(one)
    assert one.model.stats.inferred == 7
    one.model.stats.errors += 1
    assert watch.fault == f"failed on {MOST_ERRORS} frames during its probation"
    active.close()


def test_weights_that_are_links_count(active: ActiveModels, tmp_path: Path) -> None:
    """In Hugging Face's cache each file is a link; such a model took nothing of the budget."""
    more = tmp_path / "models" / "one" / "more.bin"
    more.rename(tmp_path / "blob")
    more.symlink_to(tmp_path / "blob")
    one, two = active.all()
    active.load(one)
    active.load(two)
    assert "two@1: its 61 MB and one@1 (61 MB) are 122 MB together" in str(two.problem)
    active.close()


def test_what_had_no_room_beside_a_version_that_does_not_come_back_is_loaded(
    active: ActiveModels,
) -> None:
    """It stayed refused until something else was unloaded."""
    _, two = active.all()
    two.lazy = False
    budget = active.loader.engines.budget
    with suppress(ModelError), budget.loading(active.find("one", None), back=True):
        active.load(two)
        assert "one@1 (61 MB) are 122 MB together" in str(two.problem)
        raise ModelError("does not give its golden outputs any more")
    active.use_room()
    assert two.model is not None
    active.close()


def test_a_lazy_model_that_was_on_trial_is_loaded_once_it_is_live(
    active: ActiveModels, tmp_path: Path
) -> None:
    """Asked for during its trial, a pinned version never served: not even when it went live."""
    store = Store(tmp_path / "state")
    with store.stage() as staged:
        shutil.copytree(brightness(tmp_path / "sent" / "one"), staged, dirs_exist_ok=True)
        (staged / ".package").mkdir()
        store.commit(staged, "one", "1")
    shutil.rmtree(tmp_path / "models" / "one")
    store.set_trial("one", Mark("1", "shadow", time.time()))
    pinned = active.serving_for(Arm("one", "1", 1), "picture")
    pinned.lazy = True
    active.load(pinned)
    assert "has not passed its trial yet" in str(pinned.problem)
    store.activate("one", "1")
    active.load_all()
    assert (pinned.model, pinned.problem) == (None, None)
    active.load(pinned)
    assert pinned.model is not None
    active.close()


def test_a_lazy_model_that_found_no_room_beside_one_on_trial_is_tried_again(
    active: ActiveModels,
) -> None:
    """That one was rejected, and the other one stayed refused for its sake."""
    one, two = active.all()
    budget = active.loader.engines.budget
    with budget.loading(active.find("one", None)):
        active.load(two)
        assert "one@1 (61 MB) are 122 MB together" in str(two.problem)
    active.load_all()
    assert (two.model, two.problem) == (None, None)
    active.load(two)
    assert two.model is not None
    assert one.model is None
    active.close()
