"""The memory budget of all models that serve together."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.core.errors import EngineError
from edge_agent.models.manifest import ModelFolder, load
from edge_agent.serving.budget import Held, MemoryBudget
from tests.helpers.small_models import brightness


def sized(folder: Path, version: str, mb: int) -> ModelFolder:
    """Make a model of so many MB; most of it is a hole."""
    brightness(folder, version)
    with (folder / "more.bin").open("wb") as file:
        file.truncate(mb * 2**20 - 2**18)
    return load(folder)


def test_a_version_is_judged_without_the_one_that_it_replaces(tmp_path: Path) -> None:
    """Both at once are another question; a pinned version replaces none."""
    one, two = sized(tmp_path / "1" / "face", "1", 60), sized(tmp_path / "2" / "face", "2", 50)
    other = sized(tmp_path / "other", "1", 40)
    budget = MemoryBudget(100)
    held = [Held(one, live=True), Held(one, live=True), Held(other, live=True)]
    budget.holders.append(lambda: held)
    budget.check(one)
    budget.check(two)
    assert not budget.fits_beside(two)
    assert MemoryBudget(150).fits_beside(two)
    budget.pins = lambda: {("face", "2.0")}
    figures = r"face@2: its 50 MB and face@1 \(60 MB\), other@1 \(40 MB\) are 150 MB together"
    with pytest.raises(EngineError, match=figures):
        budget.check(two)
    held[0] = Held(one, live=False)
    budget.pins = tuple
    with pytest.raises(EngineError, match=figures):
        budget.check(two)


def test_what_streams_is_not_counted(tmp_path: Path) -> None:
    """Neither when it is loaded nor when others are."""
    small, large = sized(tmp_path / "small", "1", 90), sized(tmp_path / "large", "1", 101)
    budget = MemoryBudget(100)
    budget.take(large, live=True)
    budget.take(small, live=True)
    assert budget.exceeds(large)
    assert budget.fits_beside(large)
    with pytest.raises(EngineError, match=r"memory_budget_mb = 100 for all that serves"):
        budget.take(sized(tmp_path / "more", "1", 11), live=True)
    budget.take(sized(tmp_path / "tiny", "1", 10), live=True)


def test_of_two_that_load_at_once_only_one_gets_the_room(tmp_path: Path) -> None:
    """Two language models that were first asked in the same moment served, and were too much."""
    one, two = sized(tmp_path / "one", "1", 60), sized(tmp_path / "two", "1", 60)
    budget = MemoryBudget(100)
    with budget.loading(one):
        budget.check(one)
        with pytest.raises(EngineError, match=r"two@1: its 60 MB and one@1 \(60 MB\)"):
            budget.check(two)
    with budget.loading(two):
        assert not budget.fits_beside(one)


def test_what_is_loaded_again_keeps_its_room(tmp_path: Path) -> None:
    """Unloaded to be compared on another engine, a model lost it to a push of that moment."""
    one, two = sized(tmp_path / "one", "1", 60), sized(tmp_path / "two", "1", 60)
    budget = MemoryBudget(100)
    with budget.loading(one, again=True):
        with pytest.raises(EngineError, match=r"two@1: its 60 MB and one@1 \(60 MB\)"):
            budget.check(two)
        with budget.loading(one):
            pass
    budget.check(two)


def test_what_comes_back_goes_before_what_is_on_trial(tmp_path: Path) -> None:
    """A push that has not been accepted yet must not keep a version that fails live."""
    bad, good = sized(tmp_path / "2" / "face", "2", 20), sized(tmp_path / "1" / "face", "1", 50)
    tried, more = sized(tmp_path / "other", "2", 60), sized(tmp_path / "more", "1", 21)
    budget = MemoryBudget(100)
    held = [Held(bad, live=True)]
    budget.holders.append(lambda: held)
    with budget.loading(tried, on_trial=True):
        with pytest.raises(EngineError, match=r"more@1: its 21 MB and other@2 \(60 MB\), face@2"):
            budget.check(more)
        with pytest.raises(EngineError, match=r"face@1: its 50 MB and other@2 \(60 MB\)"):
            budget.check(good)
        assert not budget.fits_beside(good)
        with budget.loading(good, back=True), budget.loading(good):
            held = [Held(good, live=True)]
        with pytest.raises(EngineError, match=r"other@2: its 60 MB and face@1 \(50 MB\)"):
            budget.check(tried)


def test_without_a_budget_nothing_is_refused(tmp_path: Path) -> None:
    """That is what most profiles have."""
    budget = MemoryBudget(0)
    for name in "ab":
        budget.take(sized(tmp_path / name, "1", 9999), live=True)
    assert budget.fits_beside(sized(tmp_path / "c", "1", 9999))
