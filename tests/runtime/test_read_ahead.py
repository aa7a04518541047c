"""Many clips at full pace: read a few at a time, prepared early, the same results."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge_agent.core.types import Request, Sample
from edge_agent.inference.engines.engine import EngineChoice
from edge_agent.inference.model import Model, load_model
from edge_agent.inference.preprocess.placement import PreparedSample
from edge_agent.models.manifest import load
from edge_agent.runtime.scheduler.board import Board, FrameQueue
from edge_agent.runtime.scheduler.read_ahead import AHEAD, BURST, BURST_SECONDS
from tests.helpers.quantized_models import SIZE, model
from tests.helpers.support import (
    CHECKOUT,
    PATIENCE,
    AgentProcess,
    Heard,
    Listener,
    Mosquitto,
    agent_settings,
    check_account,
    health_at_rest,
)
from tests.runtime.test_board import FixedRoute, Served, in_thread

DEVICE = "crowd"
ROOM = 4
CLIP = f"file:{CHECKOUT / 'models' / 'media' / 'conveyor.mp4'}?pace=max"
REGION = [40, 20, 400, 300]


@dataclass
class Crowd:
    """A board, and clips at full pace that put what they may whenever they are asked to."""

    clips: int
    lanes: int = 2
    cost: float = 0.001
    """Seconds of a lane that a frame usually takes; 0: nobody knows."""
    several: bool = True
    board: Board[Served] = field(init=False)
    queues: list[FrameQueue[Served]] = field(default_factory=list)
    model: Served = field(default_factory=Served)

    def __post_init__(self) -> None:
        self.board = Board(lanes=self.lanes)
        self.model.cost.seconds = self.cost
        for number in range(self.clips):
            self.add(f"p{number}")

    def add(self, name: str, *, lossless: bool = True, priority: int = 0) -> FrameQueue[Served]:
        """Add a pipeline."""
        queue: FrameQueue[Served] = FrameQueue(
            name,
            FixedRoute(self.model),
            room=ROOM if lossless else 1,
            lossless=lossless,
            priority=priority,
        )
        self.board.add(queue)
        self.queues.append(queue)
        return queue

    def give(self, queue: FrameQueue[Served]) -> int:
        """Have a clip give all that it may now; says how many."""
        gave = 0
        while self.board.wait_turn(queue, burst=self.several, timeout=0):
            assert put(self.board, queue)
            gave += 1
        return gave

    def fill(self) -> list[int]:
        """Have each give what it may."""
        return [self.give(queue) for queue in self.queues if queue.lossless]

    def take(self) -> str:
        """Have a lane take what is next, and finish it; says whose it was."""
        job = self.board.take()
        assert job is not None
        self.board.finish(job, lambda: None)
        self.model.cost.seconds = self.cost  # as if it had taken what it usually takes
        return job.queue.name

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(queue.frames) for queue in self.queues)


def put(board: Board[Served], queue: FrameQueue[Served]) -> bool:
    """Put a capture."""
    return board.put(queue, lambda seq: Sample(np.zeros(1, np.float32), seq, 0, time.monotonic()))


def test_a_clip_alone_gives_one_for_one() -> None:
    """Two lanes must not wait for it while there is room, and each is prepared by its lane."""
    crowd = Crowd(1)
    assert crowd.fill() == [ROOM]
    assert not crowd.queues[0].pacing.bursting
    crowd.take()
    assert crowd.fill() == [1]


def test_in_a_crowd_each_gives_several_in_a_row_and_little_waits() -> None:
    """Of 16 clips at most what the lanes need soon waits, and every one has its turn."""
    crowd = Crowd(16)
    crowd.fill()
    rows: list[tuple[str, int]] = []
    for _ in range(600):
        crowd.take()
        rows += [
            (s.name, gave) for s in crowd.queues if (gave := crowd.give(s)) and s.pacing.bursting
        ]
        assert 0 < crowd.waiting <= AHEAD * crowd.lanes + BURST
    assert {count for _, count in rows} == {BURST}
    assert len({name for name, _ in rows}) == 16
    # In turn: between two rows of one come those of all others.
    names = [name for name, _ in rows]
    assert all(len(set(names[i : i + 16])) == 16 for i in range(len(names) - 16))


@pytest.mark.parametrize("cost", [0.0, BURST_SECONDS])
def test_where_frames_take_long_each_gives_one(cost: float) -> None:
    """Nobody shall wait for a row of them; nor where nobody knows yet how long they take."""
    crowd = Crowd(16, cost=cost)
    crowd.fill()
    for _ in range(100):
        crowd.take()
        assert all(gave <= 1 for gave in crowd.fill())
        assert not any(queue.pacing.bursting for queue in crowd.queues)


def test_a_clip_that_is_slowed_down_gives_one_at_a_time() -> None:
    """It sleeps between two, and shall not keep a turn meanwhile."""
    crowd = Crowd(16, several=False)
    crowd.fill()
    for _ in range(50):
        crowd.take()
        assert all(gave <= 1 for gave in crowd.fill())


def test_clips_of_another_priority_are_no_crowd() -> None:
    """What waits behind is in nobody's way, and who waits behind must be there to be let in."""
    crowd = Crowd(8)
    crowd.fill()
    first = crowd.add("first", priority=1)
    assert crowd.give(first) == ROOM
    assert crowd.take() == "first"
    assert crowd.give(first) == 1
    assert not first.pacing.bursting


