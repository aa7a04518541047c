"""Many clips at full pace: decoded several frames at a time, prepared early, the same results."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.board import Board, Slot
from edge_agent.engines import EngineChoice
from edge_agent.manifest import load
from edge_agent.model import Model, Prepared, open_model
from edge_agent.records import Request, Sample
from edge_agent.shares import Cost
from tests.quantised_models import SIZE, model
from tests.support import (
    CHECKOUT,
    AgentProcess,
    Heard,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    health_at_rest,
)
from tests.test_board import in_thread

DEVICE = "crowd"
ROOM = 4
CLIP = f"file:{CHECKOUT / 'models' / 'media' / 'conveyor.mp4'}?pace=max"
REGION = [40, 20, 400, 300]


@dataclass
class Served:
    """Stands where a model stands."""

    users: int = 0
    together: int = 1
    cost: Cost = field(default_factory=Cost)


def crowd(pipelines: int) -> tuple[Board[Served], list[Slot[Served]]]:
    """Make a board on which so many clips have put all that there is room for."""
    board: Board[Served] = Board()
    served = Served()
    slots = []
    for number in range(pipelines):
        slot: Slot[Served] = Slot(f"p{number}", room=ROOM, lossless=True)
        slot.pick = lambda: served
        board.add(slot)
        slots.append(slot)
    for slot in slots:
        for _ in range(ROOM):
            put(board, slot)
    return board, slots


def put(board: Board[Served], slot: Slot[Served]) -> bool:
    """Put a capture."""
    return board.put(slot, lambda seq: Sample(np.zeros(1, np.float32), seq, 0, 0.0))


def captured(board: Board[Served], slot: Slot[Served]) -> int:
    """Say how many a pipeline has put."""
    return board.accounts()[slot.name].captured


def test_a_clip_in_a_crowd_gives_several_at_a_time() -> None:
    """It waits until nothing of its own is left, and then gives what there is room for."""
    board, slots = crowd(4)
    first = slots[0]

    def give_more() -> None:
        for _ in range(ROOM):
            assert put(board, first)

    giver = in_thread(give_more)
    while len(first.queue) > 0 and board.crowded(first):
        assert captured(board, first) == ROOM
        job = board.take()
        assert job is not None
        board.finish(job, lambda: None)
    giver.join(20)
    assert not giver.is_alive()
    assert captured(board, first) == 2 * ROOM
    board.close()


def test_a_clip_of_higher_priority_gives_one_for_one() -> None:
    """Others that wait behind it are no crowd."""
    board, slots = crowd(4)
    first = slots[0]
    first.share.priority = 1
    assert not board.crowded(first)
    assert board.crowded(slots[1])
    giver = in_thread(lambda: put(board, first))
    job = board.take()
    assert job is not None
    assert job.slot is first
    giver.join(20)
    assert captured(board, first) == ROOM + 1
    board.close()


def test_a_clip_alone_gives_one_for_one() -> None:
    """Two lanes must not wait for it while there is room."""
    board, (slot,) = crowd(1)
    assert not board.crowded(slot)
    giver = in_thread(lambda: put(board, slot))
    job = board.take()
    assert job is not None
    giver.join(20)
    assert captured(board, slot) == ROOM + 1
    board.close()


def test_a_clip_goes_on_when_the_crowd_has_gone() -> None:
    """Others that have ended do not keep it waiting."""
    board, slots = crowd(3)
    assert board.crowded(slots[0])
    giver = in_thread(lambda: put(board, slots[0]))
    for slot in slots[1:]:
        board.remove(slot)
    assert not board.crowded(slots[0])
    assert board.take() is not None
    giver.join(20)
    assert captured(board, slots[0]) == ROOM + 1
    board.close()


@pytest.fixture
def small(tmp_path: Path) -> Model:
    """Load a small network that takes a picture."""
    return open_model(load(model(tmp_path / "small")), [EngineChoice("onnxruntime")], "picture")[0]


def picture(number: int = 0) -> Any:
    """Make a picture."""
    return np.random.default_rng(number).integers(0, 256, (3 * SIZE, 4 * SIZE, 3)).astype(np.uint8)


def test_what_was_prepared_early_is_used(small: Model) -> None:
    """By the model that it was prepared for, for the same part of the picture; by nobody else."""
    early = small.make_ready(picture())
    sample = Sample(picture(), 0, 0, 0.0, early=early)
    assert small.prepare(Request(sample)) is early
    part = small.prepare(Request(sample, region=(0, 0, SIZE, SIZE)))
    assert part is not early
    assert not np.array_equal(part.tensors["picture"], early.tensors["picture"])
    of_another = Prepared({}, None, 0, 0, 0.0)
    anew = small.prepare(Request(Sample(picture(), 0, 0, 0.0, early=of_another)))
    assert np.array_equal(anew.tensors["picture"], early.tensors["picture"])
    out = np.empty_like(early.tensors["picture"])
    small.prepare(Request(sample), out)
    assert np.array_equal(out, early.tensors["picture"])


def test_threads_do_not_share_what_they_write_to(small: Model) -> None:
    """Pictures that are prepared at the same time do not get into each other."""
    wanted = [small.make_ready(picture(number)).tensors["picture"] for number in range(4)]
    wrong: list[int] = []

    def prepare(number: int) -> None:
        for _ in range(200):
            found = small.make_ready(picture(number)).tensors["picture"]
            if not np.array_equal(found, wanted[number]):
                wrong.append(number)

    threads = [in_thread(partial(prepare, number)) for number in range(4)]
    for thread in threads:
        thread.join()
    assert not wrong


def heard(topic: str, count: int, all_: list[Heard]) -> bool:
    """Say whether so many messages have come."""
    return sum(each.topic == topic for each in all_) == count


def play(
    broker: Mosquitto, folder: Path, device: str, pipelines: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Play clips to their ends; gives the results of each."""
    names = [each["name"] for each in pipelines]
    listener = Listener(broker.port, f"edge/{device}/#")
    settings = agent_settings(device, broker.url, pipelines, models_dirs=[str(CHECKOUT / "models")])
    agent = AgentProcess(folder / device, settings)
    try:
        health = health_at_rest(listener, device, names)
        for name in names:
            check_account(health["pipelines"][name])
            topic, count = f"edge/{device}/result/{name}", health["pipelines"][name]["published"]
            listener.wait_for(partial(heard, topic, count), f"{count} results of {name}")
        return {name: listener.on(f"edge/{device}/result/{name}") for name in names}
    finally:
        agent.stop()
        listener.close()


def test_a_crowd_finds_what_one_alone_finds(shared_broker: Mosquitto, tmp_path: Path) -> None:
    """Every frame of every clip, in order, with the same boxes to the last digit."""
    whole: dict[str, Any] = {"source": CLIP, "model": "parts-inspection"}
    part = {**whole, "roi": REGION}
    alone = play(
        shared_broker, tmp_path, "alone", [{"name": "whole", **whole}, {"name": "part", **part}]
    )
    many = [{"name": f"whole-{i}", **whole} for i in range(3)]
    many += [{"name": f"part-{i}", **part} for i in range(2)]
    together = play(shared_broker, tmp_path, DEVICE, many)
    for name, results in together.items():
        wanted = alone[name.partition("-")[0]]
        assert [r["seq"] for r in results] == list(range(len(wanted)))
        assert [r["detections"] for r in results] == [r["detections"] for r in wanted]
    assert any(result["detections"] for result in alone["part"])
