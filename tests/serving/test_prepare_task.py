"""Prepared forms of the models that serve, and which of them the next start counts on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_agent.config.device_profile import DeviceProfile, EngineLine
from edge_agent.config.settings import Arm
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model
from edge_agent.inference.prepared.compile.cache import prepare
from edge_agent.inference.prepared.fallback import load_prepared
from edge_agent.models.manifest import load
from edge_agent.models.store.store import Store
from edge_agent.serving.active import Serving
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.loader import ModelLoader
from edge_agent.serving.prepare_task import PrepareTask
from tests.helpers.start_box import numbers
from tests.helpers.support import wait_until

CPU = EngineChoice("onnxruntime", threads=1)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """Serve a model that was loaded from its form."""
    folder = load(numbers(tmp_path / "numbers"))
    form = prepare(Store(tmp_path / "state"), folder, CPU, "picture")
    made = Serving(Arm("numbers", None, 1), "picture")
    made.model = load_prepared(folder, CPU, form, "picture")
    yield made
    made.model.close()


def task_of(tmp_path: Path, serving: Serving) -> PrepareTask:
    """Return a task that has not come to the model yet; the engine is known to be right."""
    active: Any = SimpleNamespace(all=lambda: [serving])
    profile = DeviceProfile(description="test", engines=(EngineLine(engine="onnxruntime"),))
    store = Store(tmp_path / "state")
    engines = DeviceEngines(profile, read_facts(), "auto", state=store.root)
    assert serving.model is not None
    assert engines.verdicts is not None
    engines.verdicts.mark_correct(serving.model.folder.path, serving.model.choice)
    loader = ModelLoader(engines, store)
    return PrepareTask(store, active, loader, lambda: 0, lambda: None, threading.Event())


def planned_form(tmp_path: Path, serving: Serving) -> str:
    """Return the form in the plan."""
    (only,) = task_of(tmp_path, serving).planned()
    assert only.way == ("prepared" if only.form else "quick")
    return only.form


def test_a_form_that_turns_out_damaged_is_made_again(tmp_path: Path, serving: Serving) -> None:
    """It is deleted, and the next one is whole."""
    task = task_of(tmp_path, serving)
    model = serving.model
    assert model is not None
    form = model.engine.prepared
    assert form is not None
    assert task.run(serving, model) is None
    assert task.state("numbers") == "ready"
    form.damaged = "weights.bin has changed on the disk"
    assert task.run(serving, model) is not None
    assert not Path(form.folder).exists()
    wait_until(lambda: task.run(serving, model) is None, "another form")
    assert task.state("numbers") == "ready"
    assert Path(form.folder).is_dir()
    task.close()


def test_a_stop_right_after_the_start_keeps_the_form_in_the_plan(
    tmp_path: Path, serving: Serving
) -> None:
    """What was loaded from its form is loaded from it again, though nothing has checked it yet."""
    model = serving.model
    assert isinstance(model, Model)
    assert model.engine.prepared is not None
    assert planned_form(tmp_path, serving) == model.engine.prepared.folder


def test_a_form_that_has_gone_is_not_in_the_plan(tmp_path: Path, serving: Serving) -> None:
    """It is being made again, or cannot be: the next start loads the model itself."""
    assert serving.model is not None
    assert serving.model.engine.prepared is not None
    shutil.rmtree(serving.model.engine.prepared.folder)
    assert planned_form(tmp_path, serving) == ""