def test_what_leaves_its_turn_lets_others_go_on() -> None:
    """A clip that ends, or is taken away, in the middle of a row."""
    crowd = Crowd(3)
    crowd.fill()
    for leave in (crowd.board.end_turn, crowd.board.remove):
        while not any(queue.pacing.granted > 1 and queue.pacing.bursting for queue in crowd.queues):
            crowd.take()
            for queue in crowd.queues:
                # Each reads one, and is in the middle of its row then.
                if crowd.board.wait_turn(queue, timeout=0):
                    put(crowd.board, queue)
        leaving = next(queue for queue in crowd.queues if queue.pacing.granted > 1)
        leave(leaving)
        crowd.queues.remove(leaving)
        gone = leaving.name
        served = set()
        for _ in range(40):
            served.add(crowd.take())
            crowd.fill()
        assert served - {gone} == {queue.name for queue in crowd.queues}


def test_whoever_holds_up_its_turn_holds_up_nobody() -> None:
    """Clips on a disk that hangs have been asked for frames; a lane asks others before it waits."""
    crowd = Crowd(12)
    crowd.fill()
    # As many as may go on are asked, and do not give.
    hanging = [queue for queue in crowd.queues if not queue.frames][:3]
    taken = {queue.name for queue in crowd.queues if queue not in hanging}
    for queue in hanging:
        queue.pacing.granted, queue.pacing.waiting = BURST, False
    given: list[str] = []

    def feed(queue: FrameQueue[Served]) -> None:
        while crowd.board.wait_turn(queue):
            if not put(crowd.board, queue):
                return

    for queue in crowd.queues:
        if queue not in hanging:
            in_thread(partial(feed, queue))
    deadline = time.monotonic() + PATIENCE
    while set(given) != taken:
        assert time.monotonic() < deadline, f"only {set(given)}"
        given.append(crowd.take())
    crowd.board.close()


def test_who_asks_after_it_was_taken_away_does_not_wait() -> None:
    """A capture that was reading meanwhile; no lane looks for it from then on."""
    crowd = Crowd(1)
    (queue,) = crowd.queues
    crowd.board.remove(queue)
    assert not crowd.board.wait_turn(queue)
    assert not crowd.board._waiting


def test_a_signal_asks_nobody() -> None:
    """Recordings of signals give window by window; they are no crowd to pictures."""
    crowd = Crowd(1)
    for number in range(4):
        signal = crowd.add(f"s{number}")
        for _ in range(ROOM):
            put(crowd.board, signal)
    assert crowd.give(crowd.queues[0]) == ROOM


def test_closing_lets_everyone_go() -> None:
    """Who waits for its turn is told that nobody will come."""
    crowd = Crowd(6)
    crowd.fill()
    answers: list[bool] = []
    resting = [queue for queue in crowd.queues if queue.pacing.waiting]
    assert resting
    threads = [
        in_thread(lambda queue=queue: answers.append(crowd.board.wait_turn(queue)))  # type: ignore[misc]
        for queue in resting
    ]
    crowd.board.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [False] * len(resting)


@pytest.fixture
def small(tmp_path: Path) -> Model:
    """Load a small network that takes a picture."""
    return load_model(load(model(tmp_path / "small")), [EngineChoice("onnxruntime")], "picture")


def picture(number: int = 0) -> Any:
    """Make a picture."""
    return np.random.default_rng(number).integers(0, 256, (3 * SIZE, 4 * SIZE, 3)).astype(np.uint8)


def test_what_was_prepared_early_is_used(small: Model) -> None:
    """By the model that it was prepared for, for the same part of the picture; by nobody else."""
    early = small.prepare_data(picture(), stream=True)
    sample = Sample(picture(), 0, 0, 0.0, early=early)
    assert small.prepare(Request(sample)) is early
    part = small.prepare(Request(sample, region=(0, 0, SIZE, SIZE)))
    assert part is not early
    assert not np.array_equal(part.tensors["picture"], early.tensors["picture"])
    of_another = PreparedSample({}, None, 0, 0, 0.0)
    anew = small.prepare(Request(Sample(picture(), 0, 0, 0.0, early=of_another)))
    assert np.array_equal(anew.tensors["picture"], early.tensors["picture"])


def test_only_pictures_of_streams_are_resized_in_the_quick_way(tmp_path: Path) -> None:
    """Pictures of a folder and of questions are compared; those of a codec are near enough."""
    folder = model(tmp_path / "coarse", weights={"step": np.array(1 / 32, np.float32)})
    coarse = load_model(load(folder), [EngineChoice("onnxruntime")], "picture")
    data = np.random.default_rng(0).integers(0, 256, (131, 173, 3)).astype(np.uint8)
    ready = [coarse.prepare(Request(Sample(data, 0, 0, 0.0, file))) for file in (None, "cat.png")]
    stream, still = (each.tensors["picture"] for each in ready)
    assert stream.dtype.itemsize == 1
    assert np.array_equal(still, coarse.prepare_data(data).tensors["picture"])
    assert np.array_equal(stream, coarse.prepare_data(data, stream=True).tensors["picture"])
    assert np.abs(stream.astype(int) - still).max() == (1 if cv2.ipp.useIPP() else 0)
    asked = coarse.prepare(Request(Sample(data, 0, 0, 0.0), foreign=True))
    assert np.array_equal(asked.tensors["picture"], still)


def test_threads_do_not_share_what_they_write_to(small: Model) -> None:
    """Pictures that are prepared at the same time do not get into each other."""
    wanted = [small.prepare_data(picture(number)).tensors["picture"] for number in range(4)]
    wrong: list[int] = []

    def prepare(number: int) -> None:
        for _ in range(200):
            found = small.prepare_data(picture(number)).tensors["picture"]
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
    # One engine from the first frame on: the last digits are an engine's own.
    settings = agent_settings(
        device,
        broker.url,
        pipelines,
        engine="openvino",
        models_dirs=[str(CHECKOUT / "models")],
    )
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
