"""A model that is first needed at the very moment at which another version of it goes live."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.device_profile import DeviceProfile, Lineup
from edge_agent.config.settings import Arm
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
from tests.helpers.support import PATIENCE


class HeldLoader(ModelLoader):
    """Loads when it is told to."""

    def __init__(self, engines: DeviceEngines) -> None:
        super().__init__(engines)
        self.begun, self.go = threading.Event(), threading.Event()

    def load(self, *given: Any, **more: Any) -> Any:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        return super().load(*given, **more)


@pytest.mark.parametrize("first", ["load", "exchange"])
def test_what_is_loaded_meanwhile_is_no_old_version(first: str, tmp_path: Path) -> None:
    """It would have served until the next push, while the device said that the new one does."""
    brightness(tmp_path / "models" / "light")
    loader = HeldLoader(
        DeviceEngines(DeviceProfile(description="a test's own", engines=()), read_facts(), "auto")
    )
    loader.engines.lineup = Lineup((EngineChoice("onnxruntime"),), (), ())
    catalog = Catalog(Store(tmp_path / "state"), [tmp_path / "models"], None)
    board: Board[Model] = Board()
    active = ActiveModels(board, lambda: catalog, lambda: loader)
    serving = active.serving_for(Arm("light", None, 1), "picture")
    loading = threading.Thread(target=active.load, args=(serving,))
    swap = threading.Thread(target=active.exchange, args=({}, "light"))
    loading.start()
    assert loader.begun.wait(PATIENCE)
    brightness(tmp_path / "models" / "light-2", "2")
    if first == "load":
        loader.go.set()
        loading.join()
    swap.start()
    loader.go.set()
    for thread in (loading, swap):
        thread.join()
    assert serving.model is not None
    assert serving.model.id == "light@2"
    active.close()
