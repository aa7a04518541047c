"""The board: who waits, who gives way, who goes first, and that every capture is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge_agent.core.errors import AgentError
from edge_agent.core.threads import DiskLock
from edge_agent.core.types import Outcome, Request, Sample
from edge_agent.inference.statistics import Cost
from edge_agent.runtime.scheduler.board import REASONS, Account, Board, FrameQueue, Job
from edge_agent.runtime.scheduler.queue import MOST_RESULTS, Reason
from tests.helpers.support import PATIENCE, wait_until

NOTHING = np.zeros(1, np.float32)


@dataclass
class Served:
    """Stands where a model stands: one that has had a frame, if not said otherwise."""

    name: str = "m"
    users: int = 0
    together: int = 1
    in_order: bool = False
    cost: Cost = field(default_factory=Cost)
    first_at: float | None = 0.0


@dataclass
class FixedRoute:
    """A route to one model."""

    model: Served | None

    def choose(self) -> Served | None:
        """Return it."""
        return self.model

    def advance(self) -> None:
        """There is no other."""

    def beside(self) -> tuple[()]:
        """Return no other."""
        return ()

    def suits(self, model: Served, sample: Sample) -> bool:
        """Whatever has been cut for it, or for nobody in particular."""
        return sample.cut in {None, model.name}

    def request(self, sample: Sample) -> Request:
        """Ask for nothing in particular."""
        return Request(sample)

    def complete(self, job: Job[Served], answer: Outcome | AgentError) -> None:
        """Leave it to the test."""


@dataclass
class Bench:
    """A board with queues that all use one model."""

    model: Served = field(default_factory=Served)
    now: float | None = None
    """What the board's clock says; None: it runs."""
    board: Board[Served] = field(init=False)

    def __post_init__(self) -> None:
        self.board = Board(clock=self.clock)

    def clock(self) -> float:
        """Tell the time."""
        return time.monotonic() if self.now is None else self.now

    def queue(
        self,
        name: str = "p",
        *,
        room: int = 1,
        lossless: bool = False,
        priority: int = 0,
        deadline: float = 0.0,
    ) -> FrameQueue[Served]:
        """Add a queue."""
        queue: FrameQueue[Served] = FrameQueue(
            name,
            FixedRoute(self.model),
            room=room,
            lossless=lossless,
            priority=priority,
            deadline=deadline,
        )
        self.board.add(queue)
        return queue

    def put(self, queue: FrameQueue[Served], since: float = 0.0) -> bool:
        """Put a capture that was read at *since*."""
        return self.board.put(queue, lambda seq: Sample(NOTHING, seq, 0, since))

    def take(self) -> Job[Served]:
        """Take a job that is there."""
        job = self.board.take()
        assert job is not None
        return job

    def account(self, name: str = "p") -> Account:
        """Give a queue's account, which must add up."""
        account = self.board.accounts()[name]
        assert adds_up(account)
        return account


def adds_up(account: Account) -> bool:
    """Whether captured = inferred + waiting + all dropped."""
    return account.captured == account.inferred + account.waiting + sum(account.dropped.values())


@pytest.fixture
def bench() -> Bench:
    """Give an empty board."""
    return Bench()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Start *work* beside the test."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def settle(bench: Bench, queue: FrameQueue[Served], said: list[Any]) -> None:
    """Wait until a queue is settled, and say so."""
    bench.board.wait_delivered(queue, threading.Event())
    said.append("settled")


