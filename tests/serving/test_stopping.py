"""SIGTERM with many pipelines and models: loading stops, and no wait is added to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.device_profile import DeviceProfile, Lineup
from edge_agent.config.settings import Arm
from edge_agent.core.threads import ShutdownQueue, Stop
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from edge_agent.runtime.scheduler.board import Board
from edge_agent.serving.active import ActiveModels
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.loader import ModelLoader
from tests.helpers.small_models import brightness

NAMES = ("first", "second", "third")


@pytest.fixture
def stops() -> ShutdownQueue:
    """Give what reasons to stop are left with."""
    return ShutdownQueue()


@pytest.fixture
def active(tmp_path: Path, stops: ShutdownQueue) -> ActiveModels:
    """Make three models that are needed, none of them loaded."""
    for name in NAMES:
        brightness(tmp_path / "models" / name)
    loader = ModelLoader(
        DeviceEngines(DeviceProfile(description="a test's own", engines=()), read_facts(), "auto")
    )
    loader.engines.lineup = Lineup((EngineChoice("onnxruntime"),), (), ())
    catalog = Catalog(Store(tmp_path / "state"), [tmp_path / "models"], None)
    board: Board[Model] = Board()
    made = ActiveModels(board, lambda: catalog, lambda: loader, stopping=lambda: stops.begun)
    for name in NAMES:
        made.serving_for(Arm(name, None, 1), "picture")
    return made


def loaded(active: ActiveModels) -> list[str]:
    """List the models that are there."""
    return [serving.arm.name for serving in active.all() if serving.model is not None]


def test_no_model_is_loaded_after_the_stop_began(
    active: ActiveModels, stops: ShutdownQueue
) -> None:
    """SIGTERM after the first of three models: the others are not loaded, and not to blame."""
    active.on_change.add(lambda: stops.put(Stop("SIGTERM", asked=True)))
    active.load_all()
    assert loaded(active) == ["first"]
    for serving in active.all():
        # Nor by a lane that needs one now, as a second stage.
        active.load(serving)
    assert loaded(active) == ["first"]
    assert [serving.problem for serving in active.all()] == [None, None, None]
    active.close()


def test_what_is_only_to_be_done_while_running_begins_no_stop(
    active: ActiveModels, stops: ShutdownQueue
) -> None:
    """A call that waits for the main thread, as of a reload, lets all models be loaded."""
    stops.call(lambda: None)
    active.load_all()
    assert loaded(active) == list(NAMES)
    active.close()


def test_models_in_use_hold_up_no_other_at_the_end() -> None:
    """One wait serves for all: those that no lane uses are closed, a stuck one is left."""

    class Used:
        users = 0

    board: Board[Any] = Board()
    stuck, free = Used(), Used()
    with board.using(lambda: [stuck]):
        assert board.drain([stuck, free], 0.01) == [free]
    assert board.drain([stuck, free], 0.01) == [stuck, free]
