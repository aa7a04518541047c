"""An engine that computes a model wrongly is found out on the frames that it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.device_profile import DeviceProfile, EngineLine
from edge_agent.config.settings import Arm
from edge_agent.core.errors import EngineError
from edge_agent.core.types import Sample, Values
from edge_agent.device.hardware import read_facts
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.engines.registry import WantedEngine
from edge_agent.inference.model import Model, load_model
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from edge_agent.runtime.scheduler.board import Board
from edge_agent.serving.active import ActiveModels, Serving
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.engine_check import IDLE_SECONDS, EngineCheck, FormCheck
from edge_agent.serving.loader import ModelLoader
from edge_agent.serving.open import open_quick
from edge_agent.serving.reference_check import INPUTS
from tests.helpers.small_models import plain, wrapping

BRIGHT, DARK = 200, 20


class Desk:
    """A model that serves, and what checks its engine: all of it real."""

    def __init__(
        self, folder: Path, engines: tuple[str, ...], wanted: WantedEngine, **more: Any
    ) -> None:
        lines: list[Any] = [EngineLine(engine=name) for name in engines]
        profile = DeviceProfile(description="a test's own", engines=tuple(lines), **more)
        store = Store(folder / "state")
        engines_here = DeviceEngines(profile, read_facts(), wanted, state=store.root)
        self.loader = ModelLoader(engines_here, store)
        catalog = Catalog(store, [folder / "models"], None)
        board: Board[Model] = Board()
        self.active = ActiveModels(board, lambda: catalog, lambda: self.loader)
        self.serving: Serving = self.active.serving_for(Arm("wrapping", None, 1), "picture")
        self.active.load_all()
        self.check = EngineCheck(self.active, self.loader)

    @property
    def model(self) -> Model:
        assert self.serving.model is not None
        return self.serving.model

    def show(self, gray: int) -> float:
        """Show it a gray picture, and let its engine be checked; return what was found."""
        found = self.look(gray)
        self.check.run(self.serving, self.model)
        return found

    def look(self, gray: int) -> float:
        """Show it a gray picture; return what was found."""
        findings = self.model.infer(Sample(plain(gray, 16, 16), 0, 0, 0.0)).findings
        assert isinstance(findings, Values)
        return next(iter(findings.values.values()))

    def pin(self) -> Serving:
        """Have it serve under its version, too: one model for both."""
        pinned = self.active.serving_for(Arm("wrapping", "1", 1), "picture")
        self.active.load(pinned)
        assert pinned.model is self.model
        return pinned

    @property
    def known(self) -> bool:
        """Whether the engine that serves has been found sound."""
        assert self.loader.engines.verdicts is not None
        return self.loader.engines.verdicts.is_correct(self.model.folder.path, self.model.choice)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Make a desk on engines as a profile lists them."""
    wrapping(tmp_path / "models" / "wrapping")
    made: list[Desk] = []

    def desk(*engines: str, wanted: WantedEngine = "auto", **more: Any) -> Desk:
        made.append(Desk(tmp_path, engines, wanted, **more))
        return made[-1]

    yield desk
    for each in made:
        each.active.close()


