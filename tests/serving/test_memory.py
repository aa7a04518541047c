"""What is unloaded and returned when memory is short."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.config.settings import Arm
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.models.manifest import load
from edge_agent.runtime.scheduler.board import Board
from edge_agent.serving.active import ActiveModels
from edge_agent.serving.memory import EVERY, GONE_SECONDS, SHORT_IDLE, MemoryRelease
from tests.helpers.small_models import brightness


def test_models_that_may_go_do_so_early_when_memory_is_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A second stage without work goes after five seconds instead of its time; the first stays.

    That memory is short is logged when it begins, not at every look.
    """
    board: Board[Model] = Board()
    active = ActiveModels(board, lambda: None, lambda: None)  # type: ignore[arg-type, return-value]
    first, second = (active.serving_for(Arm(name, None, 1), "picture") for name in ("one", "two"))
    for serving in (first, second):
        folder = load(brightness(tmp_path / serving.arm.name))
        active.put(
            serving.arm, "picture", load_model(folder, [EngineChoice("onnxruntime")], "picture")
        )
    second.lazy = True
    assert first.model is not None
    assert second.model is not None
    words: list[str] = []
    now = 100.0
    memory = MemoryRelease(active, idle_s=3600.0, short=lambda: words, clock=lambda: now)
    second.model.stats.used_at -= SHORT_IDLE + 1
    memory.step()
    assert second.model is not None, "there is room, and its time is not over"
    words.append("memory: 95 of 100 MiB are used")
    for _ in range(2):
        now += EVERY
        memory.step()
    assert second.model is None
    assert first.model is not None
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        f"short of {each}" for each in words
    ]
    active.close()


def test_what_has_gone_gives_its_memory_back() -> None:
    """Once, after its threads have ended; what comes, and what stays, is no reason."""
    board: Board[Model] = Board()
    active = ActiveModels(board, lambda: None, lambda: None)  # type: ignore[arg-type, return-value]
    there: set[object] = set()
    trimmed: list[float] = []
    now = 100.0
    memory = MemoryRelease(
        active,
        idle_s=0.0,
        present=lambda: frozenset(there),
        short=list,
        forget=lambda: trimmed.append(now),
        clock=lambda: now,
    )

    def wait(seconds: float) -> None:
        nonlocal now
        for _ in range(int(seconds)):
            now += 1.0
            memory.step()

    there |= {"a", "b", "c"}
    wait(60)
    assert not trimmed
    there.remove("a")
    wait(GONE_SECONDS)
    there.remove("b")  # in a reload many go, one after the other
    wait(GONE_SECONDS)
    assert not trimmed
    wait(60)
    assert len(trimmed) == 1
    there.remove("c")
    there.add("d")
    wait(60)
    assert len(trimmed) == 2


def test_models_are_forgotten_without_waiting_for_their_last_frame(tmp_path: Path) -> None:
    """Whoever reads the settings again goes on; a model with a frame in it is not idle either."""
    board: Board[Model] = Board()
    active = ActiveModels(board, lambda: None, lambda: None)  # type: ignore[arg-type, return-value]
    serving = active.serving_for(Arm("one", None, 1), "picture")
    folder = load(brightness(tmp_path / "one"))
    model = load_model(folder, [EngineChoice("onnxruntime")], "picture")
    for version in (None, "1"):
        active.put(Arm("one", version, 1), "picture", model)
    serving.lazy = True
    model.stats.used_at -= 10.0
    with board.using(lambda: [model]):
        MemoryRelease(active, idle_s=5.0, short=list).step()
        assert serving.model is model
        assert active.forget({("one@1", "picture")}) == []
        assert active.forget(set()) == [model]
    assert active.all() == []
    active.retire(model)
