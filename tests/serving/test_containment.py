"""Whatever a model makes the program raise costs that model, or that frame, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from edge_agent.config.device_profile import DeviceProfile, Lineup
from edge_agent.config.settings import Arm
from edge_agent.core.errors import AgentError, EngineError, ModelError, SampleError
from edge_agent.core.types import Array, Outcome, Request, Sample, Tensors, TensorSpec
from edge_agent.device.hardware import read_facts
from edge_agent.inference.batching import load_batch
from edge_agent.inference.engines.engine import EngineChoice, FixShapes, fix_inputs
from edge_agent.inference.engines.registry import ENGINES, Capabilities
from edge_agent.inference.golden import compare_golden
from edge_agent.inference.model import Model, load_model
from edge_agent.inference.prepared.fallback import FallbackEngine
from edge_agent.models.manifest import load
from edge_agent.models.store.catalog import Catalog
from edge_agent.models.store.store import Store
from edge_agent.runtime.pipelines.lane import infer
from edge_agent.runtime.scheduler.board import Board
from edge_agent.serving.active import ActiveModels, Serving
from edge_agent.serving.challenger import Challenge
from edge_agent.serving.choice import DeviceEngines
from edge_agent.serving.loader import ModelLoader
from tests.helpers.idle_parts import idle_pipeline, offline_client
from tests.helpers.small_models import brightness, plain

RAISED = [MemoryError(), RecursionError("too deep"), SystemError("NULL"), KeyError("light")]
"""What no handler of errors of ours knows."""


class Moody:
    """When the engine below raises what, for models of one name."""

    def __init__(self) -> None:
        self.at: dict[str, BaseException] = {}
        """By "open", "infer", "outputs" or "finish"."""

    def meet(self, step: str) -> None:
        """Raise what is to be raised at a step."""
        if step in self.at:
            raise self.at[step]


MOOD = Moody()


class MoodyEngine:
    """Knows the network of `brightness`, and raises what it is told to, when it is told to."""

    label = "moody:CPU"
    inputs = (TensorSpec("picture", (1, 3, 16, 16), "float32"),)
    outputs = (TensorSpec("light", (1,), "float32"),)
    fold = widened = None
    prepared = None

    def __init__(self, *, bad: bool) -> None:
        self.bad = bad

    def finish_load(self, _threads: int | None = None) -> bool:
        MOOD.meet("finish")
        return True

    def infer(self, tensors: Tensors) -> dict[str, Array]:
        if self.bad:
            MOOD.meet("infer")
            if "outputs" in MOOD.at:
                return {}
        return {"light": tensors["picture"].mean(axis=(1, 2, 3))}

    def close(self) -> None: ...


def open_network(_choice: EngineChoice, network: Path, fix: FixShapes, _cut: Any) -> MoodyEngine:
    """Load any network; that of the bad model may fail."""
    bad = network.parent.name == "bad"
    if bad:
        MOOD.meet("open")
    fix_inputs(MoodyEngine.inputs, fix, network)
    return MoodyEngine(bad=bad)


CAPABILITIES = Capabilities(
    title="Moody",
    module=__name__,
    package="math",
    distributions=(),
    formats={".onnx": "ONNX"},
    survey=lambda: ("1", {"CPU": "any"}),
)


@pytest.fixture(autouse=True)
def mood(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moody]:
    """Add the engine to its registry, in a good mood."""
    monkeypatch.setitem(cast("MutableMapping[str, Capabilities]", ENGINES), "moody", CAPABILITIES)
    MOOD.at.clear()
    yield MOOD
    MOOD.at.clear()


class Desk:
    """Two models, a bad one and a good one, as an agent loads and runs them."""

    def __init__(self, folder: Path) -> None:
        for name in ("bad", "good"):
            brightness(folder / "models" / name)
        profile = DeviceProfile(description="a test's own", engines=())
        self.loader = ModelLoader(DeviceEngines(profile, read_facts(), "auto"))
        self.loader.engines.lineup = Lineup((EngineChoice("moody"),), (), ())
        self.board: Board[Model] = Board()
        catalog = Catalog(Store(folder / "state"), [folder / "models"], None)
        self.active = ActiveModels(self.board, lambda: catalog, lambda: self.loader)
        self.bad = self.active.serving_for(Arm("bad", None, 1), "picture")
        self.good = self.active.serving_for(Arm("good", None, 1), "picture")
        self.folder = folder

    def model(self, serving: Serving) -> Model:
        assert serving.model is not None
        return serving.model


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Make the models; none is loaded."""
    return Desk(tmp_path)


def one_line(text: str | None) -> str:
    """Check that a problem is there, of one line, and give it."""
    assert text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("step", ["open", "infer"])
@pytest.mark.parametrize("problem", RAISED, ids=repr)
def test_what_a_model_raises_while_it_is_loaded_costs_that_model(
    desk: Desk, mood: Moody, problem: Exception, step: str
) -> None:
    """Opening the network or warming it up: the next model is loaded, and the reason is told."""
    mood.at[step] = problem
    desk.active.load_all()
    assert desk.bad.model is None
    assert desk.bad.broken
    assert "bad@1" in one_line(desk.bad.problem)
    assert desk.model(desk.good).infer(Sample(plain(40, 16, 16), 0, 0, 0.0)).model == "good@1"