def test_a_wrong_engine_gives_way_between_two_frames(
    make: Callable[..., Desk], caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason in the log and in health; at the next start it is not loaded."""
    desk = make("openvino", "onnxruntime")
    assert desk.model.choice.engine == "openvino"
    assert desk.show(BRIGHT) == 44
    assert desk.model.choice.engine == "onnxruntime"
    assert desk.show(BRIGHT) == 44
    (said,) = [r.message for r in caplog.records if "computes it wrongly" in r.message]
    assert said.startswith("model wrapping@1: openvino:CPU computes it wrongly: beside onnxruntime")
    assert said.endswith("; now on onnxruntime:CPUExecutionProvider")
    (problem,) = desk.check.problems()
    assert "openvino:CPU computes it wrongly" in problem
    assert make("openvino", "onnxruntime").show(BRIGHT) == 44


def test_where_all_engines_are_wrong_a_plain_session_serves(make: Callable[..., Desk]) -> None:
    """Also where the profile names no other engine."""
    desk = make("openvino")
    assert desk.show(BRIGHT) == 44
    assert desk.show(BRIGHT) == 44
    assert desk.model.choice.options == {"graph_optimization_level": "none"}
    assert make("openvino").show(BRIGHT) == 44


def test_an_engine_that_agrees_is_checked_once(make: Callable[..., Desk]) -> None:
    """On a few frames, not sooner; then also the next start knows it."""
    desk = make("onnxruntime")
    for number in range(INPUTS):
        assert not desk.known
        desk.show(DARK + number)
    assert desk.known
    assert desk.check.problems() == []
    assert make("onnxruntime").known


def test_golden_outputs_decide_where_there_are_some(make: Callable[..., Desk]) -> None:
    """Without a frame: as at a first start with another version of the engine."""
    desk = make("openvino", "onnxruntime")
    arrays: dict[str, Any] = {
        "input/picture": np.full((1, 3, 16, 16), BRIGHT, np.float32),
        "output/light": np.array([44], np.float32),
    }
    np.savez(desk.model.folder.path / "golden.npz", **arrays)
    assert desk.check.run(desk.serving, desk.model) is None
    assert desk.model.engine.label.startswith("onnxruntime:")
    assert desk.check.run(desk.serving, desk.model) is None
    assert desk.known
    assert "golden: " in desk.check.problems()[0]


def test_a_witness_answers_until_another_engine_serves(make: Callable[..., Desk]) -> None:
    """From the first input on in which the engine is wrong, however late that is noticed."""
    desk = make("openvino", "onnxruntime")
    assert desk.look(DARK) == DARK + 100
    assert [desk.look(BRIGHT) for _ in range(INPUTS)] == [44] * INPUTS
    assert desk.model.choice.engine == "openvino"
    desk.check.run(desk.serving, desk.model)
    assert desk.model.choice.engine == "onnxruntime"


def test_an_engine_that_was_found_sound_needs_no_witness(make: Callable[..., Desk]) -> None:
    """Neither the model that serves then, nor the next start."""
    desk = make("openvino")
    assert desk.model.check is not None
    for number in range(INPUTS):
        desk.show(DARK + number)
    assert desk.model.check is None
    assert make("openvino").model.check is None


def test_the_engine_that_is_insisted_on_is_refused_where_it_is_wrong(
    make: Callable[..., Desk],
) -> None:
    """With the reason; what it was shown until then was answered rightly."""
    desk = make("openvino", wanted="openvino")
    assert desk.show(BRIGHT) == 44
    assert desk.serving.model is None
    assert "is not loaded: computes it wrongly here: beside" in str(desk.serving.problem)


def test_an_engine_that_fails_is_not_found_wrong(make: Callable[..., Desk]) -> None:
    """Failing frames are for those to see to who watch engines; they count as such."""
    desk = make("openvino")
    desk.model.engine.close()
    with pytest.raises(EngineError, match="has been closed"):
        desk.look(BRIGHT)
    assert desk.model.stats.failing == 1
    desk.check.run(desk.serving, desk.model)
    assert desk.model.choice.engine == "openvino"
    assert not desk.known


ALONE: dict[str, Any] = {"swap": "replace"}
"""Memory holds a model only once."""
PLAIN = {"graph_optimization_level": "none"}


def test_where_memory_holds_a_model_once_both_are_loaded_in_turns(
    make: Callable[..., Desk], caplog: pytest.LogCaptureFixture
) -> None:
    """A session without optimization serves first; then the first engine that says the same."""
    desk = make("openvino", "onnxruntime", **ALONE)
    assert desk.model.is_reference
    for number in range(INPUTS):
        assert desk.model.choice.options == PLAIN
        assert desk.show(BRIGHT + number) == 44 + number
    desk.check.run(desk.serving, desk.model)
    assert (desk.model.choice.engine, desk.model.choice.options) == ("onnxruntime", {})
    assert desk.model.stats.inferred == INPUTS
    assert desk.show(BRIGHT) == 44
    assert desk.known
    (said,) = [r.message for r in caplog.records if "computes it wrongly" in r.message]
    assert said.startswith("model wrapping@1: openvino:CPU computes it wrongly: beside onnxruntime")
    assert said.endswith("; now on onnxruntime:CPUExecutionProvider")
    assert said.partition(";")[0] in desk.check.problems()[0]
    later = make("openvino", "onnxruntime", **ALONE)
    assert not later.model.is_reference
    assert later.model.choice.engine == "onnxruntime"


def test_where_all_are_wrong_alone_the_session_that_stands_in_stays(
    make: Callable[..., Desk],
) -> None:
    """And is not compared with anything any more."""
    desk = make("openvino", **ALONE)
    for number in range(INPUTS):
        desk.show(BRIGHT + number)
    desk.check.run(desk.serving, desk.model)
    assert (desk.model.choice.options, desk.model.is_reference) == (PLAIN, False)
    assert desk.show(BRIGHT) == 44
    assert not make("openvino", **ALONE).model.is_reference


def test_the_engine_that_is_insisted_on_is_refused_alone(make: Callable[..., Desk]) -> None:
    """Until then what stands in has answered."""
    desk = make("openvino", wanted="openvino", **ALONE)
    for number in range(INPUTS):
        assert desk.show(BRIGHT + number) == 44 + number
    desk.check.run(desk.serving, desk.model)
    assert desk.serving.model is None
    assert "is not loaded: computes it wrongly here: beside" in str(desk.serving.problem)


def test_golden_outputs_decide_alone_without_a_frame(make: Callable[..., Desk]) -> None:
    """The engine is loaded for them when what stands in is gone."""
    desk = make("openvino", "onnxruntime", **ALONE)
    arrays: dict[str, Any] = {
        "input/picture": np.full((1, 3, 16, 16), BRIGHT, np.float32),
        "output/light": np.array([44], np.float32),
    }
    np.savez(desk.model.folder.path / "golden.npz", **arrays)
    assert desk.check.run(desk.serving, desk.model) is None
    assert (desk.model.choice.engine, desk.model.choice.options) == ("onnxruntime", {})
    assert "golden: " in desk.check.problems()[0]


def test_an_engine_that_came_in_uncompared_is_compared_alone(make: Callable[..., Desk]) -> None:
    """As the one that another gives way to when it fails."""
    desk = make("onnxruntime", **ALONE)
    desk.model.is_reference = False
    desk.serving.model = load_model(desk.model.folder, [EngineChoice("openvino")], "picture")
    pinned = desk.pin()
    desk.show(DARK)
    assert desk.model.is_reference
    assert pinned.model is desk.model


def test_the_form_that_the_next_start_begins_with_is_checked_too(
    make: Callable[..., Desk],
) -> None:
    """Where another engine serves: once that one is known to be sound."""
    desk = make("openvino", "onnxruntime")
    choice = desk.loader.engines.prepared_choice(desk.model.folder)
    assert choice is not None
    assert choice.engine == "onnxruntime"
    assert desk.loader.prepared_form(desk.model.folder, "picture", make=True) is not None
    told: list[str] = []
    check = FormCheck(desk.loader, lambda: told.append("sound"))
    desk.look(DARK)
    assert check.run(desk.serving, desk.model) == IDLE_SECONDS
    for number in range(INPUTS):
        desk.show(DARK + number)
    assert desk.known
    for number in range(INPUTS):
        assert desk.loader.engines.unverified(desk.model.folder, choice)
        desk.look(DARK + number)
        check.run(desk.serving, desk.model)
    assert told == ["sound"]
    assert not desk.loader.engines.unverified(desk.model.folder, choice)
    assert check.run(desk.serving, desk.model) is None


def hold_to(folder: Path, light: float) -> None:
    """Give a model golden outputs."""
    arrays: dict[str, Any] = {
        "input/picture": np.full((1, 3, 16, 16), BRIGHT, np.float32),
        "output/light": np.array([light], np.float32),
    }
    np.savez(folder / "golden.npz", **arrays)


def test_golden_outputs_that_no_engine_gives_unload_the_model(
    make: Callable[..., Desk], tmp_path: Path
) -> None:
    """Only the first result leaves; neither a plain session nor a restart helps."""
    hold_to(tmp_path / "models" / "wrapping", 77)
    desk = make("openvino", "onnxruntime")
    desk.look(BRIGHT)
    with pytest.raises(EngineError, match="computes it wrongly: golden: "):
        desk.look(BRIGHT)
    desk.check.run(desk.serving, desk.model)
    assert desk.serving.model is None
    assert "computes it wrongly here: golden: " in str(desk.serving.problem)
    assert make("openvino", "onnxruntime").serving.model is None


def test_golden_outputs_that_no_engine_gives_unload_the_model_alone(
    make: Callable[..., Desk], tmp_path: Path
) -> None:
    """Also where memory holds it once: no engine serves untried between two others."""
    hold_to(tmp_path / "models" / "wrapping", 77)
    desk = make("openvino", "onnxruntime", **ALONE)
    desk.check.run(desk.serving, desk.model)
    assert desk.serving.model is None
    assert "computes it wrongly here: golden: " in str(desk.serving.problem)


@pytest.mark.parametrize("more", [{}, ALONE])
def test_a_model_under_two_references_is_refused_under_both(
    make: Callable[..., Desk], tmp_path: Path, more: dict[str, Any]
) -> None:
    """A pipeline that names its version waited for it for ever, and gave no results."""
    hold_to(tmp_path / "models" / "wrapping", 77)
    desk = make("openvino", "onnxruntime", **more)
    pinned = desk.pin()
    desk.check.run(desk.serving, desk.model)
    for each in (desk.serving, pinned):
        assert each.model is None
        assert "computes it wrongly here: golden: " in str(each.problem)


@pytest.mark.parametrize("more", [{}, ALONE])
def test_a_model_loaded_the_quick_way_is_held_to_its_golden_outputs(
    make: Callable[..., Desk], tmp_path: Path, more: dict[str, Any]
) -> None:
    """Before all else, and is not found sound for having been loaded first."""
    hold_to(tmp_path / "models" / "wrapping", 77)
    desk = make("openvino", "onnxruntime", **more)
    quick = open_quick(desk.model.folder, EngineChoice("onnxruntime"), "picture")
    desk.serving.model = quick
    desk.look(BRIGHT)
    with pytest.raises(EngineError, match="golden"):
        desk.look(BRIGHT)
    desk.check.run(desk.serving, quick)
    assert desk.serving.model is None
