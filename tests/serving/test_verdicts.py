"""Engines that compute a model wrongly are passed over, until something changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.config.device_profile import DeviceProfile, EngineLine
from edge_agent.core.errors import BarredError
from edge_agent.core.flight_recorder import EngineCall, PreviousCrash, call_target
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.registry import WantedEngine
from edge_agent.models.manifest import ModelFolder, load
from edge_agent.models.store.store import Store
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.loader import ModelLoader
from edge_agent.serving.verdicts import LIMIT
from tests.helpers.small_models import brightness


def loader(state: Path, wanted: WantedEngine = "auto") -> ModelLoader:
    """Make a loader for OpenVINO and, behind it, ONNX Runtime."""
    lines = tuple(EngineLine(engine=name, device="CPU") for name in ("openvino", "onnxruntime"))
    profile = DeviceProfile(description="test", engines=lines)
    return ModelLoader(DeviceEngines(profile, read_facts(), wanted, state=state), Store(state))


def doubted(folder: ModelFolder, state: Path) -> ModelLoader:
    """Return a loader that has seen OpenVINO compute a model wrongly."""
    seen = loader(state)
    assert seen.engines.verdicts is not None
    first = seen.engines.choices_for(folder)[0]
    assert first.engine == "openvino"
    seen.engines.verdicts.mark_wrong(folder.path, first, "3% of 40 boxes found again")
    return seen


def test_an_engine_that_ends_the_agent_is_not_the_reference_of_another(tmp_path: Path) -> None:
    """The comparison would end the agent again, at every start."""
    folder = load(brightness(tmp_path / "light"))
    seen = loader(tmp_path / "state")
    assert seen.engines.verdicts is not None
    place = call_target("light@1", "onnxruntime", "CPU", str(folder.network))
    for _ in range(LIMIT):
        assert seen.engines.wants_check(folder, seen.engines.choices_for(folder)[0])
        last = PreviousCrash("was killed for lack of memory", (EngineCall("infer", place),))
        seen.engines.verdicts.add_crash(last)
    model, _ = seen.load(folder, "picture")
    assert model.choice.engine == "openvino"
    assert model.check is None
    model.close()


def test_the_next_engine_serves_and_the_reason_is_told(tmp_path: Path) -> None:
    """At once, and at the next start."""
    folder = load(brightness(tmp_path / "light"))
    for each in (doubted(folder, tmp_path / "state"), loader(tmp_path / "state")):
        model, passed = each.load(folder, "picture")
        assert model.engine.label.startswith("onnxruntime:")
        assert passed == ["openvino:CPU: computes it wrongly here: 3% of 40 boxes found again"]
        model.close()


def test_another_model_and_a_changed_one_are_not_meant(tmp_path: Path) -> None:
    """It is known by what the files hold, not by where they lie."""
    folder = load(brightness(tmp_path / "light"))
    doubted(folder, tmp_path / "state")
    moved = load(folder.path.rename(tmp_path / "moved"))
    engines = loader(tmp_path / "state").engines
    assert [choice.engine for choice in engines.choices_for(moved)] == ["onnxruntime"]
    (moved.path / "labels.txt").write_text("other\n")
    assert [choice.engine for choice in engines.choices_for(moved)] == [
        "openvino",
        "onnxruntime",
    ]


def test_the_engine_that_is_insisted_on_does_not_serve_wrongly(tmp_path: Path) -> None:
    """The error says what is wrong with it."""
    folder = load(brightness(tmp_path / "light"))
    doubted(folder, tmp_path / "state")
    with pytest.raises(BarredError, match="is not loaded: computes it wrongly here: 3% of 40"):
        loader(tmp_path / "state", "openvino").load(folder, "picture")


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    """Engines are then compared again."""
    folder = load(brightness(tmp_path / "light"))
    doubted(folder, tmp_path / "state")
    (tmp_path / "state" / "engines.json").write_text('{"found": 3}')
    assert len(loader(tmp_path / "state").engines.choices_for(folder)) == 2