@contextmanager
def lanes_of(
    board: Board[Served], deliver: Callable[[Job[Served]], Callable[[], None]]
) -> Iterator[list[threading.Thread]]:
    """Have the board start lanes, which must end with it; gives those that it has started.

    *deliver* gives what delivers a job's result.
    """

    def lane() -> None:
        while (job := board.take()) is not None:
            board.finish(job, deliver(job))

    lanes: list[threading.Thread] = []
    board.lanes.add = lambda: lanes.append(in_thread(lane))
    yield lanes
    board.close()
    for thread in lanes:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_lane_that_waits_for_the_disk_holds_up_no_other_pipeline() -> None:
    """Each event waits for a worn card: a camera without rules fell from 5 frames a second to 0."""
    bench = Bench()
    board: Board[Served] = Board(lanes=1)
    bench.board = board
    slow, other = bench.queue("slow"), bench.queue("other")
    waits, written, done = threading.Event(), threading.Event(), threading.Semaphore(0)

    def write() -> None:
        with board.waiting_for_disk():
            waits.set()
            assert written.wait(PATIENCE)

    def deliver(job: Job[Served]) -> Callable[[], None]:
        return write if job.queue is slow and not waits.is_set() else done.release

    with lanes_of(board, deliver) as lanes:
        board.lanes.add()
        bench.put(slow)
        assert waits.wait(PATIENCE)
        for _ in range(3):
            bench.put(other)
            assert done.acquire(timeout=PATIENCE)
        assert len(lanes) == 2
        for _ in range(3):
            bench.put(slow)  # would hold its picture until the disk has written
        bench.put(other)
        assert done.acquire(timeout=PATIENCE)
        assert bench.account("slow").dropped["superseded"] == 2
        assert bench.account("slow").waiting == 1
        written.set()
        assert done.acquire(timeout=PATIENCE), "the newest"


def test_a_lane_that_waits_for_the_disk_for_minutes_is_not_alive(bench: Bench) -> None:
    """A disk that hung for good kept alarms from being raised, and the watchdog was fed."""
    bench.now, lanes = 0.0, bench.board.lanes
    bench.put(bench.queue())
    job = bench.take()
    assert (lanes.are_alive(29.0, 30.0), lanes.are_alive(30.0, 30.0)) == (True, False)
    with bench.board.waiting_for_disk():
        assert (lanes.are_alive(299.0, 30.0), lanes.are_alive(300.0, 30.0)) == (True, False)
        bench.now = 300.0
    assert (lanes.are_alive(329.0, 30.0), lanes.are_alive(330.0, 30.0)) == (True, False)
    bench.board.finish(job, None)


def test_no_more_lanes_run_than_before_and_a_spare_one_is_woken() -> None:
    """A lane that was added for a wait stays, and runs only while another waits."""
    bench = Bench()
    board: Board[Served] = Board(lanes=1)
    bench.board = board
    bench.put(bench.queue())
    job = bench.take()
    bench.put(bench.queue("other"))
    taken: list[str] = []

    def deliver(job: Job[Served]) -> Callable[[], None]:
        taken.append(job.queue.name)
        return lambda: None

    with lanes_of(board, deliver) as lanes:
        board.lanes.add()
        wait_until(lambda: bool(board.lanes.spare or taken), "a lane that finds the frame")
        assert taken == []
        with board.waiting_for_disk():
            wait_until(lambda: bool(taken), "the spare lane")
        assert (taken, len(lanes)) == (["other"], 1)
        board.finish(job, None)


def test_what_came_while_the_disk_wrote_waits_for_no_delivery() -> None:
    """The result's way to the broker may take long, too: a lane that is free takes the frame."""
    bench = Bench()
    board = bench.board
    slow, other = bench.queue("slow"), bench.queue("other")
    taken: list[str] = []

    def deliver(job: Job[Served]) -> Callable[[], None]:
        taken.append(job.queue.name)
        return lambda: None

    def write() -> None:
        with board.waiting_for_disk():
            bench.put(slow)
            bench.put(other)
            wait_until(lambda: taken == ["other"] and board.lanes.spare == 1, "the other pipeline")
        wait_until(lambda: taken == ["other", "slow"], "a lane that takes the next frame")

    bench.put(slow)
    job = bench.take()
    with lanes_of(board, deliver):
        board.lanes.add()
        wait_until(lambda: board.lanes.spare == 1, "a lane that waits")
        board.finish(job, write)


