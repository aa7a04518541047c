"""The board: who waits, who gives way, who goes first, and that every capture is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge_agent.core.types import Sample
from edge_agent.inference.cost import Cost
from edge_agent.runtime.scheduler.board import REASONS, Account, Board, Job, Slot
from tests.helpers.support import PATIENCE

NOTHING = np.zeros(1, np.float32)


@dataclass
class Served:
    """Stands where a model stands."""

    name: str = "m"
    users: int = 0
    together: int = 1
    cost: Cost = field(default_factory=Cost)


@dataclass
class Bench:
    """A board with slots that all use one model."""

    model: Served = field(default_factory=Served)
    now: float | None = None
    """What the board's clock says; None: it runs."""
    board: Board[Served] = field(init=False)

    def __post_init__(self) -> None:
        self.board = Board(clock=self.clock)

    def clock(self) -> float:
        """Tell the time."""
        return time.monotonic() if self.now is None else self.now

    def slot(
        self,
        name: str = "p",
        *,
        room: int = 1,
        lossless: bool = False,
        priority: int = 0,
        deadline: float = 0.0,
    ) -> Slot[Served]:
        """Add a slot."""
        slot: Slot[Served] = Slot(
            name, room=room, lossless=lossless, priority=priority, deadline=deadline
        )
        slot.pick = lambda: self.model
        self.board.add(slot)
        return slot

    def put(self, slot: Slot[Served], since: float = 0.0) -> bool:
        """Put a capture that was read at *since*."""
        return self.board.put(slot, lambda seq: Sample(NOTHING, seq, 0, since))

    def take(self) -> Job[Served]:
        """Take a job that is there."""
        job = self.board.take()
        assert job is not None
        return job

    def account(self, name: str = "p") -> Account:
        """Give a slot's account, which must add up."""
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


def settle(bench: Bench, slot: Slot[Served], said: list[Any]) -> None:
    """Wait until a slot is settled, and say so."""
    bench.board.settled(slot, threading.Event())
    said.append("settled")


def test_the_newest_wins(bench: Bench) -> None:
    """A live slot keeps its latest capture; those before are counted as superseded."""
    slot = bench.slot()
    for _ in range(5):
        assert bench.put(slot)
    assert bench.account().waiting == 1
    job = bench.take()
    assert job.sample.seq == 4
    assert bench.account().dropped["superseded"] == 4
    bench.board.finish(job, lambda: None)
    account = bench.account()
    assert (account.captured, account.inferred, account.waiting) == (5, 1, 0)


def test_a_frame_that_is_being_inferred_still_waits(bench: Bench) -> None:
    """What a lane has taken counts as waiting until it is finished."""
    slot = bench.slot()
    bench.put(slot)
    job = bench.take()
    assert bench.account().waiting == 1
    bench.put(slot)
    assert bench.account().waiting == 2
    assert bench.account().dropped["superseded"] == 0
    bench.board.finish(job, lambda: None)
    assert bench.account().waiting == 1


def test_a_lossless_slot_waits_for_room(bench: Bench) -> None:
    """When its room is taken `put` waits until a lane takes something, and drops nothing."""
    slot = bench.slot(room=2, lossless=True)
    done = threading.Event()

    def fill() -> None:
        for _ in range(6):
            assert bench.put(slot)
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


def test_the_oldest_goes_first(bench: Bench) -> None:
    """Among slots of one priority the capture that was read first is taken first."""
    late, early = bench.slot("late"), bench.slot("early")
    bench.put(late, since=2.0)
    bench.put(early, since=1.0)
    assert [bench.take().slot.name, bench.take().slot.name] == ["early", "late"]


def test_priority_goes_before_age(bench: Bench) -> None:
    """A slot of higher priority is served first, however old the others' captures are."""
    old, urgent = bench.slot("old"), bench.slot("urgent", priority=1)
    bench.put(old, since=1.0)
    bench.put(urgent, since=2.0)
    assert [bench.take().slot.name, bench.take().slot.name] == ["urgent", "old"]


