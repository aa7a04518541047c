"""A challenger takes over only if it agrees and is faster; a loser is not built again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import EngineError
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.manifest import load
from edge_agent.serving.challenger import Challenge, Notes, log_decision
from edge_agent.serving.verdicts import FILE, Decision, Verdicts
from tests.helpers.prepared_models import noise, raw_manifest
from tests.helpers.tiny_networks import node, save_onnx

SIZE = 256


def products(folder: Path, rounds: int, factor: float = 1.0) -> Path:
    """Make a model that multiplies its input with an orthogonal matrix, many times over."""
    folder.mkdir(parents=True)
    swap = np.eye(SIZE, dtype=np.float32)[::-1].copy()
    steps = [node("MatMul", [f"x{i}", "swap"], [f"x{i + 1}"]) for i in range(rounds)]
    steps.append(node("Mul", [f"x{rounds}", "factor"], ["y"]))
    save_onnx(
        folder / "model.onnx",
        steps,
        [("x0", "float32", (SIZE, SIZE))],
        [("y", "float32", (SIZE, SIZE))],
        {"swap": swap, "factor": np.array(factor, np.float32)},
    )
    return raw_manifest(folder)


def opened(folder: Path) -> Model:
    """Load it."""
    choice = EngineChoice("onnxruntime", threads=1, options={"graph_optimization_level": "basic"})
    return load_model(load(folder), [choice], "signal")


class Stage:
    """A model that serves: each time that it is looked at it has been given another input."""

    kind = "signal"

    def __init__(self, model: Model) -> None:
        self.serves = model
        self.retired: list[Model] = []
        self.looks = 0

    @property
    def model(self) -> Model:
        self.looks += 1
        if self.looks > 1:  # before that nothing has been inferred yet
            self.serves.last = {"x0": noise(self.looks, SIZE, SIZE)}
        return self.serves

    def replace(self, old: Model, new: Model) -> bool:
        if self.serves is not old:
            return False
        self.serves = new
        self.retired.append(old)
        return True


def challenge_of(
    stage: Any, load: Callable[[], Model], notes: Notes, name: str, **how: Any
) -> Challenge:
    """Challenge what serves; the stage is also what exchanges it."""
    return Challenge(stage, stage.serves, stage, load, notes, name, **how)


@pytest.fixture
def slow(tmp_path: Path) -> Model:
    """Load the incumbent: 40 products."""
    return opened(products(tmp_path / "slow", 40))


Tried = Callable[..., Decision]


@pytest.fixture
def tried(tmp_path: Path) -> Tried:
    """Try a challenger; decisions are kept on the disk."""
    products(tmp_path / "model", 1)

    def attempt(stage: Stage, load: Callable[[], Model], name: str = "other") -> Decision:
        challenge = challenge_of(stage, load, notes(tmp_path, name), name)
        while (decision := challenge.step()) is None:
            pass
        return decision

    return attempt


def notes(tmp_path: Path, name: str = "other") -> Notes:
    """Say where the decision about a challenger is kept, as read from the disk."""
    choice = EngineChoice("onnxruntime", options={"name": name})
    (tmp_path / "state").mkdir(exist_ok=True)
    return Notes(Verdicts(tmp_path / "state"), tmp_path / "model", choice)


def test_the_faster_one_takes_over(slow: Model, tried: Tried, tmp_path: Path) -> None:
    """One that gives the same and is much faster serves from then on; the other is retired."""
    stage, quick = Stage(slow), opened(products(tmp_path / "quick", 2))
    decision = tried(stage, lambda: quick)
    assert decision.takes_over
    assert stage.serves is quick
    assert stage.retired == [slow]
    assert decision.incumbent_ms is not None
    assert decision.challenger_ms is not None
    assert decision.challenger_ms < decision.incumbent_ms
    assert notes(tmp_path).read() == decision


def test_the_slower_one_does_not(slow: Model, tried: Tried, tmp_path: Path) -> None:
    """One that agrees and is slower is closed, and not built a second time."""
    stage, slower = Stage(slow), opened(products(tmp_path / "slower", 80))
    decision = tried(stage, lambda: slower)
    assert not decision.takes_over
    assert "not faster" in decision.why
    assert stage.serves is slow
    with pytest.raises(EngineError, match="closed"):
        slower.run({"x0": noise(0, SIZE, SIZE)})
    again = tried(stage, lambda: pytest.fail("it was built again"))
    assert again == decision
    # Of another name, which is another engine or version, nothing is known.
    assert tried(stage, lambda: opened(products(tmp_path / "next", 2)), "next").takes_over


def test_one_that_disagrees_does_not(slow: Model, tried: Tried, tmp_path: Path) -> None:
    """However fast it is: one whose numbers are others never serves."""
    stage, wrong = Stage(slow), opened(products(tmp_path / "wrong", 2, factor=1.1))
    decision = tried(stage, lambda: wrong)
    assert not decision.takes_over
    assert "disagrees" in decision.why
    assert stage.serves is slow
    assert notes(tmp_path).read() == decision


def test_one_that_won_before_must_still_agree(slow: Model, tried: Tried, tmp_path: Path) -> None:
    """A winner is not measured again at the next start, but looked at on live inputs."""
    first = tried(Stage(slow), lambda: opened(products(tmp_path / "one", 2)))
    assert first.takes_over
    fresh = opened(tmp_path / "slow")
    again = tried(Stage(fresh), lambda: opened(products(tmp_path / "two", 2)))
    assert (again.takes_over, again.incumbent_ms) == (True, first.incumbent_ms)
    wrong = Stage(opened(tmp_path / "slow"))
    last = tried(wrong, lambda: opened(products(tmp_path / "three", 2, factor=2.0)))
    assert not last.takes_over
    assert "disagrees" in last.why


def test_a_winner_whose_engine_is_verified_takes_over_at_the_first_frame(
    slow: Model, tried: Tried, tmp_path: Path
) -> None:
    """After a restart nothing is left to find out: a saturated box is not slow for seconds."""
    first = tried(Stage(slow), lambda: opened(products(tmp_path / "one", 2)))
    stage = Stage(opened(tmp_path / "slow"))
    other = opened(products(tmp_path / "two", 2))
    again = challenge_of(stage, lambda: other, notes(tmp_path), "other", verified=True)
    assert again.step() is None  # no frame yet
    decision = again.step()
    assert decision is not None
    assert (decision.takes_over, decision.incumbent_ms) == (True, first.incumbent_ms)
    assert stage.serves is other
    assert stage.looks == 2
    new = challenge_of(
        stage, lambda: opened(tmp_path / "slow"), notes(tmp_path, "new"), "new", verified=True
    )
    assert new.step() is None  # its speed is not known: it is measured
    new.close()


def test_one_that_does_not_load_may_try_again(slow: Model, tried: Tried, tmp_path: Path) -> None:
    """A driver that is not up yet is no decision."""

    def fails() -> Model:
        raise EngineError("no such device yet")

    decision = tried(Stage(slow), fails)
    assert not decision.takes_over
    assert "no such device yet" in decision.why
    assert notes(tmp_path).read() is None


def test_nothing_is_exchanged_for_a_model_that_is_gone(
    slow: Model, tried: Tried, tmp_path: Path
) -> None:
    """Where a push has put another model there meanwhile, the challenger is closed."""

    class Pushed(Stage):
        def replace(self, old: Model, new: Model) -> bool:
            self.serves = pushed
            return super().replace(old, new)

    pushed = opened(products(tmp_path / "pushed", 3))
    stage = Pushed(slow)
    decision = tried(stage, lambda: opened(products(tmp_path / "quick", 2)))
    assert not decision.takes_over
    assert stage.serves is pushed
    assert notes(tmp_path).read() is None


def test_a_challenge_can_be_given_up(slow: Model, tmp_path: Path) -> None:
    """An agent that ends does not wait for live inputs that do not come."""

    class Idle(Stage):
        @property
        def model(self) -> Model:
            return self.serves

    quick = opened(products(tmp_path / "quick", 2))
    challenge = challenge_of(Idle(slow), lambda: quick, notes(tmp_path), "other")
    assert challenge.step() is None
    assert challenge.step() is None
    challenge.close()
    with pytest.raises(EngineError, match="closed"):
        quick.run({"x0": noise(0, SIZE, SIZE)})
    assert notes(tmp_path).read() is None


def test_that_nothing_changes_is_no_news(
    slow: Model, tried: Tried, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a challenger that is slower only `--verbose` tells; of one that takes over, the log."""
    caplog.set_level(logging.DEBUG)
    slower, quick = (opened(products(tmp_path / f"{count}", count)) for count in (80, 2))
    for name, other in (("slower", slower), ("quick", quick)):
        log_decision(slow, name, tried(Stage(slow), lambda other=other: other, name))
    said = [record.levelname for record in caplog.records if slow.id in record.message]
    assert said == ["DEBUG", "INFO"]