def test_who_waits_for_one_that_waits_for_the_disk_lets_another_run() -> None:
    """A rule's event that no result has caused is written with the pipeline's rules locked."""
    bench = Bench()
    board: Board[Served] = Board(lanes=1)
    bench.board = board
    lock = DiskLock(board.waiting_for_disk)
    bench.put(bench.queue("waits"))
    bench.put(bench.queue("other"))
    done = threading.Semaphore(0)

    def enter() -> None:
        with lock:
            done.release()

    def deliver(job: Job[Served]) -> Callable[[], None]:
        return enter if job.queue.name == "waits" else done.release

    with lanes_of(board, deliver):
        with lock:
            board.lanes.add()
            assert done.acquire(timeout=PATIENCE), "of the other pipeline"
        assert done.acquire(timeout=PATIENCE)


def test_the_newest_wins(bench: Bench) -> None:
    """A live queue keeps its latest capture; those before are counted as superseded."""
    queue = bench.queue()
    for _ in range(5):
        assert bench.put(queue)
    assert bench.account().waiting == 1
    job = bench.take()
    assert job.sample.seq == 4
    assert bench.account().dropped["superseded"] == 4
    bench.board.finish(job, lambda: None)
    account = bench.account()
    assert (account.captured, account.inferred, account.waiting) == (5, 1, 0)


def test_a_frame_that_is_being_inferred_still_waits(bench: Bench) -> None:
    """What a lane has taken counts as waiting until it is finished."""
    queue = bench.queue()
    bench.put(queue)
    job = bench.take()
    assert bench.account().waiting == 1
    bench.put(queue)
    assert bench.account().waiting == 2
    assert bench.account().dropped["superseded"] == 0
    bench.board.finish(job, lambda: None)
    assert bench.account().waiting == 1


def test_a_lossless_slot_waits_for_room(bench: Bench) -> None:
    """When its room is taken `put` waits until a lane takes something, and drops nothing."""
    queue = bench.queue(room=2, lossless=True)
    done = threading.Event()

    def fill() -> None:
        for _ in range(6):
            assert bench.put(queue)
        done.set()

    in_thread(fill)
    seen = []
    for _ in range(6):
        job = bench.take()
        seen.append(job.sample.seq)
        assert bench.account().waiting <= 3
        bench.board.finish(job, lambda: None)
    assert done.wait(PATIENCE)
    assert seen == list(range(6))
    assert sum(bench.account().dropped.values()) == 0


def test_a_capture_that_waits_for_room_goes_on_when_half_of_it_is_free(bench: Bench) -> None:
    """It is not woken for each frame that a lane takes."""
    queue = bench.queue(room=4, lossless=True)
    for _ in range(4):
        bench.put(queue)
    more = in_thread(lambda: bench.put(queue))
    jobs = [bench.take()]
    assert bench.account().captured == 4
    jobs.append(bench.take())
    more.join(PATIENCE)
    assert bench.account().captured == 5
    for job in jobs:
        bench.board.finish(job, lambda: None)


def test_frames_that_go_one_at_a_time_all_go_in_order(bench: Bench) -> None:
    """A lane is woken for each once the one before is done, and none is forgotten."""
    bench.model.in_order = True
    queue = bench.queue(room=4, lossless=True)
    seen: list[int] = []

    def lane() -> None:
        while (job := bench.board.take()) is not None:
            bench.board.finish(job, partial(seen.append, job.sample.seq))

    for _ in range(2):
        in_thread(lane)
    for _ in range(500):
        bench.put(queue)
    bench.board.wait_delivered(queue, threading.Event())
    bench.board.close()
    assert seen == list(range(500))


def test_the_oldest_goes_first(bench: Bench) -> None:
    """Among queues of one priority the capture that was read first is taken first."""
    late, early = bench.queue("late"), bench.queue("early")
    bench.put(late, since=2.0)
    bench.put(early, since=1.0)
    assert [bench.take().queue.name, bench.take().queue.name] == ["early", "late"]


def test_priority_goes_before_age(bench: Bench) -> None:
    """A queue of higher priority is served first, however old the others' captures are."""
    old, urgent = bench.queue("old"), bench.queue("urgent", priority=1)
    bench.put(old, since=1.0)
    bench.put(urgent, since=2.0)
    assert [bench.take().queue.name, bench.take().queue.name] == ["urgent", "old"]