@pytest.mark.parametrize("step", ["infer", "outputs"])
@pytest.mark.parametrize("problem", RAISED, ids=repr)
def test_what_a_model_raises_on_a_frame_costs_that_frame(
    desk: Desk, mood: Moody, tmp_path: Path, problem: Exception, step: str
) -> None:
    """At inference or decoding the frame is counted as an error; the lane goes on."""
    desk.active.load_all()
    pipeline = idle_pipeline("p", "dir:none", tmp_path, desk.board, offline_client())
    pipeline.servings[0].model = model = desk.model(desk.bad)
    desk.board.add(pipeline.queue)
    mood.at[step] = problem
    put(desk, pipeline, 2)
    account = desk.board.accounts()["p"]
    assert (account.dropped["error"], account.inferred, model.stats.errors) == (2, 0, 2)
    assert model.stats.failing == 2, "so that another engine can be tried"
    assert pipeline.errors.latest is not None
    one_line(pipeline.errors.latest[1])
    mood.at.clear()
    put(desk, pipeline, 1)
    assert desk.board.accounts()["p"].inferred == 1


def put(desk: Desk, pipeline: Any, count: int) -> None:
    """Put frames on the board, and infer each."""
    for _ in range(count):
        desk.board.put(pipeline.queue, lambda seq: Sample(plain(40, 16, 16), seq, 0, 0.0))
        job = desk.board.take()
        assert job is not None
        infer(desk.board, job)


def test_a_picture_that_cannot_be_prepared_costs_that_frame(desk: Desk) -> None:
    """Whatever the preprocessing makes of it, it is a frame that cannot be used."""
    desk.active.load_all()
    nothing: Any = None
    with pytest.raises(SampleError, match="good@1: preparing its input: "):
        desk.model(desk.good).prepare(Request(Sample(nothing, 0, 0, 0.0)))


@pytest.mark.parametrize("problem", RAISED, ids=repr)
def test_what_a_second_engine_raises_leaves_what_serves(
    desk: Desk, mood: Moody, problem: Exception
) -> None:
    """A challenger that fails to load or on a live input is decided against, and that is all."""
    desk.active.load_all()
    model = desk.model(desk.bad)
    model.infer(Sample(plain(40, 16, 16), 0, 0, 0.0))
    choice = [EngineChoice("moody")]

    def challenge() -> Challenge:
        return Challenge(
            desk.bad,
            model,
            desk.active,
            lambda: load_model(model.folder, choice, "picture", checked=True),
            None,
            "moody",
        )

    mood.at["open"] = problem
    decision = challenge().step()
    assert decision is not None
    assert not decision.takes_over
    assert decision.why.startswith("not loaded: ")
    mood.at.clear()
    late = challenge()
    assert late.step() is None
    mood.at["infer"] = problem
    model.last = dict(model.last or {})
    decision = late.step()
    assert decision is not None
    assert not decision.takes_over
    one_line(decision.why)
    assert desk.bad.model is model


@pytest.mark.parametrize("problem", RAISED, ids=repr)
def test_what_a_form_raises_when_it_is_settled_is_an_error_of_ours(
    desk: Desk, mood: Moody, problem: Exception
) -> None:
    """Upkeep has a handler for that: it stays as it was loaded."""
    folder = load(desk.folder / "models" / "bad")
    inner: Any = MoodyEngine(bad=True)
    mood.at["finish"] = problem
    with pytest.raises(EngineError, match="bad@1: "):
        FallbackEngine(inner, folder, EngineChoice("moody"), "picture").finish_load()


def test_a_batch_that_fails_is_inferred_one_by_one(desk: Desk) -> None:
    """What the samples do together costs no frame that works alone."""

    class Broken:
        def infer_all(self, _requests: Any) -> Any:
            raise MemoryError

        def close(self) -> None: ...

    desk.active.load_all()
    model = desk.model(desk.good)
    model.batch = Broken()
    requests = [Request(Sample(plain(40, 16, 16), seq, 0, 0.0)) for seq in range(3)]
    assert [isinstance(each, Outcome) for each in model.infer_all(requests)] == [True] * 3


def test_a_network_that_cannot_be_batched_is_an_error_of_ours(desk: Desk, mood: Moody) -> None:
    """Compiled for several samples it may fail in any way; one by one it serves."""
    desk.active.load_all()
    mood.at["open"] = SystemError("compiled for 4")
    with pytest.raises(EngineError, match="bad@1: samples go one by one"):
        load_batch(desk.model(desk.bad), "picture", 4)


def test_golden_inputs_that_break_the_model_are_an_error_of_ours(desk: Desk, mood: Moody) -> None:
    """The check of a model ends with one line, whatever the model does."""
    desk.active.load_all()
    arrays: Any = {
        "input/picture": np.zeros((1, 3, 16, 16), np.float32),
        "output/light": np.zeros(1, np.float32),
    }
    np.savez(desk.folder / "models" / "bad" / "golden.npz", **arrays)
    mood.at["infer"] = RecursionError()
    with pytest.raises(AgentError) as caught:
        compare_golden(desk.model(desk.bad))
    one_line(str(caught.value))


def test_an_input_larger_than_memory_is_refused_before_anything_is_allocated(
    tmp_path: Path,
) -> None:
    """The line says what one inference takes and what this device has for it."""
    network = tmp_path / "model.onnx"
    big = (TensorSpec("picture", (1, 3, 1_000_000, 1_000_000), "float32"),)
    with pytest.raises(ModelError, match=r"11,444,092 MiB of inputs, and this device, which has"):
        fix_inputs(big, lambda _: {}, network)
    opened = (TensorSpec("picture", (1, 3, None, None), "uint8"),)
    with pytest.raises(ModelError, match="export the network with a smaller input"):
        fix_inputs(opened, lambda _: {"picture": (1, 3, 1_000_000, 1_000_000)}, network)