def test_a_decision_can_be_reversed(slow: Model, tried: Tried, tmp_path: Path) -> None:
    """Who won here would have lost there, by the same times; without times there is nothing."""
    decision = tried(Stage(slow), lambda: opened(products(tmp_path / "quick", 2)))
    other = decision.reversed("the slow one")
    assert other is not None
    assert not other.takes_over
    assert "not faster" in other.why
    assert (other.incumbent_ms, other.challenger_ms) == (
        decision.challenger_ms,
        decision.incumbent_ms,
    )
    back = other.reversed(decision.engine)
    assert back is not None
    assert back.takes_over
    assert Decision(engine="x", takes_over=False, why="disagrees").reversed("y") is None


def test_who_is_about_as_fast_is_not_said_to_be_faster() -> None:
    """It was logged that an engine takes over with "2.86 ms beside 2.83 ms"."""
    lost = Decision(engine="x", takes_over=False, why="", incumbent_ms=2.86, challenger_ms=2.83)
    back = lost.reversed("y")
    assert back is not None
    assert (back.takes_over, back.why) == (True, "about as fast: 2.86 ms beside 2.83 ms of x")


def test_damaged_notes_count_as_none(slow: Model, tried: Tried, tmp_path: Path) -> None:
    """Notes that cannot be read are found out again."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE).write_text('{"races": {"engine"')
    assert notes(tmp_path).read() is None
    assert tried(Stage(slow), lambda: opened(products(tmp_path / "quick", 2))).takes_over
    known = notes(tmp_path).read()
    assert known is not None
    assert known.takes_over