def test_a_model_that_has_not_come_back_yet_takes_one_lane(bench: Bench) -> None:
    """One that computes for ever leaves the other lane to others, whatever uses it."""
    north, south, other = bench.queue("north"), bench.queue("south"), bench.queue("other")
    hangs = Served("hangs", first_at=None)
    north.route, south.route = FixedRoute(hangs), FixedRoute(hangs)
    bench.put(north, since=1.0)
    first = bench.take()
    assert first.model is hangs
    bench.put(north, since=2.0)
    bench.put(south, since=3.0)
    bench.put(other, since=4.0)
    assert bench.take().queue is other
    taken: list[str] = []
    lane = in_thread(lambda: taken.append(bench.take().queue.name))
    hangs.first_at = 5.0
    bench.board.finish(first, None)
    lane.join(PATIENCE)
    assert taken == ["north"]
    assert bench.take().queue is south


def test_what_is_older_than_the_deadline_is_dropped(bench: Bench) -> None:
    """A capture that waited too long is counted and not taken; the next one is."""
    queue = bench.queue(deadline=60.0)
    bench.put(queue, since=time.monotonic() - 61.0)
    other = bench.queue("other")
    bench.put(other, since=time.monotonic())
    assert bench.take().queue.name == "other"
    assert bench.account().dropped["deadline"] == 1
    bench.put(queue, since=time.monotonic())
    assert bench.take().sample.seq == 1


def test_a_frame_that_hangs_leaves_a_lane_to_the_others(bench: Bench) -> None:
    """A second frame of the same pipeline went into the other lane, and hung there as well."""
    bench.now = 0.0
    bench.board.lanes.most = 3  # each thread below is a lane that takes one frame
    hangs, other = bench.queue(room=4, lossless=True), bench.queue("other")
    bench.put(hangs)
    bench.put(hangs)
    first = bench.take()
    assert first.queue is hangs
    bench.now = 0.03
    bench.put(other)
    job = bench.take()
    assert job.queue is other, "30 ms are eight times what is usual, and more"
    bench.board.finish(job, None)
    taken: list[str] = []
    lane = in_thread(lambda: taken.append(bench.take().queue.name))
    bench.now = 100.0
    bench.put(other)
    lane.join(PATIENCE)
    assert taken == ["other"]
    lane = in_thread(lambda: taken.append(bench.take().queue.name))
    bench.board.finish(first, None)
    lane.join(PATIENCE)
    assert taken == ["other", "p"], "it has come back"


def test_what_was_cut_for_another_version_is_not_taken(bench: Bench) -> None:
    """Windows that waited at a swap were answered by a version that takes others."""
    queue = bench.queue(room=4, lossless=True)

    def made(cut: str | None, seq: int) -> Sample:
        return Sample(NOTHING, seq, 0, 0.0, cut=cut)

    for cut in ("old", "old", "m", None):
        bench.board.put(queue, partial(made, cut))
    jobs = [bench.take(), bench.take()]
    assert [job.sample.seq for job in jobs] == [2, 3]
    assert bench.account().dropped["partial"] == 2
    bench.board.put(queue, partial(made, "old"))
    other = bench.queue("other")
    bench.put(other)
    assert bench.take().queue is other
    assert bench.account().dropped["partial"] == 3


def test_without_a_model_nothing_is_taken(bench: Bench) -> None:
    """A queue whose model is not there yet is passed over; lanes see at once when it comes."""
    waiting, served = bench.queue("waiting"), bench.queue("served")
    waiting.route = FixedRoute(None)
    bench.put(waiting, since=1.0)
    bench.put(served, since=2.0)
    assert bench.take().queue.name == "served"
    taken: list[str] = []
    lane = in_thread(lambda: taken.append(bench.take().queue.name))
    with bench.board.boundary():
        waiting.route = FixedRoute(bench.model)
    lane.join(PATIENCE)
    assert taken == ["waiting"]


