"""The queue of wishes and reasons to stop that the main thread works through."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from edge_agent.core.threads import ShutdownQueue, ThreadGroup, stop_on_signals

ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture
def stops() -> Iterator[ShutdownQueue]:
    """Have what signals do put back at the end."""
    before = [signal.getsignal(number) for number in ASKED]
    yield ShutdownQueue()
    for number, handler in zip(ASKED, before, strict=True):
        signal.signal(number, handler)


def test_many_wishes_to_reload_are_one_until_it_begins(stops: ShutdownQueue) -> None:
    """Who asks while settings are being read may have written them since; others are served."""
    reloads: list[int] = []

    def reload() -> None:
        reloads.append(len(reloads))
        if len(reloads) == 1:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
        else:
            stops.call(partial(signal.raise_signal, signal.SIGTERM))

    stop_on_signals(stops, reload)
    for _ in range(5):
        signal.raise_signal(signal.SIGHUP)
    stop = stops.wait(lambda: 1.0)
    assert (stop.reason, stop.asked) == ("SIGTERM", True)
    assert reloads == [0, 1]


def test_an_end_goes_before_what_was_asked_for_earlier(stops: ShutdownQueue) -> None:
    """SIGTERM does not wait until all settings have been read that were to be read before it."""
    done: list[str] = []
    stop_on_signals(stops, lambda: done.append("reload"))
    stops.call(partial(signal.raise_signal, signal.SIGTERM))
    stops.call(lambda: done.append("work"))
    signal.raise_signal(signal.SIGHUP)
    assert stops.wait(lambda: 1.0).reason == "SIGTERM"
    assert not done


def test_a_thread_that_the_system_does_not_allow_yet_is_started_later(stops: ShutdownQueue) -> None:
    """A reload while TasksMax was reached ended the agent; a start without threads still fails."""
    done = threading.Event()
    with ThreadGroup(stops) as threads:
        before = threading.stack_size(1 << 46)  # which no machine has
        try:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                threads.spawn("lane", done.set)
            threads.spawn("loader", done.set, patient=True)
            threads.start_waiting()
            assert not done.is_set()
            (why,) = threads.problems()
            assert why.startswith("threads: not started yet: loader (1): the system allows no")
        finally:
            threading.stack_size(before)
        threads.start_waiting()
        assert done.wait(10)
        assert threads.problems() == []
    assert not stops.begun
