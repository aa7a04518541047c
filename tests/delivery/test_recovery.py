"""What a start makes of the marks that the last run has left, where commands come meanwhile."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from edge_agent.config.device_profile import DeviceProfile
from edge_agent.config.settings import Trial
from edge_agent.delivery.rollout.commands import Activate, Rollback, VersionCommands
from edge_agent.delivery.rollout.ledger import Candidate, Ledger
from edge_agent.delivery.rollout.recovery import Recovery
from edge_agent.delivery.rollout.swap import Swap
from edge_agent.device.hardware import read_facts
from edge_agent.inference.model import Model
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.pointers import Trial as Mark
from edge_agent.models.store.store import Store
from edge_agent.runtime.scheduler.board import Board
from edge_agent.serving.active import ActiveModels
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.loader import ModelLoader
from tests.helpers.push import model_folder


def test_what_is_tried_next_leaves_a_probation_as_it_is(tmp_path: Path) -> None:
    """Its mark was gone as soon as another version was tried: after a kill nothing watched it."""
    for version in ("1", "2", "3"):
        model_folder(tmp_path / "models" / version, version)
    store = Store(tmp_path / "state")
    ledger = Ledger(
        store, Catalog(store, [tmp_path / "models"]), lambda _transfer, _says: True, lambda: None
    )
    store.activate("level", "1")
    mark = Mark("2", "probation", time.time())
    store.activate("level", "2", watched=mark)
    candidate = Candidate("level", "3", None)
    ledger.enter(candidate, "preparing")
    assert [each.version for each in store.pointers("level").marks] == ["3", "2"]
    ledger.discard("level", "3", "it is bad")
    assert store.pointers("level").marks == (mark,)


def test_nothing_goes_back_to_what_has_not_outlived_its_probation(tmp_path: Path) -> None:
    """Unless there is nothing else to go back to."""
    store = Store(tmp_path / "state")
    store.activate("level", "1", watched=Mark("1", "probation", time.time()))
    store.activate("level", "2", watched=Mark("2", "probation", time.time()))
    assert store.pointers("level").history == ("1", "2")
    store.activate("level", "3", watched=Mark("3", "probation", time.time()))
    assert store.pointers("level").history == ("1", "3")
    store.clear_marks("level", "3")
    store.activate("level", "4")
    assert store.pointers("level").history == ("1", "3", "4")


def test_the_mark_of_a_probation_of_an_earlier_agent_is_read(tmp_path: Path) -> None:
    """It stood where that of a trial stands."""
    store = Store(tmp_path / "state")
    store.activate("level", "2", watched=Mark("2", "probation", time.time()))
    path = store.models / "level" / "pointers.json"
    content = json.loads(path.read_text())
    content["trial"] = content.pop("watched")
    path.write_text(json.dumps(content))
    assert (store.pointers("level").on_probation, store.pointers("level").on_trial) == ("2", None)


@pytest.mark.parametrize("command", ["rollback", "activate"])
def test_a_command_before_models_are_loaded_ends_an_interrupted_probation(
    tmp_path: Path, command: str
) -> None:
    """The version that it had replaced was on probation then, judged by what the other one did."""
    for version in ("1", "2"):
        model_folder(tmp_path / "models" / version, version)
    store = Store(tmp_path / "state")
    catalog = Catalog(store, [tmp_path / "models"])
    store.activate("level", "1")
    store.activate("level", "2", watched=Mark("2", "probation", time.time()))
    profile = DeviceProfile(description="a test's own", engines=())
    loader = ModelLoader(DeviceEngines(profile, read_facts(), "auto"))
    board: Board[Model] = Board()
    active = ActiveModels(board, lambda: catalog, lambda: loader)
    ledger = Ledger(store, catalog, lambda _transfer, _says: True, lambda: None)
    swap = Swap(store, catalog, active, ledger, Trial, overlap=True)
    recovery, commands = Recovery(swap), VersionCommands(swap)
    assert recovery.find_candidates(None) == []
    assert [each.version for each in ledger.interrupted()] == ["2"]

    if command == "rollback":
        commands.rollback(Rollback("level"))
    else:
        commands.activate(Activate("level", "1"))
    recovery.resume_probations()
    assert (ledger.interrupted(), ledger.on_probation()) == ([], [])
    assert "candidate" not in ledger.describe("level")
    assert (store.pointers("level").live, store.pointers("level").marks) == ("1", ())
    active.close()