def test_results_leave_in_the_order_of_capture(bench: Bench) -> None:
    """Of two lanes the one that is done too early leaves its result to the other."""
    queue = bench.queue(room=3, lossless=True)
    for _ in range(3):
        bench.put(queue)
    first, second, third = bench.take(), bench.take(), bench.take()
    said: list[int] = []
    bench.board.finish(third, lambda: said.append(2))
    bench.board.finish(second, None)  # failed: leaves a gap, holds nobody up
    assert not said
    bench.board.finish(first, lambda: said.append(0))
    assert said == [0, 2]
    account = bench.account()
    assert (account.inferred, account.dropped["error"]) == (2, 1)


def test_two_lanes_keep_the_order_of_many(bench: Bench) -> None:
    """A thousand captures through two lanes come out in order, each once, whoever was quicker."""
    queue = bench.queue(room=4, lossless=True)
    said: list[int] = []
    ended = threading.Event()

    def lane(step: int) -> None:
        while (job := bench.board.take()) is not None:
            seq = job.sample.seq
            # Uneven work, so that lanes overtake each other.
            sum(range((seq * step) % 3000))
            bench.board.finish(job, lambda seq=seq: said.append(seq))  # type: ignore[misc]

    lanes = [in_thread(lambda step=step: lane(step)) for step in (7, 1000)]  # type: ignore[misc]
    for _ in range(1000):
        bench.put(queue)
    bench.board.wait_delivered(queue, ended)
    assert said == list(range(1000))
    assert bench.model.users == 0
    bench.board.close()
    for thread in lanes:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_model_in_use_is_not_drained(bench: Bench) -> None:
    """`drained` waits until the last frame has left the model, second stages included."""
    queue = bench.queue()
    other = Served("other")
    bench.put(queue)
    job = bench.take()
    assert not bench.board.drain([bench.model], 0.0)
    with bench.board.using(lambda: [other, None]) as models:
        assert models == [other, None]
        assert not bench.board.drain([other], 0.0)
        waited: list[bool] = []
        waiting = in_thread(lambda: waited.append(bool(bench.board.drain([other], PATIENCE))))
    waiting.join(PATIENCE)
    assert waited == [True]
    bench.board.finish(job, lambda: None)
    assert bench.board.drain([bench.model], 0.0)


def test_an_exchange_falls_between_two_frames(bench: Bench) -> None:
    """While the boundary is held no frame is taken; the next one gets the new model."""
    queue = bench.queue(room=2, lossless=True)
    new = Served("new")
    bench.put(queue)
    got: list[Served] = []
    with bench.board.boundary():
        lane = in_thread(lambda: got.append(bench.take().model))
        queue.route = FixedRoute(new)
        assert not got
    lane.join(PATIENCE)
    assert got == [new]
    assert (bench.model.users, new.users) == (0, 1)


def test_a_slot_that_is_removed_lets_everyone_go(bench: Bench) -> None:
    """A capture that waits for room, and one that waits for the end, give up."""
    queue = bench.queue(room=1, lossless=True)
    bench.put(queue)
    answers: list[object] = []
    waiting = in_thread(lambda: answers.append(bench.put(queue)))
    settling = in_thread(lambda: settle(bench, queue, answers))
    bench.board.remove(queue)
    waiting.join(PATIENCE)
    settling.join(PATIENCE)
    assert sorted(map(str, answers)) == ["False", "settled"]
    assert bench.board.accounts() == {}


def test_a_job_that_outlives_its_slot_can_be_finished(bench: Bench) -> None:
    """A frame that was under way when its pipeline went still lets go of its model."""
    queue = bench.queue()
    bench.put(queue)
    job = bench.take()
    bench.board.remove(queue)
    bench.board.finish(job, lambda: None)
    assert bench.model.users == 0


def test_closed_it_lets_everyone_go(bench: Bench) -> None:
    """Lanes get None, captures False, once the board is closed."""
    queue = bench.queue(room=1, lossless=True)
    bench.put(queue)
    bench.take()
    bench.put(queue)
    answers: list[object] = []
    queue.route = FixedRoute(None)
    threads = [
        in_thread(lambda: answers.append(bench.board.take())),
        in_thread(lambda: answers.append(bench.put(queue))),
    ]
    bench.board.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(answers) == {None, False}