def test_what_is_older_than_the_deadline_is_dropped(bench: Bench) -> None:
    """A capture that waited too long is counted and not taken; the next one is."""
    slot = bench.slot(deadline=60.0)
    bench.put(slot, since=time.monotonic() - 61.0)
    other = bench.slot("other")
    bench.put(other, since=time.monotonic())
    assert bench.take().slot.name == "other"
    assert bench.account().dropped["deadline"] == 1
    bench.put(slot, since=time.monotonic())
    assert bench.take().sample.seq == 1


def test_without_a_model_nothing_is_taken(bench: Bench) -> None:
    """A slot whose model is not there yet is passed over; lanes see at once when it comes."""
    waiting, served = bench.slot("waiting"), bench.slot("served")
    waiting.pick = lambda: None
    bench.put(waiting, since=1.0)
    bench.put(served, since=2.0)
    assert bench.take().slot.name == "served"
    taken: list[str] = []
    lane = in_thread(lambda: taken.append(bench.take().slot.name))
    with bench.board.boundary():
        waiting.pick = lambda: bench.model
    lane.join(PATIENCE)
    assert taken == ["waiting"]


def test_results_leave_in_the_order_of_capture(bench: Bench) -> None:
    """Of two lanes the one that is done too early leaves its result to the other."""
    slot = bench.slot(room=3, lossless=True)
    for _ in range(3):
        bench.put(slot)
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
    slot = bench.slot(room=4, lossless=True)
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
        bench.put(slot)
    bench.board.settled(slot, ended)
    assert said == list(range(1000))
    assert bench.model.users == 0
    bench.board.close()
    for thread in lanes:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_model_in_use_is_not_drained(bench: Bench) -> None:
    """`drained` waits until the last frame has left the model, second stages included."""
    slot = bench.slot()
    other = Served("other")
    bench.put(slot)
    job = bench.take()
    assert not bench.board.drained(bench.model, 0.0)
    with bench.board.using(lambda: [other, None]) as models:
        assert models == [other, None]
        assert not bench.board.drained(other, 0.0)
        waited: list[bool] = []
        waiting = in_thread(lambda: waited.append(bench.board.drained(other, PATIENCE)))
    waiting.join(PATIENCE)
    assert waited == [True]
    bench.board.finish(job, lambda: None)
    assert bench.board.drained(bench.model, 0.0)


def test_an_exchange_falls_between_two_frames(bench: Bench) -> None:
    """While the boundary is held no frame is taken; the next one gets the new model."""
    slot = bench.slot(room=2, lossless=True)
    new = Served("new")
    bench.put(slot)
    got: list[Served] = []
    with bench.board.boundary():
        lane = in_thread(lambda: got.append(bench.take().model))
        slot.pick = lambda: new
        assert not got
    lane.join(PATIENCE)
    assert got == [new]
    assert (bench.model.users, new.users) == (0, 1)


def test_a_slot_that_is_removed_lets_everyone_go(bench: Bench) -> None:
    """A capture that waits for room, and one that waits for the end, give up."""
    slot = bench.slot(room=1, lossless=True)
    bench.put(slot)
    answers: list[object] = []
    waiting = in_thread(lambda: answers.append(bench.put(slot)))
    settling = in_thread(lambda: settle(bench, slot, answers))
    bench.board.remove(slot)
    waiting.join(PATIENCE)
    settling.join(PATIENCE)
    assert sorted(map(str, answers)) == ["False", "settled"]
    assert bench.board.accounts() == {}


def test_a_job_that_outlives_its_slot_can_be_finished(bench: Bench) -> None:
    """A frame that was under way when its pipeline went still lets go of its model."""
    slot = bench.slot()
    bench.put(slot)
    job = bench.take()
    bench.board.remove(slot)
    bench.board.finish(job, lambda: None)
    assert bench.model.users == 0


def test_closed_it_lets_everyone_go(bench: Bench) -> None:
    """Lanes get None, captures False, once the board is closed."""
    slot = bench.slot(room=1, lossless=True)
    bench.put(slot)
    bench.take()
    bench.put(slot)
    answers: list[object] = []
    slot.pick = lambda: None
    threads = [
        in_thread(lambda: answers.append(bench.board.take())),
        in_thread(lambda: answers.append(bench.put(slot))),
    ]
    bench.board.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(answers) == {None, False}


