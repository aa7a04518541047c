"""Requests that belong to no pipeline: into the lanes, to a model that no pipeline has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.config.settings import Settings
from edge_agent.core.errors import RequestError
from edge_agent.core.threads import ShutdownQueue
from edge_agent.core.timeline import Timeline
from edge_agent.core.types import Outcome, Values
from edge_agent.daemon.inventory import Inventory
from edge_agent.runtime.pipelines.runner import Runner
from tests.helpers.small_models import brightness, plain


class Box:
    """An agent's frames without a pipeline: lanes, models, no source."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(
            device_id="box", state_dir=str(folder / "state"), models_dirs=(str(folder / "models"),)
        )
        inventory = Inventory(settings)
        self.inventory = inventory
        self.runner = Runner(
            settings,
            lanes=2,
            catalog=lambda: inventory.catalog,
            loader=lambda: inventory.loader,
            stops=ShutdownQueue(),
            timeline=Timeline(),
        )
        self.runner.board.settled.set()

    def count(self, name: str) -> tuple[int, int, int]:
        """Give how many requests have come, were answered, and wait."""
        account = self.runner.board.accounts()[f"requests:{name}"]
        return account.captured, account.inferred, account.waiting


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """Make one whose lanes are not started."""
    brightness(tmp_path / "models" / "light")
    box = Box(tmp_path)
    yield box
    box.runner.halt()
    box.runner.board.close()
    box.runner.threads.__exit__(None, None, None)
    box.runner.active.close()


def value(outcome: Outcome) -> float:
    """Give what `light` has measured."""
    assert isinstance(outcome.findings, Values)
    (found,) = outcome.findings.values.values()
    return found


def test_a_picture_is_asked_of_a_model_that_no_pipeline_has(box: Box) -> None:
    """Each answer is its picture's; refused at once when full; a swap in between loses none."""
    before = threading.active_count()
    queue = box.runner.accept("page", "light", "picture", room=3)
    assert threading.active_count() == before
    asked = [queue.submit(plain(shade)) for shade in (10, 100, 200)]
    with pytest.raises(RequestError, match="3 requests wait"):
        queue.submit(plain(0))
    assert queue.refused == 1
    assert box.count("page") == (3, 0, 3)
    (serving,) = box.runner.active.all()
    old = serving.model
    assert old is not None
    new, _ = box.inventory.loader.load(old.folder, "picture")
    exchange = box.runner.active.exchange({"picture": new}, "light")
    assert exchange.retired == [old]
    assert exchange.frames_dropped == 0
    box.runner.active.retire(old)
    box.runner.start()
    answers = [value(each.result(10)) for each in asked]
    assert answers == sorted(answers)
    assert len(set(answers)) == 3
    assert box.count("page") == (3, 3, 0)
    assert new.stats.inferred == 3


def test_an_error_is_the_answer_and_a_canceled_request_costs_nobody_else(box: Box) -> None:
    """A region outside of the picture; once nobody asks any more, the model is unloaded."""
    queue = box.runner.accept("page", "light", "picture", room=8)
    bad = queue.submit(plain(10), region=(5000, 0, 6000, 10))
    gone = queue.submit(plain(10))
    assert gone.cancel()
    good = queue.submit(plain(10))
    box.runner.start()
    assert good.result(10)
    assert bad.exception(10) is not None
    box.runner.refuse(queue)
    with pytest.raises(RequestError, match="takes no more requests"):
        queue.submit(plain(10))
    assert box.runner.active.all() == []
    assert box.runner.board.accounts() == {}


def test_what_waits_at_the_end_is_canceled(box: Box) -> None:
    """Nobody waits for an answer that cannot come."""
    asked = box.runner.accept("page", "light", "picture", room=1).submit(plain(10))
    box.runner.halt()
    assert asked.cancelled()