def test_settled_waits_for_what_is_under_way(bench: Bench) -> None:
    """A source that has ended is settled when its last result was handed over, not before."""
    queue = bench.queue(room=2, lossless=True)
    bench.put(queue)
    bench.put(queue)
    order: list[str] = []
    jobs = [bench.take(), bench.take()]
    settling = in_thread(lambda: settle(bench, queue, order))
    bench.board.finish(jobs[1], lambda: order.append("second"))
    bench.board.finish(jobs[0], lambda: order.append("first"))
    settling.join(PATIENCE)
    assert order == ["first", "second", "settled"]


class BoardMachine(RuleBasedStateMachine):
    """Whatever order things happen in, the accounts add up and results leave in order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 10_000.0
        # It stands: no frame takes any time, so that nobody is ahead of its share.
        self.bench = Bench(now=self.clock)
        self.queues = [
            self.bench.queue("live"),
            self.bench.queue("late", deadline=1000.0),
            self.bench.queue("folder", room=3, lossless=True, priority=1),
        ]
        self.jobs: list[Job[Served]] = []
        self.said: dict[str, list[int]] = {queue.name: [] for queue in self.queues}

    def room_for(self, queue: FrameQueue[Served]) -> bool:
        """Whether `put` would not wait."""
        return not queue.lossless or len(queue.frames) < queue.room

    @rule(index=st.integers(0, 2), age=st.sampled_from([0.0, 10.0, 5000.0]))
    def put(self, index: int, age: float) -> None:
        """Capture something, perhaps long ago."""
        queue = self.queues[index]
        if self.room_for(queue):
            before = queue.seq
            assert self.bench.put(queue, self.clock - age)
            assert queue.seq == before + 1

    @rule(index=st.integers(0, 2), reason=st.sampled_from(REASONS))
    def skip(self, index: int, reason: str) -> None:
        """Drop something at the source."""
        self.bench.board.drop(self.queues[index], reason)  # type: ignore[arg-type]

    def takeable(self) -> list[FrameQueue[Served]]:
        """Give the queues of which a lane could take something: waiting and not too old."""
        return [
            queue
            for queue in self.queues
            if queue.frames and not (queue.deadline and self.clock - queue.frames[0].since > 1000)
        ]

    @precondition(lambda self: self.takeable())
    @rule()
    def take(self) -> None:
        """Have a lane take what is next: of the highest priority, the oldest."""
        fits = self.takeable()
        most = max(queue.share.priority for queue in fits)
        oldest = min(queue.frames[0].since for queue in fits if queue.share.priority == most)
        job = self.bench.take()
        assert (job.queue.share.priority, job.sample.since) == (most, oldest)
        self.jobs.append(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), good=st.booleans())
    def finish(self, data: st.DataObject, *, good: bool) -> None:
        """Have any lane finish, well or not."""
        job = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        name, seq = job.queue.name, job.sample.seq
        if good:
            self.bench.board.finish(job, lambda: self.said[name].append(seq))
        else:
            self.bench.board.finish(job, None)

    @invariant()
    def accounts_add_up(self) -> None:
        """Nothing is lost or counted twice."""
        for queue in self.queues:
            account = self.bench.account(queue.name)
            assert account.captured == queue.seq
            under_way = sum(job.queue is queue for job in self.jobs)
            assert account.waiting == len(queue.frames) + under_way
        assert self.bench.model.users == len(self.jobs)

    @invariant()
    def results_are_in_order(self) -> None:
        """See that results leave in the order of capture, each once, none before an older one."""
        for queue in self.queues:
            said = self.said[queue.name]
            assert said == sorted(set(said))
            under_way = [job.sample.seq for job in self.jobs if job.queue is queue]
            assert not said or not under_way or said[-1] < min(under_way)

    def teardown(self) -> None:
        """Finish all, and see that everything has been said."""
        while self.jobs:
            job = self.jobs.pop()
            name, seq = job.queue.name, job.sample.seq
            self.bench.board.finish(
                job,
                lambda name=name, seq=seq: self.said[name].append(seq),  # type: ignore[misc]
            )
        for queue in self.queues:
            account = self.bench.account(queue.name)
            assert len(self.said[queue.name]) == account.inferred
            assert self.said[queue.name] == sorted(self.said[queue.name])


TestBoardMachine = BoardMachine.TestCase
TestBoardMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_comes_after_the_end_of_results_is_not_delivered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that hangs in its model keeps nothing open, and its late result is no surprise."""
    monkeypatch.setattr("edge_agent.runtime.scheduler.board.RESULT_SECONDS", 0.0)
    queue = bench.queue(room=2, lossless=True)
    for _ in range(2):
        bench.put(queue)
    hangs, later = bench.take(), bench.take()
    delivered: list[str] = []
    bench.board.finish(later, lambda: delivered.append("later"))
    bench.board.end_results([queue])
    bench.board.finish(hangs, lambda: delivered.append("hangs"))
    assert delivered == []
    assert queue.at_rest


