"""Threads that live and die together, and the one queue of reasons to stop.

Knows nothing of what the threads do.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Self

from .frozen import record

log = logging.getLogger(__name__)


@record
class Stop:
    """Why the agent ends."""

    reason: str
    error: BaseException | None = None
    asked: bool = False
    """By a signal or a command, not by a failure."""
    restart: bool = False
    """The agent is started again in the same place."""


class Stops:
    """Where everyone leaves a reason to stop, or a wish to be woken; the main thread waits here.

    SimpleQueue because its `put` is reentrant: a signal may land while the main thread holds the
    lock of any other queue.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Stop | Callable[[], None]] = SimpleQueue()
        self.signalled: Stop | None = None
        """A signal has asked to end, whatever other reason there may be besides."""

    def put(self, stop: Stop) -> None:
        self._queue.put(stop)

    def call(self, work: Callable[[], None]) -> None:
        """Have the main thread do *work* at its next turn."""
        self._queue.put(work)

    def wait(self, tick: Callable[[], float]) -> Stop:
        """Call *tick* whenever the seconds that it returns are over, until there is a reason."""
        while True:
            pause = tick()
            try:
                item = self._queue.get(timeout=max(0.0, pause))
            except Empty:
                continue
            if isinstance(item, Stop):
                return item
            if self.signalled is not None:
                return self.signalled  # it does not wait for what was asked for before it
            item()


class Crew:
    """Threads that live and die together.

    The first member to fail is a reason to stop the whole agent: systemd restarts a dead daemon,
    nothing restarts half a live one.
    """

    def __init__(self, stops: Stops, patience: float = 2.0) -> None:
        self._stops = stops
        self._patience = patience
        self._threads: list[threading.Thread] = []
        self.left_behind = False
        """Somebody did not come back from native code in time."""

    def spawn(self, name: str, work: Callable[[], object]) -> threading.Thread:
        """Start *work* in a thread; that it ends is all right, that it fails is not."""

        def body() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - reported, not swallowed
                self._stops.put(Stop(f"{name} crashed", error))

        # A daemon thread, so that a read stuck in a driver cannot keep us from exiting.
        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads = [member for member in self._threads if member.is_alive()]
        self._threads.append(thread)
        thread.start()
        return thread

    def abandon(self, thread: threading.Thread) -> None:
        """Stop waiting for a member that is stuck in native code."""
        self._threads = [member for member in self._threads if member is not thread]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + self._patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.left_behind = True
                # Nothing is wrong: a model that is being loaded cannot be told to stop.
                log.info("%s is still in native code; leaving it behind", thread.name)


def stop_on_signals(stops: Stops, reload: Callable[[], None]) -> None:
    """SIGTERM and SIGINT ask to stop, once; SIGHUP asks to read the settings again.

    Many SIGHUPs are one, until the reading begins: what is read then is the newest.
    """
    waits = False

    def ask(number: int, _frame: object) -> None:
        # Whoever asks twice gets no more than that, and an end in the middle of goodbye would be
        # less. By the system, for Python goes back to the default before the process has ended.
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        if stops.signalled is None:
            stops.signalled = Stop(signal.Signals(number).name, asked=True)
            stops.put(stops.signalled)

    def again() -> None:
        nonlocal waits
        waits = False
        reload()

    def ask_again(_number: int, _frame: object) -> None:
        nonlocal waits
        if not waits:
            waits = True
            stops.call(again)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    signal.signal(signal.SIGHUP, ask_again)


def stop_on_dead_threads(stops: Stops) -> None:
    """Notice when threads that are not ours die.

    When a callback raises, paho's does, and paho goes on saying that it is connected.
    """

    def died(dead: threading.ExceptHookArgs) -> None:
        name = dead.thread.name if dead.thread else "a thread"
        stops.put(Stop(f"{name} died", dead.exc_value))

    threading.excepthook = died