def test_settled_waits_for_what_is_under_way(bench: Bench) -> None:
    """A source that has ended is settled when its last result was handed over, not before."""
    slot = bench.slot(room=2, lossless=True)
    bench.put(slot)
    bench.put(slot)
    order: list[str] = []
    jobs = [bench.take(), bench.take()]
    settling = in_thread(lambda: settle(bench, slot, order))
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
        self.slots = [
            self.bench.slot("live"),
            self.bench.slot("late", deadline=1000.0),
            self.bench.slot("folder", room=3, lossless=True, priority=1),
        ]
        self.jobs: list[Job[Served]] = []
        self.said: dict[str, list[int]] = {slot.name: [] for slot in self.slots}

    def room_for(self, slot: Slot[Served]) -> bool:
        """Whether `put` would not wait."""
        return not slot.lossless or len(slot.queue) < slot.room

    @rule(index=st.integers(0, 2), age=st.sampled_from([0.0, 10.0, 5000.0]))
    def put(self, index: int, age: float) -> None:
        """Capture something, perhaps long ago."""
        slot = self.slots[index]
        if self.room_for(slot):
            before = slot.seq
            assert self.bench.put(slot, self.clock - age)
            assert slot.seq == before + 1

    @rule(index=st.integers(0, 2), reason=st.sampled_from(REASONS))
    def skip(self, index: int, reason: str) -> None:
        """Drop something at the source."""
        self.bench.board.skip(self.slots[index], reason)  # type: ignore[arg-type]

    def takeable(self) -> list[Slot[Served]]:
        """Give the slots of which a lane could take something: waiting and not too old."""
        return [
            slot
            for slot in self.slots
            if slot.queue and not (slot.deadline and self.clock - slot.queue[0].since > 1000)
        ]

    @precondition(lambda self: self.takeable())
    @rule()
    def take(self) -> None:
        """Have a lane take what is next: of the highest priority, the oldest."""
        fits = self.takeable()
        most = max(slot.share.priority for slot in fits)
        oldest = min(slot.queue[0].since for slot in fits if slot.share.priority == most)
        job = self.bench.take()
        assert (job.slot.share.priority, job.sample.since) == (most, oldest)
        self.jobs.append(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), good=st.booleans())
    def finish(self, data: st.DataObject, *, good: bool) -> None:
        """Have any lane finish, well or not."""
        job = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        name, seq = job.slot.name, job.sample.seq
        if good:
            self.bench.board.finish(job, lambda: self.said[name].append(seq))
        else:
            self.bench.board.finish(job, None)

    @invariant()
    def accounts_add_up(self) -> None:
        """Nothing is lost or counted twice."""
        for slot in self.slots:
            account = self.bench.account(slot.name)
            assert account.captured == slot.seq
            under_way = sum(job.slot is slot for job in self.jobs)
            assert account.waiting == len(slot.queue) + under_way
        assert self.bench.model.users == len(self.jobs)

    @invariant()
    def results_are_in_order(self) -> None:
        """See that results leave in the order of capture, each once, none before an older one."""
        for slot in self.slots:
            said = self.said[slot.name]
            assert said == sorted(set(said))
            under_way = [job.sample.seq for job in self.jobs if job.slot is slot]
            assert not said or not under_way or said[-1] < min(under_way)

    def teardown(self) -> None:
        """Finish all, and see that everything has been said."""
        while self.jobs:
            job = self.jobs.pop()
            name, seq = job.slot.name, job.sample.seq
            self.bench.board.finish(
                job,
                lambda name=name, seq=seq: self.said[name].append(seq),  # type: ignore[misc]
            )
        for slot in self.slots:
            account = self.bench.account(slot.name)
            assert len(self.said[slot.name]) == account.inferred
            assert self.said[slot.name] == sorted(self.said[slot.name])


TestBoardMachine = BoardMachine.TestCase
TestBoardMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