def test_a_lane_does_not_run_away_from_one_that_hands_results_over() -> None:
    """While one delivery lasts, few more frames are taken; all are delivered in order, then."""
    bench = Bench()
    queue, count = bench.queue(room=4, lossless=True), 500
    may_go, done = threading.Event(), threading.Event()
    taken: list[int] = []
    delivered: list[int] = []

    def deliver(seq: int) -> None:
        assert may_go.wait(PATIENCE)
        delivered.append(seq)
        if len(delivered) == count:
            done.set()

    def lane() -> None:
        while (job := bench.board.take()) is not None:
            taken.append(job.sample.seq)
            bench.board.finish(job, partial(deliver, job.sample.seq))

    def capture() -> None:
        for _ in range(count):
            bench.board.put(queue, lambda seq: Sample(NOTHING, seq, 0, time.monotonic()))

    threads = [threading.Thread(target=work) for work in (capture, lane, lane)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    while len(taken) <= MOST_RESULTS and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    assert len(taken) == MOST_RESULTS + 1
    may_go.set()
    assert done.wait(PATIENCE)
    bench.board.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert delivered == list(range(count))


@pytest.mark.parametrize("how", ["rate", "superseded", "deadline", "error"])
def test_a_gap_is_not_forgotten_with_the_capture_that_came_after_it(how: Reason) -> None:
    """Rules and models with a state went on over a gap whose first window gave no result."""
    bench = Bench(now=0.0)
    queue = bench.queue(room=2 if how == "deadline" else 1, deadline=5.0)

    def put(*, follows: bool) -> None:
        now = bench.clock()
        bench.board.put(queue, lambda seq: Sample(NOTHING, seq, 0, now, follows=follows))

    if how == "rate":
        bench.board.drop(queue, "rate", follows=False)
    else:
        put(follows=False)
    if how == "error":
        bench.board.finish(bench.take(), None)
    bench.now = 10.0 if how == "deadline" else 0.0
    put(follows=True)
    assert not bench.take().sample.follows
    assert bench.account().dropped[how] == 1
    put(follows=True)
    assert bench.take().sample.follows


@pytest.mark.parametrize("waits", [True, False])
def test_a_gap_before_a_dropped_capture_is_not_given_to_an_older_one_that_waits(
    waits: bool,
) -> None:
    """A row from before the gap took it, and the rules went on over it with the row after it."""
    bench = Bench(now=0.0)
    queue = bench.queue(room=2)

    def put(*, follows: bool) -> None:
        bench.board.put(queue, lambda seq: Sample(NOTHING, seq, 0, 0.0, follows=follows))

    put(follows=True)
    job = None if waits else bench.take()
    bench.board.drop(queue, "rate", follows=False)
    put(follows=True)
    assert (job or bench.take()).sample.follows
    put(follows=True)
    put(follows=True)  # supersedes the one after the gap
    assert [bench.take().sample.follows for _ in range(2)] == [False, True]
